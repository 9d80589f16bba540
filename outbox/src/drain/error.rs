//! What goes wrong when messages are delivered. Each error says which message; none says what was in
//! it.

use crate::options::OptionError;
use crate::receivers::BoxError;
use crate::server_error::ServerError;
use crate::table::TableName;

/// Receivers that do not fit the registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the outbox's receivers: {}", .faults.join("; "))]
pub struct StartError {
    /// What is wrong, each with names and numbers.
    pub faults: Vec<String>,
}

/// The database failed a drain. What was being delivered is delivered again.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The server refused, or the connection was lost.
    #[error("{doing} {table}: {source}")]
    Server {
        /// What was being done.
        doing: &'static str,
        /// The table.
        table: TableName,
        /// What the server said.
        source: ServerError,
    },
    /// A lock was not had in time; the messages stay where they are.
    #[error("another drain of {table} holds scope {scope}, shard {shard} for too long")]
    Locked {
        /// The table.
        table: TableName,
        /// The scope, with its number.
        scope: String,
        /// The shard's identifier.
        shard: i64,
    },
    /// There is no message in this shard.
    #[error("{table} has no message in scope {scope}, shard {shard}{}",
            .cell.as_ref().map(|cell| format!(", cell {cell}")).unwrap_or_default())]
    NoSuchShard {
        /// The table.
        table: TableName,
        /// The scope, with its number.
        scope: String,
        /// The shard's identifier.
        shard: i64,
        /// On the control side, the cell.
        cell: Option<String>,
    },
    /// An option cannot be used. Nothing is delivered while it is not known what to leave alone.
    #[error(transparent)]
    Option(#[from] OptionError),
}

/// A message that was not delivered. It stays at the head of its shard, which is on backoff.
#[derive(Debug, thiserror::Error)]
#[error(
    "outbox of category {category}, scope {scope}, shard {shard}, object {object}{}: {why}",
    .cell.as_ref().map(|cell| format!(", cell {cell}")).unwrap_or_default()
)]
pub struct DeliveryError {
    /// The category, with its number.
    pub category: String,
    /// The scope, with its number.
    pub scope: String,
    /// The shard's identifier.
    pub shard: i64,
    /// The object's identifier.
    pub object: i64,
    /// On the control side, the cell.
    pub cell: Option<String>,
    /// What happened.
    #[source]
    pub why: Undelivered,
}

/// Why a message was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered {
    /// The receiver failed; the source is its own error.
    #[error("its receiver failed")]
    Receiver(#[source] BoxError),
    /// The receiver panicked.
    #[error("its receiver panicked")]
    Panic,
    /// The receiver took too long.
    #[error("its receiver took longer than {} s", .after.as_secs_f32())]
    Timeout {
        /// How long it was given.
        after: std::time::Duration,
    },
    /// Nobody receives the category.
    #[error("its category has no receiver here")]
    NoReceiver,
    /// The category is not registered.
    #[error("its category is not registered")]
    UnknownCategory,
    /// The row stands in another scope than its category.
    #[error("its category belongs to scope {expected}")]
    WrongScope {
        /// The category's scope, with its number.
        expected: String,
    },
    /// The row names no cell, or one that cannot be.
    #[error("its row names no cell")]
    NoCell,
    /// The payload is not JSON.
    #[error("its payload of {bytes} bytes is not JSON (line {line}, column {column})")]
    NotJson {
        /// The payload's length.
        bytes: usize,
        /// Where it stops being JSON.
        line: usize,
        /// Where in that line.
        column: usize,
    },
}

/// A transaction of [`Drain::atomic`](crate::Drain::atomic) that did not commit.
#[derive(Debug, thiserror::Error)]
pub enum AtomicError<E> {
    /// It could not begin.
    #[error("begin a transaction: {0}")]
    Begin(ServerError),
    /// The work failed, and is rolled back. Its error may be of any kind that can be shown, an
    /// `anyhow::Error` too.
    #[error("{0}")]
    Work(E),
    /// It did not commit; when the connection was lost meanwhile it may have.
    #[error("commit: {0}")]
    Commit(ServerError),
}
