//! `monarch outbox drain`

use clap::Args;
use monarch_activities::{deliver, routing};
use monarch_config::Deliver;
use monarch_model::{CellName, chain};
use monarch_outbox::{Cell, Control, Drain, DrainError, Partition, Report, Shard, Silo};
use monarch_postgres::Session;
use serde_json::json;

use super::{Outbox, Side, WhichShard};
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Delivers the routing's changes (--control --table monarch_control.outbox), or the messages of an
/// application whose program fleet.yaml names (`outbox: {deliver: …}` of the cell, or of control). Any
/// other application delivers its messages itself. The exit status is 1 if a message could not be
/// delivered.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// Of one shard, due or not: its scope, by name or number
    #[arg(long, value_name = "SCOPE", requires = "identifier")]
    scope: Option<String>,
    /// The shard's identifier, such as the organization's id
    #[arg(long = "shard", value_name = "ID", requires = "scope")]
    #[arg(allow_negative_numbers = true)]
    identifier: Option<i64>,
    /// With --control: the cell that the shard's messages are for
    #[arg(long, value_name = "CELL", requires = "scope", conflicts_with = "cell")]
    target: Option<CellName>,
}

impl Arguments {
    fn shard(&self) -> Option<WhichShard> {
        Some(WhichShard {
            scope: self.scope.clone()?,
            identifier: self.identifier?,
            target: self.target.clone(),
        })
    }

    /// Who takes the messages of the table, if that is the one under the usual name.
    fn program(&self, named: Option<&Deliver>) -> Result<Deliver, Failure> {
        let named = named.filter(|_| self.side.table.is_none());
        named.cloned().ok_or_else(|| {
            Failure::usage("nobody here receives the messages of this table").advising(
                "let the application drain it, name a program for it in fleet.yaml (`outbox: \
                 {deliver: …}`), or pass --control --table monarch_control.outbox",
            )
        })
    }
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let (side, outbox) = (&arguments.side, arguments.side.outbox()?);
    if side.sql {
        console::say(&match &outbox {
            Outbox::Cell(drain) => drain.sql(),
            Outbox::Control(drain) => drain.sql(),
        })?;
        return Ok(Exit::Done);
    }
    let fleet = &context.config()?.fleet;
    let (registry, shard) = (outbox.registry(), arguments.shard());
    let report = match &outbox {
        Outbox::Control(drain) => {
            let shard = shard.map(|shard| shard.of_control(registry)).transpose()?;
            if drain.table().name() == routing::table().name() {
                let mut session = side.session(context).await?;
                let drain = routing::drain(fleet);
                let drain = drain.map_err(|error| Failure::usage(error.to_string()))?;
                drained(&drain, &mut session, shard).await?
            } else {
                let program = arguments.program(fleet.control_outbox.as_ref())?;
                let mut session = side.session(context).await?;
                let drain = delivering::<Control>(&program, &session).await?;
                drained(&drain, &mut session, shard).await?
            }
        }
        Outbox::Cell(_) => {
            let shard = shard.map(|shard| shard.of_cell(registry)).transpose()?;
            let cell = side.cell.as_ref().and_then(|name| fleet.cell(name));
            let program = arguments.program(cell.and_then(|cell| cell.outbox.as_ref()))?;
            let mut session = side.session(context).await?;
            let drain = delivering::<Cell>(&program, &session).await?;
            drained(&drain, &mut session, shard).await?
        }
    };
    told(context, &report)
}

async fn delivering<S: Silo>(program: &Deliver, session: &Session) -> Result<Drain<S>, Failure> {
    let drain = deliver::drain(program, session).await;
    let drain = drain.map_err(|error| Failure::failed(chain(&error)))?;
    drain.ok_or_else(|| {
        Failure::not_ready(format!("there is no table public.{}", S::TABLE))
            .advising("there is no such table in this database: see --store")
    })
}

async fn drained<S: Silo>(
    drain: &Drain<S>,
    session: &mut Session,
    shard: Option<Shard<S>>,
) -> Result<Report, Failure> {
    let drained = match shard {
        Some(shard) => drain.shard(session, &shard).await,
        None => drain.partition(session, Partition::ALL).await,
    };
    drained.map_err(failed)
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
