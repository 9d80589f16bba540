//! Proof that nothing of the organization is still on its way on the source.
//!
//! A fence stops writes that have not begun. It does not stop a transaction that looked before the
//! fence fell and commits after it, nor a prepared one that nobody remembers. So, after the fence,
//! [`wait_for_writers`] waits for the transactions that were there and hold a write lock on a moved
//! table; other tenants go on writing to the same tables and are not waited for. Then
//! [`emit_barrier`] puts a mark into the log: whoever has applied it has applied all that came
//! before it. What this cannot see (a transaction that began before the fence, has written nothing
//! yet, and wakes up later) shows as a change behind the barrier and re-opens the drain.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use monarch_model::{Lsn, MoveId, StoreName, TableName};
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, PgLsn};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::sql::qualified;
use crate::{Doing, Result};

/// The prefix of the logical messages that are barriers.
pub const BARRIER_PREFIX: &str = "monarch";

/// How often a wait looks again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A transaction that holds a write lock on a moved table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// What runs it.
    pub held_by: HeldBy,
    /// The server's name of the transaction, as `pg_locks.virtualtransaction` has it.
    pub virtual_transaction: String,
    /// When it began; for a prepared one, when it was prepared. Unknown where our role may not see
    /// it.
    pub since: Option<Timestamp>,
    /// Its age in seconds when it was looked at, as far as it is known.
    pub age_seconds: Option<i64>,
    /// The moved tables that it holds locked, `schema.table`, leaves of partitions by their own
    /// names.
    pub tables: Vec<String>,
}

/// What runs a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldBy {
    /// A session.
    Session {
        /// The process, for `pg_terminate_backend`.
        pid: i32,
        /// What the session calls itself; empty if it does not, or may not be seen.
        application: String,
    },
    /// Nobody: it is prepared, and waits for `commit prepared` or `rollback prepared`.
    Prepared {
        /// Its name; unknown when it ended while being looked at.
        gid: Option<String>,
    },
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.held_by {
            HeldBy::Session { pid, application } => {
                write!(
                    f,
                    "pid {pid} ({})",
                    if application.is_empty() {
                        "?"
                    } else {
                        application
                    }
                )?;
            }
            HeldBy::Prepared { gid } => {
                write!(f, "prepared transaction {}", gid.as_deref().unwrap_or("?"))?;
            }
        }
        if let Some(age) = self.age_seconds {
            write!(f, ", {age} s old")?;
        }
        write!(f, ", on {}", self.tables.join(", "))
    }
}

/// What a wait for writers came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writers {
    /// Each transaction that had to be waited for has ended.
    Gone,
    /// The time is over and these are still there.
    StillThere(Vec<Writer>),
}

/// The clock of the server, by which transactions are told old from new.
pub async fn server_time(client: &Client) -> Result<Timestamp> {
    let doing = "read the server's clock";
    let row = client
        .query_one("select clock_timestamp()", &[])
        .await
        .doing(doing)?;
    get(&row, 0, doing)
}

/// The transactions, prepared ones included, that hold a lock on one of `tables`, or on a leaf of
/// one, that a write takes. All of them: other tenants' too.
pub async fn write_lock_holders(primary: &Client, tables: &[TableName]) -> Result<Vec<Writer>> {
    let doing = "look for transactions that hold write locks";
    let names: Vec<String> = tables.iter().map(qualified).collect();
    let rows = primary
        .query(WRITE_LOCK_HOLDERS, &[&names])
        .await
        .doing(doing)?;
    rows.iter().map(|row| writer(row, doing)).collect()
}

/// A lock that a row's write takes is `RowExclusiveLock`; what is stronger and keeps other writers
/// out may come with writes of its own. `ShareUpdateExclusiveLock` is vacuum's and writes nothing
/// of a tenant. A prepared transaction has no process; its lock on its own id says which it is.
const WRITE_LOCK_HOLDERS: &str = "
with recursive moved as (
    select to_regclass(name)::oid as oid from unnest($1::text[]) as name
  union
    select i.inhrelid from pg_catalog.pg_inherits i join moved m on m.oid = i.inhparent
)
select l.pid,
       l.virtualtransaction,
       coalesce(a.application_name, '') as application,
       p.gid,
       coalesce(a.xact_start, p.prepared) as since,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::bigint as age,
       array_agg(distinct format('%s.%s', n.nspname, c.relname)
                 order by format('%s.%s', n.nspname, c.relname)) as tables
  from pg_catalog.pg_locks l
  join moved m on m.oid = l.relation
  join pg_catalog.pg_class c on c.oid = l.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
  left join pg_catalog.pg_locks own
         on l.pid is null and own.pid is null and own.locktype = 'transactionid' and own.granted
        and own.virtualtransaction = l.virtualtransaction
  left join pg_catalog.pg_prepared_xacts p on p.transaction = own.transactionid
 where l.locktype = 'relation'
   and l.granted
   and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
   and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
   and l.pid is distinct from pg_backend_pid()
 group by 1, 2, 3, 4, 5
 order by since nulls first, l.virtualtransaction";

