//! A session on the source's primary, for what the log does not hold.
//!
//! The primary, and not a standby that decodes: only there can a snapshot be told by transaction
//! ids. What is read is little, since it is asked for by key; [`super::stretch`] says when, and why
//! what is read is of one known position.

use std::time::Duration;

use monarch_model::Lsn;
use tokio::time::{Instant, sleep};
use tokio_postgres::RowStream;
use tokio_postgres::types::PgLsn;

use super::error::StreamError;
use super::fetch::{Query, came_before};
use super::tables::{TableIndex, Tables};
use super::xids::{Delivered, Snapshot};
use crate::slot;
use crate::{ConnectOptions, Doing, Error, Session, SessionPurpose};

/// How long a snapshot is waited for that sees all that the log has brought, for a fetch.
pub(super) const SNAPSHOT_WAIT: Duration = Duration::from_secs(60);
/// How often one is taken meanwhile.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(50);
/// The size of a page of the log, and of the headers that one may begin with.
const PAGE_BYTES: u64 = 8192;
const PAGE_HEADERS_BYTES: [u64; 2] = [24, 40];

/// What one snapshot of the source sees. Rows are read in it until the next is taken.
pub(super) struct Moment {
    snapshot: Snapshot,
    /// All that it sees was committed before this position.
    pub(super) until: Lsn,
}

impl Moment {
    /// Whether it sees a transaction of the log, by its id.
    pub(super) fn sees(&self, xid: u32) -> bool {
        self.snapshot.sees(xid)
    }
}

/// The source's primary, connected to when it is first needed.
pub(super) struct Primary {
    options: ConnectOptions,
    purpose: SessionPurpose,
    session: Option<Session>,
    /// What the log has brought to this mover.
    pub(super) delivered: Delivered,
    /// Every transaction before the position at which this mover began has a lower id: a row of a
    /// younger one was written behind that position.
    horizon: Option<u64>,
    /// Transactions that waited for a synchronous standby when the session began. An older mover may
    /// have applied them, though nobody else sees them yet.
    in_commit: Vec<u32>,
}

impl Primary {
    /// `horizon` is what the copy noted, if the mover begins where the copy ended.
    pub(super) fn new(options: &ConnectOptions, application: &str, horizon: Option<u64>) -> Self {
        Self {
            options: options.clone(),
            purpose: SessionPurpose::reader(application),
            session: None,
            delivered: Delivered::default(),
            horizon,
            in_commit: Vec::new(),
        }
    }

    /// Connects, if it has not, and finds the horizon, if it is not known.
    pub(super) async fn connect(&mut self) -> Result<&Session, StreamError> {
        if self.session.is_none() {
            let session = Session::connect(&self.options, &self.purpose).await?;
            self.in_commit = in_commit(&session).await?;
            if self.horizon.is_none() {
                self.horizon = Some(next_id(&session).await?);
            }
            self.session = Some(session);
        }
        self.session.as_ref().ok_or_else(no_session)
    }

    /// Those of a parent's ids that a row of the source refers to that may have been there before
    /// this mover began; all of them, as long as not all that was there can be seen.
    pub(super) async fn came_before(
        &mut self,
        tables: &Tables,
        parent: TableIndex,
        ids: &[String],
    ) -> Result<Vec<String>, StreamError> {
        self.connect().await?;
        let (Some(session), Some(horizon)) = (&self.session, self.horizon) else {
            return Ok(ids.to_vec());
        };
        if !self.in_commit.is_empty() {
            let (snapshot, _) = look(session).await?;
            self.in_commit.retain(|&xid| !snapshot.sees(xid));
            if !self.in_commit.is_empty() {
                return Ok(ids.to_vec());
            }
        }
        let doing = || {
            let name = &tables.all[parent].name;
            format!("look on the source for rows that came before their parent in {name}")
        };
        let horizon = i64::try_from(horizon).unwrap_or_default();
        let mut found = Vec::new();
        for sql in came_before(tables, parent) {
            let rows = session
                .query(&sql, &[&ids, &horizon])
                .await
                .doing(doing())?;
            for row in rows {
                found.push(row.try_get(0).doing(doing())?);
            }
        }
        Ok(found)
    }

    /// Takes a snapshot that sees all that the log has brought, to this mover or to one before, and
    /// keeps it for what is read next. It is waited for so long.
    pub(super) async fn moment(&mut self, wait: Duration) -> Result<Moment, StreamError> {
        self.connect().await?;
        let Some(session) = &self.session else {
            return Err(StreamError::NoMoment {
                blockers: Vec::new(),
            });
        };
        let deadline = Instant::now() + wait;
        loop {
            session
                .batch_execute("rollback; begin isolation level repeatable read, read only")
                .await
                .doing("begin to read on the source")?;
            let (snapshot, until) = look(session).await?;
            self.in_commit.retain(|&xid| !snapshot.sees(xid));
            if self.in_commit.is_empty() && self.delivered.unseen_by(&snapshot).is_empty() {
                return Ok(Moment { snapshot, until });
            }
            give_up_after(deadline, session).await?;
        }
    }

