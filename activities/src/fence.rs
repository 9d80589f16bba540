//! Stops the organization's writes, and lets it write again.
//!
//! The ledger says what is intended before the control plane does it: a worker that dies between
//! the two finds the intent and does it again. Which attempt fenced last is in the journal, so that
//! whoever lifts the fence, the sweep included, revokes the right token.

use monarch_ledger::Reason;
use monarch_model::phase::PhaseEvent;
use monarch_model::{MoveId, Phase};
use monarch_workflows::contract::{Because, DrainRef, FenceOutput};
use serde_json::json;

use crate::code::Code;
use crate::control::ControlError;
use crate::failure::Fault;
use crate::journal::newest;
use crate::seal;
use crate::vitals::Vitals;
use crate::world::{Case, World};

/// The kind of the journal's row that says which attempt's fence was lifted.
const LIFTED: &str = "fence_lifted";

/// `active → draining`, then the fence.
pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: DrainRef,
) -> Result<FenceOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let expected = monarch_ledger::Expected {
        phase: Phase::Active,
        step: Some(input.step),
    };
    let detail = json!({ "attempt": input.attempt, "writes_stopped": input.writes_stopped });
    world
        .ledger
        .transition(input.move_id, PhaseEvent::BeginDrain, expected, detail)
        .await?;
    if input.writes_stopped {
        return Ok(FenceOutput {
            refusals: Vec::new(),
        });
    }
    let Some(plane) = case.plane(input.attempt) else {
        return Ok(FenceOutput {
            refusals: vec!["fleet.yaml names no `control`".to_owned()],
        });
    };
    match vitals
        .during("the fence", async { Ok(plane.fence().await) })
        .await?
    {
        Ok(()) => Ok(FenceOutput {
            refusals: Vec::new(),
        }),
        Err(refused @ ControlError::Refused { .. }) => Ok(FenceOutput {
            refusals: vec![refused.to_string()],
        }),
        Err(error) => Err(error.into()),
    }
}

/// Lifts the fence, opens every unit again, and goes back to `active`.
pub(crate) async fn reopen(world: &World, vitals: Vitals, input: Because) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    match case.of.phase {
        Phase::Draining => {}
        // Done by an earlier try whose reply was lost.
        Phase::Active => return Ok(()),
        phase => {
            return Err(Fault::Fatal {
                code: Code::CannotReopen,
                text: format!("the move is {phase} and cannot go back to active"),
            });
        }
    }
    vitals
        .during("the fence to be lifted", async {
            lift(&case).await?;
            seal::open_all(&case).await
        })
        .await?;
    let why = Reason {
        code: input.code,
        text: input.reason,
    };
    world
        .ledger
        .transition(input.move_id, PhaseEvent::Reopen, case.of.expected(), why)
        .await?;
    Ok(())
}

/// Revokes the token of the last attempt and lifts its fence, if it put one up by machine and it
/// was not lifted yet.
pub(crate) async fn lift(case: &Case<'_>) -> Result<(), Fault> {
    let ledger = &case.world.ledger;
    let Some(attempt) = last_fence(case.world, case.of.id).await? else {
        return Ok(());
    };
    let lifted = json!({ "attempt": attempt });
    if newest(case.world, case.of.id, LIFTED).await? == Some(lifted.clone()) {
        return Ok(());
    }
    let Some(plane) = case.plane(attempt) else {
        return Ok(());
    };
    plane.unfence().await?;
    if plane.names_sink().await? {
        return Err(Fault::NotYet(format!(
            "the routing of organization {} names {} although the move never flipped: route it \
             back to {}",
            case.of.org, case.of.sink_cell, case.of.source_cell
        )));
    }
    ledger.note(case.of.id, None, LIFTED, lifted).await?;
    Ok(())
}

/// The attempt that fenced last, if it did so by machine.
pub(crate) async fn last_fence(world: &World, move_id: MoveId) -> Result<Option<u32>, Fault> {
    let detail = newest(world, move_id, PhaseEvent::BeginDrain.as_str()).await?;
    Ok(detail.and_then(|detail| {
        let by_word = detail["writes_stopped"].as_bool().unwrap_or(false);
        let attempt = detail["attempt"]
            .as_u64()
            .and_then(|n| u32::try_from(n).ok());
        attempt.filter(|_| !by_word)
    }))
}
