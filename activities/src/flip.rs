//! Changes the routing: from the ledger's `flipping` on, only the control plane can refuse.
//!
//! Intent (`flipping`), effect (the `flip` command), read-back (`where`), record (`cut_over`). A
//! lost reply is answered by the read-back: the routing itself says whether the flip happened. Where
//! cells are told of the routing, it has happened once both have heard.

use std::time::Duration;

use monarch_model::Phase;
use monarch_model::phase::PhaseEvent;
use monarch_workflows::contract::{DrainRef, FlipOutput};
use serde_json::json;

use crate::code::Code;
use crate::control::{ControlError, Plane};
use crate::failure::Fault;
use crate::fence;
use crate::vitals::Vitals;
use crate::world::{Case, World};

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: DrainRef,
) -> Result<FlipOutput, Fault> {
    let case = world.open(input.move_id).await?;
    match case.of.phase {
        Phase::CutOver => return flipped(world, &input).await,
        Phase::Draining => {
            let intent = json!({ "attempt": input.attempt });
            let expected = case.of.expected();
            world
                .ledger
                .transition(case.of.id, PhaseEvent::BeginFlip, expected, intent)
                .await?;
        }
        Phase::Flipping => {}
        phase => {
            return Err(Fault::Fatal {
                code: Code::CannotFlip,
                text: format!("the move is {phase} and cannot flip"),
            });
        }
    }
    let refusal = match case.plane(input.attempt) {
        Some(plane) if !input.writes_stopped => vitals.during("the flip", route(&plane)).await?,
        // The operator's word stands for the routing as it did for the fence.
        _ => None,
    };
    let (event, detail) = match &refusal {
        None => (
            PhaseEvent::Flipped,
            json!({ "by_word": input.writes_stopped }),
        ),
        Some(why) => (PhaseEvent::FlipRefused, json!({ "refused": why })),
    };
    world
        .ledger
        .transition(case.of.id, event, Phase::Flipping, detail)
        .await?;
    match refusal {
        None => flipped(world, &input).await,
        Some(why) => Ok(FlipOutput {
            write_pause: None,
            refusals: vec![why],
        }),
    }
}

/// Flips and reads back; returns why the control plane will not do it, if it will not.
async fn route(plane: &Plane<'_>) -> Result<Option<String>, Fault> {
    let asked = plane.flip().await;
    if plane.names_sink().await? {
        // A reply that was lost says nothing of what the cells have heard.
        plane.delivered().await?;
        return Ok(None);
    }
    match asked {
        Err(refused @ ControlError::Refused { .. }) => Ok(Some(refused.to_string())),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Fault::NotYet(
            "the `flip` command succeeded, but `where` still names the source".to_owned(),
        )),
    }
}

/// Takes back a flip that nobody drives any more: its token is revoked, so that it cannot come late,
/// and the move is `draining` again. False where it has happened, which only the routing tells, or
/// where the operator's word stands for it.
pub(crate) async fn take_back(case: &Case<'_>) -> Result<bool, Fault> {
    let attempt = fence::last_fence(case.world, case.of.id).await?;
    let Some(plane) = attempt.and_then(|attempt| case.plane(attempt)) else {
        return Ok(false);
    };
    if plane.names_sink().await? {
        return Ok(false);
    }
    plane.unfence().await?;
    // It may have come before it was revoked.
    if plane.names_sink().await? {
        return Ok(false);
    }
    let why = json!({ "refused": "nobody drives the move; the token is revoked" });
    let expected = case.of.expected();
    case.world
        .ledger
        .transition(case.of.id, PhaseEvent::FlipRefused, expected, why)
        .await?;
    Ok(true)
}

/// What the ledger recorded of the flip.
async fn flipped(world: &World, input: &DrainRef) -> Result<FlipOutput, Fault> {
    let of = world.ledger.move_by_id(input.move_id).await?;
    let pause = of
        .and_then(|of| of.write_pause_ms)
        .and_then(|ms| u64::try_from(ms).ok());
    Ok(FlipOutput {
        write_pause: pause.map(Duration::from_millis),
        refusals: Vec::new(),
    })
}
