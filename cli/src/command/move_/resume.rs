//! `monarch move resume`

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
    let client = context.temporal().await?;
    let driver = Driver::find(&context.ledger()?, &client, &arguments.organization.org).await?;
    let status = driver.ask(OrgMove::resume, (), &arguments.patience).await?;
    console::show(context.output(), &status, |_| "the movers go on".to_owned())?;
    Ok(Exit::Done)
}
