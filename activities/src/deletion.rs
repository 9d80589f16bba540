//! What eviction and scrub tell the ledger: one deletes on the source and the other on the sink,
//! and both are known to have begun before they delete, and counted before they are done.

use monarch_ledger::{Purpose, Unit};
use monarch_model::unit::UnitEvent;
use monarch_model::{Epoch, UnitStatus};
use monarch_postgres::evict::Rows;
use monarch_workflows::contract::{EvictOutput, UnitRef};
use serde_json::Value;

use crate::failure::Fault;
use crate::world::World;

/// What an earlier try came to, if it came to the end.
pub(crate) fn done_before(known: &Unit) -> Option<EvictOutput> {
    (known.status == UnitStatus::Evicted).then(|| EvictOutput {
        rows: known.rows_evicted.values().sum(),
    })
}

/// Takes the unit's next epoch and says that its rows are being deleted.
pub(crate) async fn begin(world: &World, unit: &UnitRef, purpose: Purpose) -> Result<Epoch, Fault> {
    let (id, store) = (unit.move_id, &unit.store);
    let epoch = world.ledger.next_epoch(id, store, purpose).await?;
    begun(world, unit, epoch).await?;
    Ok(epoch)
}

/// Says that what is of the unit is being deleted.
pub(crate) async fn begun(world: &World, unit: &UnitRef, epoch: Epoch) -> Result<(), Fault> {
    let (id, store) = (unit.move_id, &unit.store);
    world
        .ledger
        .unit_transition(id, store, epoch, UnitEvent::BeginEvict, Value::Null)
        .await?;
    Ok(())
}

/// Records what went, also when not all of it did, and that the unit is done if all of it did.
pub(crate) async fn conclude(
    world: &World,
    unit: &UnitRef,
    epoch: Epoch,
    counts: &Rows,
    deleted: Result<Rows, Fault>,
) -> Result<EvictOutput, Fault> {
    let (id, store) = (unit.move_id, &unit.store);
    // Nobody but this epoch's holder writes there any more: earlier tries have counted.
    let mut all_told = world.ledger.unit(id, store).await?.rows_evicted;
    for (table, rows) in counts {
        *all_told.entry(table.clone()).or_default() += rows;
    }
    world
        .ledger
        .record_eviction(id, store, epoch, &all_told)
        .await?;
    deleted?;
    let rows = all_told.values().sum();
    world
        .ledger
        .unit_transition(id, store, epoch, UnitEvent::Evicted, Value::Null)
        .await?;
    Ok(EvictOutput { rows })
}
