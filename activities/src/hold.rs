//! Looks after the slot of a paused unit. Nobody reads from it, so it only grows: the move gives
//! itself up before the source has to.

use std::time::Duration;

use monarch_ledger::{Answer, LedgerError, StreamProgress, VerificationOutcome};
use monarch_model::{Epoch, chain};
use monarch_workflows::contract::UnitRef;
use serde::Serialize;
use serde_json::json;

use crate::failure::Fault;
use crate::retained_log::RetainedLog;
use crate::vitals::Vitals;
use crate::world::World;

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
    world
        .ledger
        .note_held(input.move_id, &input.store, known.epoch)
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
            refuse_verification(world, &input, known.epoch).await;
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

/// Nobody compares both sides while nothing moves: who asks is told so.
async fn refuse_verification(world: &World, input: &UnitRef, epoch: Epoch) {
    let answer = Answer {
        outcome: VerificationOutcome::Unanswered,
        lsn: None,
        detail: json!({ "why": "the move is paused: resume it first" }),
    };
    let (id, store) = (input.move_id, &input.store);
    let refused = async {
        let ledger = &world.ledger;
        if let Some(number) = ledger.begin_verification(id, store, epoch).await? {
            let end = ledger.end_verification(id, store, epoch, number, &answer);
            end.await?;
        }
        Ok::<_, LedgerError>(())
    };
    if let Err(error) = refused.await {
        tracing::warn!(%store, error = %chain(&error), "no verification was answered");
    }
}
