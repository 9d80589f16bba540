//! `monarch move …`

pub(crate) mod abort;
mod adopt;
pub(crate) mod cut_over;
pub(crate) mod driver;
mod events;
mod evict;
mod list;
mod pause;
mod resume;
pub(crate) mod start;
pub(crate) mod status;
mod verify;
mod watch;

use clap::Subcommand;
use monarch_ledger::{Ledger, Move};

use crate::args::Which;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts to move an organization
    Start(start::Arguments),
    /// Says where a move stands
    Status(status::Arguments),
    /// Follows a move until it ends
    Watch(watch::Arguments),
    /// Lists the newest moves
    List(list::Arguments),
    /// Prints the journal of a move
    Events(events::Arguments),
    /// Compares both sides while the stores stream
    Verify(verify::Arguments),
    /// Cuts over: drains, verifies, flips the routing
    CutOver(cut_over::Arguments),
    /// Stops the movers; slots are kept and go on holding log
    Pause(pause::Arguments),
    /// Starts the movers again
    Resume(resume::Arguments),
    /// Deletes the organization's rows from the source, after the flip
    Evict(evict::Arguments),
    /// Carries on a move whose workflow is gone, from where the ledger says that it stands
    Adopt(adopt::Arguments),
    /// Gives a move up, before the flip
    Abort(abort::Arguments),
}

pub(crate) async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Start(arguments) => Box::pin(start::run(arguments, context)).await,
        Command::Status(arguments) => Box::pin(status::run(&arguments, context)).await,
        Command::Watch(arguments) => Box::pin(watch::run(&arguments, context)).await,
        Command::List(arguments) => list::run(&arguments, context).await,
        Command::Events(arguments) => events::run(&arguments, context).await,
        Command::Verify(arguments) => verify::run(&arguments, context).await,
        Command::CutOver(arguments) => Box::pin(cut_over::run(&arguments, context)).await,
        Command::Pause(arguments) => Box::pin(pause::run(&arguments, context)).await,
        Command::Resume(arguments) => Box::pin(resume::run(&arguments, context)).await,
        Command::Evict(arguments) => Box::pin(evict::run(&arguments, context)).await,
        Command::Adopt(arguments) => Box::pin(adopt::run(&arguments, context)).await,
        Command::Abort(arguments) => Box::pin(abort::run(&arguments, context)).await,
    }
}

/// The move that was named, as the ledger has it.
pub(super) async fn find(ledger: &Ledger, which: &Which) -> Result<Option<Move>, Failure> {
    let found = match (&which.org, which.move_id) {
        (_, Some(id)) => ledger.move_by_id(id).await?,
        (Some(org), None) => ledger.latest_move_of(org).await?,
        (None, None) => ledger.live_move().await?,
    };
    Ok(found)
}

/// Why there is no such move.
pub(super) fn none_such(which: &Which) -> Failure {
    let said = match (&which.org, which.move_id) {
        (_, Some(id)) => format!("no move {id} in the ledger"),
        (Some(org), None) => format!("no move of organization {org} in the ledger"),
        (None, None) => "no move is live".to_owned(),
    };
    Failure::not_ready(said).advising("see `monarch move list`, or name one with --org or --move")
}
