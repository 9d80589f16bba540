//! What may follow what in a move.
//!
//! The ledger enforces this table by compare-and-swap and the workflow follows it; neither has a
//! copy of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a move stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Copying and streaming; the organization writes on the source.
    Active,
    /// The organization's writes are stopped and the units are being proved drained.
    Draining,
    /// The routing is being changed: from here the move can no longer be given up.
    Flipping,
    /// The organization lives on the sink; its rows are still on the source too.
    CutOver,
    /// The organization's rows are being deleted from the source.
    Evicting,
    /// Ended: the organization lives on the sink alone.
    Finalized,
    /// Being given up: slots go and the sink is scrubbed.
    Aborting,
    /// Stopped by a fatal finding; slots are dropped, the sink may still hold rows.
    Failed,
    /// Ended: the organization lives on the source alone.
    Aborted,
}

/// What happens to a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseEvent {
    /// Cut-over was asked for and every unit was ready.
    BeginDrain,
    /// The drain did not succeed in time: the organization writes on the source again.
    Reopen,
    /// Every unit is sealed.
    BeginFlip,
    /// The routing was read back and names the sink.
    Flipped,
    /// The flip was refused, its token is revoked, and the routing names the source.
    FlipRefused,
    /// Eviction of the source begins.
    BeginEvict,
    /// The source holds none of the organization's rows any more.
    Finalize,
    /// The move is being given up.
    BeginAbort,
    /// The sink holds none of the organization's rows any more.
    Aborted,
    /// A fatal finding.
    Fail,
}

/// A transition that [`next`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a move that is {phase} cannot {event}")]
pub struct IllegalTransition {
    /// Where the move stands.
    pub phase: Phase,
    /// What was asked of it.
    pub event: PhaseEvent,
}

/// The phase that follows `phase` on `event`.
pub fn next(phase: Phase, event: PhaseEvent) -> Result<Phase, IllegalTransition> {
    use Phase as P;
    use PhaseEvent as E;
    match (phase, event) {
        (P::Active, E::BeginDrain) => Ok(P::Draining),
        (P::Draining, E::Reopen) => Ok(P::Active),
        (P::Draining, E::BeginFlip) => Ok(P::Flipping),
        (P::Flipping, E::Flipped) => Ok(P::CutOver),
        (P::Flipping, E::FlipRefused) => Ok(P::Draining),
        (P::CutOver, E::BeginEvict) => Ok(P::Evicting),
        (P::Evicting, E::Finalize) => Ok(P::Finalized),
        (P::Active | P::Draining | P::Failed, E::BeginAbort) => Ok(P::Aborting),
        (P::Active | P::Draining | P::Aborting, E::Fail) => Ok(P::Failed),
        (P::Aborting, E::Aborted) => Ok(P::Aborted),
        (phase, event) => Err(IllegalTransition { phase, event }),
    }
}

impl Phase {
    /// Every phase, in the order of a move's life.
    pub const ALL: [Phase; 9] = [
        Phase::Active,
        Phase::Draining,
        Phase::Flipping,
        Phase::CutOver,
        Phase::Evicting,
        Phase::Finalized,
        Phase::Aborting,
        Phase::Failed,
        Phase::Aborted,
    ];

    /// Whether the move still holds the fleet's one lease.
    pub fn is_live(self) -> bool {
        !matches!(self, Phase::Finalized | Phase::Aborted)
    }

    /// The word in the ledger, in search attributes and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Active => "active",
            Phase::Draining => "draining",
            Phase::Flipping => "flipping",
            Phase::CutOver => "cut_over",
            Phase::Evicting => "evicting",
            Phase::Finalized => "finalized",
            Phase::Aborting => "aborting",
            Phase::Failed => "failed",
            Phase::Aborted => "aborted",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = UnknownPhase;

    fn from_str(s: &str) -> Result<Self, UnknownPhase> {
        Phase::ALL
            .into_iter()
            .find(|phase| phase.as_str() == s)
            .ok_or_else(|| UnknownPhase(s.chars().take(32).collect()))
    }
}

/// A word that is no phase.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no phase of a move")]
pub struct UnknownPhase(String);

impl PhaseEvent {
    /// Every event.
    pub const ALL: [PhaseEvent; 10] = [
        PhaseEvent::BeginDrain,
        PhaseEvent::Reopen,
        PhaseEvent::BeginFlip,
        PhaseEvent::Flipped,
        PhaseEvent::FlipRefused,
        PhaseEvent::BeginEvict,
        PhaseEvent::Finalize,
        PhaseEvent::BeginAbort,
        PhaseEvent::Aborted,
        PhaseEvent::Fail,
    ];

    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            PhaseEvent::BeginDrain => "begin_drain",
            PhaseEvent::Reopen => "reopen",
            PhaseEvent::BeginFlip => "begin_flip",
            PhaseEvent::Flipped => "flipped",
            PhaseEvent::FlipRefused => "flip_refused",
            PhaseEvent::BeginEvict => "begin_evict",
            PhaseEvent::Finalize => "finalize",
            PhaseEvent::BeginAbort => "begin_abort",
            PhaseEvent::Aborted => "aborted",
            PhaseEvent::Fail => "fail",
        }
    }
}

impl fmt::Display for PhaseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 9: past `flipping` nothing gives a move up, and an ended move stays ended.
    #[test]
    fn only_a_move_before_its_flip_can_be_given_up() {
        let can: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|phase| next(*phase, PhaseEvent::BeginAbort).is_ok())
            .collect();
        assert_eq!(can, [Phase::Active, Phase::Draining, Phase::Failed]);
    }

    #[test]
    fn an_ended_move_takes_no_event() {
        for phase in Phase::ALL.into_iter().filter(|phase| !phase.is_live()) {
            for event in PhaseEvent::ALL {
                assert_eq!(next(phase, event), Err(IllegalTransition { phase, event }));
            }
        }
    }

    #[test]
    fn a_phase_reads_back_from_its_word() {
        for phase in Phase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
        }
    }
}
