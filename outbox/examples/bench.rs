//! Measures a drain: `make bench-outbox`, or with arguments of one's own:
//! `cargo run --release -p monarch-outbox --example bench -- QUEUED…`.
//!
//! For each length of the queue, messages drained per second with receivers that do nothing, by one
//! drain and by eight: of shards with ten messages each and of shards with a thousand, and of the
//! latter also with a hundred messages coalesced into one; then how long a message takes that is
//! delivered at its commit. The server is one of the harness, which does not sync to disk; drains and
//! server share the machine's cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, fresh_name};
use monarch_outbox::{
    BoxError, Cell, CellOutbox, Drain, Receivers, Registry, Table, sentry::Category,
};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

/// What is drained in one measurement, at most; the rest of a longer queue stays, and is in the way.
const TAKEN: u64 = 300_000;

/// What a queue is made of.
#[derive(Clone, Copy)]
struct Queue {
    messages: u64,
    a_shard: u64,
    /// Messages for each object.
    coalesced: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let queued: Result<Vec<u64>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let queued = match queued.context("each argument is a length of the queue")? {
        none if none.is_empty() => vec![10_000, 1_000_000, 10_000_000],
        some => some,
    };
    let options = ClusterOptions::new(PgVersion::V16)
        .setting("shared_buffers = 1GB")
        .setting("max_wal_size = 16GB");
    let cluster = Cluster::start(options).await?;
    for messages in queued {
        for (a_shard, coalesced) in [(10, 1), (1_000, 1), (1_000, 100)] {
            let queue = Queue {
                messages,
                a_shard,
                coalesced,
            };
            for drains in [1, 8] {
                drain_queue(&cluster, queue, drains).await?;
            }
        }
        commit_latency(&cluster, messages).await?;
    }
    Ok(())
}

/// A drain whose receiver does nothing but count, and stops it when enough is drained.
fn drain(messages: u64) -> Result<Drain<Cell>> {
    let (stop, left) = (
        CancellationToken::new(),
        AtomicI64::new(messages.try_into()?),
    );
    let enough = stop.clone();
    let receivers = Receivers::new().on(Category::ProjectUpdate, move |_| {
        if left.fetch_sub(1, Ordering::Relaxed) <= 1 {
            enough.cancel();
        }
        std::future::ready(Ok::<(), BoxError>(()))
    });
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?;
    Ok(drain.stop_on(stop))
}

async fn database(cluster: &Cluster, queue: Queue) -> Result<(String, Client)> {
    let Queue {
        messages,
        a_shard,
        coalesced,
    } = queue;
    let name = fresh_name("bench");
    cluster.create_database(&name).await?;
    let client = cluster.admin(&name).await?;
    let create = Table::<Cell>::default().create_sql();
    let (bare, _) = create
        .split_once(';')
        .context("the table and its indexes")?;
    client.batch_execute(bare).await?;
    let shards = messages / a_shard;
    let fill = format!(
        "insert into sentry_regionoutbox
             (shard_scope, shard_identifier, category, object_identifier, payload)
         select 0, (n / {coalesced}) % {shards}, 8, n / {coalesced}, '{{\"slug\": \"a-project\"}}'
         from generate_series(0, {messages} - 1) n"
    );
    client.batch_execute(&fill).await?;
    Table::<Cell>::default().create(&client).await?;
    client.batch_execute("analyze; checkpoint").await?;
    Ok((name, client))
}

async fn drain_queue(cluster: &Cluster, queue: Queue, drains: u32) -> Result<()> {
    let (name, client) = database(cluster, queue).await?;
    let drain = Arc::new(drain(TAKEN.min(queue.messages) / queue.coalesced)?);
    let partitions = drain.partitions(&client, drains).await?;
    let (begun, cpu) = (Instant::now(), cpu_secs(cluster)?);
    let mut tasks = tokio::task::JoinSet::new();
    for partition in partitions {
        let (drain, mut client) = (Arc::clone(&drain), cluster.admin(&name).await?);
        tasks.spawn(async move {
            let report = drain.partition(&mut client, partition).await?;
            anyhow::Ok(report.delivered + report.coalesced)
        });
    }
    let mut done = 0;
    while let Some(part) = tasks.join_next().await {
        done += part??;
    }
    let (took, cpu) = (begun.elapsed().as_secs_f64(), cpu_secs(cluster)? - cpu);
    eprintln!(
        "{:>9} queued, {:>5} a shard, {:>3}:1 coalesced, {drains} drains: {done:>7} messages in \
         {took:>6.2} s, {:>7.0}/s; {cpu:>6.2} s of CPU, {:>7.0} per second of it",
        queue.messages,
        queue.a_shard,
        queue.coalesced,
        done as f64 / took,
        done as f64 / cpu,
    );
    drop(client);
    drop_database(cluster, &name).await
}

async fn commit_latency(cluster: &Cluster, queued: u64) -> Result<()> {
    let queue = Queue {
        messages: queued,
        a_shard: 10,
        coalesced: 1,
    };
    let (name, mut client) = database(cluster, queue).await?;
    let drain = drain(u64::from(u32::MAX))?;
    let mut took: Vec<Duration> = Vec::new();
    for n in 0..500 {
        let begun = Instant::now();
        let work = drain.atomic(&mut client, async |outbox| {
            // A shard of its own: what waits in others is not in the way.
            outbox
                .write(&CellOutbox::new(Category::ProjectUpdate, 1_000_000 + n, n))
                .await
        });
        work.await?.flushed?;
        took.push(begun.elapsed());
    }
    took.sort();
    eprintln!(
        "{queued:>9} queued, begin to delivered at commit: median {:.2} ms, 99th of a hundred {:.2} ms",
        took[took.len() / 2].as_secs_f64() * 1e3,
        took[took.len() * 99 / 100].as_secs_f64() * 1e3
    );
    drop(client);
    drop_database(cluster, &name).await
}

/// Seconds of CPU that this process and the server's have used: on a busy machine the clock on the
/// wall measures the others too.
fn cpu_secs(cluster: &Cluster) -> Result<f64> {
    const TICKS_A_SECOND: f64 = 100.0;
    let server = cluster.pid().context("the server runs")?.to_string();
    let own = std::process::id().to_string();
    let mut ticks = 0_u64;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((id, rest)) = stat.split_once(" (") else {
            continue;
        };
        // Behind the name: state, parent, …; from the twelfth on the times, own and of children that
        // have ended.
        let fields: Vec<&str> = rest
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let times = fields.get(11..15).unwrap_or_default();
        let counted = match () {
            () if id == server => times,
            () if id == own || fields.get(1) == Some(&&*server) => {
                times.get(..2).unwrap_or_default()
            }
            () => &[],
        };
        ticks += counted
            .iter()
            .filter_map(|time| time.parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok(ticks as f64 / TICKS_A_SECOND)
}

async fn drop_database(cluster: &Cluster, name: &str) -> Result<()> {
    let admin = cluster.admin("postgres").await?;
    admin
        .batch_execute(&format!("drop database \"{name}\" with (force)"))
        .await?;
    Ok(())
}
