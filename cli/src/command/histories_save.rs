//! `monarch histories save`

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use monarch_model::OrgId;
use monarch_workflows::OrgMove;
use monarch_workflows::org_move::workflow_id;
use serde_json::{Value, json};
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
    let json = anonymous(json.as_ref())
        .map_err(|error| Failure::failed(format!("read the history that was written: {error}")))?;
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

/// What stands for whoever had a part in a stored history: it is kept and read on other machines,
/// and nobody there needs to know a process or a host.
const SOMEBODY: &str = "somebody";

/// A history without the identities of workers and clients, wherever they stand: the queue of a
/// worker's own is named after it too.
fn anonymous(history: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut history: Value = serde_json::from_slice(history)?;
    let mut identities = BTreeSet::new();
    visit(&mut history, &mut |key, text| {
        if key == "identity" && !text.is_empty() {
            identities.insert(text.clone());
        }
    });
    visit(&mut history, &mut |_, text| {
        for identity in &identities {
            if text.contains(identity) {
                *text = text.replace(identity, SOMEBODY);
            }
        }
    });
    serde_json::to_vec(&history)
}

/// Shows each text of a document to `see`, with the key that it is under.
fn visit(value: &mut Value, see: &mut impl FnMut(&str, &mut String)) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) => see(key, text),
                    other => visit(other, see),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, see)),
        Value::String(text) => see("", text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_history_names_no_process_and_no_host() {
        let history = br#"{"events": [{"identity": "monarch 7@host", "id": "kept"},
            {"queue": {"name": "monarch 7@host-4f"}, "more": ["monarch 7@host"]}]}"#;
        let stored = String::from_utf8(anonymous(history).unwrap()).unwrap();
        assert!(!stored.contains("host"), "{stored}");
        assert!(stored.contains(r#""id":"kept""#) && stored.contains("somebody-4f"));
    }
}
