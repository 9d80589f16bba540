//! Everything Monarch asks of Postgres, and nothing of Temporal.

mod server_error;
pub mod sql;
pub mod stream;

pub use server_error::{Refusal, ServerError};
