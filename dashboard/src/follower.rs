//! Looks at the live move every second, once for all who watch, and goes on when ledger or Temporal
//! are away: what was last seen stays, with the time since when nothing newer is.
//!
//! What takes long is asked for beside it, each thing at a rhythm of its own: the workflow's answer,
//! for which a worker may be missing, and the count of keys, which reads them all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::LedgerError;
use monarch_model::{MoveId, chain};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::reading::{Histories, Known, Reading};
use crate::site::Site;

/// Between two looks at the ledger.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A ledger that takes longer to answer is away.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Between two questions to the workflow.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Counting reads every key: at least so long between two counts, and so many times what one took.
const COUNT_EVERY: Duration = Duration::from_secs(10);
const COUNTING_PART: u32 = 20;

/// What was seen last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The live move, or the one that was live last.
    pub(crate) reading: Option<Arc<Reading>>,
    /// Why there is nothing newer, if so.
    pub(crate) away: Option<Away>,
}

/// A ledger that does not answer.
#[derive(Debug, Clone)]
pub(crate) struct Away {
    pub(crate) since: Timestamp,
    pub(crate) why: String,
}

/// The news, and what is known beside them.
#[derive(Debug)]
pub(crate) struct News {
    seen: watch::Sender<Seen>,
    known: Mutex<Option<(MoveId, Known)>>,
    hurry: Notify,
}

impl News {
    pub(crate) fn new() -> Self {
        Self {
            seen: watch::Sender::new(Seen::default()),
            known: Mutex::new(None),
            hurry: Notify::new(),
        }
    }

    /// What was seen last.
    pub(crate) fn now(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Hears of every look.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Looks at once: something was just asked for.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_waiters();
    }

    fn known(&self, id: MoveId) -> Known {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((of, known)) if *of == id => known.clone(),
            _ => Known::default(),
        }
    }

    fn learn(&self, id: MoveId, what: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *known {
            Some((of, known)) if *of == id => what(known),
            other => {
                let mut fresh = Known::default();
                what(&mut fresh);
                *other = Some((id, fresh));
            }
        }
    }

    /// The live move, as it was seen last.
    fn live(&self) -> Option<Arc<Reading>> {
        let seen = self.seen.borrow();
        let reading = seen.reading.as_ref();
        reading
            .filter(|reading| reading.of.phase.is_live())
            .cloned()
    }

    async fn rest(&self, so_long: Duration) {
        tokio::select! {
            () = sleep(so_long) => {}
            () = self.hurry.notified() => {}
        }
    }
}

/// Follows until it is told to stop.
pub(crate) async fn follow(site: Arc<Site>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = look_again_and_again(&site) => {}
        () = ask_again_and_again(&site) => {}
        () = count_again_and_again(&site) => {}
    }
}

async fn look_again_and_again(site: &Site) {
    let mut memory = Memory::default();
    loop {
        let look = timeout(LOOK_WITHIN, memory.look(site)).await;
        let looked = match look {
            Ok(Ok(reading)) => Ok(reading),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("no answer within {} s", LOOK_WITHIN.as_secs())),
        };
        site.news.seen.send_modify(|seen| match looked {
            Ok(reading) => {
                seen.reading = reading;
                seen.away = None;
            }
            Err(why) => {
                let since = seen
                    .away
                    .as_ref()
                    .map_or_else(Timestamp::now, |away| away.since);
                seen.away = Some(Away { since, why });
            }
        });
        site.news.rest(LOOK_EVERY).await;
    }
}

/// Which move is followed and what was seen of it.
#[derive(Default)]
struct Memory {
    of: Option<MoveId>,
    histories: Histories,
    last: Option<Arc<Reading>>,
}

impl Memory {
    async fn look(&mut self, site: &Site) -> Result<Option<Arc<Reading>>, LedgerError> {
        let live = site.ledger.live_move().await?.map(|of| of.id);
        if live.is_some() && live != self.of {
            *self = Self {
                of: live,
                ..Self::default()
            };
        }
        let Some(id) = self.of else { return Ok(None) };
        // An ended move does not change any more.
        let is_over = self
            .last
            .as_ref()
            .is_some_and(|last| !last.of.phase.is_live());
        if !is_over {
            let (ledger, known) = (&site.ledger, site.news.known(id));
            let taken = Reading::take(ledger, &site.config, id, known, &mut self.histories).await?;
            self.last = taken.map(Arc::new);
        }
        Ok(self.last.clone())
    }
}

async fn ask_again_and_again(site: &Site) {
    loop {
        if let Some(live) = site.news.live() {
            let driver = site.workflows.driver(&live.of).await;
            site.news
                .learn(live.of.id, |known| known.driver = Some(driver));
        }
        site.news.rest(ASK_EVERY).await;
    }
}

async fn count_again_and_again(site: &Site) {
    loop {
        let begun = Instant::now();
        let live = site.news.live();
        let of_objects = live.filter(|live| live.stores.iter().any(|store| store.unit.of_objects));
        if let Some(live) = of_objects
            && let Ok(counts) = site.ledger.blob_counts(live.of.id).await
        {
            site.news.learn(live.of.id, |known| known.objects = counts);
        }
        sleep(COUNT_EVERY.max(begun.elapsed() * COUNTING_PART)).await;
    }
}

/// Looks at a move that is not followed: one that has ended, with its objects counted.
pub(crate) async fn look_once(site: &Site, id: MoveId) -> Result<Option<Reading>, LedgerError> {
    let mut known = site.news.known(id);
    if known.objects.is_empty() {
        let counted = timeout(LOOK_WITHIN, site.ledger.blob_counts(id)).await;
        known.objects = match counted {
            Ok(counts) => counts?,
            // Too many to count for one look at a page.
            Err(_) => BTreeMap::new(),
        };
    }
    let mut histories = Histories::new();
    Reading::take(&site.ledger, &site.config, id, known, &mut histories).await
}
