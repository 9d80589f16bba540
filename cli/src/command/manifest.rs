//! `monarch manifest …`: a manifest for a schema that is there already.

pub(crate) mod derive;
pub(crate) mod diff;

use clap::Subcommand;
use monarch_config::Dsn;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Proposes a manifest from the catalogs of databases, and says what it leaves out and why
    Derive(derive::Arguments),
    /// Says how a cell's databases have drifted from the manifest
    Diff(diff::Arguments),
}

pub(crate) async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Derive(arguments) => derive::run(&arguments, context).await,
        Command::Diff(arguments) => diff::run(&arguments, context).await,
    }
}

async fn open(dsn: &Dsn) -> Result<Session, Failure> {
    let purpose = SessionPurpose::reader("monarch manifest");
    let options = ConnectOptions::from_dsn(dsn).map_err(monarch_postgres::Error::from)?;
    Ok(Box::pin(Session::connect(&options, &purpose)).await?)
}
