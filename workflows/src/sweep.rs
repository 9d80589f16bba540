//! The schedule that ends what nobody ends.

// The macros make constants that they do not document.
#![allow(missing_docs)]

use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::{ActivityOptions, WorkflowContext, WorkflowResult};

use std::time::Duration;

use crate::contract::{MoveApi, SweepInput, SweepOutput};

/// Runs the `sweep` activity once; a schedule runs it every few minutes.
#[workflow]
#[derive(Default)]
pub struct Sweep;

#[workflow_methods]
impl Sweep {
    /// Ends moves whose workflow is gone; returns what was ended.
    #[run]
    pub async fn run(
        ctx: &mut WorkflowContext<Self>,
        input: SweepInput,
    ) -> WorkflowResult<SweepOutput> {
        let options = ActivityOptions::with_start_to_close_timeout(Duration::from_secs(600))
            .heartbeat_timeout(Duration::from_secs(60))
            .build();
        Ok(ctx.execute_activity(MoveApi::sweep, input, options).await?)
    }
}