fn writer(row: &Row, doing: &'static str) -> Result<Writer> {
    let pid: Option<i32> = get(row, 0, doing)?;
    let held_by = match pid {
        Some(pid) => HeldBy::Session {
            pid,
            application: get(row, 2, doing)?,
        },
        None => HeldBy::Prepared {
            gid: get(row, 3, doing)?,
        },
    };
    Ok(Writer {
        held_by,
        virtual_transaction: get(row, 1, doing)?,
        since: get(row, 4, doing)?,
        age_seconds: get(row, 5, doing)?,
        tables: get(row, 6, doing)?,
    })
}

/// Waits until the transactions that were there when the fence fell hold no write lock on `tables`
/// any more, or until `deadline`. `fenced_at` is the primary's own clock ([`server_time`]), read
/// after the fence.
pub async fn wait_for_writers(
    primary: &Client,
    tables: &[TableName],
    fenced_at: Timestamp,
    deadline: Instant,
) -> Result<Writers> {
    let mut watch = Watch::new(fenced_at);
    loop {
        let blockers = watch.look(write_lock_holders(primary, tables).await?);
        if blockers.is_empty() {
            return Ok(Writers::Gone);
        }
        if Instant::now() >= deadline {
            return Ok(Writers::StillThere(blockers));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Decides, look by look, which writers must be waited for.
///
/// One that began by the time of the fence must; one that began later need not. A prepared
/// transaction does not say when it began, nor does a session that our role may not see: such a one
/// is waited for if it was there in the first look. A prepared one also if it came while an old
/// session was still there, since it may be that session's transaction under a new name.
struct Watch {
    fenced_at: Timestamp,
    /// Transactions of unknown beginning that are waited for.
    awaited: BTreeSet<String>,
    is_first_look: bool,
    /// Whether a session was waited for at the last look.
    may_prepare: bool,
}

impl Watch {
    fn new(fenced_at: Timestamp) -> Self {
        Self {
            fenced_at,
            awaited: BTreeSet::new(),
            is_first_look: true,
            may_prepare: false,
        }
    }

    fn look(&mut self, seen: Vec<Writer>) -> Vec<Writer> {
        let (first, may_prepare) = (self.is_first_look, self.may_prepare);
        self.is_first_look = false;
        let may_be_old = |writer: &&Writer| match writer.held_by {
            HeldBy::Session { .. } => first && writer.since.is_none(),
            HeldBy::Prepared { .. } => first || may_prepare,
        };
        let names = seen
            .iter()
            .filter(may_be_old)
            .map(|w| w.virtual_transaction.clone());
        self.awaited.extend(names);
        let blockers: Vec<Writer> = seen
            .into_iter()
            .filter(|writer| {
                writer.since.is_some_and(|since| since <= self.fenced_at)
                    || self.awaited.contains(&writer.virtual_transaction)
            })
            .collect();
        self.may_prepare = blockers
            .iter()
            .any(|writer| matches!(writer.held_by, HeldBy::Session { .. }));
        blockers
    }
}

/// Writes the barrier of one store into the log of its database, durably, and returns the position
/// of the message. The commit lies a little behind it: what proves that the barrier was applied is
/// its nonce, not this position. Written again with the same nonce it is the same barrier.
pub async fn emit_barrier(
    primary: &Client,
    move_id: MoveId,
    store: &StoreName,
    nonce: Uuid,
) -> Result<Lsn> {
    let doing = "write the barrier into the log";
    let content = format!(
        r#"{{"move":"{move_id}","store":{},"nonce":"{nonce}"}}"#,
        json_string(store.as_str())
    );
    // A role may have synchronous_commit off; a barrier that a crash can undo proves nothing.
    let statement = "
with durable as (select set_config('synchronous_commit', 'on', true))
select pg_logical_emit_message(true, $1, $2) from durable";
    let row = primary
        .query_one(statement, &[&BARRIER_PREFIX, &content])
        .await
        .doing(doing)?;
    position(&row, doing)
}

/// `text` as JSON. A store's name has no control characters, so only these two need escaping.
fn json_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The end of the log: on a primary what has been inserted, on a standby what has been replayed.
pub async fn head(client: &Client) -> Result<Lsn> {
    let doing = "read the end of the log";
    let row = client
        .query_one(
            "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                         else pg_current_wal_insert_lsn() end",
            &[],
        )
        .await
        .doing(doing)?;
    position(&row, doing)
}

/// What a slot keeps of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedWal {
    /// From the slot's restart position to the end of the log, in bytes; nothing once the slot is
    /// lost.
    pub bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub status: String,
    /// How much more may be written before the slot is in danger, in bytes; nothing when
    /// `max_slot_wal_keep_size` sets no limit.
    pub safe_bytes: Option<i64>,
}

/// What the slot named `slot` keeps of the log of the server that it lives on; nothing if there is
/// no such slot.
pub async fn retained_wal(client: &Client, slot: &str) -> Result<Option<RetainedWal>> {
    let doing = "read what a slot keeps of the log";
    let end = head(client).await?;
    let row = client
        .query_opt(
            "select restart_lsn, coalesce(wal_status, 'lost'), safe_wal_size
               from pg_catalog.pg_replication_slots where slot_name = $1::text",
            &[&slot],
        )
        .await
        .doing(doing)?;
    let Some(row) = row else { return Ok(None) };
    let restart: Option<PgLsn> = get(&row, 0, doing)?;
    Ok(Some(RetainedWal {
        bytes: restart.map(|restart| end.bytes_since(Lsn(restart.into()))),
        status: get(&row, 1, doing)?,
        safe_bytes: get(&row, 2, doing)?,
    }))
}

fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize, doing: &'static str) -> Result<T> {
    row.try_get(column).doing(doing)
}

fn position(row: &Row, doing: &'static str) -> Result<Lsn> {
    let lsn: PgLsn = get(row, 0, doing)?;
    Ok(Lsn(lsn.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn session(name: &str, since: i64) -> Writer {
        Writer {
            held_by: HeldBy::Session {
                pid: 1,
                application: String::new(),
            },
            virtual_transaction: name.to_owned(),
            since: Some(at(since)),
            age_seconds: None,
            tables: Vec::new(),
        }
    }

    fn prepared(name: &str, since: i64) -> Writer {
        Writer {
            held_by: HeldBy::Prepared { gid: None },
            ..session(name, since)
        }
    }

    /// Guards promise 1: a writer from before the fence cannot slip away by preparing its
    /// transaction between two looks.
    #[test]
    fn an_old_writer_that_prepares_its_transaction_is_still_waited_for() {
        let mut watch = Watch::new(at(10));
        assert_eq!(watch.look(vec![session("3/7", 9)]).len(), 1);
        assert_eq!(watch.look(vec![prepared("-1/800", 12)]).len(), 1);
        assert_eq!(watch.look(vec![prepared("-1/800", 12)]).len(), 1);
        assert_eq!(watch.look(vec![]).len(), 0);
    }

    /// A fence is for one organization: the others write on, and the drain must not wait for them.
    #[test]
    fn writers_that_began_after_the_fence_are_not_waited_for() {
        let mut watch = Watch::new(at(10));
        assert_eq!(watch.look(vec![session("3/7", 11)]).len(), 0);
        assert_eq!(
            watch
                .look(vec![session("3/7", 11), prepared("-1/801", 12)])
                .len(),
            0
        );
    }

    /// A transaction that took its lock only after the first look is no less old.
    #[test]
    fn an_old_writer_that_locks_late_is_waited_for() {
        let mut watch = Watch::new(at(10));
        assert_eq!(watch.look(vec![session("3/7", 5)]).len(), 1);
        assert_eq!(
            watch.look(vec![session("3/7", 5), session("4/1", 2)]).len(),
            2
        );
    }

    #[test]
    fn a_writer_whose_beginning_is_hidden_is_waited_for_from_the_first_look() {
        let mut watch = Watch::new(at(10));
        let hidden = |name| Writer {
            since: None,
            ..session(name, 0)
        };
        assert_eq!(watch.look(vec![hidden("3/7")]).len(), 1);
        assert_eq!(watch.look(vec![hidden("3/7"), hidden("4/9")]).len(), 1);
    }

    /// The same when our role may not see when the session's transaction began.
    #[test]
    fn a_hidden_writer_that_prepares_its_transaction_is_still_waited_for() {
        let mut watch = Watch::new(at(10));
        watch.look(vec![Writer {
            since: None,
            ..session("3/7", 0)
        }]);
        assert_eq!(watch.look(vec![prepared("-1/800", 12)]).len(), 1);
    }

    #[test]
    fn a_stores_name_is_one_json_string() {
        assert_eq!(json_string(r#"a"b\c"#), r#""a\"b\\c""#);
    }
}
