//! What the commands say to the workflow of a move, and what its refusals mean.

use std::time::Duration;

use monarch_model::{OrgId, chain};
use monarch_worker::temporal::{is_transient, names_namespace};
use monarch_workflows::OrgMove;
use monarch_workflows::org_move::{OrgMoveResult, Status, workflow_id};
use temporalio_client::errors::{
    WorkflowGetResultError, WorkflowInteractionError, WorkflowQueryError, WorkflowStartError,
    WorkflowUpdateError,
};
use temporalio_client::tonic;
use temporalio_client::{
    Client, RetryOptions, RpcOptions, WorkflowDescribeOptions, WorkflowExecutionStatus,
    WorkflowGetResultOptions, WorkflowHandle, WorkflowQueryOptions,
};
use temporalio_common::HasWorkflowDefinition;
use temporalio_common::error::IncomingError;

use crate::console::named;
use crate::failure::Failure;

/// How long a look may wait for a worker's answer: none may be there.
pub(crate) const GLANCE: Duration = Duration::from_secs(5);

/// The definition that queries, signals and updates of a move belong to.
pub(crate) type Run = <OrgMove as HasWorkflowDefinition>::Run;

/// What to do where no workflow runs.
pub(crate) const SPELLING: &str =
    "see `monarch move list`; an organization is spelled as it was at the start";

/// A handle to the workflow of an organization's move.
pub(crate) type Handle = WorkflowHandle<Client, OrgMove>;

/// The workflow of `org`'s newest move.
pub(crate) fn handle(client: &Client, org: &OrgId) -> Handle {
    client.get_workflow_handle::<OrgMove>(workflow_id(org))
}

/// Whether a workflow goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Liveness {
    Running {
        run_id: String,
    },
    Closed {
        run_id: String,
        how: WorkflowExecutionStatus,
    },
    /// There never was one, or its history is no longer kept.
    Missing,
}

impl Liveness {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// What became of a workflow that does not run.
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Self::Running { .. } => "runs",
            Self::Closed { how, .. } => match how {
                WorkflowExecutionStatus::Terminated => "was terminated",
                WorkflowExecutionStatus::Failed => "failed",
                WorkflowExecutionStatus::Canceled => "was cancelled",
                WorkflowExecutionStatus::TimedOut => "timed out",
                _ => "has ended",
            },
            Self::Missing => "is not known to Temporal",
        }
    }
}

/// Whether the workflow goes on.
pub(crate) async fn liveness(handle: &Handle) -> Result<Liveness, Failure> {
    match handle.describe(WorkflowDescribeOptions::default()).await {
        Ok(found) => {
            let run_id = found.run_id().to_owned();
            Ok(match found.status() {
                WorkflowExecutionStatus::Running | WorkflowExecutionStatus::Paused => {
                    Liveness::Running { run_id }
                }
                how => Liveness::Closed { run_id, how },
            })
        }
        Err(WorkflowInteractionError::NotFound(status)) if !names_namespace(&status) => {
            Ok(Liveness::Missing)
        }
        Err(error) => Err(lookup_failure(&handle.info().workflow_id, error)),
    }
}

/// What the workflow itself knows. Needs a worker that answers, for which it waits so long.
pub(crate) async fn status(handle: &Handle, patience: Duration) -> Result<Status, Failure> {
    let rpc = RpcOptions::builder()
        .timeout(patience)
        .retry_options(RetryOptions::builder().max_retries(1).build())
        .build();
    let options = WorkflowQueryOptions::builder().rpc_options(rpc).build();
    let id = &handle.info().workflow_id;
    let asked = handle.query(OrgMove::status, (), options);
    match tokio::time::timeout(patience, asked).await {
        Err(_) => Err(nobody_answers()),
        Ok(Ok(status)) => Ok(status),
        Ok(Err(WorkflowQueryError::NotFound(status))) => Err(not_found(id, &status)),
        Ok(Err(WorkflowQueryError::Rpc(status))) => Err(match status.code() {
            // Our own limit on the call comes back as a cancellation.
            tonic::Code::DeadlineExceeded
            | tonic::Code::FailedPrecondition
            | tonic::Code::Cancelled => nobody_answers(),
            _ => rpc_failure("ask the workflow for its status", &status),
        }),
        Ok(Err(error)) => Err(Failure::failed(format!(
            "ask the workflow for its status: {}",
            chain(&error)
        ))),
    }
}

