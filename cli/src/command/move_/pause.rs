//! `monarch move pause`

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
    let org = &arguments.organization.org;
    let client = context.temporal().await?;
    let handle = org_move::handle(&client, org);
    let status = handle
        .execute_update(OrgMove::pause, (), WorkflowExecuteUpdateOptions::default())
        .await
        .map_err(|error| org_move::update_failure(&handle.info().workflow_id, error))?;
    console::show(context.output(), &status, |_| {
        format!(
            "paused; the slots go on holding log until `monarch move resume --org {org}` or an abort"
        )
    })?;
    Ok(Exit::Done)
}
