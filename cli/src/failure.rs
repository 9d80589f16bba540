//! What an operator is told when a command does not do what was asked: what happened, whether it
//! was or will be tried again, and what to do next.

use monarch_ledger::LedgerError;
use monarch_model::chain;
use monarch_worker::WorkerError;
use monarch_worker::temporal::ConnectError;
use serde::Serialize;

use crate::exit::Exit;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is something to tell.
    Told(Box<Report>),
    /// Whoever read our output has gone. Nobody is left to be told anything.
    ReaderGone,
}

/// The three parts that an operator needs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(skip)]
    pub(crate) exit: Exit,
    /// What happened.
    pub(crate) error: String,
    /// Whether it was, or will be, tried again.
    pub(crate) retried: &'static str,
    /// What to do next; empty when what happened says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) to_do: String,
}

const NOT_RETRIED: &str = "no";
const CLIENT_RETRIES: &str = "yes, for some seconds";

impl Failure {
    fn new(exit: Exit, error: String) -> Self {
        Self::Told(Box::new(Report {
            exit,
            error,
            retried: NOT_RETRIED,
            to_do: String::new(),
        }))
    }

    /// Something failed.
    pub(crate) fn failed(error: impl Into<String>) -> Self {
        Self::new(Exit::Failed, error.into())
    }

    /// The command line or the configuration cannot be used.
    pub(crate) fn usage(error: impl Into<String>) -> Self {
        Self::new(Exit::Usage, error.into())
    }

    /// The state of a move or of the ledger forbids it.
    pub(crate) fn not_ready(error: impl Into<String>) -> Self {
        Self::new(Exit::NotReady, error.into())
    }

    /// A service was not reached.
    pub(crate) fn unreachable(error: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, error.into())
    }

    /// The same, with what to do next.
    pub(crate) fn advising(mut self, what: impl Into<String>) -> Self {
        if let Self::Told(report) = &mut self {
            report.to_do = what.into();
        }
        self
    }

    /// The same, for what the client of Temporal tried again before it gave up.
    pub(crate) fn tried_again(mut self) -> Self {
        if let Self::Told(report) = &mut self {
            report.retried = CLIENT_RETRIES;
        }
        self
    }

    /// The exit status. A reader that has gone had what it wanted.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Told(report) => report.exit,
            Self::ReaderGone => Exit::Done,
        }
    }

    /// Whether a service was not reached, so that it may be later.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.exit() == Exit::Unreachable
    }

    /// Whether a move or the ledger is not in a state for what was asked.
    pub(crate) fn is_refusal(&self) -> bool {
        self.exit() == Exit::NotReady
    }

    /// What happened, in a line, for a command that goes on.
    pub(crate) fn what(&self) -> &str {
        match self {
            Self::Told(report) => &report.error,
            Self::ReaderGone => "the reader has gone",
        }
    }
}

impl From<std::io::Error> for Failure {
    /// Of writing to our own output.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::failed(format!("write the output: {error}")),
        }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let said = format!("the ledger: {}", chain(&error));
        match error {
            LedgerError::NotInitialised
            | LedgerError::SchemaTooOld { .. }
            | LedgerError::SchemaTooNew { .. }
            | LedgerError::NotStreaming { .. } => Self::not_ready(said),
            _ if error.is_transient() => Self::unreachable(said)
                .advising("check `ledger.dsn` in the fleet and that it is up"),
            LedgerError::Forbidden { .. } => Self::failed(said).advising(
                "as the owner of the ledger's schema run `monarch ledger init --grants-for ROLE`, \
                 and the grants that it prints",
            ),
            LedgerError::Database { .. } => Self::failed(said).advising("look up the SQLSTATE"),
            _ => Self::failed(said),
        }
    }
}

impl From<monarch_postgres::Error> for Failure {
    fn from(error: monarch_postgres::Error) -> Self {
        let said = chain(&error);
        match error {
            monarch_postgres::Error::Dsn(_) => Self::usage(said),
            _ if error.is_transient() => {
                Self::unreachable(said).advising("see whether the database is up")
            }
            _ => Self::failed(said),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let said = error.to_string();
        match error {
            ConnectError::Config(_) => {
                Self::usage(said).advising("mend the TEMPORAL_… variables or the profile they name")
            }
            ConnectError::Unreachable { .. } => Self::unreachable(said)
                .advising("set TEMPORAL_ADDRESS to a running Temporal, then run this again"),
            ConnectError::Refused { .. } => {
                Self::unreachable(said).advising("check TEMPORAL_API_KEY and the TLS variables")
            }
        }
    }
}

impl From<WorkerError> for Failure {
    fn from(error: WorkerError) -> Self {
        let said = chain(&error);
        match error {
            WorkerError::Connect(error) => error.into(),
            WorkerError::Namespace { .. } => Self::not_ready(said),
            WorkerError::Ledger(error) => error.into(),
            WorkerError::LedgerDsn(_) | WorkerError::Metrics { .. } => Self::usage(said),
            WorkerError::Signals(_) | WorkerError::Queue { .. } => {
                Self::failed(said).advising("see the log above; a supervisor may start it again")
            }
        }
    }
}
