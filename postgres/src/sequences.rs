//! Keeps the sink's sequences ahead of the ids that move in.
//!
//! Moved rows bring their ids along. A sequence on the sink that knows nothing of them would hand
//! the same ids to other tenants, whose inserts would fail: at once for rows that are there, and
//! later for those that the organization makes on the source meanwhile. So, before the first row
//! lands and again before the flip, each sequence that feeds a moved table is raised past every id
//! that the source has given out or the organization has, plus headroom.
//!
//! # Never back
//!
//! `setval` sets, it does not raise: between a look at the sequence and the `setval`, a concurrent
//! `nextval` may have gone past the goal, and its ids would be given out again. `alter sequence`
//! takes a lock that `nextval` waits for. So the sequence is locked by an `alter sequence` that
//! changes nothing, looked at, and only then raised. The wait for that lock is short and repeated,
//! since all inserts queue behind it; it is not had while any transaction that called `nextval`
//! is still open.
//!
//! # What remains
//!
//! * Between the first raise and the flip the sink gives out the ids behind the headroom, and the
//!   source those within it. Should the organization be given, on the source, more ids than that,
//!   one of them may be another tenant's on the sink, and the move fails by name; so the headroom
//!   is to last for the whole move. Raising again meanwhile keeps the distance; it cannot take back
//!   what was given out.
//! * Only the owner may alter a sequence. A role that merely may update it raises it without the
//!   lock, looks and sets in one statement, and sets by so much more ([`UNLOCKED_HEADROOM`]),
//!   however few ids are left, that it would be set back only if others took that many ids while
//!   that statement runs.
//! * Ids that a session on the sink has cached (`cache` above 1) are below the goal and may be
//!   taken: such an insert fails, and its retry works. Preflight warns of it.
//! * A default that names its sequence as a text, or calls a function that is written as a string, is
//!   not followed: preflight warns of it. So are ids that a trigger or the application gives.
//! * Ids outside the range of the sink's sequence, or outside of the range that the fleet gives to
//!   its cell, can never clash and are left out of account: so cells with disjoint ranges stay in
//!   their own, whether the sequences have bounds or merely began there.

use std::convert::Infallible;
use std::time::Duration;

use monarch_config::{Graph, IdRange, Table};
use monarch_model::TableName;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Row, Transaction};

use crate::catalog;
use crate::scope::{Scope, ScopeError};
use crate::spine::Spine;
use crate::sql::{qualified, quote_ident};
use crate::{ConnectOptions, Doing, Error, Result, Session, SessionPurpose, Unit};

/// One move takes at most one of so many parts of the ids that a sequence has left: a headroom that
/// costs nothing among the ids of a `bigint` would soon use up those of an `integer`.
const SHARES: i128 = 256;

/// But never less than so many calls of `nextval`, if that is what is asked for.
const LEAST_SHARE: i64 = 10_000;

/// How much further than where it stands, and than what is wanted, a sequence is raised when it cannot
/// be locked: in turns, each of as many ids as a session takes at once.
pub const UNLOCKED_HEADROOM: i64 = 10_000;

/// How long one attempt waits for the lock; inserts wait as long.
const LOCK_WAIT_MS: u64 = 500;

/// How often the lock is asked for, with a pause of [`LOCK_PAUSE`] between.
const LOCK_ATTEMPTS: u32 = 20;

/// The pause in which inserts go on.
const LOCK_PAUSE: Duration = Duration::from_millis(250);

/// A sequence of the sink that feeds a column of a moved table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    /// The table that it feeds.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// Schema of the sequence.
    pub schema: String,
    /// Name of the sequence.
    pub name: String,
    /// What each `nextval` adds; negative if it counts down.
    pub increment: i64,
    /// The least and the greatest value that the sequence gives and the column takes.
    pub range: (i64, i64),
    /// How many values a session takes at once.
    pub cache: i64,
}

