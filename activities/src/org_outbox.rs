//! The outbox of a cell, as far as the organization that moves is concerned.
//!
//! What the organization wrote to it on the source is delivered there before the flip: it moves with
//! nobody. After the flip the sink tells control of the organization's rows anew, so that control
//! learns where they live. Eviction tells nobody: nothing was deleted, it moved.

use std::time::Duration;

use monarch_config::{Control, Table};
use monarch_outbox::BACKFILLS_PER_MINUTE;
use monarch_outbox::sentry::Scope;
use monarch_postgres::scope::Scope as OrgScope;
use monarch_postgres::sql::{qualified, quote_ident};
use monarch_postgres::{Doing as _, Session};
use serde_json::json;
use tokio::time::Instant;

use crate::failure::Fault;
use crate::journal::newest_of;
use crate::world::{Caller, Case, Place};

/// The kind of the journal's rows that say that a store's rows were told.
const TOLD: &str = "outbox_backfilled";

/// The kind of those that say how far it came.
const TELLING: &str = "outbox_backfilling";

/// Messages a minute, those included that wait already.
const PER_MINUTE: i64 = BACKFILLS_PER_MINUTE as i64;

/// Rows that are told at once, at least: each time the journal says how far it came.
const PAGE: i64 = 1_000;

/// How often it is asked again whether there is room.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many messages of anybody wait; no more than needed are counted.
const QUEUED: &str = "
    select count(*) from (select from public.sentry_regionoutbox limit $1) as counted";

const HAS_OUTBOX: &str = "select to_regclass('public.sentry_regionoutbox') is not null";

/// How many messages wait, a few of them counted, and since when the oldest does.
const WAITING: &str = "
    select count(*), coalesce(extract(epoch from now() - min(date_added)), 0)::int8
    from (
        select date_added from public.sentry_regionoutbox
        where shard_scope = $1::int4 and shard_identifier = $2::int8
        order by shard_scope, shard_identifier, id limit 1000
    ) as waiting";

/// Whether the organization's routing stands in a control database; only then do outboxes take part.
fn takes_part(case: &Case<'_>) -> bool {
    matches!(case.world.config.fleet.control, Some(Control::Database(_)))
}

/// The organization as a shard. Without a number it has none.
fn shard(case: &Case<'_>) -> Option<i64> {
    case.of.org.as_str().parse().ok()
}

/// What the source's outbox still holds of the organization, as a blocker of the drain.
pub(crate) async fn waiting(place: &Place<'_>, primary: &Session) -> Result<Option<String>, Fault> {
    if !takes_part(place.case) || !place.is_first_of_its_database() {
        return Ok(None);
    }
    let Some(organization) = shard(place.case) else {
        return Ok(None);
    };
    if !has_outbox(primary).await? {
        return Ok(None);
    }
    let scope = Scope::Organization.def().number;
    let row = primary.query_one(WAITING, &[&scope, &organization]).await;
    let row = row.doing("look for messages of the organization")?;
    let (messages, seconds): (i64, i64) = (row.get(0), row.get(1));
    Ok((messages > 0).then(|| {
        format!(
            "{messages} messages of the organization wait in sentry_regionoutbox, the oldest for \
             {seconds} s: `monarch outbox shard --cell {} --scope organization --shard \
             {organization}` shows them",
            place.case.of.source_cell
        )
    }))
}

/// Tells control anew of the organization's rows in one store of the sink, once.
pub(crate) async fn backfill(place: &Place<'_>) -> Result<(), Fault> {
    let case = place.case;
    let tables: Vec<(&Table, i32)> = place
        .tables()
        .into_iter()
        .filter_map(|table| Some((table, table.outbox?)))
        .collect();
    let Some(organization) = shard(case) else {
        return Ok(());
    };
    if tables.is_empty() || !takes_part(case) {
        return Ok(());
    }
    let store = &place.unit.store;
    if newest_of(case.world, case.of.id, Some(store), TOLD)
        .await?
        .is_some()
    {
        return Ok(());
    }
    let sink = place.sink_session(Caller::Watcher).await?;
    let catalog = place.catalog(&sink).await?;
    let scope = place.scope(&catalog)?;
    let mut telling = Telling {
        place,
        sink: &sink,
        organization,
        pace: Pace::new(),
    };
    let reached = telling.reached().await?.and_then(|(name, after)| {
        let at = |(table, _): &(&Table, i32)| table.name.to_string() == name;
        Some((tables.iter().position(at)?, after))
    });
    let (from, mut after) = reached.unwrap_or((0, i64::MIN));
    for (table, category) in &tables[from..] {
        let sql = tell_sql(table, &scope)?;
        telling.tell(table, &sql, *category, after).await?;
        after = i64::MIN;
    }
    let ledger = &case.world.ledger;
    let detail = json!({ "tables": tables.len() });
    ledger.note(case.of.id, Some(store), TOLD, detail).await?;
    Ok(())
}

