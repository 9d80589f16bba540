//! Makes every unit read-only for good, or none.
//!
//! Raising a unit's epoch on its sink waits for the transaction in flight and ends the mover's
//! sessions; from there nothing of the move is written to the sink. A change that was applied
//! behind its unit's barrier shows that somebody wrote after the fence: then all units are opened
//! again and the drain goes on.

use std::time::Duration;

use monarch_ledger::Purpose;
use monarch_model::Epoch;
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
    let mut taken = Vec::new();
    let mut reopened = Vec::new();
    for place in case.places().await? {
        let epoch = epoch(&place).await?;
        let mut session = place.sink_session(epoch).await?;
        let state = take_over(&mut session, &place, epoch).await?;
        if !state.sealed && is_behind_barrier(&state) {
            reopened.push(place.unit.store.clone());
        }
        taken.push((place.unit.store.clone(), epoch, session));
    }
    if !reopened.is_empty() {
        // Nothing is sealed yet: the movers take their units again with their next attempt.
        return Ok(SealOutput { reopened });
    }
    for (store, epoch, session) in &mut taken {
        let place = case.place(store)?;
        let primary = place.source_session(Caller::Watcher).await?;
        raise_sequences(&place, &primary, session).await?;
        stream::seal(session, &place.unit, *epoch, &case.world.graph, &case.spine).await?;
        case.world
            .ledger
            .record_seal(case.of.id, store, *epoch)
            .await?;
    }
    Ok(SealOutput { reopened })
}

/// A mover whose last change lies behind the barrier that it applied, or that applied none.
fn is_behind_barrier(state: &State) -> bool {
    match (state.last_change, state.barrier) {
        (Some(change), Some(barrier)) => change.lsn > barrier.lsn,
        (_, None) => true,
        (None, Some(_)) => false,
    }
}

/// Opens every unit that an attempt sealed.
pub(crate) async fn open_all(case: &Case<'_>) -> Result<(), Fault> {
    let doing = "open the unit on the sink";
    for place in case.places().await? {
        let epoch = epoch(&place).await?;
        let mut session = place.sink_session(epoch).await?;
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