    /// Reads rows in the moment that was taken, as they come.
    pub(super) async fn rows(
        &mut self,
        query: &Query,
        doing: impl Fn() -> String,
    ) -> Result<RowStream, StreamError> {
        let session = self.connect().await?;
        let rows = session.query_raw(&query.sql, &query.params).await;
        Ok(rows.doing(doing())?)
    }

    /// Takes the next moment in another session on the same server; returns the one that it stands
    /// in for, if there is one already.
    pub(super) fn lend(&mut self, other: Session) -> Option<Session> {
        self.session.replace(other)
    }

    /// Goes back to its own session; the other may have the moment.
    pub(super) fn take_back(&mut self, own: Option<Session>) -> Result<Session, StreamError> {
        std::mem::replace(&mut self.session, own).ok_or_else(no_session)
    }

    /// Lets the moment go.
    pub(super) async fn let_go(&mut self) -> Result<(), StreamError> {
        if let Some(session) = &self.session {
            let ended = session.batch_execute("rollback").await;
            ended.doing("end reading on the source")?;
        }
        Ok(())
    }
}

fn no_session() -> StreamError {
    StreamError::Protocol {
        what: "no session on the primary".to_owned(),
    }
}

/// The snapshot of this statement, and a position behind all that it sees. The position is asked
/// for within the statement, and so after its snapshot was taken.
async fn look(session: &Session) -> Result<(Snapshot, Lsn), StreamError> {
    let doing = "take a snapshot of the source";
    let row = session
        .query_one(
            "select pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()",
            &[],
        )
        .await
        .doing(doing)?;
    let snapshot: String = row.try_get(0).doing(doing)?;
    let until: PgLsn = row.try_get(1).doing(doing)?;
    let snapshot = Snapshot::parse(&snapshot).ok_or_else(|| StreamError::Protocol {
        what: "a snapshot in an unknown form".to_owned(),
    })?;
    Ok((snapshot, last_byte(Lsn(until.into()))))
}

/// A transaction id that was given out to nobody before, not even to one that has committed and is
/// not visible yet.
async fn next_id(session: &Session) -> Result<u64, StreamError> {
    let doing = "take a transaction id on the source";
    let row = session
        .query_one("select pg_catalog.pg_current_xact_id()::text::bigint", &[])
        .await
        .doing(doing)?;
    let id: i64 = row.try_get(0).doing(doing)?;
    Ok(id.unsigned_abs())
}

/// Where a reader of the log stands that has read all before `insert`. At the beginning of a page
/// the next record would be written behind the page's header, where no reader comes to before it
/// is.
fn last_byte(insert: Lsn) -> Lsn {
    let in_page = insert.0 % PAGE_BYTES;
    if PAGE_HEADERS_BYTES.contains(&in_page) {
        Lsn(insert.0 - in_page)
    } else {
        insert
    }
}

/// The transactions that are in the log and wait for a synchronous standby. A session that waits
/// shows its transaction's id only to a role that may see what others do, and none where it commits
/// a prepared transaction. But what waits still holds the lock on its id, and locks are shown to
/// everybody: so where it cannot be told who waits, all that hold one are waited for, those that
/// have not come to their end among them. That costs time, and never a row.
const IN_COMMIT: &str = "
with waiting as (
  select backend_xid from pg_catalog.pg_stat_activity where wait_event = 'SyncRep')
select backend_xid::text::bigint from waiting where backend_xid is not null
union
select transactionid::text::bigint from pg_catalog.pg_locks
 where locktype = 'transactionid' and granted and mode = 'ExclusiveLock'
   and current_setting('synchronous_standby_names') <> ''
   and (not pg_catalog.pg_has_role('pg_read_all_stats', 'usage')
        or (pid is null and exists (select from waiting where backend_xid is null)))";

async fn in_commit(session: &Session) -> Result<Vec<u32>, Error> {
    let doing = "look for transactions that wait for a synchronous standby";
    let rows = session.query(IN_COMMIT, &[]).await.doing(doing)?;
    let xid = |row: &tokio_postgres::Row| row.try_get::<_, i64>(0).doing(doing);
    rows.iter()
        .map(|row| Ok(u32::try_from(xid(row)?).unwrap_or_default()))
        .collect()
}

/// Waits a little, or says for whom it was waited in vain.
async fn give_up_after(deadline: Instant, session: &Session) -> Result<(), StreamError> {
    if Instant::now() >= deadline {
        let blockers = slot::blockers(session).await?;
        return Err(StreamError::NoMoment { blockers });
    }
    sleep(SNAPSHOT_EVERY).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards an idle source: a position that no reader reaches would be waited for until somebody
    /// writes.
    #[test]
    fn a_position_behind_a_page_header_is_the_pages_beginning() {
        assert_eq!(last_byte(Lsn(3 * PAGE_BYTES + 24)), Lsn(3 * PAGE_BYTES));
        assert_eq!(last_byte(Lsn(16 << 20 | 40)), Lsn(16 << 20));
        assert_eq!(
            last_byte(Lsn(3 * PAGE_BYTES + 32)),
            Lsn(3 * PAGE_BYTES + 32)
        );
        assert_eq!(last_byte(Lsn(3 * PAGE_BYTES)), Lsn(3 * PAGE_BYTES));
    }
}
