//! Says which queues of a move nobody serves. A mover whose queue has no worker waits for one
//! without a word, and a wait that nobody sees is the longest.

use std::collections::BTreeSet;

use temporalio_workflow::WorkflowCancellationToken;

use super::step::{self, Patience, call};
use super::{Ctx, Plan};
use crate::contract::{MoveApi, RollCallInput};
use crate::queue;

/// Keeps `unserved` of the status true until `over` is cancelled. Each activity lasts until
/// something has changed, so that the history grows only with news.
pub(super) async fn run(ctx: &Ctx, plan: &Plan, over: &WorkflowCancellationToken) {
    let cells = [&plan.from, &plan.to];
    let queues: BTreeSet<String> = cells
        .into_iter()
        .flat_map(|cell| {
            let units = plan.units.iter().chain(&plan.blobs);
            units.map(|unit| queue::of_store(cell, unit))
        })
        .collect();
    while !over.is_cancelled() {
        let look = RollCallInput {
            queues: queues.iter().cloned().collect(),
            unserved: ctx.state(|s| s.status.unserved.clone()),
        };
        let options = Patience::from(&plan.input).aside(over.child_token());
        let Ok(seen) = call(ctx, MoveApi::roll_call, look, options).await else {
            return;
        };
        ctx.state_mut(|s| s.status.unserved = seen.unserved);
        step::describe(ctx, plan);
    }
}
