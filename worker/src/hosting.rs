//! Which workflows and activities each queue has.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use monarch_activities::{Movers, Steering, World};
use monarch_config::Config;
use monarch_model::{CellName, StoreName};
use monarch_workflows::{OrgMove, OutboxDrain, Sweep, queue};
use temporalio_client::Client;
use temporalio_sdk::runtime::PollerBehavior;
use temporalio_sdk::runtime::worker_tuner::{FixedSizeSlotSupplier, TunerHolder};
use temporalio_sdk::{Runtime, Worker, WorkerOptions};

use crate::spans::Spans;
use crate::{WorkerConfig, WorkerError, queue_error};

/// How many activities of a queue one worker runs at a time. A mover takes a place for days, so
/// fewer would leave a store of a large fleet without one.
const ACTIVITIES: usize = 2_000;
/// How many workflow tasks it decides at a time; each takes milliseconds.
const WORKFLOW_TASKS: usize = 100;

/// A task queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queue {
    /// The workflows, and the activities that steer them.
    Monarch,
    /// The movers that work on a store of a cell.
    Store(CellName, StoreName),
}

impl Queue {
    /// Every queue of a fleet, each name once: that of steering, and one for each store that moves
    /// in each cell.
    pub fn all(config: &Config) -> Vec<Self> {
        let cells = config.fleet.cells.iter();
        let stores = cells.flat_map(|cell| {
            let placed = cell.databases.iter().flat_map(|at| at.stores.iter());
            let moving = placed.chain(cell.blobs.keys()).filter(|name| {
                let store = config.graph.store(name);
                store.is_some_and(|store| store.migrate)
            });
            moving.map(|store| Self::Store(cell.name.clone(), store.clone()))
        });
        let mut names = BTreeSet::new();
        std::iter::once(Self::Monarch)
            .chain(stores)
            .filter(|queue| names.insert(queue.to_string()))
            .collect()
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Monarch => f.write_str(queue::MONARCH),
            Self::Store(cell, store) => f.write_str(&queue::of_store(cell, store)),
        }
    }
}

/// A worker for each queue.
pub(crate) fn workers(
    config: &WorkerConfig,
    world: &Arc<World>,
    runtime: &Runtime,
    client: &Client,
) -> Result<Vec<Worker>, WorkerError> {
    config
        .queues
        .iter()
        .map(|queue| {
            let options = options(queue, config, world)?;
            Worker::new(runtime, client.clone(), options)
                .map_err(|error| queue_error(&queue.to_string(), error))
        })
        .collect()
}

/// What the worker of a queue has and how it runs.
fn options(
    queue: &Queue,
    config: &WorkerConfig,
    world: &Arc<World>,
) -> Result<WorkerOptions, WorkerError> {
    let options = WorkerOptions::new(queue.to_string())
        .client_identity_override(config.identity.clone())
        .graceful_shutdown_period(config.grace)
        // A cancellation comes with the answer to a heartbeat: an abort must not wait for it.
        .max_heartbeat_throttle_interval(HEARTBEAT_EVERY)
        .tuner(places())
        .activity_inbound_interceptor(Spans);
    match queue {
        Queue::Monarch => Ok(options
            .register_activities(Steering(Arc::clone(world)))
            .register_workflow::<OrgMove>()
            .and_then(|options| options.register_workflow::<Sweep>())
            .and_then(|options| options.register_workflow::<OutboxDrain>())
            .map_err(|error| queue_error(&queue.to_string(), error))?
            .build()),
        // A mover is asked for a few times in a move's life, and there is a queue for each store.
        Queue::Store(..) => Ok(options
            .register_activities(Movers(Arc::clone(world)))
            .activity_task_poller_behavior(PollerBehavior::SimpleMaximum(1))
            .build()),
    }
}

/// The longest that an activity's heartbeat is held back.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

fn places() -> TunerHolder {
    let fixed = FixedSizeSlotSupplier::new;
    TunerHolder::builder()
        .workflow_task_slot_supplier(fixed(WORKFLOW_TASKS))
        .activity_task_slot_supplier(fixed(ACTIVITIES))
        .local_activity_task_slot_supplier(fixed(1))
        .nexus_task_slot_supplier(fixed(1))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: &str = include_str!("../../workflows/src/contract/api.rs");

    fn config() -> WorkerConfig {
        let graph = monarch_config::manifest_from_str(
            "manifest.yaml",
            "root: org\nstores: {default: {type: postgres}}\n\
             relationships: {org: {store: default, primary_key: [id]}}\n",
        )
        .unwrap();
        let database = |name: &str| {
            format!("{{databases: [{{primary_dsn: 'host={name} dbname=app', stores: [default]}}]}}")
        };
        let fleet = format!(
            "cells: {{us1: {}, us2: {}}}\nledger: {{dsn: 'host=c dbname=ledger user=monarch'}}\n",
            database("a"),
            database("b"),
        );
        let fleet =
            monarch_config::fleet_from_str("fleet.yaml", &fleet, &graph, &|_| None).unwrap();
        let config = Config { graph, fleet };
        WorkerConfig {
            queues: Queue::all(&config),
            config,
            identity: "test".to_owned(),
            grace: Duration::ZERO,
            metrics: None,
        }
    }

    /// The names that the contract pins, from its very text: a list of our own would forget with us.
    fn contract() -> BTreeSet<String> {
        CONTRACT
            .split("#[activity(name = \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .map(str::to_owned)
            .collect()
    }

    /// An activity that nobody hosts would be retried for ever: everything that a workflow may call
    /// is on one of the queues.
    #[tokio::test]
    async fn every_activity_of_the_contract_is_hosted() {
        let config = config();
        let world = World::new(config.config.clone()).unwrap();
        let hosted: String = config
            .queues
            .iter()
            .map(|queue| {
                format!(
                    "{:?}",
                    options(queue, &config, &world).unwrap().activities()
                )
            })
            .collect();
        let names = contract();
        assert!(names.len() > 20, "the contract was not read: {names:?}");
        let missing: Vec<_> = names
            .iter()
            .filter(|name| !hosted.contains(&format!("\"{name}\"")))
            .collect();
        assert!(
            missing.is_empty(),
            "nobody hosts {missing:?}; hosted: {hosted}"
        );
    }

    /// A worker beside its data can host the movers of one store of one cell.
    #[test]
    fn each_store_that_moves_has_a_queue_in_each_cell() {
        let names: Vec<String> = config().queues.iter().map(Queue::to_string).collect();
        let stores = ["monarch-us1-default", "monarch-us2-default"];
        assert_eq!(names, ["monarch", stores[0], stores[1]]);
    }
}
