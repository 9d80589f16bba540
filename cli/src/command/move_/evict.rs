//! `monarch move evict`

use clap::Args;
use monarch_workflows::OrgMove;
use monarch_workflows::input::Evict;

use super::driver::{Driver, Patience};
use crate::args::Organization;
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Refused while the organization's slots live, and when a change came to the source behind the
/// barrier.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    /// Your word that the changes behind the barrier were carried over by hand, so that they may
    /// be deleted from the source
    #[arg(long)]
    accept_late_changes: bool,
    /// Your word that rows written on the source after its log was read were looked at: those that
    /// are there now are deleted too, and nothing has copied them
    #[arg(long)]
    accept_newer_rows: bool,
    #[command(flatten)]
    patience: Patience,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = &arguments.organization.org;
    let client = context.temporal().await?;
    let driver = Driver::find(&context.ledger()?, &client, org).await?;
    let request = Evict {
        accept_late_changes: arguments.accept_late_changes,
        accept_newer_rows: arguments.accept_newer_rows,
    };
    let status = driver
        .ask(OrgMove::evict, request, &arguments.patience)
        .await?;
    console::show(context.output(), &status, |_| {
        format!("asked to evict; see it end with `monarch move watch --org {org}`")
    })?;
    Ok(Exit::Done)
}
