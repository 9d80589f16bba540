//! The movers: one loop a unit, side by side, until they are stopped or one of them fails. While
//! the move is paused, each looks after its slot instead.

use futures::FutureExt as _;
use monarch_model::{StoreName, UnitStatus};
use temporalio_workflow::{
    WaitConditionOptions, WorkflowCancellationToken,
    workflows::{join, join_all, select},
};

use super::outcome::{Failure, Stopped};
use super::step::{self, Patience, call};
use super::{Ctx, OrgMove, Plan};
use crate::contract::{MoveApi, UnitRef, failure};

/// How one activity of a unit ended well.
enum Done {
    Copied,
    Sealed,
    Held,
}

/// Runs every unit's loop; the first failure stops the others and is returned.
pub(super) async fn run(
    ctx: &Ctx,
    plan: &Plan,
    stop: &WorkflowCancellationToken,
) -> Option<Failure> {
    let units = plan.units.iter().map(|store| async move {
        let end = drive(ctx, plan, store, stop).await;
        if end.is_err() {
            step::cancel(ctx, stop, "another unit failed");
        }
        end
    });
    let blobs = plan.blobs.iter().map(|store| async move {
        let end = drive_objects(ctx, plan, store, stop).await;
        if end.is_err() {
            step::cancel(ctx, stop, "another unit failed");
        }
        end
    });
    let (units, blobs) = join!(join_all(units), join_all(blobs));
    units.into_iter().chain(blobs).find_map(Result::err)
}

/// Copies the objects of one blob store until it is stopped; holds nothing while paused.
async fn drive_objects(
    ctx: &Ctx,
    plan: &Plan,
    store: &StoreName,
    stop: &WorkflowCancellationToken,
) -> Result<(), Failure> {
    loop {
        if until(ctx, |s| !s.status.paused, stop).await.is_err() {
            return Ok(());
        }
        step::unit(ctx, plan, store, UnitStatus::Copying);
        match copy_objects(ctx, plan, store, stop.child_token()).await {
            Err(Stopped::Cancelled) if stop.is_cancelled() => return Ok(()),
            Ok(()) | Err(Stopped::Cancelled) => {}
            Err(Stopped::Failed(failure)) => return Err(failure),
        }
    }
}

/// The mover of objects, cancelled by `token` or by a pause.
async fn copy_objects(
    ctx: &Ctx,
    plan: &Plan,
    store: &StoreName,
    token: WorkflowCancellationToken,
) -> Result<(), Stopped> {
    let unit = UnitRef {
        move_id: plan.move_id,
        store: store.clone(),
    };
    let options = Patience::from(&plan.input).in_cell(&plan.to, store, token.clone());
    let mut work = Box::pin(call(ctx, MoveApi::copy_objects, unit, options).fuse());
    let mut paused = ctx.wait_condition_with_options(|s| s.status.paused, step::deaf());
    select! {
        done = work => return done,
        _ = paused => token.cancel_with_reason("paused"),
    }
    work.await
}

/// Drives one unit: copy, then stream; copy again when it must start over; hold its slot while
/// paused; nothing while sealed.
async fn drive(
    ctx: &Ctx,
    plan: &Plan,
    store: &StoreName,
    stop: &WorkflowCancellationToken,
) -> Result<(), Failure> {
    let mut copied = plan.copied.contains(store);
    loop {
        if until(ctx, |s| !s.sealed, stop).await.is_err() {
            return Ok(());
        }
        let opened = ctx.state(|s| s.opened);
        let job = match ctx.state(|s| s.status.paused) {
            true => Job::Hold,
            false if copied => Job::Stream,
            false => Job::Copy,
        };
        match advance(ctx, plan, store, job, stop).await {
            Ok(Done::Copied) => copied = true,
            Ok(Done::Held) => {}
            Ok(Done::Sealed) => {
                // A mover sees the seal of its own unit before all are sealed, or none after all.
                let known = until(ctx, |s| s.sealed || s.opened != opened, stop).await;
                if known.is_err() {
                    return Ok(());
                }
            }
            Err(Stopped::Cancelled) if stop.is_cancelled() => return Ok(()),
            Err(Stopped::Cancelled) => {}
            Err(Stopped::Failed(failure)) if failure.kind == failure::START_OVER => copied = false,
            Err(Stopped::Failed(failure)) => return Err(failure),
        }
    }
}

/// What a mover is about.
#[derive(Clone, Copy, PartialEq)]
enum Job {
    Copy,
    Stream,
    /// Nothing moves; the slot is kept, within its budget.
    Hold,
}

/// The unit's next activity, cancelled by `stop`, by a pause, or by the end of one.
async fn advance(
    ctx: &Ctx,
    plan: &Plan,
    store: &StoreName,
    job: Job,
    stop: &WorkflowCancellationToken,
) -> Result<Done, Stopped> {
    let token = stop.child_token();
    let mut work = Box::pin(activity(ctx, plan, store, job, token.clone()).fuse());
    let holds = job == Job::Hold;
    let mut turned =
        ctx.wait_condition_with_options(move |s| s.status.paused != holds, step::deaf());
    select! {
        done = work => return done,
        _ = turned => token.cancel_with_reason(if holds { "resumed" } else { "paused" }),
    }
    work.await
}

async fn activity(
    ctx: &Ctx,
    plan: &Plan,
    store: &StoreName,
    job: Job,
    token: WorkflowCancellationToken,
) -> Result<Done, Stopped> {
    let patience = Patience::from(&plan.input);
    let unit = UnitRef {
        move_id: plan.move_id,
        store: store.clone(),
    };
    let options = patience.in_cell(&plan.to, store, token);
    match job {
        Job::Stream => {
            step::unit(ctx, plan, store, UnitStatus::Streaming);
            call(ctx, MoveApi::stream, unit, options)
                .await
                .map(|_| Done::Sealed)
        }
        Job::Copy => {
            step::unit(ctx, plan, store, UnitStatus::Copying);
            call(ctx, MoveApi::snapshot, unit, options).await?;
            step::unit(ctx, plan, store, UnitStatus::Copied);
            Ok(Done::Copied)
        }
        Job::Hold => {
            step::describe(ctx, plan);
            call(ctx, MoveApi::hold, unit, options)
                .await
                .map(|()| Done::Held)
        }
    }
}

/// Waits for `condition`; an error once `stop` is cancelled.
async fn until(
    ctx: &Ctx,
    condition: impl FnMut(&OrgMove) -> bool,
    stop: &WorkflowCancellationToken,
) -> Result<(), ()> {
    if stop.is_cancelled() {
        return Err(());
    }
    let options = WaitConditionOptions::builder()
        .cancellation_token(stop.clone())
        .build();
    ctx.wait_condition_with_options(condition, options)
        .await
        .map_err(|_| ())
}
