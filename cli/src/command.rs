//! The commands, a file each.

pub(crate) mod completions;
pub(crate) mod config_check;
pub(crate) mod histories_save;
pub(crate) mod ledger_init;
pub(crate) mod move_;
pub(crate) mod worker;

use crate::args::{Command, Config, Histories, Ledger};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Runs one command.
pub(crate) async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Config(Config::Check(arguments)) => config_check::run(&arguments, context),
        Command::Ledger(Ledger::Init(arguments)) => ledger_init::run(&arguments, context).await,
        Command::Worker(arguments) => Box::pin(worker::run(arguments, context)).await,
        Command::Move(command) => Box::pin(move_::run(command, context)).await,
        Command::Histories(Histories::Save(arguments)) => {
            Box::pin(histories_save::run(arguments, context)).await
        }
        Command::Completions(arguments) => completions::run(&arguments),
    }
}