/// What was done with a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Raised {
    /// It is ahead already.
    Ahead {
        /// Where it stands.
        at: i64,
    },
    /// It was behind and was raised.
    Raised {
        /// Where it stood.
        from: i64,
        /// Where it stands.
        to: i64,
        /// Whether `nextval` was locked out meanwhile.
        locked: bool,
    },
    /// Its range ends before the goal; it was left as it is.
    Exhausted {
        /// Where it should stand.
        goal: i64,
        /// The last value that it can give.
        end: i64,
    },
}

/// A sequence, and what was done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The sequence, `schema.name`.
    pub sequence: String,
    /// The table that it feeds.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// What was done.
    pub raised: Raised,
}

/// A moved table, and which of its rows are the organization's, over the alias `t`.
#[derive(Debug, Clone, Copy)]
pub struct Fed<'a> {
    /// The table.
    pub table: &'a Table,
    /// The condition, for the source.
    pub predicate: &'a str,
}

/// Raises each sequence of the sink that feeds one of `tables` past what the source has given out
/// and the organization has, and `headroom` calls of `nextval` beyond. Ids outside of `own`, the
/// range of the sink's cell if it has one, do not count. Again is the same; a sequence that is
/// ahead is not touched.
pub async fn raise<C: GenericClient + Sync>(
    source: &C,
    sink: &mut Client,
    tables: &[Fed<'_>],
    headroom: u32,
    own: Option<IdRange>,
) -> Result<Vec<Outcome>> {
    let names: Vec<&TableName> = tables.iter().map(|fed| &fed.table.name).collect();
    let mut outcomes = Vec::new();
    for mut feed in feeds(sink, &names).await? {
        if let Some(own) = own {
            feed.range.0 = feed.range.0.max(own.least);
            feed.range.1 = feed.range.1.min(own.greatest);
        }
        let Some(fed) = tables.iter().find(|fed| fed.table.name == feed.table) else {
            continue;
        };
        let used = furthest_on_source(source, &feed, fed.predicate).await?;
        let raised = raise_one(sink, &feed, used, i64::from(headroom)).await?;
        outcomes.push(Outcome {
            sequence: format!("{}.{}", feed.schema, feed.name),
            table: feed.table,
            column: feed.column,
            raised,
        });
    }
    Ok(outcomes)
}

/// What keeps a unit's sequences on the sink ahead, for as long as the unit streams: the source
/// goes on giving out ids, and each of them may be the organization's.
#[derive(Debug, Clone, Copy)]
pub struct Keeper<'a> {
    /// The unit.
    pub unit: &'a Unit,
    /// Which tables move.
    pub graph: &'a Graph,
    /// The recorded spine.
    pub spine: &'a Spine,
    /// The source's primary.
    pub source: &'a ConnectOptions,
    /// The sink.
    pub sink: &'a ConnectOptions,
    /// What the keeper's sessions call themselves.
    pub application: &'a str,
    /// How many calls of `nextval` a sequence is raised beyond what was given out.
    pub headroom: u32,
    /// The ids that the sink's cell gives, if the fleet says so.
    pub own: Option<IdRange>,
}

/// Sequences were not looked at.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The tables of the store cannot be scoped.
    #[error("keep the sink's sequences ahead")]
    Scope(#[from] ScopeError),
    /// A database did not do what it was asked.
    #[error(transparent)]
    Asked(#[from] Error),
}

impl Keeper<'_> {
    /// Looks at every sequence once, and raises what is too low.
    pub async fn raise(&self) -> Result<Vec<Outcome>, KeepError> {
        let purpose = SessionPurpose::writer(self.application);
        let source = Session::connect(self.source, &purpose).await?;
        let mut sink = Session::connect(self.sink, &purpose).await?;
        let Unit { org, store, .. } = self.unit;
        let tables = self.graph.walk(store);
        let catalog = catalog::load(&*source, &tables).await?;
        let scope = Scope::new(self.graph, store, org, self.spine, &catalog)?;
        let predicate = |table: &&Table| scope.predicate(&table.name, "t");
        let predicates: Vec<String> = tables.iter().map(predicate).collect::<Result<_, _>>()?;
        let pairs = tables.iter().zip(&predicates);
        let fed: Vec<Fed<'_>> = pairs
            .map(|(table, predicate)| Fed { table, predicate })
            .collect();
        let outcomes = raise(&*source, &mut sink, &fed, self.headroom, self.own).await?;
        source.close().await;
        sink.close().await;
        Ok(outcomes)
    }

    /// Does so every `period`. `looked` is told of each look; one that failed is made again.
    pub async fn keep(
        &self,
        period: Duration,
        looked: &mut (dyn FnMut(Result<Vec<Outcome>, KeepError>) + Send),
    ) -> Infallible {
        loop {
            tokio::time::sleep(period).await;
            looked(self.raise().await);
        }
    }
}

