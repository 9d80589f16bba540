//! Carries a mover's progress from the loop that moves rows to Temporal and to the ledger.
//!
//! The loop leaves its newest progress in a watch channel and never waits. A heartbeat goes out
//! only when the loop has left something new, so it shows that rows move and not merely that a
//! process lives. The ledger is told once a second; when it is away the mover goes on, and when it
//! says that a successor has begun, the mover stops.

use std::time::Duration;

use monarch_ledger::LedgerError;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Fault;
use crate::vitals::Vitals;

/// Between two reports to the ledger.
const LEDGER_EVERY: Duration = Duration::from_secs(1);

/// Between two reports of a mover that has not begun to move.
const STARTING_EVERY: Duration = Duration::from_millis(500);

/// How long a mover that was told to stop may take to come to a boundary.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Tells the ledger of every new progress, until it is dropped.
pub(crate) fn tell_ledger<P, R, F>(
    mut progress: watch::Receiver<P>,
    cancel: CancellationToken,
    record: R,
) -> AbortOnDropHandle<()>
where
    P: Clone + Send + Sync + 'static,
    R: Fn(P) -> F + Send + 'static,
    F: Future<Output = Result<(), LedgerError>> + Send,
{
    AbortOnDropHandle::new(tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let newest = progress.borrow_and_update().clone();
            match record(newest).await {
                Err(superseded @ LedgerError::Superseded { .. }) => {
                    tracing::warn!(error = %superseded, "the mover stops");
                    cancel.cancel();
                    return;
                }
                Err(error) => tracing::warn!(error = %error, "progress was not recorded"),
                Ok(()) => {}
            }
            sleep(LEDGER_EVERY).await;
        }
    }))
}

/// Runs a mover's work, beating whenever it has moved on; told to stop, it cancels the work and
/// waits for it to come to a boundary.
pub(crate) async fn beating<T, P>(
    vitals: &Vitals,
    mut progress: watch::Receiver<P>,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault>
where
    P: Clone + Serialize + Send + Sync + 'static,
{
    let mut work = std::pin::pin!(work);
    let mut tick = tokio::time::interval(STARTING_EVERY);
    let mut moves = false;
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = vitals.told_to_stop() => break,
            // Before anything can move, servers are asked for much: sessions, locks, membership.
            _ = tick.tick(), if !moves => vitals.waiting_for("the first progress").await,
            Ok(()) = progress.changed() => {
                moves = true;
                let newest = progress.borrow_and_update().clone();
                vitals.beat(newest).await;
            }
        }
    }
    cancel.cancel();
    match tokio::time::timeout(STOP_WITHIN, work).await {
        Ok(Ok(_)) | Err(_) => Err(Fault::Cancelled),
        Ok(Err(fault)) => {
            tracing::debug!(error = %fault.story(), "the mover stopped");
            Err(Fault::Cancelled)
        }
    }
}
