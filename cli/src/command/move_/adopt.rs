//! `monarch move adopt`

use clap::Args;
use monarch_workflows::OrgMove;
use monarch_workflows::input::OrgMoveInput;
use serde_json::json;

use super::{find, none_such, start};
use crate::args::{Organization, Which};
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move;

/// For a move whose workflow was terminated or whose history was lost. It keeps the options that
/// it was started with.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = &arguments.organization.org;
    let ledger = context.ledger()?;
    let client = context.temporal().await?;
    let which = Which {
        org: Some(org.clone()),
        move_id: None,
    };
    let of = find(&ledger, &which)
        .await?
        .ok_or_else(|| none_such(&which))?;
    if !of.phase.is_live() {
        let said = format!("move {} is {}: nothing to carry on", of.id, of.phase);
        return Err(Failure::not_ready(said));
    }
    let driver = client.get_workflow_handle::<OrgMove>(of.workflow_id.clone());
    if org_move::liveness(&driver).await?.is_running() {
        let said = format!("workflow {} drives move {}", of.workflow_id, of.id);
        return Err(Failure::not_ready(said)
            .advising(format!("watch it with `monarch move watch --org {org}`")));
    }
    let mut input: OrgMoveInput = serde_json::from_value(of.options.clone())
        .unwrap_or_else(|_| OrgMoveInput::new(of.org.clone()));
    input.adopt = Some(of.id);
    let handle = start::launch(&client, of.workflow_id.clone(), &input).await?;
    let result = json!({
        "workflow_id": of.workflow_id, "run_id": handle.run_id(), "move_id": of.id,
    });
    console::show(context.output(), &result, |_| {
        format!(
            "{} carries on move {}, which is {}\nwatch it with `monarch move watch --org {org}`",
            of.workflow_id, of.id, of.phase
        )
    })?;
    Ok(Exit::Done)
}
