//! A transactional outbox for Postgres.
//!
//! A transaction changes rows here and something must happen elsewhere because of it: a call to
//! another service, a row in another database. Done before the commit, it may tell of what never
//! happens; done after, a crash in between loses it. So the transaction itself writes down what is to
//! happen, a message in an outbox, and what is written down is delivered once it has committed, again
//! and again until it is done.
//!
//! * [`categories!`] declares what kinds of messages there are, each in one scope;
//! * [`Table`] is where they stand, [`Table::writer`] writes them, in the caller's transaction;
//! * [`Receivers`] handle them, and [`Drain`] calls the receivers: at commit ([`Drain::atomic`]), on
//!   a schedule ([`Drain::partition`]), or by hand ([`Drain::shard`]).
//!
//! What holds, whoever dies when:
//!
//! * A message is delivered at least once after its transaction commits, and never if it does not.
//!   Receivers must be idempotent.
//! * The messages of a shard are handled one after another, by one drain at a time.
//! * Of messages with equal scope, shard, category and object only the newest is handled. Only those
//!   go with it that were there when it was chosen: an id that commits late is delivered after all.
//! * A message that fails holds up its shard, and no other: the shard is put off, twice as long each
//!   time, between two seconds and an hour.
//! * Errors and logs say which message it was, never what was in it.

mod backfill;
pub mod category;
mod cells;
pub mod diagnostics;
mod drain;
mod message;
mod model;
mod options;
mod receivers;
mod replicated;
mod retarget;
pub mod runner;
pub mod sentry;
mod server_error;
mod silo;
mod table;
pub mod testing;
mod tombstone;
mod write;

pub use backfill::{BACKFILLS_PER_MINUTE, BackfillError, Backfilled, Backfills, Watermark};
pub use category::{CategoryDef, Registry, RegistryError, ScopeDef};
pub use cells::{CellDirectory, InferTargets, MappingTables, NoCells, Targets};
pub use drain::{
    AtomicError, Committed, DeliveryError, Drain, DrainError, DrainSettings, Partition, Report,
    StartError, Undelivered,
};
pub use message::{CellOutbox, ControlOutbox, Message, Outbox, Shard};
pub use model::{Ids, Model, Sequence, Snowflake, find};
pub use options::{FixedOptions, OptionError, OptionTable, Options};
pub use receivers::{BoxError, Delivery, Receiver, Receivers};
pub use replicated::{Replicated, infer_shard_column};
pub use server_error::ServerError;
pub use silo::{BadCellName, Cell, CellName, Control, Here, Silo, Target};
pub use table::{Table, TableError, TableName};
pub use tombstone::{
    Cascade, CascadeError, LookBack, OnDelete, Tombstone, TombstoneService, TombstoneTable,
    maybe_process_tombstone,
};
pub use write::{Touched, WriteError, Writer};

// What `model!` names, so that an application need not.
#[doc(hidden)]
pub use tokio_postgres::{Error as PgError, Row, types::ToSql};
