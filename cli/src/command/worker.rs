//! `monarch worker`

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use monarch_config::Fleet;
use monarch_model::CellName;
use monarch_worker::telemetry::{LogFormat, log_to_stderr};
use monarch_worker::{Queue, WorkerConfig};

use crate::context::{Context, identity};
use crate::exit::Exit;
use crate::failure::Failure;

/// Without `--queue` or `--cell` every queue of the fleet is hosted.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host this task queue: `monarch`, or `monarch-<cell>`; may be given again
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Host the movers that write to this cell; may be given again
    #[arg(long = "cell", value_name = "CELL")]
    cells: Vec<CellName>,
    /// How the worker calls itself in Temporal's Web UI
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// After SIGTERM, how long a running snapshot may go on, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    grace: u64,
    /// Serve metrics to Prometheus here, at /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
}

pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    log_to_stderr(LogFormat::of_stderr(), "info");
    let config = context.config()?;
    let queues = queues(&arguments, &config.fleet)?;
    Box::pin(monarch_worker::run(WorkerConfig {
        config,
        queues,
        identity: arguments.identity.unwrap_or_else(identity),
        grace: Duration::from_secs(arguments.grace),
        metrics: arguments.metrics,
    }))
    .await?;
    Ok(Exit::Done)
}

/// The queues that were asked for, each once; every unknown one is named.
fn queues(arguments: &Arguments, fleet: &Fleet) -> Result<Vec<Queue>, Failure> {
    let all = Queue::all(fleet);
    if arguments.queues.is_empty() && arguments.cells.is_empty() {
        return Ok(all);
    }
    let cells = arguments
        .cells
        .iter()
        .map(|cell| Queue::Cell(cell.clone()).to_string());
    let asked: Vec<String> = arguments.queues.iter().cloned().chain(cells).collect();
    let unknown: Vec<&str> = asked
        .iter()
        .filter(|name| Queue::named(name, fleet).is_none())
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        let known: Vec<String> = all.iter().map(ToString::to_string).collect();
        return Err(
            Failure::usage(format!("no such queue: {}", unknown.join(", ")))
                .advising(format!("name one of {}", known.join(", "))),
        );
    }
    Ok(all
        .into_iter()
        .filter(|queue| asked.contains(&queue.to_string()))
        .collect())
}
