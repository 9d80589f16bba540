//! Why a stream ended, so that each kind is told apart by whoever decides what comes next.

use std::fmt;
use std::io;

use monarch_model::{Lsn, TableName};

use super::Reason;
use crate::keys::KeysNotRecorded;
use crate::scope::ScopeError;
use crate::sink::SinkError;
use crate::slot::Blocker;

/// A stream did not go on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The move fails by name: a change cannot be carried over.
    #[error(transparent)]
    Fatal(Box<Finding>),
    /// What is on the sink cannot be built upon: the unit starts over, with a new slot.
    #[error(transparent)]
    StartOver(#[from] StartOver),
    /// The slot is not what it must be: the move fails by name.
    #[error("slot {slot}: {fault}")]
    Slot {
        /// The slot.
        slot: String,
        /// What is wrong with it.
        fault: SlotFault,
    },
    /// The unit's row on the sink refused the write: somebody newer is at work, or the unit is
    /// sealed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The sink refused a row.
    #[error("write {table} on the sink")]
    Refused {
        /// The table.
        table: Box<TableName>,
        /// Why; without the row's values.
        #[source]
        source: Box<crate::Error>,
    },
    /// The tables of the store cannot be scoped.
    #[error("derive the membership")]
    Scope(#[source] Box<ScopeError>),
    /// A server did not do what it was asked, or the connection to it was lost.
    #[error(transparent)]
    Asked(#[from] crate::Error),
    /// What the log does not hold could not be read at a known position. Nothing is lost: the mover
    /// begins again before the change that asked for it.
    #[error(
        "fetch rows from the source: no snapshot of it is of one position of its log{}",
        waits_for(.blockers)
    )]
    NoMoment {
        /// The transactions that were open on the source, the oldest first.
        blockers: Vec<Blocker>,
    },
    /// Keys that rows name could not be recorded. The rows were not committed and come again.
    #[error(transparent)]
    Keys(Box<KeysNotRecorded>),
    /// A transaction could not be held in the spool folder.
    #[error("hold a transaction in the spool folder")]
    Spool(#[from] io::Error),
    /// The source said something that its protocol does not have.
    #[error("read the source's changes: {what}")]
    Protocol {
        /// What was unexpected.
        what: String,
    },
}

/// What a change makes impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{table}: {reason}{}", in_brackets(.detail))]
pub struct Finding {
    /// The table.
    pub table: TableName,
    /// Why.
    pub reason: Reason,
    /// More of it, in names only.
    pub detail: Option<String>,
}

/// Why what is on the sink cannot be built upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartOver {
    /// The sink lost commits that it had confirmed: a failover to a server that lacked them.
    #[error("the sink went back: {acknowledged} was acknowledged and it stands at {position}")]
    SinkWentBack {
        /// The position on the sink.
        position: Lsn,
        /// What was acknowledged to the source.
        acknowledged: Lsn,
    },
    /// The sink is another server than the one that was written to.
    #[error("the sink is another server: its system identifier is {found}, it was {expected}")]
    SinkReplaced {
        /// What it was.
        expected: i64,
        /// What it is.
        found: i64,
    },
    /// The copy into the sink was never completed.
    #[error("the copy into the sink is not complete")]
    NotCopied,
}

/// What is wrong with a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotFault {
    /// There is none of this name.
    Missing,
    /// The server can no longer serve it.
    Lost {
        /// The state that the server reports.
        state: String,
    },
    /// It confirms what the sink does not have: it was dropped and made again by somebody else.
    Remade {
        /// What it confirms.
        confirmed: Lsn,
        /// Where the sink stands.
        position: Lsn,
    },
}

impl From<Finding> for StreamError {
    fn from(finding: Finding) -> Self {
        StreamError::Fatal(Box::new(finding))
    }
}

impl From<ScopeError> for StreamError {
    fn from(error: ScopeError) -> Self {
        StreamError::Scope(Box::new(error))
    }
}

impl From<KeysNotRecorded> for StreamError {
    fn from(error: KeysNotRecorded) -> Self {
        StreamError::Keys(Box::new(error))
    }
}

impl StreamError {
    /// Whether the same may succeed later with nobody doing anything about it.
    pub fn is_transient(&self) -> bool {
        match self {
            StreamError::Asked(error) | StreamError::Sink(SinkError::Asked(error)) => {
                error.is_transient()
            }
            StreamError::Refused { source, .. } => source.is_transient(),
            StreamError::Sink(SinkError::StillHeld { .. })
            | StreamError::NoMoment { .. }
            | StreamError::Keys(_)
            | StreamError::Spool(_) => true,
            StreamError::Sink(SinkError::Superseded { .. } | SinkError::Sealed { .. })
            | StreamError::Fatal(_)
            | StreamError::StartOver(_)
            | StreamError::Slot { .. }
            | StreamError::Scope(_)
            | StreamError::Protocol { .. } => false,
        }
    }
}

impl Finding {
    pub(super) fn new(table: &TableName, reason: Reason) -> Self {
        Self {
            table: table.clone(),
            reason,
            detail: None,
        }
    }

    pub(super) fn with(table: &TableName, reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..Self::new(table, reason)
        }
    }
}

impl fmt::Display for SlotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotFault::Missing => f.write_str("it is not there"),
            SlotFault::Lost { state } => write!(f, "the source cannot serve it any more: {state}"),
            SlotFault::Remade {
                confirmed,
                position,
            } => write!(
                f,
                "it confirms {confirmed} and the sink stands at {position}: it was dropped and \
                 made again"
            ),
        }
    }
}

fn waits_for(blockers: &[Blocker]) -> String {
    let blockers: Vec<String> = blockers.iter().map(Blocker::to_string).collect();
    if blockers.is_empty() {
        String::new()
    } else {
        format!(", which waits for {}", blockers.join(", "))
    }
}

fn in_brackets(detail: &Option<String>) -> String {
    detail
        .as_ref()
        .map_or_else(String::new, |detail| format!(" ({detail})"))
}
