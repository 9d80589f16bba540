//! `monarch move abort`

use clap::Args;
use monarch_workflows::OrgMove;
use monarch_workflows::input::Abort;
use serde_json::json;
use temporalio_client::WorkflowSignalOptions;
use temporalio_common::data_converters::{PayloadConverter, RawValue};

use crate::args::Organization;
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move;

/// Movers stop, the fence is lifted, slots and publications go, the sink is scrubbed. After the
/// flip an abort is recorded and changes nothing.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    /// Why, for the ledger and for whoever asks later
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = &arguments.organization.org;
    let client = context.temporal().await?;
    let handle = org_move::handle(&client, org);
    let abort = Abort {
        reason: arguments.reason.clone(),
    };
    let payload = RawValue::from_value(&abort, &PayloadConverter::default());
    handle
        .signal(OrgMove::abort, payload, WorkflowSignalOptions::default())
        .await
        .map_err(|error| org_move::lookup_failure(&handle.info().workflow_id, error))?;
    let result = json!({ "workflow_id": handle.info().workflow_id, "asked": "abort" });
    console::show(context.output(), &result, |_| {
        format!("asked to give up; see it end with `monarch move watch --org {org}`")
    })?;
    Ok(Exit::Done)
}
