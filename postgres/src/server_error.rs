//! What went wrong between us and a server, without what the server quoted.
//!
//! A server's message and detail repeat row values (`Key (email)=(a@b.example) already exists`).
//! They must not reach a log, a metric or a workflow's history, so they are dropped here, at the
//! first place that meets them, and only names and codes go on.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;
use tokio_postgres::error::{DbError, SqlState};

/// An error of a server or of the connection to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The server refused a statement.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The host's name has no address, or the resolver failed.
    #[error("the host's name was not found: {0}")]
    Lookup(String),
    /// The socket could not be opened, or failed.
    #[error("the connection failed: {0}")]
    Io(String),
    /// The connection is closed: the server ended it, or it was lost.
    #[error("the connection is closed")]
    Closed,
    /// The walsender ended the stream, as it does when the server shuts down.
    #[error("the server ended the stream")]
    StreamEnded,
    /// There was no session within the connect timeout.
    #[error("no session within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// TLS could not be set up, or the server's certificate was refused.
    #[error("TLS: {0}")]
    Tls(String),
    /// Authentication cannot go on by the rules of the connection string.
    #[error("authentication: {0}")]
    Authentication(String),
    /// The server is not what `target_session_attrs` asks for.
    #[error("target_session_attrs asks for {wanted}, and this server is {found}")]
    WrongServer {
        /// What was asked for.
        wanted: &'static str,
        /// What the server reports.
        found: &'static str,
    },
    /// A message is longer than the limit; reading it would take as much memory.
    #[error("a message of {bytes} bytes is over the limit of {limit_bytes}")]
    MessageTooLarge {
        /// The length that the message announces, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// The server said something that the protocol does not have at this point.
    #[error("protocol: {0}")]
    Protocol(Cow<'static, str>),
    /// The driver refused: a column, a parameter or a row count is not as expected.
    #[error("driver: {0}")]
    Driver(String),
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
    /// Whether it was refused only because the server is in recovery.
    pub in_recovery: bool,
}

/// The SQLSTATEs that an operator may meet: their names in the manual, and whether time alone may
/// mend them. What is not listed is judged by its class, and is else permanent.
///
/// A read-only transaction is mended by time: in a failover the address may lead to a standby that
/// is not promoted yet. What a server in recovery refuses under a code that says no more than that
/// ([`is_for_recovery`]) is mended by time for the same reason.
const CONDITIONS: &[(&str, &str, bool)] = &[
    ("08000", "connection_exception", true),
    ("08003", "connection_does_not_exist", true),
    ("08006", "connection_failure", true),
    ("08P01", "protocol_violation", false),
    ("0A000", "feature_not_supported", false),
    ("22P02", "invalid_text_representation", false),
    ("23502", "not_null_violation", false),
    ("23503", "foreign_key_violation", false),
    ("23505", "unique_violation", false),
    ("23514", "check_violation", false),
    ("23P01", "exclusion_violation", false),
    ("25006", "read_only_sql_transaction", true),
    ("25P02", "in_failed_sql_transaction", false),
    ("25P03", "idle_in_transaction_session_timeout", true),
    ("25P04", "transaction_timeout", true),
    ("28000", "invalid_authorization_specification", false),
    ("28P01", "invalid_password", false),
    ("3D000", "invalid_catalog_name", false),
    ("40001", "serialization_failure", true),
    ("40003", "statement_completion_unknown", true),
    ("40P01", "deadlock_detected", true),
    ("42501", "insufficient_privilege", false),
    ("42601", "syntax_error", false),
    ("42703", "undefined_column", false),
    ("42704", "undefined_object", false),
    ("42710", "duplicate_object", false),
    ("42883", "undefined_function", false),
    ("42P01", "undefined_table", false),
    ("53000", "insufficient_resources", true),
    ("53100", "disk_full", true),
    ("53200", "out_of_memory", true),
    ("53300", "too_many_connections", true),
    ("53400", "configuration_limit_exceeded", false),
    ("55000", "object_not_in_prerequisite_state", false),
    ("55006", "object_in_use", true),
    ("55P03", "lock_not_available", true),
    ("57000", "operator_intervention", true),
    ("57014", "query_canceled", true),
    ("57P01", "admin_shutdown", true),
    ("57P02", "crash_shutdown", true),
    ("57P03", "cannot_connect_now", true),
    ("57P04", "database_dropped", false),
    ("57P05", "idle_session_timeout", true),
    ("58030", "io_error", true),
    ("XX000", "internal_error", false),
    ("XX001", "data_corrupted", false),
    ("XX002", "index_corrupted", false),
];

impl ServerError {
    /// The SQLSTATE, if the server said one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            ServerError::Refused(refusal) => Some(&refusal.code),
            _ => None,
        }
    }

    /// Whether the server refused with this SQLSTATE.
    pub fn is(&self, code: &SqlState) -> bool {
        self.code() == Some(code)
    }

    /// Whether the same thing may succeed later with nobody doing anything about it.
    pub fn is_transient(&self) -> bool {
        match self {
            ServerError::Refused(refusal) => refusal.is_transient(),
            ServerError::Lookup(_)
            | ServerError::Io(_)
            | ServerError::Closed
            | ServerError::StreamEnded
            | ServerError::Timeout(_)
            | ServerError::WrongServer { .. } => true,
            ServerError::Tls(_)
            | ServerError::Authentication(_)
            | ServerError::MessageTooLarge { .. }
            | ServerError::Protocol(_)
            | ServerError::Driver(_) => false,
        }
    }
}

