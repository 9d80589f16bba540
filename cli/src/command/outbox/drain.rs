//! `monarch outbox drain`

use clap::Args;
use monarch_activities::routing;
use monarch_model::{CellName, chain};
use monarch_outbox::{DrainError, Partition, Report, Shard};
use serde_json::json;

use super::{Outbox, Side, scope};
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Delivers the routing's changes (--control --table monarch_control.outbox), whose receivers are
/// here. An application's messages are delivered by the application. The exit status is 1 if a message
/// could not be delivered.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// Of one shard, due or not: its scope, by name or number
    #[arg(long, value_name = "SCOPE", requires_all = ["identifier", "target"])]
    scope: Option<String>,
    /// The shard's identifier, such as the organization's id
    #[arg(long = "shard", value_name = "ID", requires = "scope")]
    #[arg(allow_negative_numbers = true)]
    identifier: Option<i64>,
    /// The cell that the shard's messages are for
    #[arg(long, value_name = "CELL", requires = "scope")]
    target: Option<CellName>,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    if arguments.side.sql {
        console::say(&match &outbox {
            Outbox::Cell(drain) => drain.sql(),
            Outbox::Control(drain) => drain.sql(),
        })?;
        return Ok(Exit::Done);
    }
    let ours = routing::table();
    let is_ours = matches!(&outbox, Outbox::Control(drain) if drain.table().name() == ours.name());
    if !is_ours {
        let advice =
            "let the application drain it, or pass --control --table monarch_control.outbox";
        return Err(
            Failure::usage("nobody here receives the messages of this table").advising(advice),
        );
    }
    let mut session = arguments.side.session(context).await?;
    let drain = routing::drain(&context.config()?.fleet)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let drained = match shard(arguments, &outbox)? {
        Some(shard) => drain.shard(&mut session, &shard).await,
        None => drain.partition(&mut session, Partition::ALL).await,
    };
    told(context, &drained.map_err(failed)?)
}

fn shard(
    arguments: &Arguments,
    outbox: &Outbox,
) -> Result<Option<Shard<monarch_outbox::Control>>, Failure> {
    let (Some(name), Some(identifier), Some(target)) =
        (&arguments.scope, arguments.identifier, &arguments.target)
    else {
        return Ok(None);
    };
    let target = monarch_outbox::CellName::new(target.as_str());
    let target = target.map_err(|error| Failure::usage(error.to_string()))?;
    let scope = scope(outbox.registry(), name)?;
    Ok(Some(Shard::control(target, scope, identifier)))
}

fn failed(error: DrainError) -> Failure {
    match error {
        DrainError::NoSuchShard { .. } => Failure::not_ready(error.to_string()),
        error => Failure::failed(chain(&error)),
    }
}

fn told(context: &Context, report: &Report) -> Result<Exit, Failure> {
    let errors: Vec<String> = report.errors.iter().map(|error| chain(error)).collect();
    let value = json!({
        "delivered": report.delivered, "coalesced": report.coalesced, "busy": report.busy,
        "skipped": report.skipped, "failed": report.failed, "errors": errors,
    });
    console::show(context.output(), &value, |_| {
        let mut text = format!(
            "{} delivered, {} coalesced with them, {} not delivered",
            report.delivered, report.coalesced, report.failed
        );
        for error in &errors {
            text.push_str(&format!("\n  {}", plain(error)));
        }
        text
    })?;
    Ok(if report.failed == 0 {
        Exit::Done
    } else {
        Exit::Failed
    })
}
