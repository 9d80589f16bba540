//! Which shards are due, and the tour of them.

use std::collections::BTreeSet;
use std::time::Instant;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::backoff::DUE;
use super::index::{Keys, Parameter, Way, highest, in_order};
use super::statements::{Run, SETTINGS, Statements};
use super::visit::{Ended, How, Visited};
use super::{DeliveryError, Drain, DrainError, Undelivered};
use crate::message::Shard;
use crate::silo::{Silo, Target};
use crate::table::Table;

/// Shards that one query looks at.
const SHARDS_AT_ONCE: i32 = 500;

/// Errors that a report carries; more are counted.
const ERRORS_KEPT: usize = 20;

/// A range of ids, both ends included. Drained with it are the shards that have a message in it; one
/// that has messages in several is drained by whoever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Partition {
    /// The lowest id.
    pub low: i64,
    /// The highest id.
    pub high: i64,
}

impl Partition {
    /// Every id.
    pub const ALL: Self = Self {
        low: i64::MIN,
        high: i64::MAX,
    };

    /// Cuts a range of ids into so many parts. The outer ones are open, so that a row that is
    /// written meanwhile is in one of them.
    #[must_use]
    pub fn cut(lowest: i64, highest: i64, parts: u32) -> Vec<Self> {
        let parts = i128::from(parts.max(1));
        let (first, last) = (i128::from(lowest), i128::from(highest));
        let width = (last - first + 1).max(1);
        let edge = |n: i128| i64::try_from(first + width * n / parts).unwrap_or(i64::MAX);
        (0..parts)
            .map(|n| Self {
                low: if n == 0 { i64::MIN } else { edge(n) },
                high: if n == parts - 1 {
                    i64::MAX
                } else {
                    edge(n + 1).saturating_sub(1)
                },
            })
            .filter(|part| part.low <= part.high)
            .collect()
    }
}

/// What a drain did.
#[derive(Debug, Default)]
pub struct Report {
    /// Shards in which it was at work.
    pub shards: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Older messages deleted with them.
    pub coalesced: u64,
    /// Shards in which another drain was at work.
    pub busy: u64,
    /// Shards that are switched off.
    pub skipped: u64,
    /// Messages that could not be delivered, each at the head of its shard.
    pub failed: u64,
    /// Why, of the first of them.
    pub errors: Vec<DeliveryError>,
}

impl Report {
    /// Adds a visit; returns the shards that its receivers wrote to.
    pub(super) fn add<S: Silo>(&mut self, visited: Visited<S>) -> Vec<Shard<S>> {
        self.delivered += visited.delivered;
        self.coalesced += visited.coalesced;
        match visited.ended {
            Ended::Busy => self.busy += 1,
            Ended::NotDue => {}
            Ended::Empty | Ended::Bound | Ended::Stopped => self.shards += 1,
            Ended::Failed(error) => {
                self.shards += 1;
                self.fail(*error);
            }
        }
        visited.followed
    }

    fn fail(&mut self, error: DeliveryError) {
        self.failed += 1;
        if self.errors.len() < ERRORS_KEPT {
            self.errors.push(error);
        }
    }

    /// Adds another report.
    pub fn merge(&mut self, other: Self) {
        self.shards += other.shards;
        self.delivered += other.delivered;
        self.coalesced += other.coalesced;
        self.busy += other.busy;
        self.skipped += other.skipped;
        self.failed += other.failed;
        let room = ERRORS_KEPT.saturating_sub(self.errors.len());
        self.errors.extend(other.errors.into_iter().take(room));
    }
}

/// A shard as the walk meets it.
struct Found<S: Silo> {
    shard: Shard<S>,
    head: i64,
    due: bool,
}

/// The shards that are switched off, and since when that is known.
struct Switches {
    off: BTreeSet<(i32, i64)>,
    read_at: Instant,
}

impl Switches {
    async fn read<S: Silo>(drain: &Drain<S>, client: &Client) -> Result<Self, DrainError> {
        let read_at = Instant::now();
        let off = drain.skipped(client).await?;
        Ok(Self { off, read_at })
    }
}

/// What is asked between visits.
#[derive(Debug)]
pub(super) struct Lookups {
    /// The next shards.
    pub(super) shards: String,
    /// The lowest and the highest id of all.
    pub(super) ids: String,
    /// The highest id of a shard.
    pub(super) highest: String,
}

impl Lookups {
    pub(super) fn new<S: Silo>(table: &Table<S>) -> Self {
        let name = table.name().sql();
        Self {
            shards: shards(&name, &Keys::new(table)),
            ids: format!("select min(id), max(id) from {name}"),
            highest: highest(table),
        }
    }
}

