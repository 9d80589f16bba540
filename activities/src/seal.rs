//! Makes every unit read-only for good, or none.
//!
//! Raising a unit's epoch on its sink waits for the transaction in flight and ends the mover's
//! sessions; from there nothing of the move is written to the sink. A change that was applied
//! behind its unit's barrier shows that somebody wrote after the fence: then all units are opened
//! again and the drain goes on.
//!
//! A mover whose session was ended tries again within a second, and would take its unit back. So
//! all that takes long is done before, each unit is sealed in the moment in which it is taken over,
//! all of them side by side, and what turns out to have been too early is undone.

use std::time::Duration;

use futures::future::try_join_all;
use monarch_ledger::{Purpose, Unit};
use monarch_model::{Epoch, UnitStatus};
use monarch_postgres::sink::{self, State, TakeOver};
use monarch_postgres::{Doing, Session, stream};
use monarch_workflows::contract::{DrainRef, SealOutput};

use crate::failure::Fault;
use crate::snapshot::raise_sequences;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, Place, World};

/// How long a transaction in flight on the sink is waited for.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: DrainRef,
) -> Result<SealOutput, Fault> {
    let case = world.open(input.move_id).await?;
    vitals
        .during("the units to be sealed", seal_all(&case))
        .await
}

async fn seal_all(case: &Case<'_>) -> Result<SealOutput, Fault> {
    let places = case.places().await?;
    try_join_all(places.iter().map(raise)).await?;
    let sealed = try_join_all(places.iter().map(|place| seal_one(case, place))).await?;
    let mut reopened = Vec::new();
    for (place, sealed) in places.iter().zip(&sealed) {
        if sealed.is_none() {
            reopened.push(place.unit.store.clone());
        }
    }
    if !reopened.is_empty() {
        open_all(case).await?;
        return Ok(SealOutput { reopened });
    }
    for (place, epoch) in places.iter().zip(sealed.into_iter().flatten()) {
        let ledger = &case.world.ledger;
        ledger
            .record_seal(case.of.id, &place.unit.store, epoch)
            .await?;
    }
    Ok(SealOutput { reopened })
}

/// Everything that fed the sequences is on the sink by now: nobody writes on the source any more.
async fn raise(place: &Place<'_>) -> Result<(), Fault> {
    let primary = place.source_session(Caller::Watcher).await?;
    let mut sink = place.sink_session(Caller::Watcher).await?;
    raise_sequences(place, &primary, &mut sink).await
}

/// Seals a unit and returns under which epoch; nothing if a change came behind its barrier.
async fn seal_one(case: &Case<'_>, place: &Place<'_>) -> Result<Option<Epoch>, Fault> {
    let mut session = place.sink_session(Caller::Watcher).await?;
    let epoch = epoch(place).await?;
    let state = take_over(&mut session, place, epoch).await?;
    let known = case
        .world
        .ledger
        .unit(place.unit.move_id, &place.unit.store)
        .await?;
    if !state.sealed && !is_drained(&known, &state) {
        return Ok(None);
    }
    let (graph, spine) = (&case.world.config.graph, &case.spine);
    stream::seal(&mut session, &place.unit, epoch, graph, spine).await?;
    Ok(Some(epoch))
}

/// Whether the sink still holds what the drain proved: the barrier that the ledger knows, nothing
/// of the organization behind it, and a copy that streams. A sink that failed over and lost
/// commits, or that is being copied into again, does not.
fn is_drained(known: &Unit, state: &State) -> bool {
    let (Some(proved), Some(barrier)) = (known.barrier, state.barrier) else {
        return false;
    };
    known.status == UnitStatus::Streaming
        && proved.nonce == barrier.nonce
        && state.position >= Some(barrier.lsn)
        && state
            .last_change
            .is_none_or(|change| change.lsn <= barrier.lsn)
}

/// Opens every unit that an attempt sealed.
pub(crate) async fn open_all(case: &Case<'_>) -> Result<(), Fault> {
    let doing = "open the unit on the sink";
    for place in case.places().await? {
        let mut session = place.sink_session(Caller::Watcher).await?;
        let epoch = epoch(&place).await?;
        take_over(&mut session, &place, epoch).await?;
        let tx = session.transaction().await.doing(doing)?;
        sink::unseal(&tx, &place.unit, epoch).await?;
        tx.commit().await.doing(doing)?;
    }
    Ok(())
}

async fn epoch(place: &Place<'_>) -> Result<Epoch, Fault> {
    let ledger = &place.case.world.ledger;
    Ok(ledger
        .next_epoch(place.unit.move_id, &place.unit.store, Purpose::Seal)
        .await?)
}

async fn take_over(session: &mut Session, place: &Place<'_>, epoch: Epoch) -> Result<State, Fault> {
    match sink::take_over(session, &place.unit, epoch, TAKE_OVER_TIMEOUT).await? {
        TakeOver::Held(state) => Ok(state),
        TakeOver::Superseded { by } => Err(Fault::Superseded(format!(
            "{}: epoch {by}",
            place.unit.store
        ))),
    }
}
