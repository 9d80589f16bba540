//! What can go wrong with the ledger, in words that an operator can act on.

use monarch_model::phase::{IllegalTransition, PhaseEvent};
use monarch_model::unit::{IllegalUnitTransition, UnitEvent};
use monarch_model::{Epoch, MoveId, Phase, StoreName, UnitStatus};
use monarch_postgres::ServerError;
use tokio_postgres::error::SqlState;

use crate::units::Purpose;

/// Why the ledger did not do what was asked. Nothing of it was done, unless the connection was lost
/// while committing: then asking again tells.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The schema was never made.
    #[error("the ledger has no schema yet: run `monarch ledger init`")]
    NotInitialised,
    /// The schema was made by an older program.
    #[error(
        "the ledger's schema is at version {found}, this program needs {needed}: \
         run `monarch ledger init`"
    )]
    SchemaTooOld {
        /// The version in the database.
        found: i32,
        /// The version of this program.
        needed: i32,
    },
    /// The schema was made by a newer program.
    #[error(
        "the ledger's schema is at version {found}, this program knows {known}: \
         use the newer program"
    )]
    SchemaTooNew {
        /// The version in the database.
        found: i32,
        /// The version of this program.
        known: i32,
    },
    /// No such move was registered.
    #[error("no move {0} in the ledger")]
    NoSuchMove(MoveId),
    /// The move has no such unit.
    #[error("move {move_id} has no unit for store {store}")]
    NoSuchUnit {
        /// The move.
        move_id: MoveId,
        /// The store that was named.
        store: StoreName,
    },
    /// The id names a move of something else.
    #[error(
        "move {id} was registered with another {what}: an id names one move for ever, \
         start the new one under a new id"
    )]
    RegisteredOtherwise {
        /// The move.
        id: MoveId,
        /// What differs.
        what: &'static str,
    },
    /// The table of transitions does not have it.
    #[error(transparent)]
    IllegalTransition(#[from] IllegalTransition),
    /// The move stands elsewhere than the caller believed.
    #[error("move {move_id} cannot {event}: expected it {expected}, found it {found}")]
    PhaseFound {
        /// The move.
        move_id: MoveId,
        /// What was asked of it.
        event: PhaseEvent,
        /// Where the caller believed it.
        expected: Phase,
        /// Where it stands.
        found: Phase,
    },
    /// The move has gone on since the caller looked, and may have come back to the same phase.
    #[error(
        "move {move_id} cannot {event}: expected it after {expected} transitions, \
         found it {found_phase} after {found}"
    )]
    StepFound {
        /// The move.
        move_id: MoveId,
        /// What was asked of it.
        event: PhaseEvent,
        /// The transitions that the caller knew of.
        expected: i64,
        /// The transitions that were made.
        found: i64,
        /// Where it stands.
        found_phase: Phase,
    },
    /// Units are not as far as the move would be.
    #[error("move {move_id} cannot {event}: {}", told(.behind))]
    UnitsForbid {
        /// The move.
        move_id: MoveId,
        /// What was asked of it.
        event: PhaseEvent,
        /// The stores that are behind, and where each stands.
        behind: Vec<(StoreName, UnitStatus)>,
    },
    /// The table of unit transitions does not have it.
    #[error("store {store}: {source}")]
    IllegalUnitTransition {
        /// The unit's store.
        store: StoreName,
        /// The status and the event.
        source: IllegalUnitTransition,
    },
    /// A unit may not do this while its move stands where it stands.
    #[error("store {store} cannot {event}: move {move_id} is {phase}")]
    UnitHeldByPhase {
        /// The move.
        move_id: MoveId,
        /// The unit's store.
        store: StoreName,
        /// What was asked of the unit.
        event: UnitEvent,
        /// Where the move stands.
        phase: Phase,
    },
    /// Both sides are compared while a unit streams and its move is active.
    #[error("store {store} is {status} and move {move_id} is {phase}: it cannot be verified now")]
    NotStreaming {
        /// The move.
        move_id: MoveId,
        /// The unit's store.
        store: StoreName,
        /// Where the move stands.
        phase: Phase,
        /// Where the unit stands.
        status: UnitStatus,
    },
    /// A slot's name carries the epoch that made it, so a copy that begins over needs a new one.
    #[error("store {store} is {status} under slot {slot}: to copy again, take the next epoch")]
    CopyNeedsEpoch {
        /// The unit's store.
        store: StoreName,
        /// Where the unit stands.
        status: UnitStatus,
        /// The slot that this epoch already made.
        slot: String,
    },
    /// A successor has begun. Whoever meets this stops at once, and drops only what is its own.
    #[error("store {store}: epoch {epoch} was superseded by {current}")]
    Superseded {
        /// The unit's store.
        store: StoreName,
        /// The caller's epoch.
        epoch: Epoch,
        /// The newest epoch.
        current: Epoch,
    },
    /// Nobody may write for a unit to this end while its move stands where it stands.
    #[error("store {store}: no epoch for {purpose}, move {move_id} is {phase}")]
    NoEpoch {
        /// The move.
        move_id: MoveId,
        /// The unit's store.
        store: StoreName,
        /// What the epoch was wanted for.
        purpose: Purpose,
        /// Where the move stands.
        phase: Phase,
    },
    /// The unit is sealed: no mover applies anything any more.
    #[error("store {store} of move {move_id} is sealed: no mover may follow")]
    Sealed {
        /// The move.
        move_id: MoveId,
        /// The unit's store.
        store: StoreName,
    },
    /// The tail's head was recorded and the slot is gone: there is nothing newer to record.
    #[error("store {store}: a tail is recorded while its slot lives, and it is {status}")]
    TailClosed {
        /// The unit's store.
        store: StoreName,
        /// Where the unit stands.
        status: UnitStatus,
    },
    /// The ledger holds a value that this program cannot read.
    #[error("the ledger holds an unreadable {column}: was it edited by hand?")]
    Unreadable {
        /// The column.
        column: &'static str,
    },
    /// There is no connection to the ledger.
    #[error("reach the ledger")]
    Unreachable(#[from] monarch_postgres::Error),
    /// The role that `ledger.dsn` names may not do it.
    #[error(
        "{doing}: the role of ledger.dsn lacks a grant; `monarch ledger init --grants-for ROLE` \
         prints what it needs"
    )]
    Forbidden {
        /// What was being done.
        doing: &'static str,
        /// The server's word.
        source: ServerError,
    },
    /// The database did not do its part.
    #[error("{doing}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// Why it was not done.
        source: ServerError,
    },
}

fn told(behind: &[(StoreName, UnitStatus)]) -> String {
    let told = behind.iter();
    let told: Vec<String> = told
        .map(|(store, status)| format!("store {store} is {status}"))
        .collect();
    told.join(", ")
}

impl LedgerError {
    /// Whether the same request may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            LedgerError::Database { source, .. } => source.is_transient(),
            LedgerError::Unreachable(source) => source.is_transient(),
            _ => false,
        }
    }

    /// Says what was being done when the database failed. A missing schema, met by any statement,
    /// is told as what it is.
    pub(crate) fn database(
        doing: &'static str,
    ) -> impl FnOnce(tokio_postgres::Error) -> LedgerError {
        move |error| match error.code() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
                LedgerError::NotInitialised
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => LedgerError::Forbidden {
                doing,
                source: ServerError::from(error),
            },
            _ => LedgerError::Database {
                doing,
                source: ServerError::from(error),
            },
        }
    }
}