/// Where the walk stands: behind every message of this shard.
struct Cursor {
    target: Option<String>,
    scope: i32,
    identifier: i64,
    id: i64,
}

/// The next shards in the order of the index, the head of each, whether it is due, and whether it has
/// a message in a range of ids. Parameters: a shard, an id, how many, the lowest and the highest id.
///
/// Skips from shard to shard, so that a shard costs two steps whatever its depth.
fn shards(name: &str, keys: &Keys) -> String {
    let n = keys.next;
    let (id, limit, low, high) = (n, n + 1, n + 2, n + 3);
    let (columns, values) = (keys.columns.join(", "), keys.values.join(", "));
    let of_walk = keys.columns.iter();
    let of_walk: Vec<String> = of_walk.map(|column| format!("walk.{column}")).collect();
    // From the lowest id of the partition on.
    let inside = in_order(&keys.columns, &of_walk, Way::Up)
        .replace(&i64::MIN.to_string(), &format!("${low}::int8"));
    format!(
        "with recursive walk as (
            select * from (
                select {columns}, id, scheduled_for, 1 as place from {name}
                where ({columns}, id) > ({values}, ${id}::int8)
                order by {columns}, id limit 1
            ) as first
            union all
            select next.*, walk.place + 1 from walk cross join lateral (
                select {columns}, id, scheduled_for from {name}
                where ({columns}, id) > ({of_walk}, {max})
                order by {columns}, id limit 1
            ) as next
            where walk.place < ${limit}::int4
        )
        select {columns}, id::int8, {DUE} as due, coalesce((
            select id <= ${high}::int8 from {name} {inside} limit 1
        ), false) as inside
        from walk order by place",
        of_walk = of_walk.join(", "),
        max = i64::MAX,
    )
}

impl Cursor {
    /// Before every message.
    fn start<S: Silo>() -> Self {
        Self {
            target: S::TARGETED.then(String::new),
            scope: i32::MIN,
            identifier: i64::MIN,
            id: i64::MIN,
        }
    }
}

impl<S: Silo> Drain<S> {
    /// The ids in the table, cut into so many partitions; none where it is empty.
    ///
    /// # Errors
    ///
    /// When the server fails.
    pub async fn partitions(
        &self,
        client: &Client,
        parts: u32,
    ) -> Result<Vec<Partition>, DrainError> {
        Ok(match self.id_range(client).await? {
            Some((lowest, highest)) => Partition::cut(lowest, highest, parts),
            None => Vec::new(),
        })
    }

    /// Delivers every shard of a partition that is due, giving way to drains that are at work.
    ///
    /// # Errors
    ///
    /// When the server fails. A message that cannot be delivered is in the report, and logged.
    pub async fn partition(
        &self,
        client: &mut Client,
        partition: Partition,
    ) -> Result<Report, DrainError> {
        if !self.settings.prepare {
            return self.tour(client, &self.statements, partition).await;
        }
        let prepared = self.statements.prepare(client).await;
        let prepared = prepared.map_err(self.server("prepare the drain of"))?;
        self.tour(client, &prepared, partition).await
    }

