//! What was being done when a server did not do what was asked.

use std::borrow::Cow;
use std::fmt;

use tokio_postgres::error::SqlState;

use crate::ServerError;
use crate::connect::DsnError;

/// The result of asking something of a server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something asked of a server did not succeed: what was being done and, as its source, why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection string, or what the environment adds to it, cannot be used.
    #[error("read the connection string")]
    Dsn(#[from] DsnError),
    /// No session could be had from any of the hosts.
    #[error("connect to {endpoint}{}", after(.earlier))]
    Connect {
        /// The last host that was tried.
        endpoint: Endpoint,
        /// What failed before, in order.
        earlier: Vec<FailedAttempt>,
        /// Why the last attempt failed.
        source: ServerError,
    },
    /// A statement, a replication command or a stream failed.
    #[error("{doing}")]
    Asked {
        /// What was being done.
        doing: Cow<'static, str>,
        /// Why it failed.
        source: ServerError,
    },
}

/// One attempt to connect, and why it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Where to.
    pub endpoint: Endpoint,
    /// Why it failed.
    pub error: ServerError,
}

/// A server's address as the connection string has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host name, address, or directory of the Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Error {
    /// Whether the same thing may succeed later with nobody doing anything about it.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Dsn(_) => false,
            Error::Connect {
                earlier, source, ..
            } => source.is_transient() || earlier.iter().any(|a| a.error.is_transient()),
            Error::Asked { source, .. } => source.is_transient(),
        }
    }

    /// The SQLSTATE, if the server said one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Error::Dsn(_) => None,
            Error::Connect { source, .. } | Error::Asked { source, .. } => source.code(),
        }
    }

    /// Whether the server refused with this SQLSTATE.
    pub fn is(&self, code: &SqlState) -> bool {
        self.code() == Some(code)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn after(earlier: &[FailedAttempt]) -> String {
    let attempts: Vec<String> = earlier
        .iter()
        .map(|attempt| format!("{}: {}", attempt.endpoint, attempt.error))
        .collect();
    if attempts.is_empty() {
        String::new()
    } else {
        format!(" (after {})", attempts.join("; "))
    }
}

/// Says of a result what was being done, and drops what may not be shown.
///
/// `session.execute(sql, &[]).await.doing("create the publication")?`
pub trait Doing<T> {
    /// Turns the error into [`Error::Asked`].
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T, E: Into<ServerError>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::Asked {
            doing: what.into(),
            source: error.into(),
        })
    }
}
