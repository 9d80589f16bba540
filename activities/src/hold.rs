//! Looks after the slot of a paused unit. Nobody reads from it, so it only grows: the move gives
//! itself up before the source has to.

use std::time::Duration;

use monarch_ledger::StreamProgress;
use monarch_workflows::contract::UnitRef;
use serde::Serialize;
use serde_json::json;

use crate::failure::Fault;
use crate::retained_log::RetainedLog;
use crate::vitals::Vitals;
use crate::world::World;

/// The kind of the journal's rows that tell of a pause. The epoch of a mover ends it.
const HELD: &str = "held";

/// Between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What a heartbeat says.
#[derive(Serialize)]
struct Held {
    retained_wal_bytes: Option<u64>,
}

/// Ends only when it is told to, or when the slot's budget is spent.
pub(crate) async fn run(world: &World, vitals: Vitals, input: UnitRef) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    let place = case.place(&input.store)?;
    let known = world.ledger.unit(input.move_id, &input.store).await?;
    let retained = RetainedLog::new(&place, &known);
    // A resumed mover takes another epoch: each pause is noted once, however often this is tried.
    world
        .ledger
        .note(
            input.move_id,
            Some(&input.store),
            HELD,
            json!({ "epoch": known.epoch }),
        )
        .await?;
    let report = async {
        loop {
            let bytes = retained.bytes();
            vitals
                .beat(Held {
                    retained_wal_bytes: bytes,
                })
                .await;
            let progress = StreamProgress {
                // What is not read lags: a cut-over right after the resume is not let in by the
                // last word from before the pause.
                lag_bytes: bytes,
                retained_wal_bytes: bytes,
                ..StreamProgress::default()
            };
            let recorded = world
                .ledger
                .record_stream_progress(input.move_id, &input.store, known.epoch, &progress)
                .await;
            if let Err(error) = recorded {
                tracing::warn!(store = %input.store, error = %error, "what a slot keeps was not recorded");
            }
            tokio::time::sleep(REPORT_EVERY).await;
        }
    };
    tokio::select! {
        () = vitals.told_to_stop() => Err(Fault::Cancelled),
        spent = Box::pin(retained.until_spent()) => Err(spent),
        never = report => never,
    }
}
