//! The commands, a file each.

pub(crate) mod blobs_list;
pub(crate) mod blobs_verify;
pub(crate) mod completions;
pub(crate) mod config_check;
pub(crate) mod control_init;
pub(crate) mod dashboard;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod histories_save;
pub(crate) mod ledger_init;
pub(crate) mod manifest;
pub(crate) mod move_;
pub(crate) mod outbox;
pub(crate) mod plan;
pub(crate) mod preflight;
pub(crate) mod sweep;
pub(crate) mod worker;

use crate::args::{Blobs, Command, Config, Control, Histories, Ledger};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Runs one command.
pub(crate) async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Config(Config::Check(arguments)) => config_check::run(&arguments, context),
        Command::Manifest(command) => Box::pin(manifest::run(command, context)).await,
        Command::Preflight(arguments) => Box::pin(preflight::run(&arguments, context)).await,
        Command::Plan(arguments) => Box::pin(plan::run(&arguments, context)).await,
        Command::Ledger(Ledger::Init(arguments)) => ledger_init::run(&arguments, context).await,
        Command::Control(Control::Init(arguments)) => {
            Box::pin(control_init::run(&arguments, context)).await
        }
        Command::Worker(arguments) => Box::pin(worker::run(arguments, context)).await,
        Command::Dashboard(arguments) => Box::pin(dashboard::run(arguments, context)).await,
        Command::Move(command) => Box::pin(move_::run(command, context)).await,
        Command::Blobs(Blobs::List(arguments)) => blobs_list::run(&arguments, context).await,
        Command::Blobs(Blobs::Verify(arguments)) => {
            Box::pin(blobs_verify::run(&arguments, context)).await
        }
        Command::Outbox(command) => Box::pin(outbox::run(command, context)).await,
        Command::Sweep(arguments) => Box::pin(sweep::run(&arguments, context)).await,
        Command::Histories(Histories::Save(arguments)) => {
            Box::pin(histories_save::run(arguments, context)).await
        }
        Command::Completions(arguments) => completions::run(&arguments),
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => Box::pin(demo::run(&arguments)).await,
    }
}
