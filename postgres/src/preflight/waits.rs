//! What is open on the source, and would keep a move waiting.

use std::time::Duration;

use super::finding::Finding;
use super::open::{Open, Side};
use crate::{Doing, Result};

/// A slot waits for each transaction with an id that is open when it is made, of whatever database
/// of the server.
const OPEN: &str = "
select a.pid, coalesce(nullif(a.application_name, ''), '?'), null::text as gid,
       extract(epoch from clock_timestamp() - a.xact_start)::bigint as age
  from pg_catalog.pg_stat_activity a
 where a.backend_xid is not null
   and a.xact_start < clock_timestamp() - $1::bigint * interval '1 millisecond'
 union all
select null, '', p.gid, extract(epoch from clock_timestamp() - p.prepared)::bigint
  from pg_catalog.pg_prepared_xacts p
 order by age desc";

pub(super) async fn check(open: &Open<'_>, long: Duration) -> Result<Vec<Finding>> {
    if open.side == Side::Sink {
        return Ok(Vec::new());
    }
    let doing = "look for long and prepared transactions";
    let long_ms = i64::try_from(long.as_millis()).unwrap_or(i64::MAX);
    let rows = open.primary.query(OPEN, &[&long_ms]).await.doing(doing)?;
    let mut findings = Vec::new();
    for row in rows {
        let pid: Option<i32> = row.try_get(0).doing(doing)?;
        let application: String = row.try_get(1).doing(doing)?;
        let gid: Option<String> = row.try_get(2).doing(doing)?;
        let age: i64 = row.try_get(3).doing(doing)?;
        findings.push(match (pid, gid) {
            (Some(pid), _) => long_transaction(open, pid, &application, age),
            (None, gid) => prepared(open, &gid.unwrap_or_default(), age),
        });
    }
    Ok(findings)
}

fn long_transaction(open: &Open<'_>, pid: i32, application: &str, age: i64) -> Finding {
    Finding::warn(
        "long-transaction",
        open.place.clone(),
        format!("pid {pid} ({application}) has a transaction open for {age} s"),
        "Making a slot waits until it ends",
    )
    .mend(format!(
        "wait for it, or end it: select pg_terminate_backend({pid})"
    ))
}

fn prepared(open: &Open<'_>, gid: &str, age: i64) -> Finding {
    Finding::warn(
        "prepared-transaction",
        open.place.clone(),
        format!("transaction {gid:?} has been prepared for {age} s"),
        "Making a slot waits until it is committed or rolled back, by hand if nobody else does",
    )
    .mend(format!(
        "commit prepared {0}, or rollback prepared {0}",
        crate::sql::quote_literal(gid)
    ))
}
