//! Everything Monarch asks of Postgres, and nothing of Temporal.

pub mod catalog;
mod clock;
pub mod connect;
mod digest;
pub mod drain;
mod error;
pub mod estimate;
pub mod evict;
pub mod keys;
pub mod pgoutput;
pub mod preflight;
pub mod publication;
pub mod replication;
pub mod scope;
pub mod sequences;
mod server_error;
pub mod sessions;
pub mod sink;
pub mod slot;
pub mod snapshot;
pub mod spine;
pub mod sql;
pub mod stream;
mod unit;
pub mod verify;

pub use clock::PgTime;
pub use connect::{ConnectOptions, Session, SessionPurpose, SessionRole};
pub use error::{Doing, Endpoint, Error, FailedAttempt, Result};
pub use server_error::{Refusal, ServerError};
pub use unit::Unit;
