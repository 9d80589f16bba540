//! Proves that everything the organization wrote before the fence is on the sink.
//!
//! A transaction that was open when the fence fell may still commit, so those that hold a write
//! lock on a moved table are waited for. Then a barrier is written into the log of every source
//! database: what was committed before it is before it in the log, so a unit that has applied its
//! barrier has applied all of it. Where the organization has an outbox, what it wrote there must have
//! been delivered as well: messages do not move.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_ledger::Barrier;
use monarch_model::{Lsn, StoreName};
use monarch_postgres::drain::{self, Writers};
use monarch_postgres::{Session, sink};
use monarch_workflows::contract::{DrainInput, DrainOutput};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::blobs;
use crate::failure::Fault;
use crate::org_outbox;
use crate::vitals::Vitals;
use crate::world::{Caller, Place, World};

/// How often a unit's barrier is looked for: it adds to the write pause.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: DrainInput,
) -> Result<DrainOutput, Fault> {
    let case = world.open(input.drain.move_id).await?;
    let deadline = Instant::now() + input.within;
    let places = case.places().await?;
    let looks = places.iter().map(|place| drain_unit(place, deadline));
    let units = vitals
        .during("the units to apply their barriers", async {
            futures::future::try_join_all(looks).await
        })
        .await?;
    let mut output = DrainOutput {
        blockers: Vec::new(),
        barriers: BTreeMap::new(),
    };
    for (place, drained) in places.iter().zip(units) {
        let store: &StoreName = &place.unit.store;
        match drained {
            Ok(barrier) => drop(output.barriers.insert(store.clone(), barrier)),
            Err(blockers) => {
                output
                    .blockers
                    .extend(blockers.into_iter().map(|why| format!("{store}: {why}")));
            }
        }
    }
    if output.blockers.is_empty() {
        output.blockers = vitals
            .during("objects to be copied", blobs::blockers(&case, deadline))
            .await?;
    }
    Ok(output)
}

/// The barrier's position once the unit has applied it, or who is in the way at the deadline.
async fn drain_unit(
    place: &Place<'_>,
    deadline: Instant,
) -> Result<Result<Lsn, Vec<String>>, Fault> {
    let primary = place.source_session(Caller::Watcher).await?;
    let fenced_at = drain::server_time(&primary).await?;
    let tables = place.table_names();
    if let Writers::StillThere(writers) =
        drain::wait_for_writers(&primary, &tables, fenced_at, deadline).await?
    {
        let writers = writers
            .iter()
            .map(|writer| format!("an open writer: {writer}"));
        return Ok(Err(writers.collect()));
    }
    if let Some(waiting) = outbox_is_empty(place, &primary, deadline).await? {
        return Ok(Err(vec![waiting]));
    }
    let nonce = Uuid::new_v4();
    drain::emit_barrier(&primary, place.unit.move_id, &place.unit.store, nonce).await?;
    let sink = place.sink_session(Caller::Watcher).await?;
    applied(place, &sink, nonce, deadline).await
}

/// Waits for the organization's messages on the source; says what is left at the deadline.
async fn outbox_is_empty(
    place: &Place<'_>,
    primary: &Session,
    deadline: Instant,
) -> Result<Option<String>, Fault> {
    loop {
        let waiting = org_outbox::waiting(place, primary).await?;
        if waiting.is_none() || Instant::now() >= deadline {
            return Ok(waiting);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Waits until the unit's row on the sink bears the barrier.
async fn applied(
    place: &Place<'_>,
    sink: &Session,
    nonce: Uuid,
    deadline: Instant,
) -> Result<Result<Lsn, Vec<String>>, Fault> {
    loop {
        let state = sink::read(&**sink, &place.unit).await?;
        let barrier = state.as_ref().and_then(|state| state.barrier);
        if let Some(barrier) = barrier.filter(|barrier| barrier.nonce == nonce) {
            if let Some(epoch) = state.map(|state| state.epoch) {
                let seen = Barrier {
                    nonce,
                    lsn: barrier.lsn,
                };
                let ledger = &place.case.world.ledger;
                ledger
                    .record_barrier(place.unit.move_id, &place.unit.store, epoch, seen)
                    .await?;
            }
            return Ok(Ok(barrier.lsn));
        }
        if Instant::now() >= deadline {
            return Ok(Err(vec!["it has not applied its barrier yet".to_owned()]));
        }
        sleep(LOOK_EVERY).await;
    }
}
