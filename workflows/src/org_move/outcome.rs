//! How a step ends when it does not end well, and what the run makes of it.

use std::fmt;
use std::time::Duration;

use crate::contract::failure;
use temporalio_common::error::{ApplicationFailure, IncomingError};
use temporalio_workflow::{ActivityExecutionError, WorkflowTermination};

/// What movers and steering came to.
pub(super) enum Verdict {
    /// The routing names the sink.
    Flipped {
        /// From fence to flip.
        write_pause: Option<Duration>,
    },
    /// An abort or a cancellation was asked for before the flip.
    GivenUp,
    /// A finding that ends the move.
    Fatal(Failure),
}

/// A duration as our answers have it.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A failure that was not retried, or may not be.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// A name from [`crate::contract::failure`], or [`UNNAMED`].
    pub(super) kind: String,
    /// The finding's own name, for ledger and page.
    pub(super) code: String,
    /// What happened, in words.
    pub(super) message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

impl Failure {
    /// Whether trying again would not have helped.
    fn is_final(&self) -> bool {
        self.kind != UNNAMED && self.kind != failure::RETRIED
    }
}

/// What a failure is called that came with no name.
const UNNAMED: &str = "activity-failed";

/// Why an activity gave no result.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It was told to.
    Cancelled,
    /// It failed for good.
    Failed(Failure),
}

impl Stopped {
    /// What an activity's failure means once its token was cancelled: Temporal tries nothing again
    /// then, so a failure that would have been retried, or a worker's death, is only its end.
    pub(super) fn after_cancellation(self) -> Self {
        match self {
            Stopped::Failed(failure) if !failure.is_final() => Stopped::Cancelled,
            other => other,
        }
    }

    pub(super) fn into_termination(self) -> WorkflowTermination {
        match self {
            Stopped::Cancelled => WorkflowTermination::cancelled(),
            Stopped::Failed(Failure { kind, message, .. }) => fails(&kind, message),
        }
    }
}

impl From<ActivityExecutionError> for Stopped {
    fn from(error: ActivityExecutionError) -> Self {
        if error.as_cancelled().is_some() {
            return Stopped::Cancelled;
        }
        let failure = match error.cause() {
            Some(IncomingError::Application(application)) => {
                let kind = application.type_name().unwrap_or(UNNAMED).to_owned();
                Failure {
                    code: application
                        .details()
                        .ok()
                        .flatten()
                        .unwrap_or_else(|| kind.clone()),
                    kind,
                    message: application.failure().map_or_else(
                        || application.to_string(),
                        |failure| failure.message.clone(),
                    ),
                }
            }
            _ => Failure {
                kind: UNNAMED.to_owned(),
                code: UNNAMED.to_owned(),
                message: error.to_string(),
            },
        };
        Stopped::Failed(failure)
    }
}

/// The end of a workflow that failed, with a name that callers can match.
pub(super) fn fails(kind: &str, message: String) -> WorkflowTermination {
    ApplicationFailure::builder(anyhow::anyhow!(message))
        .type_name(kind.to_owned())
        .non_retryable(true)
        .build()
        .into()
}