/// A backfill under way.
struct Telling<'a> {
    place: &'a Place<'a>,
    sink: &'a Session,
    organization: i64,
    pace: Pace,
}

impl Telling<'_> {
    /// The table and the key up to which an attempt before this one came, if it was not the first
    /// page of all.
    async fn reached(&self) -> Result<Option<(String, i64)>, Fault> {
        let (case, store) = (self.place.case, &self.place.unit.store);
        let noted = newest_of(case.world, case.of.id, Some(store), TELLING).await?;
        Ok(noted.and_then(|detail| {
            let table = detail["table"].as_str()?.to_owned();
            Some((table, detail["after"].as_i64()?))
        }))
    }

    /// Writes a message for each row of the organization, in bounded transactions. After a crash some
    /// are written again, and coalesced with the first.
    async fn tell(
        &mut self,
        table: &Table,
        sql: &str,
        category: i32,
        mut after: i64,
    ) -> Result<(), Fault> {
        let number = Scope::Organization.def().number;
        loop {
            let room = self.pace.room(self.sink).await?;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&number, &self.organization, &category, &after, &room];
            let told = self.sink.query_one(sql, &parameters).await;
            let row = told.doing(format!("tell control of {}", table.name))?;
            let (rows, last): (i64, Option<i64>) = (row.get(0), row.get(1));
            self.pace.took(rows);
            match last {
                Some(last) if rows == room => after = last,
                _ => return Ok(()),
            }
            let (case, store) = (self.place.case, &self.place.unit.store);
            let detail = json!({ "table": table.name.to_string(), "after": after });
            let ledger = &case.world.ledger;
            ledger
                .note(case.of.id, Some(store), TELLING, detail)
                .await?;
        }
    }
}

/// So many messages a minute, less those that wait in the outbox already: whoever drains it must not
/// be kept from the messages of others for long.
struct Pace {
    minute: Instant,
    /// Written in this minute.
    written: i64,
}

impl Pace {
    fn new() -> Self {
        Self {
            minute: Instant::now(),
            written: 0,
        }
    }

    /// How many may be written now; waits until it is a page at least.
    async fn room(&mut self, sink: &Session) -> Result<i64, Fault> {
        loop {
            if self.minute.elapsed() >= Duration::from_secs(60) {
                *self = Self::new();
            }
            let row = sink.query_one(QUEUED, &[&PER_MINUTE]).await;
            let queued: i64 = row.doing("count the messages that wait")?.get(0);
            let room = PER_MINUTE - queued.max(self.written);
            if room >= PAGE {
                return Ok(room);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn took(&mut self, messages: i64) {
        self.written += messages;
    }
}

fn tell_sql(table: &Table, scope: &OrgScope) -> Result<String, Fault> {
    let key = quote_ident(table.primary_key.first().map_or("", String::as_str));
    let predicate = scope.predicate(&table.name, "t")?;
    Ok(format!(
        "with page as (
            select t.{key}::int8 as id from {} as t
            where ({predicate}) and t.{key} > $4::int8
            order by t.{key} limit $5::int8
        ), told as (
            insert into public.sentry_regionoutbox (shard_scope, shard_identifier, category,
                object_identifier, scheduled_from, scheduled_for, date_added)
            select $1::int4, $2::int8, $3::int4, id, statement_timestamp(),
                '2016-08-01 00:00:00+00', statement_timestamp()
            from page order by id
        )
        select count(*), max(id) from page",
        qualified(&table.name)
    ))
}

async fn has_outbox(session: &Session) -> Result<bool, Fault> {
    let row = session.query_one(HAS_OUTBOX, &[]).await;
    Ok(row.doing("look for the cell's outbox")?.get(0))
}
