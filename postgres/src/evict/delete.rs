//! The deleting itself: in one transaction while a unit is small, else in chunks of keys.
//!
//! In chunks, the keys of a table are listed once, by a cursor that outlives its transaction, and
//! deleted by key: no chunk scans past what earlier chunks left behind, and no transaction lives
//! long enough to hold back the owner's vacuum. A key that is listed is deleted only if its row
//! still is the organization's and, on the source, still is old.

use std::collections::BTreeSet;
use std::time::Duration;

use monarch_model::Epoch;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::order::{delete_order, in_circles};
use super::{Doomed, Error, Horizon, Progress, Rows};
use crate::sink::{self, SinkError};
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Unit};

/// Up to this many rows, a unit goes in one transaction.
const SMALL_UNIT_ROWS: u64 = 50_000;

/// How many keys are deleted in one transaction beyond that.
const CHUNK_ROWS: u32 = 10_000;

/// How often a transaction that met a lock, a deadlock or a concurrent change is tried.
const ATTEMPTS: u32 = 8;

/// The pause before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The limits of each transaction, whatever the role's defaults. The lock timeout keeps us from
/// holding up the owner's DDL, and everything behind it, for longer than that. Foreign keys are on,
/// also where a role has them off; only then is a right needed to say so.
const LIMITS: &str = "
select pg_catalog.set_config('session_replication_role', 'origin', true)
 where pg_catalog.current_setting('session_replication_role') <> 'origin';
set local lock_timeout = '5s';
set local statement_timeout = '10min';
set local idle_in_transaction_session_timeout = '5min';
set constraints all deferred";

/// What forbids a deletion.
#[derive(Debug, Clone, Copy)]
pub(super) enum Guard<'a> {
    /// On the source: row versions newer than the horizon stay, and stop everything.
    Source(Horizon),
    /// On the sink: each transaction holds the unit.
    Sink {
        /// The unit.
        unit: &'a Unit,
        /// By whom it is held.
        epoch: Epoch,
    },
}

/// The tables of one unit, parents first, and what forbids their deletion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deletion<'a> {
    pub(super) tables: &'a [Doomed],
    pub(super) guard: Guard<'a>,
}

/// In which order the tables go, and which cannot be taken apart.
struct Plan {
    order: Vec<usize>,
    whole: BTreeSet<usize>,
}

