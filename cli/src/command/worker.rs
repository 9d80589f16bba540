//! `monarch worker`

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use monarch_config::{Config, near_miss};
use monarch_model::{CellName, StoreName};
use monarch_worker::telemetry::{LogFormat, log_to_stderr};
use monarch_worker::{Queue, WorkerConfig};

use crate::context::{Context, identity};
use crate::exit::Exit;
use crate::failure::Failure;

/// Without `--queue`, `--cell` or `--store` every queue of the fleet is hosted.
#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// Host this task queue: `monarch`, or `monarch-<cell>-<store>`; may be given again
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Host the movers that work in this cell, all its stores; may be given again
    #[arg(long = "cell", value_name = "CELL")]
    cells: Vec<CellName>,
    /// Of the movers of the cells that are named, or of all cells, host those of this store alone;
    /// may be given again
    #[arg(long = "store", value_name = "STORE")]
    stores: Vec<StoreName>,
    /// How the worker calls itself in Temporal's Web UI
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// After SIGTERM, how long a running snapshot may go on, in seconds; the worker ends at most 20
    /// seconds later
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    grace: u64,
    /// Serve metrics to Prometheus here, at /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
}

pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    log_to_stderr(LogFormat::of_stderr(), "info");
    let config = context.config()?;
    let queues = queues(&arguments, &config)?;
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

/// The queues that were asked for, each once; every unknown name is named.
fn queues(arguments: &Arguments, config: &Config) -> Result<Vec<Queue>, Failure> {
    let all = Queue::all(config);
    let Arguments {
        queues,
        cells,
        stores,
        ..
    } = arguments;
    let known: Vec<String> = all.iter().map(Queue::to_string).collect();
    let mut unknown = strangers("queue", queues.iter().map(String::as_str), &known);
    let known: Vec<String> = config
        .fleet
        .cells
        .iter()
        .map(|c| c.name.to_string())
        .collect();
    unknown.extend(strangers(
        "cell",
        cells.iter().map(CellName::as_str),
        &known,
    ));
    let moving = all.iter().filter_map(|queue| match queue {
        Queue::Store(_, store) => Some(store.to_string()),
        Queue::Monarch => None,
    });
    let known: Vec<String> = moving.collect();
    unknown.extend(strangers(
        "store",
        stores.iter().map(StoreName::as_str),
        &known,
    ));
    if !unknown.is_empty() {
        return Err(Failure::usage(unknown.join("; ")));
    }
    let asks_for_movers = !cells.is_empty() || !stores.is_empty();
    let is_asked = |queue: &Queue| {
        let by_place = match queue {
            Queue::Monarch => false,
            Queue::Store(cell, store) => {
                asks_for_movers
                    && (cells.is_empty() || cells.contains(cell))
                    && (stores.is_empty() || stores.contains(store))
            }
        };
        by_place || queues.contains(&queue.to_string())
    };
    let everything = queues.is_empty() && !asks_for_movers;
    Ok(all
        .into_iter()
        .filter(|queue| everything || is_asked(queue))
        .collect())
}

/// What is to be said of each name that is not known.
fn strangers<'a>(
    what: &str,
    given: impl Iterator<Item = &'a str>,
    known: &[String],
) -> Vec<String> {
    let names = || known.iter().map(String::as_str);
    let unknown = given.filter(|name| !names().any(|known| known == *name));
    unknown
        .map(|name| {
            let mut listed: Vec<&str> = names().collect();
            listed.sort_unstable();
            listed.dedup();
            let meant = near_miss(name, names())
                .map(|near| format!(" (did you mean {near:?}?)"))
                .unwrap_or_default();
            format!(
                "no {what} that moves is called {name:?}{meant}: name one of {}",
                listed.join(", ")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "
root: org
stores: {default: {type: postgres}, events: {type: postgres}, aside: {type: postgres, migrate: false}}
relationships:
  org: {store: default, primary_key: [id]}
  event: {store: events, primary_key: [id], refs: {org_id: {parent: org}}}
";

    fn config() -> Config {
        let graph = monarch_config::manifest_from_str("manifest.yaml", MANIFEST).unwrap();
        let fleet = "
cells:
  us1: {databases: [{primary_dsn: 'host=a dbname=app', stores: [default, events]}]}
  us2: {databases: [{primary_dsn: 'host=b dbname=app', stores: [default, events]}]}
ledger: {dsn: 'host=c dbname=ledger user=monarch'}
";
        let fleet = monarch_config::fleet_from_str("fleet.yaml", fleet, &graph, &|_| None).unwrap();
        Config { graph, fleet }
    }

    fn hosted(queues: &[&str], cells: &[&str], stores: &[&str]) -> Result<Vec<String>, Failure> {
        let arguments = Arguments {
            queues: queues.iter().map(ToString::to_string).collect(),
            cells: cells.iter().map(|name| name.parse().unwrap()).collect(),
            stores: stores.iter().map(|name| name.parse().unwrap()).collect(),
            ..Arguments::default()
        };
        let queues = super::queues(&arguments, &config())?;
        Ok(queues.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_worker_hosts_everything_unless_it_is_told_what() {
        for (queues, cells, stores, expected) in [
            (
                &[][..],
                &[][..],
                &[][..],
                &[
                    "monarch",
                    "monarch-us1-default",
                    "monarch-us1-events",
                    "monarch-us2-default",
                    "monarch-us2-events",
                ][..],
            ),
            (
                &[],
                &["us2"],
                &[],
                &["monarch-us2-default", "monarch-us2-events"],
            ),
            (&[], &["us2"], &["events"], &["monarch-us2-events"]),
            (
                &[],
                &[],
                &["events"],
                &["monarch-us1-events", "monarch-us2-events"],
            ),
            (
                &["monarch"],
                &["us1"],
                &["default"],
                &["monarch", "monarch-us1-default"],
            ),
        ] {
            assert_eq!(hosted(queues, cells, stores).unwrap(), expected);
        }
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_the_nearest() {
        for (queues, cells, stores, meant) in [
            (
                &["monarch-us1-event"][..],
                &[][..],
                &[][..],
                "monarch-us1-events",
            ),
            (&[], &["us3"], &[], "us1"),
            (&[], &[], &["evnts"], "events"),
            (&[], &[], &["aside"], "default, events"),
        ] {
            let refused = hosted(queues, cells, stores).unwrap_err();
            assert_eq!(refused.exit(), Exit::Usage);
            assert!(refused.what().contains(meant), "{}", refused.what());
        }
    }
}
