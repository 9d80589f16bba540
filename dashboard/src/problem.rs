//! A request that was not served, as a page: what happened, whether it is tried again, what to do.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monarch_ledger::LedgerError;
use monarch_model::chain;

use crate::page;
use crate::workflows::{Refusal, RefusalKind};

/// Why a request was not served.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) what: String,
    /// Empty where nobody would ask.
    pub(crate) retried: String,
    pub(crate) to_do: String,
    /// Where to go from here.
    pub(crate) back: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, what: &str, to_do: &str) -> Self {
        Self {
            status,
            what: what.to_owned(),
            retried: String::new(),
            to_do: to_do.to_owned(),
            back: "/".to_owned(),
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is no such page, or no such move in the ledger",
            "see the list of moves",
        )
    }

    pub(crate) fn read_only() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "your token lets you read only",
            "log in with an operator's token",
        )
    }

    /// The same, leading back to another page.
    pub(crate) fn leading_to(mut self, back: String) -> Self {
        self.back = back;
        self
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        let what = format!("the ledger: {}", chain(&error));
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            &what,
            "check `ledger.dsn` in the fleet and that it is up, then reload",
        )
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            RefusalKind::BadInput => StatusCode::UNPROCESSABLE_ENTITY,
            RefusalKind::NotReady => StatusCode::CONFLICT,
            RefusalKind::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            what: refusal.what,
            retried: refusal.retried,
            to_do: refusal.to_do,
            back: "/".to_owned(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, page::problem(&self)).into_response()
    }
}
