//! Takes back what a move made: its slots and publications on the source, its rows on the sink.

use std::time::Duration;

use monarch_ledger::{LedgerError, Purpose};
use monarch_model::unit::UnitEvent;
use monarch_model::{Epoch, TableName};
use monarch_postgres::evict::{self, ScrubPermit};
use monarch_postgres::{publication, sessions, slot};
use monarch_workflows::contract::{EvictOutput, UnitRef};
use serde_json::Value;

use crate::deletion;
use crate::failure::Fault;
use crate::vitals::Vitals;
use crate::world::{Place, World};

/// Drops a unit's slots and publications on the source and looks for them in vain.
pub(crate) async fn drop_slots(world: &World, vitals: Vitals, input: UnitRef) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    let place = case.place(&input.store)?;
    // A mover that is still alive finds itself superseded before its slot goes.
    let epoch = epoch_to_drop(world, &input).await?;
    vitals
        .during(
            "slots and publications to be dropped",
            dropped(&place, epoch),
        )
        .await
}

/// An epoch to drop slots under. What records that the move is given up was asked for in the same
/// moment, so that it comes first is likely and not sure: a short wait is no failure.
async fn epoch_to_drop(world: &World, input: &UnitRef) -> Result<Epoch, Fault> {
    const LOOKS: u32 = 20;
    const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
    let mut looks = 0;
    loop {
        looks += 1;
        let taken = world
            .ledger
            .next_epoch(input.move_id, &input.store, Purpose::Scrub)
            .await;
        match taken {
            Err(LedgerError::NoEpoch { .. }) if looks < LOOKS => {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            taken => return Ok(taken?),
        }
    }
}

/// Drops them and records it.
pub(crate) async fn dropped(place: &Place<'_>, epoch: Epoch) -> Result<(), Fault> {
    let mut primary = place.source_session(epoch).await?;
    sessions::end_older(&primary, &place.unit, epoch).await?;
    slot::drop_all(&primary, &place.unit).await?;
    if place.decodes_on_standby() {
        let decoder = place.decode_session(epoch).await?;
        sessions::end_older(&decoder, &place.unit, epoch).await?;
        slot::drop_all(&decoder, &place.unit).await?;
    }
    publication::drop_all(&mut primary, &place.unit).await?;
    let ledger = &place.case.world.ledger;
    let (id, store) = (place.unit.move_id, &place.unit.store);
    ledger
        .unit_transition(id, store, epoch, UnitEvent::SlotDropped, Value::Null)
        .await?;
    Ok(())
}

/// Deletes the organization's rows of one store from the sink.
pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: UnitRef,
) -> Result<EvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let store = &input.store;
    let known = world.ledger.unit(input.move_id, store).await?;
    if let Some(done) = deletion::done_before(&known) {
        return Ok(done);
    }
    let permit = ScrubPermit::in_phase(case.of.phase).ok_or_else(|| {
        Fault::NotYet(format!(
            "the move is {}: nothing is scrubbed",
            case.of.phase
        ))
    })?;
    let epoch = deletion::begin(world, &input, Purpose::Scrub).await?;
    let place = case.place(store)?;
    let mut sink = place.sink_session(epoch).await?;
    let catalog = place.catalog(&sink).await?;
    let scope = place.scope(&catalog)?;
    let tables = evict::doomed(&world.config.graph, store, &scope, &catalog)?;
    let mut counts = evict::Rows::new();
    let mut count = |table: &TableName, rows: u64| {
        *counts.entry(table.clone()).or_insert(0) += rows;
    };
    let unit = &place.unit;
    let deleted = vitals
        .during("rows to be deleted from the sink", async {
            Ok(evict::scrub(&mut sink, unit, epoch, &tables, &permit, &mut count).await?)
        })
        .await;
    deletion::conclude(world, &input, epoch, &counts, deleted).await
}
