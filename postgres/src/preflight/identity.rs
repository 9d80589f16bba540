//! Whether the databases are the ones that they are taken for: all different, and each session the
//! same from one statement to the next.

use monarch_config::Dsn;
use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use super::finding::{Finding, Place};
use super::open::{self, Open, not_checked, unreachable};
use crate::sql::quote_literal;
use crate::{Doing, Result, Session};

/// Refuses if a source database is a sink database, under whatever names. Addresses say nothing
/// about that, and system identifiers little: copies share them, and one server has many
/// databases. But an advisory lock is a database's own: taken on the source, it must be free on
/// the sink.
pub(super) async fn distinct(source: &[Open<'_>], sink: &[Open<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for from in source {
        match same_as_any(from, sink).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(not_checked(&from.place, &error)),
        }
    }
    findings
}

async fn same_as_any(from: &Open<'_>, sink: &[Open<'_>]) -> Result<Vec<Finding>> {
    let key = random_key();
    let doing = "take an advisory lock";
    let lock = "select pg_advisory_lock($1)";
    from.primary.execute(lock, &[&key]).await.doing(doing)?;
    let mut findings = Vec::new();
    let mut failed = None;
    for to in sink {
        match is_free(&to.primary, key).await {
            Ok(true) => {}
            Ok(false) => findings.push(same(from, to)),
            Err(error) => failed = Some(error),
        }
    }
    let unlock = "select pg_advisory_unlock($1)";
    from.primary.execute(unlock, &[&key]).await.doing(doing)?;
    failed.map_or(Ok(findings), Err)
}

async fn is_free(client: &Client, key: i64) -> Result<bool> {
    let doing = "look whether an advisory lock is free";
    // In a transaction, so that nothing stays locked.
    let sql = "select pg_try_advisory_xact_lock($1)";
    client
        .query_one(sql, &[&key])
        .await
        .and_then(|row| row.try_get(0))
        .doing(doing)
}

/// A key that no application uses but by chance.
fn random_key() -> i64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    i64::from_ne_bytes((high ^ low).to_ne_bytes())
}

fn same(from: &Open<'_>, to: &Open<'_>) -> Finding {
    Finding::refuse(
        "source-is-sink",
        from.place.clone(),
        format!("it is the same database as {}", to.place),
        "A move from a database to itself would end by deleting what it moved",
    )
    .mend("check primary_dsn of both in fleet.yaml")
}

/// Refuses if a session is not the same server process from one statement to the next, as behind a
/// pooler of transactions: locks, snapshots and settings would be other clients'.
///
/// While one session holds a transaction open, a pooler must serve another from another process.
/// So the first says who it is and marks itself, the second opens a transaction, and the first
/// is asked again.
pub(super) async fn pooler(first: &Session, dsn: &Dsn, place: &Place) -> Result<Vec<Finding>> {
    let mark = Uuid::new_v4().to_string();
    let before = marked(first, Some(&mark)).await?;
    let second = open::session(dsn).await?;
    let doing = "open a transaction beside another session";
    second.batch_execute("begin").await.doing(doing)?;
    let theirs = marked(&second, None).await?;
    let after = marked(first, None).await?;
    second.batch_execute("rollback").await.doing(doing)?;
    if before == after && theirs.0 != after.0 && theirs.1 != before.1 {
        return Ok(Vec::new());
    }
    let finding = Finding::refuse(
        "transaction-pooler",
        place.clone(),
        "a session is not the same server process from one statement to the next",
        "Behind a pooler of transactions, locks, snapshots and settings become other clients'",
    );
    Ok(vec![finding.mend(
        "name the server itself in fleet.yaml, or a pool in session mode",
    )])
}

/// The process that serves a session, and the mark that it bears. Asked in one message each: a
/// prepared statement would be lost behind a pooler, and fail instead of answering.
async fn marked(client: &Client, mark: Option<&str>) -> Result<(String, String)> {
    let doing = "look which process serves the session";
    let mark = match mark {
        Some(mark) => format!("set_config('monarch.mark', {}, false)", quote_literal(mark)),
        None => "coalesce(current_setting('monarch.mark', true), '')".to_owned(),
    };
    let sql = format!("select pg_backend_pid()::text, {mark}");
    let answer = client.simple_query(&sql).await.doing(doing)?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |column: usize| row.and_then(|row| row.get(column)).unwrap_or_default();
    Ok((text(0).to_owned(), text(1).to_owned()))
}

/// The ledger's database: it must be there, and its sessions must be its own.
pub(super) async fn ledger(dsn: &Dsn) -> Vec<Finding> {
    let place = Place {
        database: Some(open::whereabouts("ledger", dsn)),
        ..Place::default()
    };
    let session = match open::session(dsn).await {
        Ok(session) => session,
        Err(error) => return vec![unreachable(&place, "ledger", dsn, &error)],
    };
    pooler(&session, dsn, &place)
        .await
        .unwrap_or_else(|error| vec![not_checked(&place, &error)])
}
