//! The ways a move ends: evicted and finalized, given up, or failed and then given up.

use std::time::Duration;

use monarch_model::{CellName, Phase, StoreName, UnitStatus};
use temporalio_workflow::{
    ActivityOptions, WorkflowCancellationToken, WorkflowResult, WorkflowTermination,
    workflows::{join, join_all, select},
};

use super::outcome::{self, Failure, Stopped};
use super::step::{self, Patience, call};
use super::{Ctx, OrgMoveResult, Plan};
use crate::contract::{Because, BeginEvictInput, MoveApi, MoveRef, UnitRef, failure};
use crate::input::{Abort, Evict, EvictionPolicy};

/// Clean-up hears neither an abort nor a cancellation.
fn unhurried(plan: &Plan) -> ActivityOptions {
    Patience::from(&plan.input).long(WorkflowCancellationToken::new())
}

/// The same for what is done to one unit in one cell.
fn unhurried_in(plan: &Plan, cell: &CellName, store: &StoreName) -> ActivityOptions {
    Patience::from(&plan.input).in_cell(cell, store, WorkflowCancellationToken::new())
}

/// The end of a move that was given up before it had a row in the ledger.
pub(super) fn given_up_before_register(ctx: &Ctx) -> WorkflowTermination {
    if ctx.state(|s| s.cancelled) {
        return WorkflowTermination::cancelled();
    }
    let reason = ctx
        .state(|s| s.status.abort_reason.clone())
        .unwrap_or_default();
    outcome::fails(
        failure::ABORTED,
        format!("given up before it began: {reason}"),
    )
}

/// Tails read and slots dropped, then eviction when its time has come, then `finalized`.
pub(super) async fn after_flip(
    ctx: &Ctx,
    plan: &Plan,
    write_pause: Option<Duration>,
) -> WorkflowResult<OrgMoveResult> {
    close_tails(ctx, plan)
        .await
        .map_err(Stopped::into_termination)?;
    ctx.state_mut(|s| s.tails_closed = true);
    let mut policy = plan.input.eviction;
    loop {
        let request = time_to_evict(ctx, policy).await;
        let refusals = evict(ctx, plan, request)
            .await
            .map_err(Stopped::into_termination)?;
        step::blocked(ctx, plan, refusals.clone());
        if refusals.is_empty() {
            break;
        }
        // What was refused once is an operator's to mend and to ask for again.
        policy = EvictionPolicy::Manual;
    }
    let this = MoveRef {
        move_id: plan.move_id,
    };
    call(ctx, MoveApi::finalize, this, unhurried(plan))
        .await
        .map_err(Stopped::into_termination)?;
    step::enter(ctx, plan, Phase::Finalized);
    Ok(OrgMoveResult {
        move_id: plan.move_id,
        phase: Phase::Finalized,
        write_pause_ms: write_pause.map(outcome::milliseconds),
        reason: None,
    })
}

/// Reads every slot to its head and drops it, before any waiting: no log is held for eviction.
async fn close_tails(ctx: &Ctx, plan: &Plan) -> Result<(), Stopped> {
    let tails = plan.units.iter().map(|store| async move {
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        let tail = call(
            ctx,
            MoveApi::close_tail,
            unit,
            unhurried_in(plan, &plan.to, store),
        )
        .await?;
        step::unit(ctx, plan, store, UnitStatus::SlotDropped);
        let late = tail.late_changes.iter();
        let late = late.map(|(table, n)| format!("{store}: {n} late changes of {table}"));
        Ok::<Vec<String>, Stopped>(late.chain(tail.unread).collect())
    });
    let mut late = Vec::new();
    for tail in join_all(tails).await {
        late.extend(tail?);
    }
    step::blocked(ctx, plan, late);
    Ok(())
}

/// Waits for the policy's time or for the operator's word, whichever comes first.
async fn time_to_evict(ctx: &Ctx, policy: EvictionPolicy) -> Evict {
    let wait = match policy {
        EvictionPolicy::Now => return Evict::default(),
        EvictionPolicy::AfterSeconds(seconds) => Some(Duration::from_secs(seconds)),
        EvictionPolicy::Manual => None,
    };
    let mut asked = ctx.wait_condition_with_options(|s| s.evict.is_some(), step::deaf());
    if let Some(wait) = wait {
        let token = WorkflowCancellationToken::new();
        let mut timer = Box::pin(ctx.timer(step::timer(wait, token.clone())));
        select! {
            _ = asked => token.cancel(),
            _ = timer => {}
        }
    } else {
        let _ = asked.await;
    }
    ctx.state_mut(|s| s.evict.take()).unwrap_or_default()
}

