//! The schedule, for services without a scheduler of their own: a task that drains every few seconds.
//!
//! Any number of processes may run it: drains give way to each other shard by shard. A service that
//! has a scheduler calls [`Drain::partitions`] and [`Drain::partition`] from it instead.

use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio_postgres::Client;

use crate::backfill::{BACKFILLS_PER_MINUTE, Backfills};
use crate::drain::{Drain, DrainError, Partition, Report};
use crate::receivers::BoxError;
use crate::silo::Silo;

/// Hands out connections to the outbox's database: of a pool, or new ones.
pub trait Connect: Send + Sync + 'static {
    /// A connection, alone in the hands of whoever has it.
    type Connection: DerefMut<Target = Client> + Send;

    /// A connection that is not in a transaction.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, BoxError>> + Send;
}

/// How often, and how much at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// From the end of a tick to the next.
    pub interval: Duration,
    /// Parts that the range of ids is cut into.
    pub partitions: u32,
    /// Partitions that this process drains at a time.
    pub workers: usize,
    /// Messages a minute that backfills may write, those included that wait already.
    pub backfills_per_minute: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            partitions: 5,
            workers: 5,
            backfills_per_minute: BACKFILLS_PER_MINUTE,
        }
    }
}

/// Drains on a schedule until the drain is told to stop ([`Drain::stop_on`]). What fails is logged
/// and tried again at the next tick.
pub async fn run<S: Silo, C: Connect>(
    drain: Arc<Drain<S>>,
    backfills: Backfills<S>,
    connect: C,
    schedule: Schedule,
) {
    let mut next_backfill = tokio::time::Instant::now();
    while !drain.is_stopped() {
        match tick(&drain, &connect, &schedule).await {
            Ok(report) => tracing::debug!(
                silo = S::NAME,
                shards = report.shards,
                delivered = report.delivered,
                coalesced = report.coalesced,
                failed = report.failed,
                "outbox drained"
            ),
            Err(error) => tracing::error!(silo = S::NAME, error = %chain(&*error), "drain outbox"),
        }
        if tokio::time::Instant::now() >= next_backfill {
            next_backfill = tokio::time::Instant::now() + Duration::from_secs(60);
            let share = backfill(&drain, &backfills, &connect, &schedule).await;
            if let Err(error) = share {
                tracing::error!(silo = S::NAME, error = %chain(&*error), "backfill outbox");
            }
        }
        tokio::select! {
            () = drain.stopped() => {}
            () = tokio::time::sleep(schedule.interval) => {}
        }
    }
}

/// One turn of the schedule: every partition, so many at a time.
///
/// # Errors
///
/// When no connection is to be had, or the first error of the server once every partition had its
/// turn.
pub async fn tick<S: Silo, C: Connect>(
    drain: &Drain<S>,
    connect: &C,
    schedule: &Schedule,
) -> Result<Report, BoxError> {
    let client = connect.connect().await?;
    drain.gauge(&client).await?;
    let partitions = drain.partitions(&client, schedule.partitions).await?;
    drop(client);
    let drains = partitions
        .into_iter()
        .map(|part| drain_part(drain, connect, part));
    let mut drains = stream::iter(drains).buffer_unordered(schedule.workers.max(1));
    let mut report = Report::default();
    let mut failed = None;
    while let Some(drained) = drains.next().await {
        match drained {
            Ok(part) => report.merge(part),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(report), Err)
}

async fn drain_part<S: Silo, C: Connect>(
    drain: &Drain<S>,
    connect: &C,
    partition: Partition,
) -> Result<Report, BoxError> {
    let mut client = connect.connect().await?;
    Ok(drain.partition(&mut client, partition).await?)
}

async fn backfill<S: Silo, C: Connect>(
    drain: &Drain<S>,
    backfills: &Backfills<S>,
    connect: &C,
    schedule: &Schedule,
) -> Result<(), BoxError> {
    if backfills.is_empty() {
        return Ok(());
    }
    let mut client = connect.connect().await?;
    backfills
        .minute(drain, &mut client, schedule.backfills_per_minute)
        .await?;
    Ok(())
}

/// An error and its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}

impl<S: Silo> Drain<S> {
    /// Records how much waits, as gauges: `deliver_from_outbox.queued_batch_size`,
    /// `.maximum_shard_depth` and `.total_outbox_count`. A long queue is counted to its end only up
    /// to a million.
    ///
    /// # Errors
    ///
    /// When the server fails.
    pub async fn gauge(&self, client: &Client) -> Result<(), DrainError> {
        const MOST: u32 = 1_000_000;
        let total = self.queued_up_to(client, MOST).await?;
        metrics::gauge!("deliver_from_outbox.total_outbox_count", "silo" => S::NAME)
            .set(total as f64);
        let depth = self.deepest(client, MOST).await?;
        metrics::gauge!("deliver_from_outbox.maximum_shard_depth", "silo" => S::NAME)
            .set(depth as f64);
        let batch = match self.id_range(client).await? {
            Some((lowest, highest)) => highest.saturating_sub(lowest).saturating_add(1),
            None => 0,
        };
        metrics::gauge!("deliver_from_outbox.queued_batch_size", "silo" => S::NAME)
            .set(batch as f64);
        Ok(())
    }
}
