//! Walks the keys of a store and brings their objects to the sink.
//!
//! Per key: look at the sink, note the intent, copy, record. The intent comes before the effect, so
//! that a mover killed between the two is found out: who comes next finds an object that this move
//! was about to put, compares it, and records it. Nothing is copied twice for that, and nothing that
//! somebody else put there is taken for ours.
//!
//! Looks, intents and records are made for a page of keys at once; copies overlap with the look at
//! the next page. Memory is that of a page and of [`Limits::bytes_in_flight`], whatever the number
//! and the size of the objects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use monarch_ledger::{BlobChoice, BlobCursor, BlobOutcome, BlobRecord, Ledger};
use monarch_model::{Epoch, MoveId, StoreName};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::bucket::Bucket;
use crate::copy::{Copier, Task, problem, trouble};
use crate::error::{BlobError, FaultKind};
use crate::key::BlobKey;
use crate::limits::Limits;
use crate::progress::Progress;

/// How many outcomes are recorded at once, at most.
const RECORDED: usize = 200;

/// How long an outcome waits for others, at most.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// A store within a move, and the epoch under which something is done about its objects.
#[derive(Debug, Clone)]
pub struct BlobUnit {
    /// Where keys and outcomes are.
    pub ledger: Ledger,
    /// The move.
    pub move_id: MoveId,
    /// The blob store.
    pub store: StoreName,
    /// The unit's epoch.
    pub epoch: Epoch,
}

/// Which keys a walk is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walked {
    /// All that are not copied, those among them that an earlier walk found missing or in trouble:
    /// what was wrong may have been mended.
    All,
    /// Those that no walk has looked for yet.
    Fresh,
}

/// What one walk did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// Objects proved to be on the sink.
    pub copied: u64,
    /// Keys without an object on the source.
    pub missing: u64,
    /// Keys that a person has to look at.
    pub troubled: u64,
    /// Whether the walk came to its end, rather than being called off.
    pub is_whole: bool,
}

/// Brings the objects of one store from the source cell to the sink.
pub struct Mover {
    unit: BlobUnit,
    limits: Limits,
    copier: Arc<Copier>,
    progress: Arc<Progress>,
    cancel: CancellationToken,
}

/// A key and what became of it.
type Done = (BlobKey, BlobOutcome);

impl Mover {
    /// A mover between two buckets. `cancel` calls it off: what is under way is given up, what is
    /// done is recorded.
    pub fn new(
        unit: BlobUnit,
        source: Bucket,
        sink: Bucket,
        limits: Limits,
        cancel: CancellationToken,
    ) -> Self {
        let progress = Arc::new(Progress::default());
        let copier = Copier::new(source, sink, &limits, Arc::clone(&progress), cancel.clone());
        Self {
            unit,
            limits,
            copier: Arc::new(copier),
            progress,
            cancel,
        }
    }

    /// How far it is, all walks together.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Walks keys that are not copied, once.
    ///
    /// # Errors
    /// When a bucket does not answer however often it is asked, or when the ledger does not record,
    /// above all because a successor has begun. What was done until then is recorded where that is
    /// possible, and the next walk goes on from there.
    pub async fn pass(&self, walked: Walked) -> Result<Pass, BlobError> {
        let copies = self.tasks(walked).map(|task| self.begin(task));
        let mut done = std::pin::pin!(copies.buffer_unordered(self.limits.objects.max(1)));
        let mut pass = Pass::default();
        let mut unrecorded: Vec<Done> = Vec::new();
        let mut every = tokio::time::interval(RECORD_EVERY);
        let ended = loop {
            let is_due = tokio::select! {
                next = done.next() => match next {
                    Some(Ok(outcome)) => {
                        self.count(&outcome.1, &mut pass);
                        unrecorded.push(outcome);
                        unrecorded.len() >= RECORDED
                    }
                    Some(Err(BlobError::Cancelled)) => false,
                    Some(Err(error)) => break Err(error),
                    None => break Ok(()),
                },
                _ = every.tick() => !unrecorded.is_empty(),
            };
            if is_due {
                self.record(&mut unrecorded).await?;
            }
        };
        self.record(&mut unrecorded).await?;
        ended?;
        pass.is_whole = !self.cancel.is_cancelled();
        Ok(pass)
    }

