//! What a unit's slot keeps of the source's log, watched against its budget.
//!
//! A slot that reaches `max_slot_wal_keep_size` is lost, and a disk that fills stops the source. A
//! move gives itself up before: the source comes first. The watch has a clock of its own: a mover
//! that is stuck on its sink reports nothing, and its slot grows all the same.

use std::sync::Arc;
use std::time::Duration;

use monarch_ledger::Unit;
use monarch_model::binary_size;
use monarch_postgres::drain::{self, RetainedWal};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use tokio::sync::watch;

use crate::code::Code;
use crate::failure::Fault;
use crate::world::Place;

/// When the server says that only so many bytes may still be written before the slot is in danger,
/// the move gives itself up: four segments of 16 MiB.
const MARGIN_BYTES: i64 = 64 * 1024 * 1024;

/// How often the server is asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the session that asks calls itself.
const APPLICATION: &str = "monarch retained log";

/// Asks the server that decodes. Clones share what was seen last.
#[derive(Clone)]
pub(crate) struct RetainedLog {
    of: Option<(ConnectOptions, String)>,
    seen: Arc<watch::Sender<Option<u64>>>,
}

impl RetainedLog {
    /// Watches the unit's slot, if it has one.
    pub(crate) fn new(place: &Place<'_>, known: &Unit) -> Self {
        Self {
            of: place.source_decode().ok().zip(known.slot.clone()),
            seen: Arc::new(watch::Sender::new(None)),
        }
    }

    /// The bytes that were kept when last looked at.
    pub(crate) fn bytes(&self) -> Option<u64> {
        *self.seen.borrow()
    }

    /// Looks until the budget is spent. A server that does not answer just now is asked again: it
    /// writes no log either.
    pub(crate) async fn until_spent(&self) -> Fault {
        let Some((options, slot)) = &self.of else {
            return std::future::pending().await;
        };
        let purpose = SessionPurpose::reader(APPLICATION);
        let mut session = None;
        loop {
            if session.is_none() {
                session = Session::connect(options, &purpose).await.ok();
            }
            let kept = match &session {
                Some(session) => drain::retained_wal(session, slot).await.ok(),
                None => None,
            };
            match kept {
                Some(Some(kept)) => {
                    self.seen.send_replace(kept.bytes);
                    if let Some(fault) = judge(slot, &kept) {
                        return fault;
                    }
                }
                // A slot that is missing is for whoever streams from it to judge.
                Some(None) => {}
                None => session = None,
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Why the move must give itself up, if it must.
fn judge(slot: &str, kept: &RetainedWal) -> Option<Fault> {
    if kept.status == "lost" {
        return Some(Fault::Fatal {
            code: Code::SlotLost,
            text: format!(
                "the log of slot {slot} is gone: max_slot_wal_keep_size was reached, or the server \
                 invalidated it (pg_replication_slots.invalidation_reason, its log)"
            ),
        });
    }
    let is_spent = kept.safe_bytes.is_some_and(|safe| safe < MARGIN_BYTES);
    is_spent.then(|| Fault::Fatal {
        code: Code::WalBudget,
        text: format!(
            "slot {slot} keeps {} of log, and max_slot_wal_keep_size leaves less than {}: raise it, \
             see why the stream lags, abort and start again",
            binary_size(kept.bytes.unwrap_or_default()),
            binary_size(MARGIN_BYTES.unsigned_abs())
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 9: the move is over before the slot is, and never for want of a limit.
    #[test]
    fn a_slot_near_its_limit_ends_the_move_by_name() {
        let code = |status: &str, safe_bytes| {
            let kept = RetainedWal {
                bytes: Some(1),
                status: status.to_owned(),
                safe_bytes,
            };
            judge("s", &kept).map(|fault| fault.code())
        };
        assert_eq!(code("reserved", Some(MARGIN_BYTES)), None);
        assert_eq!(code("extended", None), None);
        assert_eq!(code("reserved", Some(MARGIN_BYTES - 1)), Some("wal-budget"));
        assert_eq!(code("lost", None), Some("slot-lost"));
    }
}
