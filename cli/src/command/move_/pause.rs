//! `monarch move pause`

use clap::Args;
use monarch_workflows::OrgMove;

use super::driver::{Driver, Patience};
use crate::args::Organization;
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    #[command(flatten)]
    patience: Patience,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = &arguments.organization.org;
    let client = context.temporal().await?;
    let driver = Driver::find(&context.ledger()?, &client, org).await?;
    let status = driver.ask(OrgMove::pause, (), &arguments.patience).await?;
    console::show(context.output(), &status, |_| {
        format!(
            "paused; the slots go on holding log until `monarch move resume --org {org}` or an abort"
        )
    })?;
    Ok(Exit::Done)
}
