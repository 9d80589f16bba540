//! `monarch sweep`
//!
//! The same code as the schedule's, without worker and workflow: it must work on the day when
//! Temporal does not.

use std::time::Duration;

use clap::Args;
use monarch_activities::sweep::{self, Run, Temporal, Workflows};
use monarch_model::chain;
use monarch_worker::SWEEP_SILENT_FOR;
use monarch_workflows::contract::{SWEEP_CLOSED_FOR, SweepInput, SweepOutput};

use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// A move whose workflow does not run loses its fence, its slots and its publications, and is
/// failed, some minutes after it has ended. If Temporal cannot be asked, a move counts as forsaken when it has been silent for long.
/// The exit status is 1 if something could not be ended.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How long a move must have been silent if Temporal cannot be asked about it
    #[arg(long, value_name = "SECONDS", default_value_t = SWEEP_SILENT_FOR.as_secs())]
    silent_for: u64,

    /// How long ago a move's workflow must have ended; until then the move may be adopted
    #[arg(long, value_name = "SECONDS", default_value_t = SWEEP_CLOSED_FOR.as_secs())]
    closed_for: u64,
}

/// Temporal is away: nothing is known of any workflow.
struct Away;

impl Workflows for Away {
    async fn look(&self, _workflow_id: &str, _run_id: Option<&str>) -> Run {
        Run::Unknown
    }
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let world = context.world()?;
    world.ledger.schema_version().await?;
    let input = SweepInput {
        silent_for: Duration::from_secs(arguments.silent_for),
        closed_for: Duration::from_secs(arguments.closed_for),
    };
    let swept = match context.temporal().await {
        Ok(client) => Box::pin(sweep::run(&world, &Temporal::new(client), input)).await,
        Err(away) => {
            console::complain(&away, context.output());
            Box::pin(sweep::run(&world, &Away, input)).await
        }
    };
    let swept = swept.map_err(|error| Failure::unreachable(chain(&error)))?;
    console::show(context.output(), &swept, text)?;
    Ok(if swept.not_ended.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn text(output: &SweepOutput) -> String {
    let lines: Vec<String> = output
        .swept
        .iter()
        .chain(&output.waiting)
        .chain(&output.not_ended)
        .map(|line| plain(line))
        .collect();
    if lines.is_empty() {
        return "every move is driven; nothing to end".to_owned();
    }
    lines.join("\n")
}
