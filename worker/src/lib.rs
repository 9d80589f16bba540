//! Hosts workflows and activities on their task queues.
//!
//! A worker is where the deterministic half of a move (`monarch_workflows`) and the half that
//! touches the world (`monarch_activities`) meet Temporal. It holds no state: any number of them
//! may run, each on the queues it is told to host, and any may die at any time. Before it polls it
//! makes sure of what a move needs from the namespace: the search attributes, without which a
//! workflow's first task would fail until somebody registers them, and the sweep's schedule. Before
//! that it looks at the ledger: one that takes work without it would fail every activity.
//!
//! - [`temporal`]: a client from the environment, as Temporal's users know it;
//! - [`telemetry`]: logs and metrics;
//! - [`run`]: everything else, until a signal ends it.

mod hosting;
mod namespace;
mod shutdown;
mod spans;
pub mod telemetry;
pub mod temporal;

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use monarch_activities::World;
use monarch_config::Config;
use monarch_ledger::{Ledger, LedgerError};
use temporalio_client::Client;
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::{Runtime, Worker};
use tokio::time::timeout;
use tracing::{error, info, warn};

pub use hosting::Queue;
pub use namespace::{
    OUTBOX_EVERY, OUTBOX_SCHEDULE, SWEEP_EVERY, SWEEP_SCHEDULE, SWEEP_SILENT_FOR,
    outbox_schedule_of,
};

/// How long after the grace period activities may take to end, of which each has been told to stop
/// by then. What they leave undone another worker does over, as after a machine that was lost.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// What a worker hosts, and how.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Manifest and fleet.
    pub config: Config,
    /// The queues to host, each once; at least one.
    pub queues: Vec<Queue>,
    /// How the worker calls itself in Temporal's Web UI.
    pub identity: String,
    /// After SIGTERM or SIGINT, how long activities may go on before they are told to stop: a
    /// snapshot that ends within it need not be started over by another worker.
    pub grace: Duration,
    /// Where metrics are served to Prometheus, if anywhere.
    pub metrics: Option<SocketAddr>,
}

/// Why a worker ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Temporal was not reached, and trying again will not help.
    #[error(transparent)]
    Connect(#[from] temporal::ConnectError),
    /// The ledger's connection string cannot be used.
    #[error("fleet.yaml: ledger.dsn")]
    LedgerDsn(#[source] monarch_postgres::Error),
    /// The ledger was not reached, or this program cannot work with it as it is.
    #[error("the ledger")]
    Ledger(#[source] LedgerError),
    /// The namespace lacks what a move needs and does not take it.
    #[error("{doing}: {reason}")]
    Namespace {
        /// What was being done.
        doing: &'static str,
        /// Why it was not done, and what to do about it.
        reason: String,
    },
    /// Metrics cannot be served at the address.
    #[error("serve metrics at {address}: {reason}")]
    Metrics {
        /// The address that was asked for.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// Signals cannot be listened to.
    #[error("listen to signals")]
    Signals(#[source] std::io::Error),
    /// The worker of a queue could not begin, or ended.
    #[error("the worker on queue {queue} ended: {reason}")]
    Queue {
        /// The task queue.
        queue: String,
        /// Why.
        reason: String,
    },
}

/// Hosts the queues until SIGTERM or SIGINT, then lets what runs finish within the grace period, and
/// ends soon after it whatever still runs. A second signal ends the wait.
///
/// A ledger that cannot be worked with at the start ends the worker: whoever started it is to know,
/// or to start it again. While Temporal is away at the start it is tried again, with a warning each
/// time; a worker that runs reconnects to both by itself. The future is not `Send`: run it on the
/// main task.
///
/// # Errors
/// What ended the worker without having been asked to.
pub async fn run(config: WorkerConfig) -> Result<(), WorkerError> {
    let shutdown = shutdown::Shutdown::listen()?;
    let meter = telemetry::serve_metrics(config.metrics)?;
    let world = World::new(config.config.clone()).map_err(WorkerError::LedgerDsn)?;
    let Some(client) = prepare(&config, &world.ledger, &shutdown).await? else {
        info!("told to stop before ledger and Temporal were reached");
        return Ok(());
    };
    let telemetry = telemetry::options(meter);
    let runtime = RuntimeOptions::builder()
        .telemetry_options(telemetry)
        .build()
        .map_err(|reason| queue_error("all", reason))
        .and_then(|options| {
            Runtime::from_current_tokio(options).map_err(|error| queue_error("all", error))
        })?;
    let workers = hosting::workers(&config, &world, &runtime, &client)?;
    tokio::select! {
        ended = serve(workers, &shutdown, config.grace + LAST_WORDS) => ended,
        () = shutdown.asked_twice() => {
            info!("told to stop at once");
            Ok(())
        }
    }
}

/// A client, a namespace that has what a move needs, and a ledger of this program's version. Nothing
/// if told to stop before that.
async fn prepare(
    config: &WorkerConfig,
    ledger: &Ledger,
    shutdown: &shutdown::Shutdown,
) -> Result<Option<Client>, WorkerError> {
    let ready = async {
        ledger.schema_version().await.map_err(WorkerError::Ledger)?;
        let client = temporal::connect_patiently(&config.identity).await?;
        if config.queues.contains(&Queue::Monarch) {
            namespace::ensure(&client, &config.config.fleet).await?;
        }
        Ok(client)
    };
    tokio::select! {
        client = ready => client.map(Some),
        () = shutdown.asked() => Ok(None),
    }
}

/// Runs all workers until all have ended, or until they have not `within` so long after they were
/// told to. When one ends by itself, the others are told to.
async fn serve(
    mut workers: Vec<Worker>,
    shutdown: &shutdown::Shutdown,
    within: Duration,
) -> Result<(), WorkerError> {
    let stops: Vec<_> = workers.iter().map(Worker::shutdown_handle).collect();
    let stop_all = || stops.iter().for_each(|stop| stop());
    let polling = join_all(workers.iter_mut().map(async |worker| {
        let queue = worker.task_queue().to_owned();
        info!(queue, "polling");
        let ended = worker.run().await;
        match &ended {
            Ok(()) => info!(queue, "ended"),
            Err(error) => error!(queue, %error, "ended; the worker stops"),
        }
        stop_all();
        ended.map_err(|error| queue_error(&queue, error))
    }));
    let mut polling = std::pin::pin!(polling);
    let ended = tokio::select! {
        ended = &mut polling => ended,
        () = shutdown.asked() => {
            info!("told to stop; running activities may finish within the grace period");
            stop_all();
            let Ok(ended) = timeout(within, polling).await else {
                warn!("activities that were told to stop still run: ended without them");
                return Ok(());
            };
            ended
        }
    };
    ended.into_iter().collect()
}

fn queue_error(queue: &str, reason: impl std::fmt::Display) -> WorkerError {
    WorkerError::Queue {
        queue: queue.to_owned(),
        reason: reason.to_string(),
    }
}
