//! Which workflows and activities each queue has.

use std::fmt;

use monarch_config::Fleet;
use monarch_model::CellName;
use monarch_workflows::{OrgMove, Sweep, queue};
use temporalio_client::Client;
use temporalio_sdk::{Runtime, Worker, WorkerOptions};

use crate::spans::Spans;
use crate::{WorkerConfig, WorkerError, queue_error};

/// A task queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queue {
    /// The workflows, and the activities that steer them.
    Monarch,
    /// The movers that write to a cell.
    Cell(CellName),
}

impl Queue {
    /// Every queue of a fleet.
    pub fn all(fleet: &Fleet) -> Vec<Self> {
        let cells = fleet.cells.iter().map(|cell| Self::Cell(cell.name.clone()));
        std::iter::once(Self::Monarch).chain(cells).collect()
    }

    /// The queue of that name, if the fleet has it.
    pub fn named(name: &str, fleet: &Fleet) -> Option<Self> {
        Self::all(fleet)
            .into_iter()
            .find(|queue| queue.to_string() == name)
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Monarch => f.write_str(queue::MONARCH),
            Self::Cell(cell) => f.write_str(&queue::of_cell(cell)),
        }
    }
}

/// A worker for each queue.
pub(crate) fn workers(
    config: &WorkerConfig,
    runtime: &Runtime,
    client: &Client,
) -> Result<Vec<Worker>, WorkerError> {
    config
        .queues
        .iter()
        .map(|queue| {
            let options = options(queue, config)?;
            Worker::new(runtime, client.clone(), options)
                .map_err(|error| queue_error(&queue.to_string(), error))
        })
        .collect()
}

fn options(queue: &Queue, config: &WorkerConfig) -> Result<WorkerOptions, WorkerError> {
    let failed = |error| queue_error(&queue.to_string(), error);
    Ok(WorkerOptions::new(queue.to_string())
        .client_identity_override(config.identity.clone())
        .graceful_shutdown_period(config.grace)
        .activity_inbound_interceptor(Spans)
        .register_workflow::<OrgMove>()
        .and_then(|o| o.register_workflow::<Sweep>())
        .map_err(failed)?
        .build())
}
