//! The steps by which a move is failed, given up or finalized: each says in the ledger what is
//! meant before it is done, and each may be done again.

use monarch_ledger::Reason;
use monarch_model::phase::PhaseEvent;
use monarch_model::{Phase, UnitStatus};
use monarch_postgres::evict::slots_alive;
use monarch_postgres::{publication, sink};
use monarch_workflows::contract::{Because, MoveRef};
use serde_json::Value;

use crate::evict;
use crate::failure::Fault;
use crate::fence;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, World};

/// Records a fatal finding and lifts the fence.
pub(crate) async fn fail(world: &World, vitals: Vitals, input: Because) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    if case.of.phase != Phase::Failed {
        let why = Reason {
            code: input.code,
            text: input.reason,
        };
        world
            .ledger
            .transition(case.of.id, PhaseEvent::Fail, case.of.expected(), why)
            .await?;
    }
    vitals
        .during("the fence to be lifted", fence::lift(&case))
        .await
}

/// Begins to give the move up and lifts the fence.
pub(crate) async fn begin_abort(
    world: &World,
    vitals: Vitals,
    input: Because,
) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    match case.of.phase {
        Phase::Aborting => {}
        // An earlier try whose reply was lost went on to the end.
        Phase::Aborted => return Ok(()),
        _ => {
            let why = Reason {
                code: input.code,
                text: input.reason,
            };
            let expected = case.of.expected();
            world
                .ledger
                .transition(case.of.id, PhaseEvent::BeginAbort, expected, why)
                .await?;
        }
    }
    vitals
        .during("the fence to be lifted", fence::lift(&case))
        .await
}

/// `aborting → aborted`, once nothing of the move is left on either side.
pub(crate) async fn conclude_abort(
    world: &World,
    vitals: Vitals,
    input: MoveRef,
) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    if case.of.phase == Phase::Aborted {
        return Ok(());
    }
    vitals
        .during("a last look for what is left", nothing_left(&case))
        .await?;
    let expected = case.of.expected();
    world
        .ledger
        .transition(case.of.id, PhaseEvent::Aborted, expected, Value::Null)
        .await?;
    Ok(())
}

/// `evicting → finalized`, once the move's own rows are gone from the sink.
pub(crate) async fn finalize(world: &World, vitals: Vitals, input: MoveRef) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    if case.of.phase == Phase::Finalized {
        return Ok(());
    }
    let own_rows = async {
        for place in case.places().await? {
            let sink = place.sink_session(Caller::Watcher).await?;
            sink::remove(&*sink, &place.unit).await?;
        }
        nothing_left(&case).await?;
        match evict::slots_of_org(&case).await? {
            slots if slots.is_empty() => Ok(()),
            slots => Err(Fault::NotYet(format!("left: {}", slots.join(", ")))),
        }
    };
    vitals
        .during("the move's own rows to be removed", own_rows)
        .await?;
    let expected = case.of.expected();
    world
        .ledger
        .transition(case.of.id, PhaseEvent::Finalize, expected, Value::Null)
        .await?;
    Ok(())
}

/// Looks at every cell for what the move made there, whatever the ledger says.
async fn nothing_left(case: &Case<'_>) -> Result<(), Fault> {
    let mut left = Vec::new();
    for unit in case.world.ledger.units(case.of.id).await? {
        let store = &unit.store;
        if unit.status != UnitStatus::Evicted {
            left.push(format!("{store} is {}", unit.status));
        }
        if unit.of_objects {
            continue;
        }
        let place = case.place(store)?;
        let prefixes = [place.unit.prefix()];
        let servers = [
            place.source_session(Caller::Watcher).await?,
            place.decode_session(Caller::Watcher).await?,
        ];
        for server in &servers {
            let slots = slots_alive(server, &prefixes).await?;
            left.extend(
                slots
                    .into_iter()
                    .map(|slot| format!("{store}: slot {slot}")),
            );
        }
        let publications = publication::of_unit(&servers[0], &place.unit).await?;
        left.extend(
            publications
                .into_iter()
                .map(|name| format!("{store}: publication {name}")),
        );
        let sink = place.sink_session(Caller::Watcher).await?;
        if sink::read(&*sink, &place.unit).await?.is_some() {
            left.push(format!("{store}: its row on the sink"));
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(Fault::NotYet(format!("left: {}", left.join("; "))))
    }
}
