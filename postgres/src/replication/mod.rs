//! The replication protocol, of which the driver knows nothing.
//!
//! A thin layer over the wire format: commands are simple queries, a started stream is a sequence
//! of [`Frame`]s, and nothing happens that was not asked for. In particular keepalives are handed
//! out in order with the data, and what is reported to the server is the caller's word alone: a
//! slot is acknowledged after the sink's commit and not by a timer.
//!
//! States are types. A [`ReplicationConnection`] takes commands; creating a slot turns it into an
//! [`ExportedSlot`], whose snapshot can be adopted for as long as the value lives; starting a
//! stream turns it into a [`ReplicationStream`].

mod connection;
mod login;
mod stream;
mod wire;

pub use connection::{ExportedSlot, ReplicationConnection, SlotKind, SystemIdentity};
pub use stream::{Frame, ReplicationStream, Status, StreamOptions};
