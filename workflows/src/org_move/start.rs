//! The two ways into a move: preflight and registration, or the adoption of one whose workflow is
//! gone.

use std::collections::{BTreeMap, BTreeSet};

use monarch_model::{MoveId, Phase, StoreName, UnitStatus};
use temporalio_workflow::{WorkflowCancellationToken, WorkflowResult};

use super::outcome::{self, Failure, Stopped};
use super::step::{self, Patience, call};
use super::{At, Ctx, ORG_ID, Plan, SINK_CELL, SOURCE_CELL};
use crate::contract::{
    AdoptInput, AdoptOutput, MoveApi, PreflightInput, PreflightOutput, RegisterInput, failure,
};
use crate::input::{CutOverPolicy, OrgMoveInput};

/// Preflight and registration: `None` if the move was given up before it existed.
pub(super) async fn prepare(ctx: &Ctx, input: OrgMoveInput) -> WorkflowResult<Option<(Plan, At)>> {
    ctx.upsert_search_attributes([ORG_ID.value_set(input.org_id.to_string())]);
    ctx.set_current_details("Preflight");
    let look = PreflightInput {
        org: input.org_id.clone(),
        from: input.from.clone(),
        to: input.to.clone(),
        accept_disagreeing_edges: input.accept_disagreeing_edges.clone(),
    };
    let patience = Patience::from(&input);
    let Some(found) = step::interruptible(ctx, |token| {
        call(ctx, MoveApi::preflight, look, patience.long(token))
    })
    .await
    else {
        return Ok(None);
    };
    let found = found.map_err(Stopped::into_termination)?;
    if !found.refusals.is_empty() {
        let message = format!("preflight refused: {}", found.refusals.join("; "));
        return Err(outcome::fails(failure::PREFLIGHT_REFUSED, message));
    }
    if input.cut_over == CutOverPolicy::Auto && !found.can_fence {
        let message = "cut_over \"auto\" needs a `control` in fleet.yaml that can fence and flip";
        return Err(outcome::fails(failure::BAD_INPUT, message.to_owned()));
    }
    register(ctx, input, found).await.map(Some)
}

/// Takes the lease. Not interruptible: once the row may exist, only a plan can end it.
async fn register(
    ctx: &Ctx,
    input: OrgMoveInput,
    found: PreflightOutput,
) -> WorkflowResult<(Plan, At)> {
    let move_id: MoveId = ctx
        .uuid4()
        .parse()
        .map_err(|_| outcome::fails(failure::BAD_INPUT, "no move id".to_owned()))?;
    let register = RegisterInput {
        move_id,
        org: input.org_id.clone(),
        from: found.from.clone(),
        to: found.to.clone(),
        workflow_id: ctx.workflow_id().to_owned(),
        run_id: ctx.run_id().to_owned(),
        options: serde_json::to_value(&input).unwrap_or_default(),
    };
    let options = Patience::from(&input).long(WorkflowCancellationToken::new());
    let registered = call(ctx, MoveApi::register, register, options)
        .await
        .map_err(Stopped::into_termination)?;
    let plan = Plan {
        move_id,
        input,
        org: registered.org,
        from: found.from,
        to: found.to,
        units: registered.units,
        blobs: registered.blobs,
        copied: BTreeSet::new(),
    };
    let units = plan
        .units
        .iter()
        .chain(&plan.blobs)
        .map(|store| (store.clone(), UnitStatus::Pending));
    note(ctx, &plan, units.collect());
    step::enter(ctx, &plan, Phase::Active);
    Ok((plan, At::Active))
}

/// Shows the move in the query and in lists.
fn note(ctx: &Ctx, plan: &Plan, units: BTreeMap<StoreName, UnitStatus>) {
    ctx.upsert_search_attributes([
        ORG_ID.value_set(plan.org.to_string()),
        SOURCE_CELL.value_set(plan.from.to_string()),
        SINK_CELL.value_set(plan.to.to_string()),
    ]);
    ctx.state_mut(|s| {
        s.status.move_id = Some(plan.move_id);
        s.status.units = units;
    });
}

/// Takes up a registered move in the place of its own workflow.
pub(super) async fn adopt(
    ctx: &Ctx,
    input: OrgMoveInput,
    move_id: MoveId,
) -> WorkflowResult<(Plan, At)> {
    let adopt = AdoptInput {
        move_id,
        org: input.org_id.clone(),
        workflow_id: ctx.workflow_id().to_owned(),
        run_id: ctx.run_id().to_owned(),
    };
    let options = Patience::from(&input).long(WorkflowCancellationToken::new());
    let adopted = call(ctx, MoveApi::adopt, adopt, options)
        .await
        .map_err(Stopped::into_termination)?;
    let at = entrance(&adopted)?;
    let all = adopted.units.iter().chain(&adopted.blobs);
    let units: BTreeMap<StoreName, UnitStatus> = all.cloned().collect();
    let is_copied = |status| matches!(status, UnitStatus::Copied | UnitStatus::Streaming);
    let copied = adopted
        .units
        .iter()
        .filter(|(_, status)| is_copied(*status));
    let plan = Plan {
        move_id,
        input,
        copied: copied.map(|(store, _)| store.clone()).collect(),
        org: adopted.org,
        from: adopted.from,
        to: adopted.to,
        units: adopted.units.into_iter().map(|(store, _)| store).collect(),
        blobs: adopted.blobs.into_iter().map(|(store, _)| store).collect(),
    };
    note(ctx, &plan, units);
    // Tokens of attempts before are revoked or used: the next attempt has a number of its own.
    let attempts = adopted.last_drain.map_or(0, |drain| drain.attempt);
    ctx.state_mut(|s| {
        s.status.cut_over_attempts = attempts;
        s.status.paused = adopted.paused;
    });
    step::enter(ctx, &plan, adopted.phase);
    Ok((plan, at))
}

/// Where a run takes the adopted move up.
fn entrance(adopted: &AdoptOutput) -> WorkflowResult<At> {
    let reason = adopted.reason.clone();
    Ok(match (adopted.phase, adopted.last_drain.clone()) {
        (Phase::Active, _) => At::Active,
        (Phase::Flipping, Some(drain)) => At::Flipping(drain),
        (Phase::Draining | Phase::Flipping, _) => At::Draining,
        (Phase::CutOver | Phase::Evicting, _) => At::Flipped {
            write_pause: adopted.write_pause,
        },
        (Phase::Aborting, _) => At::Aborting,
        (Phase::Failed, _) => {
            let (code, message) = reason.unwrap_or_default();
            At::Failed(Failure {
                kind: failure::FATAL.to_owned(),
                code,
                message,
            })
        }
        (ended @ (Phase::Finalized | Phase::Aborted), _) => {
            let message = format!("the move is {ended}: there is nothing to carry on");
            return Err(outcome::fails(failure::BAD_INPUT, message));
        }
    })
}
