//! `monarch histories save`

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use monarch_model::OrgId;
use monarch_workflows::OrgMove;
use monarch_workflows::org_move::workflow_id;
use serde_json::json;
use temporalio_client::{WorkflowExecutionInfo, WorkflowFetchHistoryOptions, WorkflowHandle};

use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whose").required(true))]
pub(crate) struct Arguments {
    /// The newest workflow of this organization's moves
    #[arg(long, value_name = "ID", group = "whose")]
    org: Option<OrgId>,
    /// The workflow of this id
    #[arg(long, value_name = "ID", group = "whose")]
    workflow_id: Option<String>,
    /// One run of it; the newest unless given
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Where to
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.temporal().await?;
    let id = match (arguments.org, arguments.workflow_id) {
        (Some(org), _) => workflow_id(&org),
        (None, id) => id.unwrap_or_default(),
    };
    let info = WorkflowExecutionInfo::builder()
        .namespace(client.options().namespace.clone())
        .workflow_id(id.clone())
        .maybe_run_id(arguments.run_id)
        .build();
    let handle: WorkflowHandle<_, OrgMove> = WorkflowHandle::new(client, info);
    let events = handle
        .fetch_history(WorkflowFetchHistoryOptions::default())
        .into_events()
        .await
        .map_err(|error| org_move::lookup_failure(&id, error))?;
    let count = events.len();
    let history = temporalio_client::WorkflowHistory::from(
        temporalio_common::protos::temporal::api::history::v1::History { events },
    );
    let json = history
        .to_json()
        .await
        .map_err(|error| Failure::failed(format!("write the history: {error}")))?;
    let file = arguments.file;
    tokio::fs::write(&file, json)
        .await
        .map_err(|error| Failure::usage(format!("write {}: {error}", file.display())))?;
    let result = json!({ "workflow_id": id, "events": count, "file": file });
    console::show(context.output(), &result, |_| {
        format!("saved {count} events of {id} to {}", file.display())
    })?;
    Ok(Exit::Done)
}
