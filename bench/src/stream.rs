//! Changes from slot to sink: our stream against a subscription.
//!
//! Both begin with the same copy, which is not measured, and both find all changes in the log when
//! they are let go. Time runs from the first row that arrives to the last, as a reader of the sink
//! sees them, so that how long either takes to begin is no part of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use monarch_postgres::keys::KeyRecorder;
use monarch_postgres::stream::{self, Observer, Report};
use tokio::sync::mpsc;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::measure::{Case, Side, Work};
use crate::memory::Watch;
use crate::objects;
use crate::pair::{Databases, Pair};

/// What is done on the source.
#[derive(Debug, Clone)]
pub(crate) struct Streaming {
    /// Rows that are there before.
    rows: u64,
    /// Changes in all.
    changes: u64,
    /// Changes in a transaction.
    together: u64,
    kind: Kind,
    /// Whether each row names an object of its own.
    names_objects: bool,
}

impl Streaming {
    /// Who does the same.
    pub(crate) fn rival(&self) -> Side {
        if self.names_objects {
            Side::WithoutObjects
        } else {
            Side::Subscription
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Insert,
    Update,
    Delete,
}

#[rustfmt::skip]
const CASES: [(&str, f64, Kind, f64, u64); 7] = [
    // The case, our goal, what is done, how often, and how many share a transaction.
    ("stream, insert, 1000 a transaction", 2.0, Kind::Insert, 200_000.0, 1_000),
    ("stream, update, 1000 a transaction", 2.0, Kind::Update, 200_000.0, 1_000),
    ("stream, delete, 1000 a transaction", 1.5, Kind::Delete, 200_000.0, 1_000),
    ("stream, insert, 1 a transaction", 1.5, Kind::Insert, 20_000.0, 1),
    ("stream, update, 1 a transaction", 1.5, Kind::Update, 20_000.0, 1),
    ("stream, delete, 1 a transaction", 1.5, Kind::Delete, 20_000.0, 1),
    ("stream, one update of all", 1.0, Kind::Update, 500_000.0, u64::MAX),
];

/// Recording the keys of objects slows the stream by no more than a twentieth.
const NAMING_OBJECTS: (&str, f64, Kind, f64, u64) = (
    "stream, insert, each naming an object",
    0.95,
    Kind::Insert,
    200_000.0,
    1_000,
);

pub(crate) fn cases(scale: f64) -> Vec<Case> {
    let plain = CASES.into_iter().map(|case| (case, false));
    let all = plain.chain([(NAMING_OBJECTS, true)]);
    let case =
        |((name, goal, kind, changes, together), names_objects): ((_, _, _, f64, u64), _)| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let changes = (changes * scale) as u64;
            // Whole transactions.
            let together = together.min(changes);
            let changes = changes / together * together;
            let work = Streaming {
                rows: match kind {
                    Kind::Insert => 1_000,
                    Kind::Update | Kind::Delete => changes,
                },
                changes,
                together,
                kind,
                names_objects,
            };
            Case {
                name,
                rows: changes,
                goal,
                work: Work::Stream(work),
            }
        };
    all.map(case).collect()
}

const SCHEMA: &str = "
create table organization (id bigint primary key, name text);
create table marker (id bigint primary key, organization_id bigint);
create table item (
  id bigint primary key, organization_id bigint not null, status integer,
  amount numeric(12, 2), created_at timestamptz, label text);
create index on item (organization_id);
create index on item (created_at);
create index on item (label)";

/// Rows from `least` on.
fn rows(least: &str, most: &str) -> String {
    format!(
        "insert into item select n, 1, n % 17, n / 100.0,
           timestamptz '2026-01-01' + n * interval '1 s', md5(n::text)
         from generate_series({least}, {most}) n"
    )
}

/// The changes, each transaction between `at` and `at + together`.
fn workload(work: &Streaming) -> String {
    let (from, to) = ("at + 1", format!("at + {}", work.together));
    let change = match work.kind {
        Kind::Insert => rows(&format!("1000000 + {from}"), &format!("1000000 + {to}")),
        Kind::Update => {
            format!("update item set status = status + 1 where id between {from} and {to}")
        }
        Kind::Delete => format!("delete from item where id between {from} and {to}"),
    };
    format!(
        "do $$ declare at bigint := 0; begin
           insert into marker values (1, 1); commit;
           while at < {changes} loop {change}; commit; at := at + {together}; end loop;
           insert into marker values (2, 1);
         end $$",
        changes = work.changes,
        together = work.together,
    )
}

/// How long one stream takes, and how much memory ours takes for it.
pub(crate) async fn measure(pair: &Pair, work: &Streaming, side: Side) -> Result<(Duration, u64)> {
    let fill = format!(
        "insert into organization values (1, 'measured'); {}",
        rows("1", &work.rows.to_string())
    );
    let databases = pair.databases(SCHEMA, &fill).await?;
    let measured = match side {
        Side::Ours if work.names_objects => {
            let keys = Arc::new(objects::recorder(&pair.ledger).await?);
            let measured = ours(&databases, work, Some(Arc::clone(&keys) as _)).await?;
            objects::assert_recorded(&keys, work.rows + work.changes).await?;
            measured
        }
        Side::Ours | Side::WithoutObjects => ours(&databases, work, None).await?,
        Side::Subscription => (subscription(&databases, work).await?, 0),
        Side::CopyText | Side::CopyBinary => bail!("a copy does not stream"),
    };
    assert_same(&databases).await?;
    databases.drop().await?;
    Ok(measured)
}

async fn ours(
    databases: &Databases<'_>,
    work: &Streaming,
    keys: Option<Arc<dyn KeyRecorder>>,
) -> Result<(Duration, u64)> {
    let of = databases.prepare(keys).await?;
    databases.copy(&of).await?;
    change(databases, work).await?;
    let cancel = CancellationToken::new();
    let (_, nobody) = mpsc::channel(1);
    let memory = Watch::begin();
    let stopped = cancel.clone();
    let job = of.job.clone();
    let running =
        tokio::spawn(async move { stream::run(&job, &mut Nobody, nobody, &stopped).await });
    let took = between_markers(&databases.sink).await?;
    let grew = memory.grew();
    cancel.cancel();
    running.await??;
    Ok((took, grew))
}

async fn subscription(databases: &Databases<'_>, work: &Streaming) -> Result<Duration> {
    let Databases { source, sink, .. } = databases;
    source
        .batch_execute("create publication bench for table organization, marker, item")
        .await?;
    let create = format!(
        "create subscription bench connection '{}' publication bench with (streaming = on)",
        databases.source_dsn()
    );
    sink.batch_execute(&create).await?;
    until(
        sink,
        "select bool_and(srsubstate = 'r') from pg_subscription_rel",
    )
    .await?;
    sink.batch_execute("alter subscription bench disable")
        .await?;
    until(
        source,
        "select bool_and(not active) from pg_replication_slots",
    )
    .await?;
    change(databases, work).await?;
    sink.batch_execute("alter subscription bench enable")
        .await?;
    let took = between_markers(sink).await?;
    sink.batch_execute("drop subscription bench").await?;
    Ok(took)
}

async fn change(databases: &Databases<'_>, work: &Streaming) -> Result<()> {
    let source = &databases.source;
    source
        .batch_execute(&workload(work))
        .await
        .context("change")?;
    for client in [source, &databases.sink] {
        client.batch_execute("checkpoint").await?;
    }
    Ok(())
}

/// From the first marker to the second, as a reader of the sink sees them.
async fn between_markers(sink: &Client) -> Result<Duration> {
    let seen = sink.prepare("select count(*) from marker").await?;
    let mut begun = None;
    loop {
        let markers: i64 = sink.query_one(&seen, &[]).await?.get(0);
        match (markers, begun) {
            (0, _) => {}
            (1, None) => begun = Some(Instant::now()),
            (2, Some(begun)) => return Ok(begun.elapsed()),
            (2, None) => bail!("all came at once: there were too few changes"),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn until(client: &Client, question: &str) -> Result<()> {
    loop {
        let answer: Option<bool> = client.query_one(question, &[]).await?.get(0);
        if answer == Some(true) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A fast stream that loses something is not fast.
async fn assert_same(databases: &Databases<'_>) -> Result<()> {
    let digest = "select count(*), sum(hashtextextended(item::text, 0))::text from item";
    let of = async |client: &Client| {
        let row = client.query_one(digest, &[]).await?;
        anyhow::Ok((row.get::<_, i64>(0), row.get::<_, Option<String>>(1)))
    };
    let (source, sink) = (of(&databases.source).await?, of(&databases.sink).await?);
    ensure!(source == sink, "the sink differs: {source:?}, {sink:?}");
    Ok(())
}

struct Nobody;

impl Observer for Nobody {
    fn observe(&mut self, _: &Report) {}
}