/// The sequences that feed columns of `tables` in the database of `client`: serial, identity, and
/// any other that a default draws from, of a column, of its domain or of a partition, by itself or
/// by a function whose text the database understands.
pub async fn feeds<C: GenericClient + Sync>(
    client: &C,
    tables: &[&TableName],
) -> Result<Vec<Feed>> {
    let doing = "look for sequences";
    let names: Vec<String> = tables.iter().map(|table| qualified(table)).collect();
    let sql = format!("{DRAWS} {FEEDS}");
    let rows = client.query(&sql, &[&names]).await.doing(doing)?;
    rows.iter()
        .filter_map(|row| feed(row, tables).transpose())
        .collect::<std::result::Result<_, _>>()
        .doing(doing)
}

/// The columns of `tables` that number rows in a way that cannot be followed to a sequence.
pub(crate) async fn unfollowed<C: GenericClient + Sync>(
    client: &C,
    tables: &[&TableName],
) -> Result<Vec<(TableName, String)>> {
    let doing = "look for defaults that number rows";
    let names: Vec<String> = tables.iter().map(|table| qualified(table)).collect();
    let sql = format!("{DRAWS} {UNFOLLOWED}");
    let rows = client.query(&sql, &[&names]).await.doing(doing)?;
    let column = |row: &Row| -> std::result::Result<_, tokio_postgres::Error> {
        let table = asked(row.try_get(0)?, tables);
        Ok(table.cloned().zip(row.try_get(1)?))
    };
    let columns: Vec<_> = rows
        .iter()
        .map(column)
        .collect::<std::result::Result<_, _>>()
        .doing(doing)?;
    Ok(columns.into_iter().flatten().collect())
}

/// `number` are the columns that hold integers, of the tables that were asked for (by `place`) and of
/// their partitions. `leads` is what the default of each rests on: the default itself or its domain's,
/// then functions, and in the end sequences. A function that is written as a string rests on nothing
/// that the catalog knows of.
const DRAWS: &str = "
with recursive asked as (
    select to_regclass(name)::oid as oid, place
      from unnest($1::text[]) with ordinality as t(name, place)
), relation(oid, place) as (
    select oid, place from asked where oid is not null
  union
    select i.inhrelid, relation.place
      from relation join pg_catalog.pg_inherits i on i.inhparent = relation.oid
), type_of(place, attrelid, attnum, attname, type) as (
    select relation.place, a.attrelid, a.attnum, a.attname, a.atttypid
      from relation
      join pg_catalog.pg_attribute a
        on a.attrelid = relation.oid and a.attnum > 0 and not a.attisdropped
  union
    select of.place, of.attrelid, of.attnum, of.attname, t.typbasetype
      from type_of of join pg_catalog.pg_type t on t.oid = of.type and t.typtype = 'd'
), number as (
    select place, attrelid, attnum, attname, type from type_of
     where type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
), leads(attrelid, attnum, class, object) as (
   (select n.attrelid, n.attnum, def.tableoid, def.oid
      from number n
      join pg_catalog.pg_attrdef def on def.adrelid = n.attrelid and def.adnum = n.attnum
     union
    select n.attrelid, n.attnum, t.tableoid, t.oid
      from number n
      join type_of of on of.attrelid = n.attrelid and of.attnum = n.attnum
      join pg_catalog.pg_type t on t.oid = of.type and t.typtype = 'd')
  union
    select leads.attrelid, leads.attnum, d.refclassid, d.refobjid
      from leads
      join pg_catalog.pg_depend d on d.classid = leads.class and d.objid = leads.object
     where leads.class <> 'pg_catalog.pg_class'::regclass
       and d.refclassid in ('pg_catalog.pg_class'::regclass, 'pg_catalog.pg_proc'::regclass)
), fed as (
    select distinct n.place, n.attrelid, n.attnum, n.attname, n.type, s.seqrelid
      from number n
      join leads on leads.attrelid = n.attrelid and leads.attnum = n.attnum
       and leads.class = 'pg_catalog.pg_class'::regclass
      join pg_catalog.pg_sequence s on s.seqrelid = leads.object
  union
    select n.place, n.attrelid, n.attnum, n.attname, n.type, s.seqrelid
      from number n
      join pg_catalog.pg_depend d
        on d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = n.attrelid
       and d.refobjsubid = n.attnum and d.classid = 'pg_catalog.pg_class'::regclass
       and d.deptype = 'i'
      join pg_catalog.pg_sequence s on s.seqrelid = d.objid
)";

