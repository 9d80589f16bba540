//! One step: an activity with its options, raced against what interrupts a move.

use std::time::Duration;

use monarch_model::{CellName, Phase, StoreName, UnitStatus};
use temporalio_common::ActivityDefinition;
use temporalio_workflow::{
    ActivityCancellationType, ActivityCloseTimeouts, ActivityOptions, RetryPolicy, TimerOptions,
    WaitConditionOptions, WorkflowCancellationToken, workflows::select,
};

use super::outcome::Stopped;
use super::{Ctx, MOVE_PHASE, Plan};
use crate::input::{Abort, OrgMoveInput};
use crate::queue;

/// How long an activity may take and how soon its silence means that it is dead.
pub(super) struct Patience {
    heartbeat: Duration,
}

impl From<&OrgMoveInput> for Patience {
    fn from(input: &OrgMoveInput) -> Self {
        Self {
            heartbeat: input.heartbeat(),
        }
    }
}

impl Patience {
    /// For work that reports as it goes, and may go on for days, on the workflow's own queue.
    pub(super) fn long(&self, token: WorkflowCancellationToken) -> ActivityOptions {
        self.options(
            None,
            token,
            ActivityCancellationType::WaitCancellationCompleted,
        )
    }

    /// The same on the queue of `store` in `cell`.
    pub(super) fn in_cell(
        &self,
        cell: &CellName,
        store: &StoreName,
        token: WorkflowCancellationToken,
    ) -> ActivityOptions {
        self.options(
            Some(queue::of_store(cell, store)),
            token,
            ActivityCancellationType::WaitCancellationCompleted,
        )
    }

    /// For what only looks, so that nobody waits for its end.
    pub(super) fn aside(&self, token: WorkflowCancellationToken) -> ActivityOptions {
        self.options(None, token, ActivityCancellationType::TryCancel)
    }

    fn options(
        &self,
        queue: Option<String>,
        token: WorkflowCancellationToken,
        cancellation: ActivityCancellationType,
    ) -> ActivityOptions {
        let a_year = Duration::from_secs(365 * 24 * 3_600);
        ActivityOptions::with_close_timeouts(ActivityCloseTimeouts::StartToClose(a_year))
            .heartbeat_timeout(self.heartbeat)
            .cancellation_type(cancellation)
            .cancellation_token(token)
            .retry_policy(for_ever())
            .maybe_task_queue(queue)
            .build()
    }
}

/// Tries again until it works or fails for good. Never seldom: a stream whose unit was opened again
/// in a drain is part of the write pause.
fn for_ever() -> RetryPolicy {
    RetryPolicy::builder()
        .initial_interval(Duration::from_millis(500))
        .maximum_interval(Duration::from_secs(5))
        .build()
}

/// Runs one activity to its end.
pub(super) async fn call<A: ActivityDefinition>(
    ctx: &Ctx,
    activity: A,
    input: A::Input,
    options: ActivityOptions,
) -> Result<A::Output, Stopped> {
    let token = options.cancellation_token.clone();
    let done = ctx.execute_activity(activity, input, options).await;
    done.map_err(|error| match token {
        Some(token) if token.is_cancelled() => Stopped::from(error).after_cancellation(),
        _ => Stopped::from(error),
    })
}

/// Runs `step` under a token that an interruption cancels, and waits for its end either way.
/// `None` if it was interrupted.
pub(super) async fn interruptible<F, T>(
    ctx: &Ctx,
    step: impl FnOnce(WorkflowCancellationToken) -> F,
) -> Option<T>
where
    F: Future<Output = T>,
{
    use futures::FutureExt as _;
    let token = WorkflowCancellationToken::new();
    let mut step = Box::pin(step(token.clone()).fuse());
    let mut interruption = Box::pin(interrupted(ctx).fuse());
    select! {
        done = step => return Some(done),
        () = interruption => token.cancel(),
    }
    step.await;
    None
}

/// Resolves when an abort, a fatal finding or a cancellation has come in. A cancellation is an
/// abort whose reason is the caller's.
pub(super) async fn interrupted(ctx: &Ctx) {
    let mut asked = ctx.wait_condition_with_options(|s| s.is_interrupted(), deaf());
    let mut cancelled = Box::pin(ctx.cancelled());
    select! {
        _ = asked => {}
        reason = cancelled => ctx.state_mut(|s| {
            let reason = reason.filter(|r| !r.is_empty());
            s.cancelled = true;
            s.request_abort(Abort {
                reason: reason.unwrap_or_else(|| "the workflow was cancelled".to_owned()),
            });
        }),
    }
}

/// Cancels `token` so that every wait hears it now. Within one activation the runtime polls again
/// only when the state was touched or a command was given: a token alone wakes nobody until the
/// next event, which may be hours away.
pub(super) fn cancel(ctx: &Ctx, token: &WorkflowCancellationToken, reason: &str) {
    token.cancel_with_reason(reason);
    ctx.state_mut(|_| ());
}

/// Options of a wait that cancelling the workflow does not end.
pub(super) fn deaf() -> WaitConditionOptions {
    WaitConditionOptions::builder()
        .cancellation_token(WorkflowCancellationToken::new())
        .build()
}

/// A timer that only `token` ends early.
pub(super) fn timer(duration: Duration, token: WorkflowCancellationToken) -> TimerOptions {
    TimerOptions::builder(duration)
        .cancellation_token(token)
        .build()
}

/// Notes where the move stands, for the query, for lists and for the Web UI.
pub(super) fn enter(ctx: &Ctx, plan: &Plan, phase: Phase) {
    ctx.state_mut(|s| s.status.phase = Some(phase));
    ctx.upsert_search_attributes([MOVE_PHASE.value_set(phase.to_string())]);
    describe(ctx, plan);
}

/// Notes what a unit does.
pub(super) fn unit(ctx: &Ctx, plan: &Plan, store: &StoreName, status: UnitStatus) {
    ctx.state_mut(|s| s.status.units.insert(store.clone(), status));
    describe(ctx, plan);
}

/// Notes what keeps the move from going on; an empty list clears it.
pub(super) fn blocked(ctx: &Ctx, plan: &Plan, by: Vec<String>) {
    ctx.state_mut(|s| s.status.blocked_by = by);
    describe(ctx, plan);
}

/// The story in the Web UI, in markdown.
pub(super) fn describe(ctx: &Ctx, plan: &Plan) {
    let details = ctx.state(|s| {
        let phase = s.status.phase.map_or("registered", Phase::as_str);
        let mut text = format!(
            "**{phase}**: organization `{}` from `{}` to `{}`, move `{}`\n\n| store | status |\n|---|---|\n",
            plan.org, plan.from, plan.to, plan.move_id
        );
        for (store, status) in &s.status.units {
            text.push_str(&format!("| {store} | {status} |\n"));
        }
        if s.status.paused {
            text.push_str("\n- paused: slots are kept and go on holding log");
        }
        for queue in &s.status.unserved {
            text.push_str(&format!("\n- no worker serves queue `{queue}`"));
        }
        for blocker in &s.status.blocked_by {
            text.push_str(&format!("\n- in the way: {blocker}"));
        }
        for (what, why) in [("abort", &s.status.abort_reason), ("failure", &s.status.failure)] {
            if let Some(why) = why {
                text.push_str(&format!("\n- {what}: {why}"));
            }
        }
        text
    });
    ctx.set_current_details(details);
}
