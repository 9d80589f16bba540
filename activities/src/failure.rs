//! The one place where our errors become Temporal's failures.
//!
//! A failure is retried if time may mend it, and is final if only a person can. What is final while
//! rows are being moved ends the move by name ([`Fault::Fatal`]); while a move is being *ended*
//! nothing is final, since giving up there would leave a slot or a row behind: such an activity
//! goes on trying, and says at each try what is in its way.

use monarch_ledger::LedgerError;
use monarch_model::chain;
use monarch_postgres::evict;
use monarch_postgres::publication::PublicationError;
use monarch_postgres::scope::ScopeError;
use monarch_postgres::sink::SinkError;
use monarch_postgres::slot::SlotError;
use monarch_postgres::snapshot::CopyError;
use monarch_postgres::spine::SpineError;
use monarch_postgres::stream::StreamError;
use monarch_workflows::contract::failure;
use temporalio_common::error::ApplicationFailure;
use temporalio_sdk::activities::ActivityError;

use crate::code::Code;
use crate::control::ControlError;
use crate::sweep::SweepError;

/// Whether an activity may fail for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stance {
    /// It moves rows: what only a person can mend ends the move.
    MayFail,
    /// It cleans up: it goes on trying.
    MustEnd,
}

/// Why an activity did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// It was told to stop.
    #[error("told to stop")]
    Cancelled,
    /// The configuration or the input cannot be used.
    #[error("{0}")]
    BadInput(String),
    /// The move that was to be adopted has a workflow that runs.
    #[error("{0}")]
    StillDriven(String),
    /// Another move holds the lease.
    #[error("{0}")]
    LiveMove(String),
    /// The unit must be copied again from a new slot.
    #[error("{0}")]
    StartOver(String),
    /// Eviction met what must not be deleted.
    #[error("{0}")]
    EvictionRefused(String),
    /// A finding that ends the move.
    #[error("{code}: {text}")]
    Fatal {
        /// The finding's name.
        code: Code,
        /// What was found.
        text: String,
    },
    /// Something that is not so yet; the next try may find it so.
    #[error("{0}")]
    NotYet(String),
    /// A newer attempt has the unit.
    #[error("a newer attempt has the unit: {0}")]
    Superseded(String),
    /// The ledger did not do its part.
    #[error("the ledger")]
    Ledger(#[source] LedgerError),
    /// A cell's database did not do its part.
    #[error("a cell's database")]
    Cell(#[from] monarch_postgres::Error),
    /// The control plane did not do its part.
    #[error("the control plane")]
    Control(#[from] ControlError),
}

impl From<LedgerError> for Fault {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Superseded { .. } => Fault::Superseded(error.to_string()),
            other => Fault::Ledger(other),
        }
    }
}

impl From<SinkError> for Fault {
    fn from(error: SinkError) -> Self {
        match error {
            SinkError::Superseded { .. } | SinkError::Sealed { .. } => {
                Fault::Superseded(error.to_string())
            }
            SinkError::StillHeld { .. } => Fault::NotYet(error.to_string()),
            SinkError::Asked(asked) => Fault::Cell(asked),
        }
    }
}

impl From<SpineError> for Fault {
    fn from(error: SpineError) -> Self {
        let text = error.to_string();
        match error {
            SpineError::Read(asked) => Fault::Cell(asked),
            SpineError::StaticSpineChanged { .. } => Fault::Fatal {
                code: Code::StaticSpineChanged,
                text,
            },
            SpineError::NoSuchOrganization { .. } => Fault::Fatal {
                code: Code::OrganizationNotFound,
                text,
            },
            SpineError::Scope(_) | SpineError::NoClient { .. } => Fault::BadInput(text),
        }
    }
}

impl From<ScopeError> for Fault {
    fn from(error: ScopeError) -> Self {
        Fault::Fatal {
            code: Code::SchemaChanged,
            text: error.to_string(),
        }
    }
}

impl From<evict::Error> for Fault {
    fn from(error: evict::Error) -> Self {
        use evict::Error as E;
        let text = error.to_string();
        match error {
            E::Asked(asked) => Fault::Cell(asked),
            E::Sink(sink) => sink.into(),
            E::Scope(scope) => scope.into(),
            E::Superseded => Fault::Superseded(text),
            E::OpenTransactions(_) | E::RowsRemain(_) => Fault::NotYet(text),
            E::NewerRows(_) | E::SlotsAlive(_) | E::LateChanges(_) | E::Horizon(_) => {
                Fault::EvictionRefused(text)
            }
        }
    }
}

impl From<StreamError> for Fault {
    fn from(error: StreamError) -> Self {
        use StreamError as E;
        let text = chain(&error);
        match error {
            E::Fatal(finding) => Fault::Fatal {
                code: Code::Change(finding.reason),
                text,
            },
            E::StartOver(_) => Fault::StartOver(text),
            E::Slot { .. } => Fault::Fatal {
                code: Code::SlotLost,
                text,
            },
            E::Sink(sink) => sink.into(),
            E::Scope(scope) => (*scope).into(),
            E::Asked(asked) => Fault::Cell(asked),
            E::Refused { ref source, .. } if source.is_transient() => Fault::NotYet(text),
            E::Refused { .. } => Fault::Fatal {
                code: Code::RowRefused,
                text,
            },
            E::Spool(_) | E::NoMoment { .. } | E::Keys(_) => Fault::NotYet(text),
            E::Protocol { .. } => Fault::Fatal {
                code: Code::Protocol,
                text,
            },
        }
    }
}