/// A column may be narrower than its sequence: what it cannot take, the sequence cannot give.
const FEEDS: &str = "
select distinct fed.place::int8, fed.attname::text, n.nspname::text, c.relname::text, s.seqincrement,
       greatest(s.seqmin, case fed.type when 'int2'::regtype then -32768
                               when 'int4'::regtype then -2147483648 else s.seqmin end) as least,
       least(s.seqmax, case fed.type when 'int2'::regtype then 32767
                            when 'int4'::regtype then 2147483647 else s.seqmax end) as greatest,
       s.seqcache
  from fed
  join pg_catalog.pg_sequence s on s.seqrelid = fed.seqrelid
  join pg_catalog.pg_class c on c.oid = fed.seqrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 order by 1, 2, 3, 4";

/// Built-in functions number nothing, but for the one that takes a sequence's name as a text.
const UNFOLLOWED: &str = "
select distinct number.place::int8, number.attname::text
  from number
 where exists (select from leads
                where leads.attrelid = number.attrelid and leads.attnum = number.attnum
                  and (leads.class = 'pg_catalog.pg_proc'::regclass
                       or exists (select from pg_catalog.pg_attrdef def
                                   where def.oid = leads.object and def.tableoid = leads.class
                                     and pg_catalog.pg_get_expr(def.adbin, def.adrelid)
                                         like '%nextval(%')
                       or exists (select from pg_catalog.pg_type t
                                   where t.oid = leads.object and t.tableoid = leads.class
                                     and t.typdefault like '%nextval(%')))
   and not exists (select from fed
                    where fed.attrelid = number.attrelid and fed.attnum = number.attnum)
 order by 1, 2";

fn asked<'t>(place: i64, tables: &[&'t TableName]) -> Option<&'t TableName> {
    let at = usize::try_from(place - 1).ok()?;
    tables.get(at).copied()
}

fn feed(
    row: &Row,
    tables: &[&TableName],
) -> std::result::Result<Option<Feed>, tokio_postgres::Error> {
    let Some(table) = asked(row.try_get(0)?, tables) else {
        return Ok(None);
    };
    Ok(Some(Feed {
        table: table.clone(),
        column: row.try_get(1)?,
        schema: row.try_get(2)?,
        name: row.try_get(3)?,
        increment: row.try_get(4)?,
        range: (row.try_get(5)?, row.try_get(6)?),
        cache: row.try_get(7)?,
    }))
}

