//! What was being done when a server did not do what was asked.

use std::borrow::Cow;

use tokio_postgres::error::SqlState;

use crate::ServerError;

/// The result of asking something of a server.
pub type Result<T> = std::result::Result<T, Error>;

/// Something asked of a server did not succeed: what was being done and, as its source, why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A statement, a replication command or a stream failed.
    #[error("{doing}")]
    Asked {
        /// What was being done.
        doing: Cow<'static, str>,
        /// Why it failed.
        source: ServerError,
    },
}

impl Error {
    /// The SQLSTATE, if the server said one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Error::Asked { source, .. } => source.code(),
        }
    }

    /// Whether the server refused with this SQLSTATE.
    pub fn is(&self, code: &SqlState) -> bool {
        self.code() == Some(code)
    }
}

/// Says of a result what was being done, and drops what may not be shown.
///
/// `session.execute(sql, &[]).await.doing("create the publication")?`
pub trait Doing<T> {
    /// Turns the error into [`Error::Asked`].
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T, E: Into<ServerError>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::Asked {
            doing: what.into(),
            source: error.into(),
        })
    }
}
