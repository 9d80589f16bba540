//! Compares a unit's two sides while it streams, when the ledger says that somebody asks.
//!
//! Once the mover has caught up, it brings both sides to one state and goes on; what is read in that
//! state is read beside it. A comparison that cannot be made is answered with why. One that finds a
//! difference does not stop the stream either, but readiness refuses to cut over.

use std::convert::Infallible;
use std::time::Duration;

use monarch_ledger::{Answer, LedgerError, VerificationOutcome};
use monarch_model::{Epoch, Lsn, chain};
use monarch_postgres::stream::{Aligned, Alignment, await_snapshot};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::failure::Fault;
use crate::verify::{Compared, Subjects};
use crate::world::Place;

/// How often the ledger is looked at.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

/// A mover that lags more is not asked yet: all of it would share one transaction on the sink.
const LAG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Answers what is asked of one mover.
pub(crate) struct Verifier<'p> {
    pub(crate) place: &'p Place<'p>,
    /// The mover's.
    pub(crate) epoch: Epoch,
    /// Where the mover takes requests.
    pub(crate) alignments: mpsc::Sender<Alignment>,
    /// How far it lags; none until it has said so.
    pub(crate) lag_bytes: watch::Receiver<Option<u64>>,
}

impl Verifier<'_> {
    /// Answers for as long as it is polled.
    pub(crate) async fn run(mut self) -> Infallible {
        let store = self.place.unit.store.clone();
        loop {
            sleep(LISTEN_EVERY).await;
            match self.answer_next().await {
                Ok(()) => {}
                // The mover beside it is told the same, and stops.
                Err(LedgerError::Superseded { .. }) => std::future::pending().await,
                Err(error) => {
                    tracing::warn!(%store, error = %chain(&error), "no verification was answered");
                }
            }
        }
    }

    async fn answer_next(&mut self) -> Result<(), LedgerError> {
        let ledger = &self.place.case.world.ledger;
        let (id, store) = (self.place.unit.move_id, &self.place.unit.store);
        let Some(number) = ledger.begin_verification(id, store, self.epoch).await? else {
            return Ok(());
        };
        let answer = match self.compare().await {
            Ok((position, compared)) => Answer {
                outcome: match compared.is_equal() {
                    true => VerificationOutcome::Equal,
                    false => VerificationOutcome::Differs,
                },
                lsn: Some(position),
                detail: json!(compared),
            },
            Err(fault) => Answer {
                outcome: VerificationOutcome::Unanswered,
                lsn: None,
                detail: json!({ "why": fault.story() }),
            },
        };
        tracing::info!(%store, number, outcome = %answer.outcome, "verification ended");
        let end = || ledger.end_verification(id, store, self.epoch, number, &answer);
        // The comparison took its time: it is not made again for a ledger that is away.
        loop {
            match end().await {
                Err(superseded @ LedgerError::Superseded { .. }) => return Err(superseded),
                Err(error) => {
                    tracing::warn!(%store, number, error = %chain(&error), "not recorded yet");
                    sleep(LISTEN_EVERY).await;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Where both sides were compared, and what they came to.
    async fn compare(&mut self) -> Result<(Lsn, Compared), Fault> {
        let gone = || Fault::NotYet(format!("{}: the mover ended first", self.place.unit.store));
        let caught_up = |lag: &Option<u64>| lag.is_some_and(|lag| lag <= LAG_BYTES_MAX);
        let waited = self.lag_bytes.wait_for(caught_up).await.map(drop);
        waited.map_err(|_| gone())?;
        let source = self.session(&self.place.source_primary()?).await?;
        let sink = self.session(&self.place.sink()?).await?;
        let subjects = Subjects::of(self.place, &source, &sink).await?;
        await_snapshot(&sink, subjects.on_sink()).await?;
        let (alignment, answer) = Alignment::new(source, sink);
        self.alignments.send(alignment).await.map_err(|_| gone())?;
        let Aligned {
            source,
            sink,
            position,
        } = answer.await.map_err(|_| gone())??;
        let (source, sink) = subjects.digests(&source, &sink).await?;
        Ok((position, Compared::new(&source, &sink)))
    }

    /// A session that reads for hours, and ends with the mover's epoch.
    async fn session(&self, options: &ConnectOptions) -> Result<Session, Fault> {
        let purpose = SessionPurpose::reader(self.place.application(self.epoch));
        Ok(Session::connect(options, &purpose.holding_snapshot()).await?)
    }
}