    async fn tour(
        &self,
        client: &mut Client,
        statements: &Statements<impl Run>,
        partition: Partition,
    ) -> Result<Report, DrainError> {
        let mut report = Report::default();
        let mut cursor = Cursor::start::<S>();
        let mut switches = Switches::read(self, client).await?;
        while !self.stop.is_cancelled() {
            let (found, next) = self.page(client, &cursor, partition, &mut report).await?;
            for found in found {
                if switches.read_at.elapsed() >= self.settings.switches_for {
                    switches = Switches::read(self, client).await?;
                }
                self.visit_found(client, statements, found, &switches.off, &mut report)
                    .await?;
            }
            match next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        Ok(report)
    }

    /// Delivers everything that is there, due or not: for tests. One round: what receivers write
    /// meanwhile may be left.
    pub(crate) async fn everything(&self, client: &mut Client) -> Result<Report, DrainError> {
        let mut report = Report::default();
        let mut cursor = Cursor::start::<S>();
        loop {
            let (found, next) = self
                .page(client, &cursor, Partition::ALL, &mut report)
                .await?;
            for found in found {
                let (statements, shard) = (&self.statements, &found.shard);
                let visited = self.visit(client, statements, shard, How::AtCommit).await?;
                report.add(visited);
            }
            match next {
                Some(next) => cursor = next,
                None => return Ok(report),
            }
        }
    }

    /// The depth of the deepest shard, as far as its first `most` messages show.
    pub(crate) async fn deepest(&self, client: &Client, most: u32) -> Result<i64, DrainError> {
        let keys = self.table.shard_columns().join(", ");
        let depth = format!(
            "select coalesce(max(depth), 0) from (select count(*) as depth from \
             (select {keys} from {} limit {most}) as counted group by {keys}) as shard",
            self.table.name().sql()
        );
        let rows = client.query_typed(&depth, &[]).await;
        let rows = rows.map_err(self.server("measure the shards of"))?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    /// The lowest and the highest id.
    pub(crate) async fn id_range(&self, client: &Client) -> Result<Option<(i64, i64)>, DrainError> {
        let rows = client.query_typed(&self.lookups.ids, &[]).await;
        let rows = rows.map_err(self.server("read the ids of"))?;
        let range = rows.first().map(|row| (row.get(0), row.get(1)));
        Ok(match range {
            Some((Some(lowest), Some(highest))) => Some((lowest, highest)),
            _ => None,
        })
    }

    async fn visit_found(
        &self,
        client: &mut Client,
        statements: &Statements<impl Run>,
        found: Found<S>,
        off: &BTreeSet<(i32, i64)>,
        report: &mut Report,
    ) -> Result<(), DrainError> {
        if off.contains(&(found.shard.scope, found.shard.identifier)) {
            report.skipped += 1;
        } else if found.due && !self.stop.is_cancelled() {
            let shard = &found.shard;
            let visited = self
                .visit(client, statements, shard, How::Scheduled)
                .await?;
            // A shard that a receiver wrote to is due, and met by this walk or the next.
            report.add(visited);
        }
        Ok(())
    }

    /// The next shards of a partition, and where to go on. By their oldest message; but each of
    /// several partitions has an order of its own, so that drains beside each other do not meet at
    /// every shard.
    async fn page(
        &self,
        client: &mut Client,
        cursor: &Cursor,
        partition: Partition,
        report: &mut Report,
    ) -> Result<(Vec<Found<S>>, Option<Cursor>), DrainError> {
        let rows = self.page_rows(client, cursor, partition).await?;
        let mut found = Vec::new();
        let mut next = None;
        for row in &rows {
            let (place, head, due, inside) = place_of::<S>(row);
            match S::Target::from_row(place.target.clone()) {
                Some(target) if inside => found.push(Found {
                    shard: Shard {
                        target,
                        scope: place.scope,
                        identifier: place.identifier,
                    },
                    head,
                    due,
                }),
                None if inside => report.fail(self.no_cell(&place)),
                _ => {}
            }
            next = Some(place);
        }
        if partition == Partition::ALL {
            found.sort_by_key(|found| found.head);
        } else {
            found.sort_by_key(|found| found.shard.lock(&self.table) ^ partition.low);
        }
        let more = rows.len() as i64 >= i64::from(SHARDS_AT_ONCE);
        Ok((found, next.filter(|_| more)))
    }

    async fn page_rows(
        &self,
        client: &mut Client,
        cursor: &Cursor,
        partition: Partition,
    ) -> Result<Vec<Row>, DrainError> {
        let failed = self.server("look for due shards in");
        let transaction = client.transaction().await.map_err(&failed)?;
        let mut parameters: Vec<Parameter<'_>> = Vec::new();
        if S::TARGETED {
            parameters.push((&cursor.target, Type::TEXT));
        }
        parameters.push((&cursor.scope, Type::INT4));
        parameters.push((&cursor.identifier, Type::INT8));
        parameters.push((&cursor.id, Type::INT8));
        parameters.push((&SHARDS_AT_ONCE, Type::INT4));
        parameters.push((&partition.low, Type::INT8));
        parameters.push((&partition.high, Type::INT8));
        let (_, rows) = tokio::try_join!(
            biased;
            transaction.batch_execute(SETTINGS),
            transaction.query_typed(&self.lookups.shards, &parameters),
        )
        .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(rows)
    }

    fn no_cell(&self, place: &Cursor) -> DeliveryError {
        let error = DeliveryError {
            category: "unread".to_owned(),
            scope: self.registry.scope_label(place.scope),
            shard: place.identifier,
            object: 0,
            cell: None,
            why: Undelivered::NoCell,
        };
        tracing::error!(table = %self.table.name(), %error, "outbox not delivered");
        error
    }
}

/// Where a row of the walk stands, its shard's head, whether it is due, and whether it is in the
/// partition.
fn place_of<S: Silo>(row: &Row) -> (Cursor, i64, bool, bool) {
    let n = usize::from(S::TARGETED);
    let place = Cursor {
        target: if S::TARGETED { row.get(0) } else { None },
        scope: row.get(n),
        identifier: row.get(n + 1),
        // Behind all of its messages.
        id: i64::MAX,
    };
    (place, row.get(n + 2), row.get(n + 3), row.get(n + 4))
}