    /// The keys to copy, page by page: looked for on the sink, and their intent noted.
    fn tasks(&self, walked: Walked) -> impl Stream<Item = Result<Found, BlobError>> + '_ {
        let choice = match walked {
            Walked::All => BlobChoice::Uncopied,
            Walked::Fresh => BlobChoice::Fresh,
        };
        let pages = stream::try_unfold(Walk::Begin, move |walk| async move {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            let after = match walk {
                Walk::Begin => None,
                Walk::After(cursor) => Some(cursor),
                Walk::End => return Ok(None),
            };
            let page = self
                .unit
                .ledger
                .blob_keys(
                    self.unit.move_id,
                    &self.unit.store,
                    choice,
                    after.as_ref(),
                    self.limits.page,
                )
                .await?;
            let found = self.look(page.records).await?;
            let walk = page.next.map_or(Walk::End, Walk::After);
            Ok::<_, BlobError>(Some((stream::iter(found.into_iter().map(Ok)), walk)))
        });
        pages.try_flatten()
    }

    /// Looks at the sink for each key of a page, and notes which of them will be put there.
    async fn look(&self, records: Vec<BlobRecord>) -> Result<VecDeque<Found>, BlobError> {
        let looks = records.into_iter().map(|record| self.look_at(record));
        let found: VecDeque<Found> = stream::iter(looks)
            .buffer_unordered(self.limits.objects.max(1))
            .try_collect()
            .await?;
        let new: Vec<&str> = found
            .iter()
            .filter_map(|found| match found {
                Found::Task(task) if task.on_sink.is_none() && !task.was_put => {
                    Some(task.key.as_str())
                }
                _ => None,
            })
            .collect();
        if !new.is_empty() {
            let BlobUnit {
                ledger,
                move_id,
                store,
                epoch,
            } = &self.unit;
            ledger
                .intend_blob_puts(*move_id, store, *epoch, &new)
                .await?;
        }
        Ok(found)
    }

    async fn look_at(&self, record: BlobRecord) -> Result<Found, BlobError> {
        let key = BlobKey::new(record.key);
        let refused = self
            .copier
            .source
            .check_key(&key)
            .and_then(|()| self.copier.sink.check_key(&key));
        if let Err(refused) = refused {
            info!(store = %self.unit.store, table = %record.table, "a key is refused: {refused}");
            let outcome = trouble(problem::KEY_REFUSED, record.is_put);
            return Ok(Found::Outcome(key, outcome));
        }
        let look = || self.copier.sink.look(&key);
        let looked = retried(&self.limits, &self.cancel, look).await;
        match looked {
            Ok(on_sink) => Ok(Found::Task(Task {
                key,
                on_sink,
                was_put: record.is_put,
            })),
            Err(error) => match settled(&error, record.is_put) {
                Some(outcome) => Ok(Found::Outcome(key, outcome)),
                None => Err(error),
            },
        }
    }

    /// Starts a copy on a task of its own: digests are computed on all cores.
    async fn begin(&self, found: Result<Found, BlobError>) -> Result<Done, BlobError> {
        let task = match found? {
            Found::Outcome(key, outcome) => return Ok((key, outcome)),
            Found::Task(task) => task,
        };
        let (copier, limits) = (Arc::clone(&self.copier), self.limits.clone());
        let cancel = self.cancel.clone();
        let running = tokio::spawn(async move {
            let outcome = retried(&limits, &cancel, || copier.copy(&task)).await;
            match outcome {
                Ok(outcome) => Ok((task.key, outcome)),
                // An object of ours may stand there, of a try whose reply was lost.
                Err(error) => match settled(&error, true) {
                    Some(outcome) => Ok((task.key, outcome)),
                    None => Err(error),
                },
            }
        });
        AbortOnDropHandle::new(running)
            .await
            .unwrap_or(Err(BlobError::Lost))
    }

    fn count(&self, outcome: &BlobOutcome, pass: &mut Pass) {
        match outcome {
            BlobOutcome::Copied { .. } => {
                pass.copied += 1;
                self.progress.copied();
            }
            BlobOutcome::Missing => {
                pass.missing += 1;
                self.progress.missing();
            }
            BlobOutcome::Problem { .. } => {
                pass.troubled += 1;
                self.progress.troubled();
            }
        }
    }

    async fn record(&self, done: &mut Vec<Done>) -> Result<(), BlobError> {
        if done.is_empty() {
            return Ok(());
        }
        let outcomes: Vec<(&str, BlobOutcome)> = done
            .iter()
            .map(|(key, outcome)| (key.as_str(), outcome.clone()))
            .collect();
        let BlobUnit {
            ledger,
            move_id,
            store,
            epoch,
        } = &self.unit;
        ledger
            .record_blob_outcomes(*move_id, store, *epoch, &outcomes)
            .await?;
        done.clear();
        Ok(())
    }
}

enum Walk {
    Begin,
    After(BlobCursor),
    End,
}

/// A key after the look at the sink.
enum Found {
    Task(Task),
    Outcome(BlobKey, BlobOutcome),
}

/// Does something until it succeeds, with longer and longer waits, while trying again may help.
pub(crate) async fn retried<T, F: Future<Output = Result<T, BlobError>>>(
    limits: &Limits,
    cancel: &CancellationToken,
    mut work: impl FnMut() -> F,
) -> Result<T, BlobError> {
    let mut failed = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(BlobError::Cancelled);
        }
        match work().await {
            Err(error) if error.is_transient() && failed + 1 < limits.attempts => {
                failed += 1;
                let wait = limits.backoff(failed);
                warn!(failed, error = %monarch_model::chain(&error), "an object is tried again");
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = cancel.cancelled() => return Err(BlobError::Cancelled),
                }
            }
            result => return result,
        }
    }
}

/// What an error means for the one key it is about; none if it is about more than that.
fn settled(error: &BlobError, is_put: bool) -> Option<BlobOutcome> {
    let code = match error {
        BlobError::Refused { .. } => problem::KEY_REFUSED,
        BlobError::Changing { .. } => problem::CHANGED,
        BlobError::Object { fault, .. } if fault.is_name() => problem::KEY_REFUSED,
        // A bucket that is gone is no property of the key.
        BlobError::Object { fault, .. }
            if matches!(fault.kind, FaultKind::Rejected | FaultKind::Denied) =>
        {
            problem::REJECTED
        }
        _ => return None,
    };
    Some(trouble(code, is_put))
}