impl Deletion<'_> {
    /// The organization's rows by table; tables without any are left out.
    pub(super) async fn count(&self, client: &mut Client) -> Result<Rows, Error> {
        let tx = self.begin(client).await?;
        self.count_where(&tx, self.tables, |doomed| doomed.predicate.clone())
            .await
    }

    /// Of these, those that are newer than the horizon; on the sink there is no such thing.
    async fn newer(&self, client: &mut Client) -> Result<Rows, Error> {
        let tx = self.begin(client).await?;
        self.newer_in(&tx, self.tables).await
    }

    /// Deletes what may be deleted, and says how much that was.
    pub(super) async fn run(
        &self,
        client: &mut Client,
        progress: Progress<'_>,
    ) -> Result<Rows, Error> {
        let newer = self.newer(client).await?;
        if !newer.is_empty() {
            return Err(Error::NewerRows(newer));
        }
        let counts = self.count(client).await?;
        if counts.is_empty() {
            return Ok(Rows::new());
        }
        let plan = self.plan(client).await?;
        if counts.values().sum::<u64>() <= SMALL_UNIT_ROWS {
            return self.delete_at_once(client, &plan, progress).await;
        }
        let mut deleted = Rows::new();
        for &at in &plan.order {
            let doomed = &self.tables[at];
            if !counts.contains_key(&doomed.table) {
                continue;
            }
            let rows = if plan.whole.contains(&at) {
                self.delete_whole(client, at, progress).await?
            } else {
                self.delete_in_chunks(client, at, progress).await?
            };
            deleted.insert(doomed.table.clone(), rows);
        }
        Ok(deleted)
    }

    async fn delete_at_once(
        &self,
        client: &mut Client,
        plan: &Plan,
        progress: Progress<'_>,
    ) -> Result<Rows, Error> {
        let mut patience = Patience::new();
        let deleted = loop {
            match self.try_at_once(client, plan).await {
                Ok(deleted) => break deleted,
                Err(error) => patience.bear(error).await?,
            }
        };
        for (table, rows) in &deleted {
            progress(table, *rows);
        }
        Ok(deleted)
    }

    async fn try_at_once(&self, client: &mut Client, plan: &Plan) -> Result<Rows, Error> {
        let tx = self.begin(client).await?;
        let newer = self.newer_in(&tx, self.tables).await?;
        if !newer.is_empty() {
            return Err(Error::NewerRows(newer));
        }
        let mut deleted = Rows::new();
        for &at in &plan.order {
            let rows = self.delete_scoped(&tx, &self.tables[at]).await?;
            if rows > 0 {
                deleted.insert(self.tables[at].table.clone(), rows);
            }
        }
        commit(tx).await?;
        Ok(deleted)
    }

    /// One table in one transaction, however large: its rows reference each other.
    async fn delete_whole(
        &self,
        client: &mut Client,
        at: usize,
        progress: Progress<'_>,
    ) -> Result<u64, Error> {
        let mut patience = Patience::new();
        let rows = loop {
            match self.try_whole(client, at).await {
                Ok(rows) => break rows,
                Err(error) => patience.bear(error).await?,
            }
        };
        progress(&self.tables[at].table, rows);
        Ok(rows)
    }

    async fn try_whole(&self, client: &mut Client, at: usize) -> Result<u64, Error> {
        let tx = self.begin(client).await?;
        self.no_newer_above(&tx, at).await?;
        let rows = self.delete_scoped(&tx, &self.tables[at]).await?;
        commit(tx).await?;
        Ok(rows)
    }

    async fn delete_in_chunks(
        &self,
        client: &mut Client,
        at: usize,
        progress: Progress<'_>,
    ) -> Result<u64, Error> {
        let doomed = &self.tables[at];
        let mut patience = Patience::new();
        while let Err(error) = self.list_keys(client, at).await {
            patience.bear(error).await?;
        }
        let deleted = self.delete_listed(client, doomed, progress).await;
        let closed = client.batch_execute("close doomed").await;
        let rows = deleted?;
        closed.doing(format!("close the list of keys of {}", doomed.table))?;
        Ok(rows)
    }

    async fn delete_listed(
        &self,
        client: &mut Client,
        doomed: &Doomed,
        progress: Progress<'_>,
    ) -> Result<u64, Error> {
        let mut total = 0;
        loop {
            let keys = next_keys(client, doomed).await?;
            if keys.first().is_none_or(Vec::is_empty) {
                break;
            }
            let mut patience = Patience::new();
            let rows = loop {
                match self.delete_keys(client, doomed, &keys).await {
                    Ok(rows) => break rows,
                    Err(error) => patience.bear(error).await?,
                }
            };
            total += rows;
            progress(&doomed.table, rows);
        }
        Ok(total)
    }

    /// Opens the cursor `doomed` over the keys of a table, in the snapshot in which nothing above
    /// it was newer: which rows are the organization's was settled before anybody could meddle.
    async fn list_keys(&self, client: &mut Client, at: usize) -> Result<(), Error> {
        let doomed = &self.tables[at];
        let doing = || format!("list the keys of {}", doomed.table);
        let tx = self.begin(client).await?;
        self.no_newer_above(&tx, at).await?;
        let columns: Vec<String> = doomed
            .key
            .iter()
            .map(|column| format!("t.{}::text", quote_ident(&column.name)))
            .collect();
        let declare = format!(
            "declare doomed no scroll cursor with hold for select {} from {} as t where {}",
            columns.join(", "),
            qualified(&doomed.table),
            doomed.predicate
        );
        tx.batch_execute(&declare).await.doing(doing())?;
        // The keys are listed by the commit, and kept by the server until the cursor is closed.
        Ok(tx.commit().await.doing(doing())?)
    }

    async fn delete_keys(
        &self,
        client: &mut Client,
        doomed: &Doomed,
        keys: &[Vec<String>],
    ) -> Result<u64, Error> {
        let tx = self.begin(client).await?;
        let params: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
            keys.iter().map(|column| column as _).collect();
        let rows = tx
            .execute(&self.delete_keys_sql(doomed), &params)
            .await
            .doing(format!("delete from {}", doomed.table))?;
        commit(tx).await?;
        Ok(rows)
    }

    /// By key and by scope: a key alone would also fit a row that has changed hands.
    fn delete_keys_sql(&self, doomed: &Doomed) -> String {
        let arrays: Vec<String> = (1..=doomed.key.len())
            .map(|n| format!("${n}::text[]"))
            .collect();
        let names: Vec<String> = (1..=doomed.key.len()).map(|n| format!("k{n}")).collect();
        let same: Vec<String> = doomed
            .key
            .iter()
            .zip(&names)
            .map(|(column, name)| {
                format!(
                    "t.{} {} listed.{name}::{}",
                    quote_ident(&column.name),
                    column.equals,
                    column.key_type
                )
            })
            .collect();
        format!(
            "delete from {} as t using unnest({}) as listed({}) where {} and {}{}",
            qualified(&doomed.table),
            arrays.join(", "),
            names.join(", "),
            same.join(" and "),
            doomed.predicate,
            self.only_old(),
        )
    }

    async fn delete_scoped(&self, tx: &Transaction<'_>, doomed: &Doomed) -> Result<u64, Error> {
        let sql = format!(
            "delete from {} as t where {}{}",
            qualified(&doomed.table),
            doomed.predicate,
            self.only_old()
        );
        let deleted = tx.execute(&sql, &[]).await;
        Ok(deleted.doing(format!("delete from {}", doomed.table))?)
    }

    fn only_old(&self) -> String {
        match self.guard {
            Guard::Source(horizon) => format!(" and not {}", horizon.is_newer("t")),
            Guard::Sink { .. } => String::new(),
        }
    }

    /// A transaction with its limits, which holds the unit if it is on the sink. Repeatable read:
    /// a row that changes under our hands is an error and a new look, not a row judged twice.
    async fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        let doing = "begin a transaction that deletes";
        let tx = client
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .read_only(false)
            .start()
            .await
            .doing(doing)?;
        tx.batch_execute(LIMITS).await.doing(doing)?;
        if let Guard::Sink { unit, epoch } = self.guard {
            match sink::hold(&tx, unit, epoch).await {
                // A sealed unit that is given up is scrubbed like any other.
                Ok(()) | Err(SinkError::Sealed { .. }) => {}
                Err(SinkError::Superseded { .. }) => return Err(Error::Superseded),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(tx)
    }

    /// Refuses if the table at `at`, or one that decides what of it is the organization's, has
    /// newer rows.
    async fn no_newer_above(&self, tx: &Transaction<'_>, at: usize) -> Result<(), Error> {
        let mut lineage = vec![self.tables[at].clone()];
        while let Some(parent) = lineage.last().and_then(|doomed| doomed.parent.as_ref()) {
            match self.tables.iter().find(|doomed| doomed.table == *parent) {
                Some(parent) => lineage.push(parent.clone()),
                None => break,
            }
        }
        let newer = self.newer_in(tx, &lineage).await?;
        if newer.is_empty() {
            Ok(())
        } else {
            Err(Error::NewerRows(newer))
        }
    }

    async fn newer_in(&self, tx: &Transaction<'_>, tables: &[Doomed]) -> Result<Rows, Error> {
        let Guard::Source(horizon) = self.guard else {
            return Ok(Rows::new());
        };
        let is_newer = horizon.is_newer("t");
        self.count_where(tx, tables, |doomed| {
            format!("{} and {is_newer}", doomed.predicate)
        })
        .await
    }

    async fn count_where(
        &self,
        tx: &Transaction<'_>,
        tables: &[Doomed],
        condition: impl Fn(&Doomed) -> String,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new();
        for doomed in tables {
            let doing = || format!("count the rows of {}", doomed.table);
            let sql = format!(
                "select count(*) from {} as t where {}",
                qualified(&doomed.table),
                condition(doomed)
            );
            let row = tx.query_one(&sql, &[]).await.doing(doing())?;
            let count: i64 = row.try_get(0).doing(doing())?;
            if count > 0 {
                rows.insert(doomed.table.clone(), count.unsigned_abs());
            }
        }
        Ok(rows)
    }

    /// Reads the foreign keys between the tables and decides by them.
    async fn plan(&self, client: &Client) -> Result<Plan, Error> {
        let names: Vec<String> = self
            .tables
            .iter()
            .map(|doomed| qualified(&doomed.table))
            .collect();
        let doing = "read the foreign keys";
        let rows = client.query(FOREIGN_KEYS, &[&names]).await.doing(doing)?;
        let mut foreign_keys = BTreeSet::new();
        for row in rows {
            let place = |n: i64| usize::try_from(n - 1).unwrap_or_default();
            let from: i64 = row.try_get(0).doing(doing)?;
            let to: i64 = row.try_get(1).doing(doing)?;
            foreign_keys.insert((place(from), place(to)));
        }
        Ok(Plan {
            order: delete_order(self.tables, &foreign_keys),
            whole: in_circles(self.tables.len(), &foreign_keys),
        })
    }
}

