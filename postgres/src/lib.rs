//! Everything Monarch asks of Postgres, and nothing of Temporal.

pub mod catalog;
mod digest;
mod error;
pub mod publication;
pub mod scope;
mod server_error;
pub mod sink;
pub mod slot;
pub mod snapshot;
pub mod spine;
pub mod sql;
pub mod stream;
mod unit;

pub use error::{Doing, Error, Result};
pub use server_error::{Refusal, ServerError};
pub use unit::Unit;
