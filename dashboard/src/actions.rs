//! What may be asked of a move, by where it stands, and why not: one table for the page that offers
//! it and for the page that confirms it.

use monarch_model::Phase;

use crate::reading::Reading;
use crate::workflows::Driver;

/// Something that the page can ask of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Pause,
    Resume,
    CutOver,
    Abort,
}

/// An action, and every reason why it cannot be asked now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) action: Action,
    pub(crate) reasons: Vec<String>,
}

impl Action {
    pub(crate) const ALL: [Action; 4] = [Self::CutOver, Self::Pause, Self::Resume, Self::Abort];

    /// The word in an address.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::CutOver => "cut-over",
            Self::Abort => "abort",
        }
    }

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }

    /// What the button says.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::CutOver => "Cut over",
            Self::Abort => "Abort",
        }
    }

    /// What will happen.
    pub(crate) fn consequences(self) -> &'static str {
        match self {
            Self::Pause => {
                "The movers stop. The slots are kept and go on holding the source's log until the \
                 move is resumed or aborted."
            }
            Self::Resume => "The movers start again from where they stood.",
            Self::CutOver => {
                "The organization's writes are held back, every store is drained and compared, and \
                 the routing changes to the other cell. If that does not succeed within the longest \
                 write pause, the organization writes on the source again. After the flip there is \
                 no way back."
            }
            Self::Abort => {
                "The movers stop, slots and publications go, and what was copied is deleted from \
                 the sink. The organization stays where it is. A new move begins from nothing."
            }
        }
    }
}

/// What is offered on a move's page: what its phase knows, possible now or not.
pub(crate) fn offers(reading: &Reading) -> Vec<Offer> {
    let is_paused = is_paused(reading);
    let known = |action: &Action| match (reading.of.phase, action) {
        (Phase::Active, Action::Pause) => !is_paused,
        (Phase::Active, Action::Resume) => is_paused,
        (Phase::Active | Phase::Draining | Phase::Flipping, Action::CutOver) => true,
        (Phase::Active | Phase::Draining | Phase::Flipping | Phase::Failed, Action::Abort) => true,
        _ => false,
    };
    let actions = Action::ALL.into_iter().filter(known);
    actions.map(|action| offer(reading, action)).collect()
}

/// An action, with what is against it now.
pub(crate) fn offer(reading: &Reading, action: Action) -> Offer {
    let mut reasons: Vec<String> = against(reading, action).into_iter().collect();
    match &reading.driver {
        Some(Driver::Gone(why)) => reasons.push(why.clone()),
        // An abort lasts: it is served when a worker comes.
        Some(Driver::Silent(why)) if action != Action::Abort => reasons.push(why.clone()),
        _ => {}
    }
    if action == Action::CutOver && reading.of.phase == Phase::Active {
        reasons.extend(reading.objections());
    }
    Offer { action, reasons }
}

fn against(reading: &Reading, action: Action) -> Option<String> {
    let phase = reading.of.phase;
    let reason = match (phase, action) {
        (Phase::Active, Action::Pause) if is_paused(reading) => "the move is paused already",
        (Phase::Active, Action::Resume) if !is_paused(reading) => "the move is not paused",
        (Phase::Active, Action::CutOver) if is_paused(reading) => "the move is paused",
        (Phase::Active, _) | (Phase::Draining | Phase::Failed, Action::Abort) => return None,
        (Phase::Draining | Phase::Flipping, Action::CutOver) => "it is cutting over now",
        (Phase::Flipping, Action::Abort) => "the routing is being changed",
        (Phase::Aborting, Action::Abort) => "it is being given up already",
        (Phase::CutOver | Phase::Evicting, Action::Abort) => {
            "the organization lives on the other cell, and there is no way back"
        }
        _ => return Some(format!("the move is {phase}")),
    };
    Some(reason.to_owned())
}

fn is_paused(reading: &Reading) -> bool {
    let said = reading.view.workflow.as_ref();
    said.is_some_and(|said| said.paused)
}
