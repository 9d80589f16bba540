//! The schedules that deliver what outboxes still hold, one for control and one for each cell whose
//! application has its messages delivered by Monarch. In control there are also the changes of the
//! routing whose delivery at commit was cut off, or that a cell could not be told of.

// The macros make constants that they do not document.
#![allow(missing_docs)]

use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::{ActivityOptions, WorkflowContext, WorkflowResult, workflows::join_all};

use std::time::Duration;

use crate::contract::{MoveApi, OutboxDrained, OutboxInput};

/// Cuts each outbox's range of ids into partitions and drains them side by side, on any workers; a
/// schedule runs it every few seconds.
#[workflow]
#[derive(Default)]
pub struct OutboxDrain;

#[workflow_methods]
impl OutboxDrain {
    /// Delivers what is due; returns how much that was.
    #[run]
    pub async fn run(
        ctx: &mut WorkflowContext<Self>,
        input: OutboxInput,
    ) -> WorkflowResult<OutboxDrained> {
        let cut = ctx
            .execute_activity(MoveApi::outbox_partitions, input, options())
            .await?;
        let drains = cut
            .partitions
            .into_iter()
            .map(|part| ctx.execute_activity(MoveApi::outbox_partition, part, options()));
        let mut total = OutboxDrained::default();
        for drained in join_all(drains).await {
            total.add(&drained?);
        }
        Ok(total)
    }
}

fn options() -> ActivityOptions {
    ActivityOptions::with_start_to_close_timeout(Duration::from_secs(600))
        .heartbeat_timeout(Duration::from_secs(60))
        .build()
}