impl Refusal {
    /// Whether the same thing may succeed later with nobody doing anything about it.
    pub fn is_transient(&self) -> bool {
        let code = self.code.code();
        if self.in_recovery {
            return true;
        }
        match self.listed() {
            Some((_, transient)) => transient,
            None => code.starts_with("08") || code.starts_with("53"),
        }
    }

    /// The name that the manual gives to this SQLSTATE, for those that operators meet.
    pub fn condition(&self) -> Option<&'static str> {
        self.listed().map(|(name, _)| name)
    }

    fn listed(&self) -> Option<(&'static str, bool)> {
        CONDITIONS
            .iter()
            .find(|(code, ..)| *code == self.code.code())
            .map(|&(_, name, transient)| (name, transient))
    }

    fn bare(sqlstate: &str) -> Self {
        // What stands where a SQLSTATE should be is cut to a SQLSTATE's form.
        let sqlstate: String = sqlstate
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(5)
            .collect();
        Self {
            code: SqlState::from_code(&sqlstate),
            schema: None,
            table: None,
            column: None,
            constraint: None,
            in_recovery: false,
        }
    }
}

/// Whether a function of the server refuses with this SQLSTATE only in recovery. The codes are also
/// those of a slot whose log is gone (55000), or of what a server cannot do at all (0A000).
fn is_for_recovery(code: &SqlState, routine: Option<&str>) -> bool {
    let routine = routine.unwrap_or_default();
    match code.code() {
        "55000" => ["pg_current_wal_", "pg_walfile_name", "pg_switch_wal"]
            .iter()
            .any(|begin| routine.starts_with(begin)),
        "0A000" => routine == "CheckLogicalDecodingRequirements",
        _ => false,
    }
}

impl From<&DbError> for Refusal {
    fn from(error: &DbError) -> Self {
        Self {
            schema: error.schema().map(str::to_owned),
            table: error.table().map(str::to_owned),
            column: error.column().map(str::to_owned),
            constraint: error.constraint().map(str::to_owned),
            in_recovery: is_for_recovery(error.code(), error.routine()),
            ..Self::bare(error.code().code())
        }
    }
}

impl From<&ErrorResponseBody> for Refusal {
    fn from(body: &ErrorResponseBody) -> Self {
        let mut refusal = Self::bare("XX000");
        let mut fields = body.fields();
        let mut routine = None;
        while let Ok(Some(field)) = fields.next() {
            let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => refusal.code = Self::bare(&text).code,
                b's' => refusal.schema = Some(text),
                b't' => refusal.table = Some(text),
                b'c' => refusal.column = Some(text),
                b'n' => refusal.constraint = Some(text),
                b'R' => routine = Some(text),
                _ => {}
            }
        }
        refusal.in_recovery = is_for_recovery(&refusal.code, routine.as_deref());
        refusal
    }
}

impl From<&ErrorResponseBody> for ServerError {
    fn from(body: &ErrorResponseBody) -> Self {
        ServerError::Refused(Box::new(body.into()))
    }
}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => ServerError::Closed,
            _ => match error.downcast::<ServerError>() {
                Ok(ours) => ours,
                Err(error) => ServerError::Io(error.to_string()),
            },
        }
    }
}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            return ServerError::Refused(Box::new(db.into()));
        }
        if error.is_closed() {
            return ServerError::Closed;
        }
        // The driver's own words name a position or a column, never a value. What it wraps may
        // quote one, so of that only a socket's error and a refused authentication are kept.
        let said = error.to_string();
        let Some(source) = error.into_source() else {
            return ServerError::Driver(said);
        };
        match source.downcast::<io::Error>() {
            Ok(io) if said.starts_with("error communicating") => (*io).into(),
            Err(why) if said == "authentication error" || said == "invalid configuration" => {
                ServerError::Authentication(why.to_string())
            }
            _ => ServerError::Driver(said),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLSTATE {}", self.code.code())?;
        if let Some(condition) = self.condition() {
            write!(f, " {condition}")?;
        }
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

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_time_mends_is_transient_and_what_a_person_must_mend_is_not() {
        let transient = |sqlstate: &str| Refusal::bare(sqlstate).is_transient();
        let mended = "25006 57P01 57P02 57P03 53300 40001 40P01 55P03 08006 08001 53999";
        for code in mended.split(' ') {
            assert!(transient(code), "{code}");
        }
        for code in "23505 42501 28P01 42P01 3D000 55000 99999".split(' ') {
            assert!(!transient(code), "{code}");
        }
    }

    #[test]
    fn conditions_are_listed_once_and_in_order() {
        assert!(CONDITIONS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn a_refusal_names_the_place_and_no_value() {
        let refusal = Refusal {
            schema: Some("public".into()),
            table: Some("group".into()),
            constraint: Some("group_pkey".into()),
            ..Refusal::bare("23505")
        };
        assert_eq!(
            refusal.to_string(),
            "SQLSTATE 23505 unique_violation, schema public, table group, constraint group_pkey"
        );
    }
}