/// The value furthest in the sequence's direction, within its range, that the source has given out
/// or that a row of the organization has; none if there is no such value.
async fn furthest_on_source<C: GenericClient + Sync>(
    source: &C,
    feed: &Feed,
    predicate: &str,
) -> Result<Option<i64>> {
    let doing = || {
        format!(
            "read the greatest {} of {} on the source",
            feed.column, feed.table
        )
    };
    let column = quote_ident(&feed.column);
    let furthest = if feed.increment > 0 { "max" } else { "min" };
    let sql = format!(
        "select {furthest}(t.{column})::int8 from {} as t
          where ({predicate}) and t.{column} between $1::int8 and $2::int8",
        qualified(&feed.table)
    );
    let row = source
        .query_one(&sql, &[&feed.range.0, &feed.range.1])
        .await
        .doing(doing())?;
    let in_rows: Option<i64> = row.try_get(0).doing(doing())?;
    let mut values: Vec<i64> = in_rows.into_iter().collect();
    for theirs in feeds(source, &[&feed.table]).await? {
        if theirs.column != feed.column {
            continue;
        }
        let position = position(source, &theirs.schema, &theirs.name)
            .await
            .doing(doing())?;
        // From a range that only touches ours, what it gives next may still be in ours.
        let given = position.filter(|at| *at >= feed.range.0 && *at <= feed.range.1);
        values.extend(given);
    }
    let furthest = |a: i64, b: i64| {
        if feed.increment > 0 {
            a.max(b)
        } else {
            a.min(b)
        }
    };
    Ok(values.into_iter().reduce(furthest))
}

/// The last value that a sequence gave; none if it has not given any.
async fn position<C: GenericClient + Sync>(
    client: &C,
    schema: &str,
    name: &str,
) -> std::result::Result<Option<i64>, tokio_postgres::Error> {
    let sql = format!(
        "select case when is_called then last_value end from {}.{}",
        quote_ident(schema),
        quote_ident(name)
    );
    client.query_one(&sql, &[]).await?.try_get(0)
}

/// Where a sequence stands, and whether that value has been given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    last_value: i64,
    is_called: bool,
}

/// What is to be done with a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Leave,
    Set(i64),
    Exhausted { goal: i64 },
}

/// How far a sequence is raised.
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// Calls of `nextval` beyond what was used: less if few ids are left.
    headroom: i64,
    /// Ids beyond that and beyond where the sequence stands, if it is raised at all: never less.
    margin: i64,
}

impl Reach {
    fn locked(headroom: i64) -> Self {
        Self {
            headroom,
            margin: 0,
        }
    }

    fn unlocked(headroom: i64, feed: &Feed) -> Self {
        Self {
            headroom,
            margin: UNLOCKED_HEADROOM.saturating_mul(feed.cache.max(1)),
        }
    }
}

/// Decides. A goal keeps the sequence's own rhythm: it is `last_value` plus a whole number of
/// increments, so that two sequences that share out odd and even ids go on doing so.
fn step(feed: &Feed, now: Standing, used: Option<i64>, reach: Reach) -> Step {
    let Some(used) = used else { return Step::Leave };
    let (increment, last) = (i128::from(feed.increment), i128::from(now.last_value));
    let (size, toward) = (increment.abs(), increment.signum());
    let left = (i128::from(end(feed)) - i128::from(used)) * toward / size;
    let most = i128::from(LEAST_SHARE).max(left / SHARES);
    let wanted = i128::from(used) + i128::from(reach.headroom).min(most) * increment;
    // How far what is wanted lies ahead of where the sequence stands.
    let ahead = (wanted - last) * toward;
    let next_is_past = if now.is_called {
        ahead < size
    } else {
        ahead < 0
    };
    if next_is_past {
        return Step::Leave;
    }
    let calls = (ahead + size - 1).div_euclid(size) + i128::from(reach.margin);
    let goal = last + calls * increment;
    let (least, greatest) = (i128::from(feed.range.0), i128::from(feed.range.1));
    match i64::try_from(goal) {
        Ok(at) if goal >= least && goal <= greatest => Step::Set(at),
        Ok(goal) => Step::Exhausted { goal },
        Err(_) => Step::Exhausted {
            goal: if toward > 0 { i64::MAX } else { i64::MIN },
        },
    }
}

