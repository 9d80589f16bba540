//! Where one store of a move stands.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The status of a unit: one store within one move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitStatus {
    /// Nothing of it exists in a cell, or a copy is about to start over.
    Pending,
    /// Its slot exists and its rows are being copied.
    Copying,
    /// Every row of its snapshot is on the sink.
    Copied,
    /// Its changes are being applied, or, once sealed, read.
    Streaming,
    /// Its slot and publications are gone.
    SlotDropped,
    /// Its rows are being deleted from the losing side.
    Evicting,
    /// The losing side holds none of its rows.
    Evicted,
}

/// What happens to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitEvent {
    /// A mover begins, or begins again, with a new slot.
    BeginCopy,
    /// The last row of the snapshot is committed on the sink.
    CopyDone,
    /// A mover applies changes.
    BeginStream,
    /// The slot and the publications were dropped and looked for in vain.
    SlotDropped,
    /// Deleting on the losing side begins.
    BeginEvict,
    /// The losing side was counted and holds no row.
    Evicted,
}

/// A transition that [`next`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a unit that is {status} cannot {event}")]
pub struct IllegalUnitTransition {
    /// Where the unit stands.
    pub status: UnitStatus,
    /// What was asked of it.
    pub event: UnitEvent,
}

/// The status that follows `status` on `event`. Doing again what was done is the same status:
/// every activity may run twice.
pub fn next(status: UnitStatus, event: UnitEvent) -> Result<UnitStatus, IllegalUnitTransition> {
    use UnitEvent as E;
    use UnitStatus as S;
    match (status, event) {
        (S::Pending | S::Copying | S::Copied | S::Streaming, E::BeginCopy) => Ok(S::Copying),
        (S::Copying | S::Copied, E::CopyDone) => Ok(S::Copied),
        (S::Copied | S::Streaming, E::BeginStream) => Ok(S::Streaming),
        (S::Pending | S::Copying | S::Copied | S::Streaming | S::SlotDropped, E::SlotDropped) => {
            Ok(S::SlotDropped)
        }
        (S::SlotDropped | S::Evicting, E::BeginEvict) => Ok(S::Evicting),
        (S::Evicting | S::Evicted, E::Evicted) => Ok(S::Evicted),
        (S::Evicting | S::Evicted, E::SlotDropped) => Ok(status),
        (S::Evicted, E::BeginEvict) => Ok(S::Evicted),
        (status, event) => Err(IllegalUnitTransition { status, event }),
    }
}

impl UnitStatus {
    /// Every status, in the order of a unit's life.
    pub const ALL: [UnitStatus; 7] = [
        UnitStatus::Pending,
        UnitStatus::Copying,
        UnitStatus::Copied,
        UnitStatus::Streaming,
        UnitStatus::SlotDropped,
        UnitStatus::Evicting,
        UnitStatus::Evicted,
    ];

    /// The word in the ledger and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            UnitStatus::Pending => "pending",
            UnitStatus::Copying => "copying",
            UnitStatus::Copied => "copied",
            UnitStatus::Streaming => "streaming",
            UnitStatus::SlotDropped => "slot_dropped",
            UnitStatus::Evicting => "evicting",
            UnitStatus::Evicted => "evicted",
        }
    }
}

impl fmt::Display for UnitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no status of a unit")]
pub struct UnknownUnitStatus(String);

impl FromStr for UnitStatus {
    type Err = UnknownUnitStatus;

    fn from_str(s: &str) -> Result<Self, UnknownUnitStatus> {
        UnitStatus::ALL
            .into_iter()
            .find(|status| status.as_str() == s)
            .ok_or_else(|| UnknownUnitStatus(s.chars().take(32).collect()))
    }
}

impl UnitEvent {
    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            UnitEvent::BeginCopy => "begin_copy",
            UnitEvent::CopyDone => "copy_done",
            UnitEvent::BeginStream => "begin_stream",
            UnitEvent::SlotDropped => "slot_dropped",
            UnitEvent::BeginEvict => "begin_evict",
            UnitEvent::Evicted => "evicted",
        }
    }
}

impl fmt::Display for UnitEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 7: whatever a unit was doing, its slot can be dropped, and only then may
    /// rows be deleted.
    #[test]
    fn rows_are_deleted_only_after_the_slot_is_gone() {
        for status in UnitStatus::ALL {
            assert!(next(status, UnitEvent::SlotDropped).is_ok());
            let may_evict = next(status, UnitEvent::BeginEvict).is_ok();
            assert_eq!(may_evict, status >= UnitStatus::SlotDropped, "{status}");
        }
    }

    #[test]
    fn a_status_reads_back_from_its_word() {
        for status in UnitStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
    }
}
