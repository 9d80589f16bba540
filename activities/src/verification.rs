//! Compares a unit's two sides while it streams, when the ledger says that somebody asks.
//!
//! The mover brings both sides to one state and goes on; what is read in that state is read beside
//! it. A comparison that cannot be made is answered with why, and never stops the stream; one that
//! finds a difference does not either, but readiness refuses to cut over.

use std::convert::Infallible;
use std::time::Duration;

use monarch_ledger::{Answer, LedgerError, Verdict};
use monarch_model::{Epoch, Lsn, TableName, chain};
use monarch_postgres::stream::{Aligned, Alignment};
use monarch_postgres::verify;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::failure::Fault;
use crate::verify::{Compared, Subjects};
use crate::world::Place;

/// How often the ledger is looked at.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

/// Answers what is asked, for as long as it is polled. `mover` is the unit's, of this epoch.
pub(crate) async fn answer_all(
    place: &Place<'_>,
    epoch: Epoch,
    mover: mpsc::Sender<Alignment>,
) -> Infallible {
    let store = &place.unit.store;
    loop {
        sleep(LISTEN_EVERY).await;
        match answer_next(place, epoch, &mover).await {
            Ok(()) => {}
            // The mover beside it is told the same, and stops.
            Err(LedgerError::Superseded { .. }) => std::future::pending().await,
            Err(error) => {
                tracing::warn!(%store, error = %chain(&error), "no verification was answered");
            }
        }
    }
}

async fn answer_next(
    place: &Place<'_>,
    epoch: Epoch,
    mover: &mpsc::Sender<Alignment>,
) -> Result<(), LedgerError> {
    let ledger = &place.case.world.ledger;
    let (id, store) = (place.unit.move_id, &place.unit.store);
    let Some(number) = ledger.begin_verification(id, store, epoch).await? else {
        return Ok(());
    };
    let answer = match compare(place, epoch, mover).await {
        Ok((position, compared)) => Answer {
            outcome: match compared.is_equal() {
                true => Verdict::Equal,
                false => Verdict::Differs,
            },
            lsn: Some(position),
            detail: json!(compared),
        },
        Err(fault) => Answer {
            outcome: Verdict::Unanswered,
            lsn: None,
            detail: json!({ "why": fault.story() }),
        },
    };
    tracing::info!(%store, number, outcome = %answer.outcome, "verification ended");
    // The comparison took its time, and the ledger may be away when it ends.
    loop {
        match ledger
            .end_verification(id, store, epoch, number, &answer)
            .await
        {
            Err(error) if error.is_transient() => sleep(LISTEN_EVERY).await,
            ended => return ended,
        }
    }
}

/// Where both sides were compared, and what they came to.
async fn compare(
    place: &Place<'_>,
    epoch: Epoch,
    mover: &mpsc::Sender<Alignment>,
) -> Result<(Lsn, Compared), Fault> {
    let source = place.source_session(epoch).await?;
    let sink = place.sink_session(epoch).await?;
    let subjects = Subjects::of(place, &source, &sink).await?;
    let gone = || Fault::NotYet(format!("{}: the mover ended first", place.unit.store));
    let (alignment, answer) = Alignment::new(source, sink);
    mover.send(alignment).await.map_err(|_| gone())?;
    let Aligned {
        source,
        sink,
        position,
    } = answer.await.map_err(|_| gone())??;
    let mut nobody = |_: &TableName, _: u64| {};
    let mut nobody_either = |_: &TableName, _: u64| {};
    let (source, sink) = tokio::try_join!(
        verify::digest_in(&*source, &subjects.source, &mut nobody),
        verify::digest_in(&*sink, &subjects.sink, &mut nobody_either),
    )?;
    Ok((position, Compared::new(&source, &sink)))
}
