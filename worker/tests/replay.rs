//! Every change of workflow code is replayed against stored histories of real moves: a running
//! move must go on under the new code as it began under the old.
//!
//! The histories are made by `make histories`. A change that is meant to differ is made with
//! `ctx.patched`, so that the old histories still replay; they are made anew only when no move of
//! an older version can be running any more.

use monarch_workflows::OrgMove;
use temporalio_client::WorkflowHistory;
use temporalio_sdk::workflow_replayer::{
    WorkflowReplayError, WorkflowReplayFailure, WorkflowReplayer, WorkflowReplayerOptions,
};

const FINISHED: &[u8] = include_bytes!("histories/finished.json");
const ABORTED: &[u8] = include_bytes!("histories/aborted.json");
const FAILED: &[u8] = include_bytes!("histories/failed.json");
const WITH_OBJECTS: &[u8] = include_bytes!("histories/with_objects.json");

fn history(json: &[u8]) -> WorkflowHistory {
    WorkflowHistory::from_json(json).expect("a stored history")
}

async fn replay(json: &[u8]) -> Result<(), WorkflowReplayError> {
    let options = WorkflowReplayerOptions::new()
        .register_workflow::<OrgMove>()
        .expect("the workflow is registered once")
        .build();
    let replayer = WorkflowReplayer::new(options)?;
    replayer.replay_workflow(history(json)).await.map(drop)
}

/// Guards moves that are under way against a change of the order of their steps.
#[tokio::test]
async fn moves_that_ended_replay_under_the_present_code() {
    for (name, json) in [
        ("finished", FINISHED),
        ("aborted", ABORTED),
        ("failed", FAILED),
        ("with objects", WITH_OBJECTS),
    ] {
        if let Err(error) = replay(json).await {
            panic!("the {name} move does not replay: {error}");
        }
    }
}

/// Guards the guard: code that does other steps is caught.
#[tokio::test]
async fn a_changed_workflow_is_caught() {
    let options = WorkflowReplayerOptions::new()
        .register_workflow::<changed::OrgMove>()
        .expect("the workflow is registered once")
        .build();
    let replayer = WorkflowReplayer::new(options).expect("a replayer");
    let replayed = replayer.replay_workflow(history(FINISHED)).await;
    assert!(
        matches!(
            replayed,
            Err(WorkflowReplayError::Replay(
                WorkflowReplayFailure::Nondeterminism { .. }
            ))
        ),
        "a workflow that registers before it looks was taken for the one that looked first"
    );
}

/// The same workflow by name, with its first step left out.
mod changed {
    #![allow(missing_docs, unreachable_pub)]

    use std::time::Duration;

    use monarch_workflows::contract::{MoveApi, MoveRef};
    use temporalio_common::data_converters::RawValue;
    use temporalio_macros::{workflow, workflow_methods};
    use temporalio_sdk::{ActivityOptions, WorkflowContext, WorkflowResult};

    #[workflow]
    #[derive(Default)]
    pub struct OrgMove;

    #[workflow_methods]
    impl OrgMove {
        #[run]
        pub async fn run(ctx: &mut WorkflowContext<Self>, _start: RawValue) -> WorkflowResult<()> {
            let this = MoveRef {
                move_id: "7d0f5f0e-6b0c-4f7e-9a58-0d3b3f8a1c11"
                    .parse()
                    .expect("a uuid"),
            };
            let options = ActivityOptions::start_to_close_timeout(Duration::from_secs(1));
            ctx.execute_activity(MoveApi::verify, this, options).await?;
            Ok(())
        }
    }
}