/// The same at a glance: what the workflow knows, or why it says nothing.
pub(crate) async fn said(handle: &Handle) -> Result<Status, String> {
    let answer = status(handle, GLANCE).await;
    answer.map_err(|failure| failure.what().to_owned())
}

fn nobody_answers() -> Failure {
    Failure::unreachable("no worker answers for the workflow").advising("start `monarch worker`")
}

/// How a workflow that has closed ended: with a result, or why without one.
pub(crate) async fn outcome(handle: &Handle) -> Result<Result<OrgMoveResult, Ended>, Failure> {
    match handle.get_result(WorkflowGetResultOptions::default()).await {
        Ok(result) => Ok(Ok(result)),
        Err(WorkflowGetResultError::NotFound(status)) => {
            Err(not_found(&handle.info().workflow_id, &status))
        }
        Err(WorkflowGetResultError::Rpc(status)) => Err(rpc_failure("wait for the move", &status)),
        Err(error) => Ok(Err(Ended::from(&error))),
    }
}

/// Why a workflow ended without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// A name of [`monarch_workflows::contract::failure`], if it came with one.
    pub(crate) code: String,
    /// In words, led by the name.
    pub(crate) why: String,
}

impl From<&WorkflowGetResultError> for Ended {
    fn from(error: &WorkflowGetResultError) -> Self {
        let application = match error {
            WorkflowGetResultError::Failed(why) => match why.as_ref() {
                IncomingError::Application(application) => Some(application),
                _ => None,
            },
            _ => None,
        };
        let told = application.and_then(|application| {
            Some((application.type_name()?, &application.failure()?.message))
        });
        match told {
            Some((code, message)) => Self {
                code: code.to_owned(),
                why: named(code, message),
            },
            None => Self {
                code: String::new(),
                why: chain(error),
            },
        }
    }
}

/// Why a workflow could not be started.
pub(crate) fn start_failure(org: &OrgId, error: WorkflowStartError) -> Failure {
    match error {
        WorkflowStartError::AlreadyStarted { run_id, .. } => {
            let run = run_id
                .map(|run| format!(" (run {run})"))
                .unwrap_or_default();
            Failure::not_ready(format!(
                "organization {org} is being moved already: workflow {} runs{run}",
                workflow_id(org)
            ))
            .advising(format!("watch it with `monarch move watch --org {org}`"))
        }
        WorkflowStartError::Rpc(status) => rpc_failure("start the move", &status),
        other => Failure::failed(format!("start the move: {}", chain(&other))),
    }
}

/// Why a signal was not taken, or a workflow not found.
pub(crate) fn lookup_failure(workflow_id: &str, error: WorkflowInteractionError) -> Failure {
    match error {
        WorkflowInteractionError::NotFound(status) => not_found(workflow_id, &status),
        WorkflowInteractionError::Rpc(status) => {
            rpc_failure(&format!("reach workflow {workflow_id}"), &status)
        }
        other => Failure::failed(format!("reach workflow {workflow_id}: {}", chain(&other))),
    }
}

/// Why an update did nothing. What the workflow itself refuses is a matter of its state.
pub(crate) fn update_failure(workflow_id: &str, error: WorkflowUpdateError) -> Failure {
    match error {
        WorkflowUpdateError::Failed(refusal) => Failure::not_ready(refusal.message),
        WorkflowUpdateError::NotFound(status) => not_found(workflow_id, &status),
        WorkflowUpdateError::Rpc(status) => {
            rpc_failure(&format!("ask workflow {workflow_id}"), &status)
        }
        other => Failure::failed(format!("ask workflow {workflow_id}: {}", chain(&other))),
    }
}

fn not_found(workflow_id: &str, status: &tonic::Status) -> Failure {
    if names_namespace(status) {
        return Failure::usage(status.message()).advising("set TEMPORAL_NAMESPACE");
    }
    Failure::not_ready(format!("no workflow {workflow_id} runs")).advising(SPELLING)
}

fn rpc_failure(doing: &str, status: &tonic::Status) -> Failure {
    let said = format!("{doing}: {}", status.message());
    match status.code() {
        _ if names_namespace(status) => not_found("", status),
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            Failure::unreachable(said).advising("check TEMPORAL_API_KEY and the TLS variables")
        }
        _ if is_transient(status) => Failure::unreachable(said)
            .tried_again()
            .advising("see whether Temporal is up, then run this again"),
        _ => Failure::failed(said),
    }
}