impl From<CopyError> for Fault {
    fn from(error: CopyError) -> Self {
        use CopyError as E;
        let text = chain(&error);
        match error {
            E::Cancelled => Fault::Cancelled,
            // The next try scrubs and begins again.
            E::NotEmpty { .. } | E::Keys(_) => Fault::NotYet(text),
            E::ColumnsDiffer { .. } => Fault::Fatal {
                code: Code::SchemaChanged,
                text,
            },
            E::RowsDiffer { .. } => Fault::Fatal {
                code: Code::RowsDiffer,
                text,
            },
            E::Spine(spine) => spine.into(),
            E::Scope(scope) => scope.into(),
            E::Sink(sink) => sink.into(),
            E::Asked(asked) => Fault::Cell(asked),
        }
    }
}

impl From<SlotError> for Fault {
    fn from(error: SlotError) -> Self {
        use SlotError as E;
        let text = chain(&error);
        match error {
            E::Cancelled { .. } => Fault::Cancelled,
            E::Superseded { .. } => Fault::Superseded(text),
            E::Blocked { .. } | E::EpochUnknown { .. } | E::StillThere { .. } => {
                Fault::NotYet(text)
            }
            E::Asked(asked) => Fault::Cell(asked),
        }
    }
}

impl From<PublicationError> for Fault {
    fn from(error: PublicationError) -> Self {
        use PublicationError as E;
        let text = chain(&error);
        match error {
            E::Scope(scope) => scope.into(),
            E::NoReplicaIdentity { .. } | E::GeneratedIdentity { .. } => Fault::Fatal {
                code: Code::NoReplicaIdentity,
                text,
            },
            E::Locked { .. } | E::NotAsMade { .. } | E::StandbyBehind { .. } => Fault::NotYet(text),
            E::Asked(asked) => Fault::Cell(asked),
        }
    }
}

impl From<SweepError> for Fault {
    fn from(error: SweepError) -> Self {
        Fault::NotYet(chain(&error))
    }
}

impl Fault {
    /// A word for programs: the finding's own name where it has one.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Fault::Fatal { code, .. } => code.as_str(),
            Fault::Cancelled => "cancelled",
            Fault::BadInput(_) => "bad-input",
            Fault::StillDriven(_) => "still-driven",
            Fault::LiveMove(_) => "live-move",
            Fault::StartOver(_) => "start-over",
            Fault::EvictionRefused(_) => "eviction-refused",
            Fault::NotYet(_) => "not-yet",
            Fault::Superseded(_) => "superseded",
            Fault::Ledger(_) => "ledger",
            Fault::Cell(_) => "cell",
            Fault::Control(_) => "control",
        }
    }

    /// The contract's name of it where it is final, nothing where it is to be retried.
    fn final_name(&self) -> Option<&'static str> {
        match self {
            Fault::Cancelled | Fault::NotYet(_) | Fault::Superseded(_) => None,
            Fault::BadInput(_) => Some(failure::BAD_INPUT),
            Fault::StillDriven(_) => Some(failure::STILL_DRIVEN),
            Fault::LiveMove(_) => Some(failure::LIVE_MOVE),
            Fault::StartOver(_) => Some(failure::START_OVER),
            Fault::EvictionRefused(_) => Some(failure::EVICTION_REFUSED),
            Fault::Fatal { .. } => Some(failure::FATAL),
            Fault::Ledger(error) => (!error.is_transient()).then_some(failure::FATAL),
            Fault::Cell(error) => (!error.is_transient()).then_some(failure::FATAL),
            Fault::Control(error) => (!error.is_transient()).then_some(failure::FATAL),
        }
    }

    /// Whether the failure stays final while a move is being ended.
    fn is_final_even_at_the_end(&self) -> bool {
        matches!(self, Fault::EvictionRefused(_))
    }

    /// What was being done and why it was not, in one line without row values.
    pub(crate) fn story(&self) -> String {
        chain(self)
    }

    /// The failure as Temporal takes it.
    pub(crate) fn into_activity_error(self, stance: Stance) -> ActivityError {
        if let Fault::Cancelled = self {
            return ActivityError::cancelled();
        }
        let name = self.final_name();
        let last = match stance {
            Stance::MayFail => name.is_some(),
            Stance::MustEnd => self.is_final_even_at_the_end(),
        };
        let failure = ApplicationFailure::builder(anyhow::anyhow!(self.story()))
            .type_name(name.unwrap_or(failure::RETRIED).to_owned())
            .details(self.code().to_owned())
            .non_retryable(last)
            .build();
        ActivityError::application(failure)
    }
}
