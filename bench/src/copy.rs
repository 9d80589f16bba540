//! Snapshots: our copy against `psql` piped into `psql`, in text and in binary.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::process::Command;

use crate::measure::{Case, Side, Work};
use crate::memory::Watch;
use crate::pair::{Databases, Pair};

/// What is copied.
#[derive(Debug, Clone)]
pub(crate) struct Copying {
    /// Columns of text beside the narrow ones, 100 bytes each.
    wide: u32,
    /// Indexes on the sink, the primary key among them.
    indexes: u32,
    rows: u64,
}

pub(crate) fn cases(scale: f64) -> Vec<Case> {
    let case = |name, goal, wide, indexes, rows: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rows = (rows * scale) as u64;
        let work = Copying {
            wide,
            indexes,
            rows,
        };
        Case {
            name,
            rows,
            goal,
            work: Work::Copy(work),
        }
    };
    vec![
        case("copy, 90 B rows, 4 indexes", 1.0, 0, 4, 500_000.0),
        case("copy, 2.6 kB rows, 24 indexes", 1.0, 25, 24, 20_000.0),
        case("copy, 90 B rows, no index", 1.0, 0, 0, 1_000_000.0),
    ]
}

/// The narrow columns come to some 90 bytes.
fn schema(wide: u32) -> String {
    let mut columns = String::new();
    for n in 1..=wide {
        let _ = write!(columns, ", w{n} text");
    }
    format!(
        "create table organization (id bigint primary key, name text);
         create table marker (id bigint primary key, organization_id bigint);
         create table item (
           id bigint not null, organization_id bigint not null, status integer,
           amount numeric(12, 2), created_at timestamptz, label text{columns})"
    )
}

fn fill(work: &Copying) -> String {
    let mut values = String::new();
    for n in 1..=work.wide {
        let _ = write!(values, ", rpad(md5((n * {n})::text), 100, 'w')");
    }
    format!(
        "insert into organization values (1, 'measured');
         insert into item select n, 1, n % 17, n / 100.0, timestamptz '2026-01-01' + n * interval '1 s',
           md5(n::text){values} from generate_series(1, {rows}) n;
         alter table item add primary key (id)",
        rows = work.rows
    )
}

/// The sink's indexes: the primary key first, then on one column after the other.
async fn index(databases: &Databases<'_>, work: &Copying) -> Result<()> {
    let narrow = ["organization_id", "created_at", "status", "label", "amount"];
    let columns = narrow.iter().map(|&name| name.to_owned());
    let columns = columns.chain((1..=work.wide).map(|n| format!("w{n}")));
    let mut statements = vec!["alter table item add primary key (id)".to_owned()];
    statements.extend(columns.map(|column| format!("create index on item ({column})")));
    for statement in statements.iter().take(work.indexes as usize) {
        databases.sink.batch_execute(statement).await?;
    }
    Ok(())
}

/// How long one copy takes, and how much memory ours takes for it.
pub(crate) async fn measure(pair: &Pair, work: &Copying, side: Side) -> Result<(Duration, u64)> {
    let databases = pair.databases(&schema(work.wide), &fill(work)).await?;
    index(&databases, work).await?;
    let (took, grew) = match side {
        Side::Ours => ours(&databases).await?,
        Side::CopyText => (native(&databases, "text").await?, 0),
        Side::CopyBinary => (native(&databases, "binary").await?, 0),
        Side::Subscription | Side::WithoutObjects => bail!("it does not copy"),
    };
    let row = databases.sink.query_one("select count(*) from item", &[]);
    let copied: i64 = row.await?.get(0);
    ensure!(
        copied.unsigned_abs() == work.rows,
        "{copied} rows were copied"
    );
    databases.drop().await?;
    Ok((took, grew))
}

async fn ours(databases: &Databases<'_>) -> Result<(Duration, u64)> {
    let of = databases.prepare(None).await?;
    let memory = Watch::begin();
    let begun = Instant::now();
    databases.copy(&of).await?;
    Ok((begun.elapsed(), memory.grew()))
}

async fn native(databases: &Databases<'_>, format: &str) -> Result<Duration> {
    let out =
        format!("copy (select * from item where organization_id = 1) to stdout (format {format})");
    let into = format!("copy item from stdin (format {format})");
    let begun = Instant::now();
    let ended = Command::new("bash")
        .args([
            "-c",
            "set -o pipefail; psql \"$FROM\" -qc \"$OUT\" | psql \"$TO\" -qc \"$IN\"",
        ])
        .env("FROM", databases.source_dsn())
        .env("TO", databases.sink_dsn())
        .env("OUT", out)
        .env("IN", into)
        .stdin(Stdio::null())
        .status()
        .await?;
    ensure!(ended.success(), "psql failed");
    Ok(begun.elapsed())
}
