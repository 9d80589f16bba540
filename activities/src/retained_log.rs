//! What a unit's slot keeps of the source's log, watched against its budget.
//!
//! A slot that reaches `max_slot_wal_keep_size` is lost, and a disk that fills stops the source. A
//! move gives itself up before: the source comes first.

use std::sync::{Arc, OnceLock};

use monarch_ledger::Unit;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, drain};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::world::Place;

/// When the server says that only so many bytes may still be written before the slot is in danger,
/// the move gives itself up: four segments of 16 MiB.
const MARGIN_BYTES: i64 = 64 * 1024 * 1024;

/// What the session that asks calls itself.
const APPLICATION: &str = "monarch retained log";

/// Asks the server that decodes. Clones share their session and their verdict.
#[derive(Clone)]
pub(crate) struct RetainedLog(Arc<Asking>);

struct Asking {
    options: Option<(ConnectOptions, String)>,
    session: Mutex<Option<Session>>,
    spent: OnceLock<String>,
    cancel: CancellationToken,
}

impl RetainedLog {
    /// Watches the unit's slot; `cancel` stops its mover when the budget is spent.
    pub(crate) fn new(place: &Place<'_>, known: &Unit, cancel: CancellationToken) -> Self {
        Self(Arc::new(Asking {
            options: place.source_decode().ok().zip(known.slot.clone()),
            session: Mutex::new(None),
            spent: OnceLock::new(),
            cancel,
        }))
    }

    /// The bytes that are kept, or nothing if they cannot be had just now.
    pub(crate) async fn bytes(&self) -> Option<u64> {
        let (options, slot) = self.0.options.as_ref()?;
        let mut session = self.0.session.lock().await;
        if session.is_none() {
            let purpose = SessionPurpose::reader(APPLICATION);
            *session = Session::connect(options, &purpose).await.ok();
        }
        let kept = drain::retained_wal(session.as_ref()?, slot).await;
        if kept.is_err() {
            *session = None;
        }
        let kept = kept.ok()??;
        if kept.safe_bytes.is_some_and(|safe| safe < MARGIN_BYTES) {
            let text = format!(
                "slot {slot} keeps {} bytes of log, and max_slot_wal_keep_size leaves less than \
                 {MARGIN_BYTES}",
                kept.bytes.unwrap_or_default()
            );
            let _ = self.0.spent.set(text);
            self.0.cancel.cancel();
        }
        kept.bytes
    }

    /// Why the budget is spent, once it is.
    pub(crate) fn verdict(&self) -> Option<String> {
        self.0.spent.get().cloned()
    }
}