async fn raise_one(
    sink: &mut Client,
    feed: &Feed,
    used: Option<i64>,
    headroom: i64,
) -> Result<Raised> {
    let doing = || format!("raise sequence {}.{}", feed.schema, feed.name);
    // Most often there is nothing to do, and then nobody need wait.
    let now = standing(sink, feed).await.doing(doing())?;
    if step(feed, now, used, Reach::locked(headroom)) == Step::Leave {
        return Ok(Raised::Ahead { at: now.last_value });
    }
    let mut attempts = LOCK_ATTEMPTS;
    loop {
        let error = match raise_locked(sink, feed, used, headroom).await {
            Ok(raised) => return Ok(raised),
            Err(error) => error,
        };
        let code = error.code();
        if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return raise_unlocked(sink, feed, used, headroom)
                .await
                .doing(doing());
        }
        attempts -= 1;
        if attempts == 0 || code != Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Err(error).doing(doing());
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

async fn raise_locked(
    sink: &mut Client,
    feed: &Feed,
    used: Option<i64>,
    headroom: i64,
) -> std::result::Result<Raised, tokio_postgres::Error> {
    let tx = sink.transaction().await?;
    let sequence = sequence(feed);
    // Any option would do that leaves the sequence as it is.
    tx.batch_execute(&format!(
        "set local lock_timeout = {LOCK_WAIT_MS};
         alter sequence {sequence} increment by {}",
        feed.increment
    ))
    .await?;
    let now = standing(&tx, feed).await?;
    let raised = match step(feed, now, used, Reach::locked(headroom)) {
        Step::Leave => Raised::Ahead { at: now.last_value },
        Step::Exhausted { goal } => Raised::Exhausted {
            goal,
            end: end(feed),
        },
        Step::Set(to) => {
            set(&tx, &sequence, to).await?;
            tx.commit().await?;
            return Ok(Raised::Raised {
                from: now.last_value,
                to,
                locked: true,
            });
        }
    };
    tx.rollback().await?;
    Ok(raised)
}

async fn raise_unlocked(
    sink: &mut Client,
    feed: &Feed,
    used: Option<i64>,
    headroom: i64,
) -> std::result::Result<Raised, tokio_postgres::Error> {
    let tx = sink.transaction().await?;
    let now = standing(&tx, feed).await?;
    let raised = match step(feed, now, used, Reach::unlocked(headroom, feed)) {
        Step::Leave => Raised::Ahead { at: now.last_value },
        Step::Exhausted { goal } => Raised::Exhausted {
            goal,
            end: end(feed),
        },
        Step::Set(to) => Raised::Raised {
            from: now.last_value,
            to: set_from_where_it_stands(&tx, feed, to, now.last_value).await?,
            locked: false,
        },
    };
    tx.commit().await?;
    Ok(raised)
}

/// Sets as far beyond where the sequence stands by now as `to` is beyond where it was `seen`; where it
/// stands then.
async fn set_from_where_it_stands(
    tx: &Transaction<'_>,
    feed: &Feed,
    to: i64,
    seen: i64,
) -> std::result::Result<i64, tokio_postgres::Error> {
    let sequence = sequence(feed);
    let sql = format!(
        "select pg_catalog.setval($1::text::regclass, $2::int8 + (s.last_value - $3::int8), true)
           from {sequence} as s"
    );
    tx.query_one(&sql, &[&sequence, &to, &seen])
        .await?
        .try_get(0)
}

async fn set(
    tx: &Transaction<'_>,
    sequence: &str,
    to: i64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let sql = "select pg_catalog.setval($1::text::regclass, $2, true)";
    tx.execute(sql, &[&sequence, &to]).await?;
    Ok(())
}

async fn standing<C: GenericClient + Sync>(
    client: &C,
    feed: &Feed,
) -> std::result::Result<Standing, tokio_postgres::Error> {
    let sql = format!("select last_value, is_called from {}", sequence(feed));
    let row = client.query_one(&sql, &[]).await?;
    Ok(Standing {
        last_value: row.try_get(0)?,
        is_called: row.try_get(1)?,
    })
}

fn sequence(feed: &Feed) -> String {
    format!("{}.{}", quote_ident(&feed.schema), quote_ident(&feed.name))
}

fn end(feed: &Feed) -> i64 {
    if feed.increment > 0 {
        feed.range.1
    } else {
        feed.range.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(increment: i64, range: (i64, i64)) -> Feed {
        Feed {
            table: "event".parse().unwrap(),
            column: "id".to_owned(),
            schema: "public".to_owned(),
            name: "event_id_seq".to_owned(),
            increment,
            range,
            cache: 1,
        }
    }

    fn called(last_value: i64) -> Standing {
        Standing {
            last_value,
            is_called: true,
        }
    }

    const FRESH: Standing = Standing {
        last_value: 1,
        is_called: false,
    };

    fn raised(feed: &Feed, now: Standing, used: Option<i64>, headroom: i64) -> Step {
        step(feed, now, used, Reach::locked(headroom))
    }

    #[test]
    fn a_sequence_that_is_ahead_is_left_alone() {
        let feed = feed(1, (1, 1000));
        assert_eq!(raised(&feed, called(15), Some(10), 5), Step::Leave);
        assert_eq!(raised(&feed, called(10), None, 5), Step::Leave);
        assert_eq!(raised(&feed, FRESH, None, 5), Step::Leave);
    }

    /// Guards promise 1: the next id of another tenant is neither one that moved in nor one that
    /// the organization is about to get on the source.
    #[test]
    fn the_next_value_is_past_what_was_used_and_the_headroom() {
        let feed = feed(1, (1, 1000));
        assert_eq!(raised(&feed, called(10), Some(10), 5), Step::Set(15));
        assert_eq!(raised(&feed, called(10), Some(11), 5), Step::Set(16));
        // A fresh sequence would give 1 itself.
        assert_eq!(raised(&feed, FRESH, Some(1), 0), Step::Set(1));
        assert_eq!(raised(&feed, called(15), Some(10), 5), Step::Leave);
    }

    /// A headroom for the ids of a `bigint` does not use up those of an `integer`.
    #[test]
    fn the_headroom_is_a_small_share_of_what_is_left() {
        let (wide, narrow) = (feed(1, (1, i64::MAX)), feed(1, (1, 2_560_001)));
        let headroom = 1_000_000_000;
        assert_eq!(
            raised(&wide, called(1), Some(1), headroom),
            Step::Set(1_000_000_001)
        );
        assert_eq!(
            raised(&narrow, called(1), Some(1), headroom),
            Step::Set(10_001)
        );
        assert_eq!(raised(&narrow, called(1), Some(1), 5), Step::Set(6));
    }

    /// Guards the ids that are given out while a sequence is raised that cannot be locked: however few
    /// are left, and however near the goal, it is set far beyond where it stands.
    #[test]
    fn without_a_lock_a_sequence_is_set_far_beyond_where_it_stands() {
        for (increment, range, cache, stands) in [
            (1, (1, 2_147_483_647), 1, 1),
            (1, (1, 2_147_483_647), 50, 8_388_600),
            (2, (1, 2_560_001), 1, 10_001),
            (-1, (-2_560_001, -1), 20, -10_000),
        ] {
            let feed = Feed {
                cache,
                ..feed(increment, range)
            };
            let reach = Reach::unlocked(1_000_000_000, &feed);
            let step = step(&feed, called(stands), Some(increment), reach);
            let Step::Set(to) = step else {
                panic!("{step:?}");
            };
            let ids = (to - stands) / increment;
            assert!(
                ids >= UNLOCKED_HEADROOM * cache,
                "{increment} {cache}: {ids}"
            );
        }
    }

    #[test]
    fn a_sequence_keeps_its_rhythm_and_its_direction() {
        let odd = feed(2, (1, 1000));
        assert_eq!(raised(&odd, called(11), Some(12), 0), Step::Leave);
        assert_eq!(raised(&odd, called(11), Some(20), 0), Step::Set(21));
        let down = feed(-1, (-1000, -1));
        assert_eq!(raised(&down, called(-10), Some(-20), 5), Step::Set(-25));
        assert_eq!(raised(&down, called(-30), Some(-20), 5), Step::Leave);
    }

    #[test]
    fn past_its_end_a_sequence_is_reported_and_not_set() {
        assert_eq!(
            raised(&feed(1, (1, 100)), called(1), Some(99), 5),
            Step::Exhausted { goal: 104 }
        );
        let whole = feed(1, (1, i64::MAX));
        let goal = i64::MAX;
        assert_eq!(
            raised(&whole, called(1), Some(goal), 5),
            Step::Exhausted { goal }
        );
    }
}
