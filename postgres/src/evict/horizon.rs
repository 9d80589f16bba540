//! Tells row versions that were copied from those that came later, long after the fact.
//!
//! When the organization's slots have been read to their head, everything that had been committed
//! before is on the sink. What is written later is not, and eviction may run days later. A row
//! version says by its `xmin` which transaction wrote it; the horizon is a transaction id such that
//! each transaction below it had ended before the slots were read for the last time. A version from
//! below was copied; one from the horizon or above is newer, and is never deleted.
//!
//! Why not keep a snapshot and ask `pg_visible_in_snapshot`? A snapshot lists the transactions that
//! were in progress, but not their subtransactions, and a row written under a savepoint carries
//! the subtransaction's id: such a row would look old while it was not yet committed. So
//! [`record_horizon`] waits until nothing below the horizon is in progress in the database, and
//! then a plain comparison is exact. It is written down as the snapshot `h:h:`, which says the same
//! to whoever reads the ledger.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use monarch_model::Lsn;
use tokio::time::Instant;
use tokio_postgres::{Client, Row};

use super::Error;
use crate::{Doing, drain};

/// How often the wait for open transactions looks again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Row versions that were written by transactions below it have been copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon(u64);

/// A text is no horizon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no snapshot: expected xmin:xmax: as Postgres prints it")]
pub struct InvalidHorizon(String);

impl fmt::Display for Horizon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{0}:{0}:", self.0)
    }
}

impl FromStr for Horizon {
    type Err = InvalidHorizon;

    /// Reads any `pg_snapshot`. Of one with transactions in progress the lower bound counts, since
    /// nothing above it is certain.
    fn from_str(s: &str) -> Result<Self, InvalidHorizon> {
        let invalid = || InvalidHorizon(s.chars().take(64).collect());
        let mut parts = s.split(':');
        let mut bound = || parts.next()?.parse::<u64>().ok();
        match (bound(), bound()) {
            (Some(xmin), Some(xmax)) if 3 <= xmin && xmin <= xmax => Ok(Self(xmin)),
            _ => Err(invalid()),
        }
    }
}

/// Ids that our own transaction may use beyond the newest that its snapshot knows, for itself and
/// for what triggers do in it: versions from up to here count as newer, not as ancient.
const OWN_IDS: u64 = 1 << 20;

impl Horizon {
    /// A condition over the row version behind `alias`: that it is newer than the horizon.
    ///
    /// A row keeps the low 32 bits of its transaction's id. The full id is taken to be the greatest
    /// that ends in these bits and is not beyond the present, so an error can only make a version
    /// look newer than it is (one that is billions of transactions old and happens to end like a
    /// recent one): eviction would stop, and nothing be lost. Ids below 3 are those of the cluster's
    /// making, and of rows frozen by a server older than 9.4.
    pub(super) fn is_newer(self, alias: &str) -> String {
        let Horizon(horizon) = self;
        let now = format!(
            "(pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint \
             + {OWN_IDS})"
        );
        let xmin = format!("{alias}.xmin::text::bigint");
        format!("({xmin} >= 3 and {now} - (({now} - {xmin}) & 4294967295) >= {horizon})")
    }
}

/// A horizon, and how far the slots must be read before it may be relied upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The horizon.
    pub horizon: Horizon,
    /// Everything that a transaction below the horizon wrote lies before this position.
    pub read_to: Lsn,
}

/// A transaction that keeps a horizon from being certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// The session that runs it; none if it is prepared, or has just ended.
    pub pid: Option<i32>,
    /// Its name if it is prepared.
    pub gid: Option<String>,
    /// What the session calls itself.
    pub application: String,
    /// Its age in seconds, as far as our role may see it.
    pub age_seconds: Option<i64>,
}

impl fmt::Display for OpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.gid) {
            (Some(pid), _) if self.application.is_empty() => write!(f, "pid {pid}")?,
            (Some(pid), _) => write!(f, "pid {pid} ({})", self.application)?,
            (None, Some(gid)) => write!(f, "prepared transaction {gid}")?,
            (None, None) => f.write_str("a transaction that just ended")?,
        }
        match self.age_seconds {
            Some(age) => write!(f, ", {age} s old"),
            None => Ok(()),
        }
    }
}

/// Sets a horizon on the source's primary, and waits until every transaction below it has ended.
/// Then the slots are to be read at least to [`Recorded::read_to`], and only then be dropped.
///
/// # Errors
///
/// [`Error::OpenTransactions`] if some are still there at `deadline`; trying again sets a new one.
pub async fn record_horizon(primary: &Client, deadline: Instant) -> Result<Recorded, Error> {
    let doing = "set the horizon";
    let row = primary
        .query_one(
            "select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text",
            &[],
        )
        .await
        .doing(doing)?;
    let xmax: String = row.try_get(0).doing(doing)?;
    let horizon: Horizon = format!("{xmax}:{xmax}:").parse()?;
    loop {
        let open = open_below(primary, &xmax).await.doing(doing)?;
        if open.is_empty() {
            break;
        }
        if Instant::now() >= deadline {
            return Err(Error::OpenTransactions(open));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let read_to = drain::head(primary).await?;
    Ok(Recorded { horizon, read_to })
}

/// Transactions below `xmax` that are in progress and are not known to run in another database,
/// where they cannot write to this one.
async fn open_below(
    primary: &Client,
    xmax: &str,
) -> Result<Vec<OpenTransaction>, tokio_postgres::Error> {
    let rows = primary
        .query(
            "select a.pid, p.gid, coalesce(a.application_name, ''),
                    extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))
                      ::bigint
               from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) as xid
               left join pg_catalog.pg_stat_activity a
                 on a.backend_xid::text::bigint = xid::text::bigint & 4294967295
               left join pg_catalog.pg_prepared_xacts p
                 on p.transaction::text::bigint = xid::text::bigint & 4294967295
              where xid < $1::text::xid8
                and coalesce(a.datname, p.database, current_database()) = current_database()",
            &[&xmax],
        )
        .await?;
    rows.iter().map(open_transaction).collect()
}

fn open_transaction(row: &Row) -> Result<OpenTransaction, tokio_postgres::Error> {
    Ok(OpenTransaction {
        pid: row.try_get(0)?,
        gid: row.try_get(1)?,
        application: row.try_get(2)?,
        age_seconds: row.try_get(3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_is_written_as_a_snapshot_and_read_back() {
        let horizon: Horizon = "4294968000:4294968000:".parse().unwrap();
        assert_eq!(horizon.to_string().parse(), Ok(horizon));
        for bad in ["", "1", "x:y:", "9:8:", "0:0:"] {
            assert!(bad.parse::<Horizon>().is_err(), "{bad} was taken");
        }
    }

    /// Guards promise 8: whatever was in progress in a plain snapshot counts as newer.
    #[test]
    fn of_a_snapshot_with_transactions_in_progress_the_lower_bound_counts() {
        assert_eq!("700:720:700,705".parse(), Ok(Horizon(700)));
    }
}