/// Deletes the organization from the source, store by store; returns why not, if refused.
async fn evict(ctx: &Ctx, plan: &Plan, request: Evict) -> Result<Vec<String>, Stopped> {
    let begin = BeginEvictInput {
        move_id: plan.move_id,
        accept_late_changes: request.accept_late_changes,
        accept_newer_rows: request.accept_newer_rows,
        asked_at: ctx.state(|s| s.evict_asked_at),
    };
    let begun = call(ctx, MoveApi::begin_evict, begin, unhurried(plan)).await?;
    if !begun.refusals.is_empty() {
        return Ok(begun.refusals);
    }
    step::enter(ctx, plan, Phase::Evicting);
    // Objects before rows: afterwards nothing would name what is left.
    for store in &plan.blobs {
        step::unit(ctx, plan, store, UnitStatus::Evicting);
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        let options = unhurried_in(plan, &plan.from, store);
        call(ctx, MoveApi::evict_objects, unit, options).await?;
        step::unit(ctx, plan, store, UnitStatus::Evicted);
    }
    for store in &plan.units {
        step::unit(ctx, plan, store, UnitStatus::Evicting);
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        match call(
            ctx,
            MoveApi::evict,
            unit,
            unhurried_in(plan, &plan.from, store),
        )
        .await
        {
            Ok(_) => step::unit(ctx, plan, store, UnitStatus::Evicted),
            Err(Stopped::Failed(refused)) if refused.kind == failure::EVICTION_REFUSED => {
                return Ok(vec![format!("{store}: {}", refused.message)]);
            }
            Err(stopped) => return Err(stopped),
        }
    }
    Ok(Vec::new())
}

/// Lifts the fence, drops every slot and scrubs the sink: the organization never left.
pub(super) async fn give_up(ctx: &Ctx, plan: &Plan) -> WorkflowResult<OrgMoveResult> {
    let reason = ctx
        .state(|s| s.status.abort_reason.clone())
        .unwrap_or_default();
    let because = Because {
        move_id: plan.move_id,
        code: failure::ABORTED.to_owned(),
        reason: reason.clone(),
    };
    // Side by side: while a control plane is away, the slots must not go on holding log.
    let (begun, dropped) = join!(
        call(ctx, MoveApi::begin_abort, because, unhurried(plan)),
        drop_slots(ctx, plan)
    );
    begun.and(dropped).map_err(Stopped::into_termination)?;
    step::enter(ctx, plan, Phase::Aborting);
    for store in &plan.units {
        step::unit(ctx, plan, store, UnitStatus::Evicting);
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        call(
            ctx,
            MoveApi::scrub,
            unit,
            unhurried_in(plan, &plan.to, store),
        )
        .await
        .map_err(Stopped::into_termination)?;
        step::unit(ctx, plan, store, UnitStatus::Evicted);
    }
    // Rows before objects: what names one then is somebody else's.
    for store in &plan.blobs {
        step::unit(ctx, plan, store, UnitStatus::Evicting);
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        let options = unhurried_in(plan, &plan.to, store);
        call(ctx, MoveApi::scrub_objects, unit, options)
            .await
            .map_err(Stopped::into_termination)?;
        step::unit(ctx, plan, store, UnitStatus::Evicted);
    }
    let this = MoveRef {
        move_id: plan.move_id,
    };
    call(ctx, MoveApi::conclude_abort, this, unhurried(plan))
        .await
        .map_err(Stopped::into_termination)?;
    step::enter(ctx, plan, Phase::Aborted);
    if ctx.state(|s| s.cancelled) {
        return Err(WorkflowTermination::cancelled());
    }
    Ok(OrgMoveResult {
        move_id: plan.move_id,
        phase: Phase::Aborted,
        write_pause_ms: None,
        reason: Some(reason),
    })
}

/// Records the finding and drops every slot at once; the scrub follows at once or on `abort`.
pub(super) async fn fail(
    ctx: &Ctx,
    plan: &Plan,
    failure: Failure,
) -> WorkflowResult<OrgMoveResult> {
    let because = Because {
        move_id: plan.move_id,
        code: failure.code.clone(),
        reason: failure.message.clone(),
    };
    ctx.state_mut(|s| s.status.failure = Some(failure.to_string()));
    let (failed, dropped) = join!(
        call(ctx, MoveApi::fail, because, unhurried(plan)),
        drop_slots(ctx, plan)
    );
    failed.and(dropped).map_err(Stopped::into_termination)?;
    step::enter(ctx, plan, Phase::Failed);
    if plan.input.scrub_on_failure {
        ctx.state_mut(|s| {
            s.request_abort(Abort {
                reason: failure.to_string(),
            })
        });
    } else {
        asked_to_scrub(ctx).await;
    }
    give_up(ctx, plan).await?;
    Err(outcome::fails(&failure.kind, failure.message))
}

/// Waits for an abort or a cancellation.
async fn asked_to_scrub(ctx: &Ctx) {
    let mut asked = ctx.wait_condition_with_options(|s| s.abort.is_some(), step::deaf());
    let mut cancelled = Box::pin(ctx.cancelled());
    select! {
        _ = asked => {}
        _ = cancelled => ctx.state_mut(|s| {
            s.cancelled = true;
            s.request_abort(Abort { reason: "the workflow was cancelled".to_owned() });
        }),
    }
}

async fn drop_slots(ctx: &Ctx, plan: &Plan) -> Result<(), Stopped> {
    let drops = plan.units.iter().map(|store| async move {
        let unit = UnitRef {
            move_id: plan.move_id,
            store: store.clone(),
        };
        call(
            ctx,
            MoveApi::drop_slots,
            unit,
            unhurried_in(plan, &plan.from, store),
        )
        .await?;
        step::unit(ctx, plan, store, UnitStatus::SlotDropped);
        Ok(())
    });
    join_all(drops).await.into_iter().collect()
}
