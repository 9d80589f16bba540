//! Says whether a cut-over may begin: every reason why not, from the ledger and the cells, before
//! anything changes.

use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::Unit;
use monarch_model::Phase;
use monarch_postgres::drain;
use monarch_workflows::contract::{ReadinessInput, ReadinessOutput};
use tokio::time::Instant;

use crate::blobs;
use crate::failure::Fault;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, World};

/// How long the objects that rows have just named may take to be copied.
const OBJECTS_WITHIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: ReadinessInput,
) -> Result<ReadinessOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let mut refusals = Vec::new();
    if case.of.phase != Phase::Active {
        refusals.push(format!("the move is {}", case.of.phase));
    }
    if case.world.config.fleet.control.is_none() && !input.writes_stopped {
        refusals.push(
            "fleet.yaml names no `control`, so nobody fences by machine: stop the organization's \
             writes and say so with --writes-stopped"
                .to_owned(),
        );
    }
    let now = Timestamp::now();
    let verifications = world.ledger.standing_verifications(case.of.id).await?;
    for unit in case.row_units().await? {
        let store = &unit.store;
        let reasons = unit.objections(&verifications, now);
        refusals.extend(reasons.into_iter().map(|why| format!("{store}: {why}")));
        let slot = vitals.during("the slots", slot_fault(&case, &unit)).await?;
        refusals.extend(slot.map(|why| format!("{store}: {why}")));
    }
    for unit in case.blob_units().await? {
        let reasons = unit.objections(&verifications, now);
        refusals.extend(reasons.iter().map(|why| format!("{}: {why}", unit.store)));
    }
    let deadline = Instant::now() + OBJECTS_WITHIN;
    let objects = vitals
        .during("objects to be copied", blobs::blockers(&case, deadline))
        .await?;
    refusals.extend(objects);
    Ok(ReadinessOutput {
        step: case.of.step,
        refusals,
    })
}

/// Why the unit's slot cannot be relied on, as its server knows it.
async fn slot_fault(case: &Case<'_>, unit: &Unit) -> Result<Option<String>, Fault> {
    let Some(slot) = &unit.slot else {
        return Ok(Some("it has no slot".to_owned()));
    };
    let session = case
        .place(&unit.store)?
        .decode_session(Caller::Watcher)
        .await?;
    Ok(match drain::retained_wal(&session, slot).await? {
        None => Some(format!("slot {slot} does not exist")),
        Some(kept) if kept.status == "lost" => Some(format!("slot {slot} is lost")),
        Some(_) => None,
    })
}