/// Pairs of places among the tables asked for: who references whom, directly or by a partition.
const FOREIGN_KEYS: &str = "
with recursive part(oid, place) as (
    select to_regclass(name)::oid, place
      from unnest($1::text[]) with ordinality as asked(name, place)
  union
    select i.inhrelid, part.place from part join pg_catalog.pg_inherits i on i.inhparent = part.oid
)
select distinct child.place, parent.place
  from pg_catalog.pg_constraint c
  join part child on child.oid = c.conrelid
  join part parent on parent.oid = c.confrelid
 where c.contype = 'f'";

/// The next keys of the cursor, column by column, as text.
async fn next_keys(client: &Client, doomed: &Doomed) -> Result<Vec<Vec<String>>, Error> {
    let doing = || format!("list the keys of {}", doomed.table);
    let rows = client
        .query(&format!("fetch {CHUNK_ROWS} from doomed"), &[])
        .await
        .doing(doing())?;
    let mut keys = vec![Vec::with_capacity(rows.len()); doomed.key.len()];
    for row in rows {
        for (at, column) in keys.iter_mut().enumerate() {
            column.push(row.try_get(at).doing(doing())?);
        }
    }
    Ok(keys)
}

async fn commit(tx: Transaction<'_>) -> Result<(), Error> {
    Ok(tx.commit().await.doing("commit a deletion")?)
}

/// How much longer a transaction is tried.
struct Patience {
    left: u32,
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        Self {
            left: ATTEMPTS - 1,
            pause: FIRST_PAUSE,
        }
    }

    /// Waits, if time may mend `error` and there is patience left; else hands it back.
    async fn bear(&mut self, error: Error) -> Result<(), Error> {
        if self.left == 0 || !is_passing(&error) {
            return Err(error);
        }
        self.left -= 1;
        tokio::time::sleep(self.pause).await;
        self.pause *= 2;
        Ok(())
    }
}

/// Whether the session lives on and the same transaction may succeed.
fn is_passing(error: &Error) -> bool {
    let asked = match error {
        Error::Asked(asked) | Error::Sink(SinkError::Asked(asked)) => asked,
        _ => return false,
    };
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .iter()
    .any(|code| asked.is(code))
}
