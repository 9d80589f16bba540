//! Reads the messages of the pgoutput plugin where they lie.
//!
//! Everything that is read is a view into the message: nothing is allocated, however many columns
//! a message claims to have, and no value is copied or parsed. A message is checked to its last
//! byte before any of it is handed out, so the views themselves cannot fail.
//!
//! Protocol 1 and the streamed transactions of protocol 2 are understood, as
//! [`StreamOptions`](crate::replication::StreamOptions) asks for them; two-phase messages are not
//! asked for and are refused.

mod message;
mod reader;
mod tuple;

#[cfg(test)]
mod tests;

pub use message::{
    Change, Columns, Content, Key, Message, OldTuple, RelationColumn, RelationIds, ReplicaIdentity,
    decode,
};
pub use reader::DecodeError;
pub use tuple::{Tuple, Value, Values};
