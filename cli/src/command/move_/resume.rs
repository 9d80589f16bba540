//! `monarch move resume`

use clap::Args;
use monarch_workflows::OrgMove;
use temporalio_client::WorkflowExecuteUpdateOptions;

use crate::args::Organization;
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.temporal().await?;
    let handle = org_move::handle(&client, &arguments.organization.org);
    let status = handle
        .execute_update(OrgMove::resume, (), WorkflowExecuteUpdateOptions::default())
        .await
        .map_err(|error| org_move::update_failure(&handle.info().workflow_id, error))?;
    console::show(context.output(), &status, |_| "the movers go on".to_owned())?;
    Ok(Exit::Done)
}
