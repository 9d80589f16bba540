//! What went wrong between us and a server, without what the server quoted.
//!
//! A server's message and detail repeat row values (`Key (email)=(a@b.example) already exists`).
//! They must not reach a log, a metric or a workflow's history, so they are dropped here, at the
//! first place that meets them, and only names and codes go on.

use std::fmt;

use tokio_postgres::error::SqlState;

/// An error of a server or of the connection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerError {
    /// The server refused a statement.
    Refused(Box<Refusal>),
    /// The connection was lost, or what came through it made no sense; nothing of the row data
    /// is in the text.
    Connection(String),
}

/// A server's refusal: its code and what it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The SQLSTATE.
    pub code: SqlState,
    /// The schema that the error is about.
    pub schema: Option<String>,
    /// The table that the error is about.
    pub table: Option<String>,
    /// The column that the error is about.
    pub column: Option<String>,
    /// The constraint that was violated.
    pub constraint: Option<String>,
}

impl ServerError {
    /// The SQLSTATE, if the server said one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            ServerError::Refused(refusal) => Some(&refusal.code),
            ServerError::Connection(_) => None,
        }
    }

    /// Whether the server refused with this SQLSTATE.
    pub fn is(&self, code: &SqlState) -> bool {
        self.code() == Some(code)
    }
}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(db) => ServerError::Refused(Box::new(Refusal {
                code: db.code().clone(),
                schema: db.schema().map(str::to_owned),
                table: db.table().map(str::to_owned),
                column: db.column().map(str::to_owned),
                constraint: db.constraint().map(str::to_owned),
            })),
            None => ServerError::Connection(error.to_string()),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Refused(refusal) => refusal.fmt(f),
            ServerError::Connection(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLSTATE {}", self.code.code())?;
        let named = [
            ("schema", &self.schema),
            ("table", &self.table),
            ("column", &self.column),
            ("constraint", &self.constraint),
        ];
        for (what, name) in named {
            if let Some(name) = name {
                write!(f, ", {what} {name}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}
