//! Applies the source's changes to the sink, one store of one move, for as long as the move lasts.
//!
//! The way of a changed row, from the log to the sink:
//!
//! 1. `mover` reads the replication stream and answers the walsender;
//! 2. `assemble` keeps the frames of each transaction, in memory or in a file (`spool`), until its
//!    commit has come;
//! 3. `apply` reads them, once to learn what becomes of dynamic parents (`foresight`, `membership`)
//!    and once to write (`writer`): each frame is decoded (`event`), what is known of its scope is
//!    found (`change`), the `decision` table says what to do, and `statement` says how; where
//!    nobody can tell the difference, rows of a table are written `together`, `many` by one statement;
//! 4. where something enters of which the log does not hold all, `stretch` fetches the rest
//!    (`primary`, `fetch`) at a known position;
//! 5. the sink transaction moves the unit's position with its last statement; once it is durable,
//!    the mover acknowledges it.
//!
//! Who wants to compare both sides meanwhile asks the mover for an [`Alignment`].
//!
//! After the seal nothing is written any more: [`read_tail`] reads what is left and counts it.

mod alignment;
mod apply;
mod assemble;
mod change;
mod decision;
mod early;
mod error;
mod event;
mod fetch;
mod flush;
mod foresight;
mod id_set;
mod intake;
mod many;
mod mark;
mod membership;
mod mover;
mod pace;
mod pipeline;
mod primary;
mod seal;
mod spool;
mod start;
mod statement;
mod stretch;
mod suited;
mod tables;
mod tail;
mod together;
mod writer;
mod xids;

use std::sync::Arc;

use monarch_config::Graph;
use monarch_model::{Epoch, Lsn, names};

pub use alignment::{Aligned, Alignment, await_snapshot};
pub use decision::{
    Action, After, Before, ChildEdges, Missing, Operation, Reason, Role, Row, Standing, Telling,
    decide, is, was,
};
pub use error::{Finding, SlotFault, StartOver, StreamError};
pub use id_set::{IdSet, KeyKind};
pub use mover::run;
pub use seal::seal;
pub use spool::{Recorder, Recording, Replay, Spool};
pub use start::identify;
pub use tail::{Tail, read_tail};

use crate::keys::KeyRecorder;
use crate::sink::{Barrier, LastChange};
use crate::spine::Spine;
use crate::{ConnectOptions, Unit};

/// What is streamed, from where, to where, and under whose name.
#[derive(Debug, Clone)]
pub struct Job {
    /// The unit.
    pub unit: Unit,
    /// The mover's epoch.
    pub epoch: Epoch,
    /// Which tables move.
    pub graph: Arc<Graph>,
    /// The ids that were recorded when the move was registered.
    pub spine: Arc<Spine>,
    /// Where the slot is: the source's primary or a standby of it.
    pub source: ConnectOptions,
    /// The source's primary, where rows are fetched that the log does not hold.
    pub primary: ConnectOptions,
    /// The sink.
    pub sink: ConnectOptions,
    /// The slot; its name carries the epoch of the mover that made it.
    pub slot: String,
    /// The furthest position that the ledger has seen acknowledged.
    pub acknowledged: Option<Lsn>,
    /// Which server the sink was when the copy was complete, if it was recorded.
    pub sink_identity: Option<SinkIdentity>,
    /// Where transactions are held until they are whole.
    pub spool: Spool,
    /// Where the keys go that rows name.
    pub keys: Arc<dyn KeyRecorder>,
    /// How rows share statements.
    pub batching: Batching,
}

/// How rows share statements. The outcome is the same; all but the default is for tests, which show
/// that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// Where it pays, as many as are allowed.
    #[default]
    AsPays,
    /// Each is written by a statement of its own.
    Off,
    /// Always, even a single one, and few, how many as the seed has it.
    Random(u64),
}

impl Job {
    fn publications(&self) -> [String; 2] {
        let prefix = self.unit.prefix();
        [
            names::insert_publication(&prefix),
            names::mutation_publication(&prefix),
        ]
    }
}

/// Which server a sink is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkIdentity {
    /// Made when its cluster was; equal on its physical standbys.
    pub system_identifier: i64,
    /// Grows by one with each promotion. A sink that was promoted is built upon if it lacks nothing
    /// that was acknowledged.
    pub timeline: i32,
}

/// Hears how far a stream is. What it hears becomes the heartbeat and the ledger's record.
pub trait Observer: Send {
    /// Called by the loop that moves the changes, at most ten times a second and only when
    /// something moved or the source answered: silence means that neither does.
    fn observe(&mut self, report: &Report);
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// What has been read from the source.
    pub received: Lsn,
    /// What has been applied, or found to be nothing of the organization's.
    pub applied: Lsn,
    /// What is durable on the sink, with the unit's position: the source need not keep it.
    pub acknowledged: Lsn,
    /// The end of the source's log as its walsender last said.
    pub source_head: Lsn,
    /// The last change of the organization that was applied, by this mover or one before.
    pub last_change: Option<LastChange>,
    /// The last barrier that was met, by this mover or one before: all before it is durable on the
    /// sink.
    pub barrier: Option<Barrier>,
    /// Rows written or deleted on the sink since the mover began.
    pub changes: u64,
    /// Source transactions read to their end since the mover began.
    pub transactions: u64,
    /// How often rows that the log does not hold were fetched since the mover began.
    pub fetches: u64,
    /// Changes of rows read since the mover began, other tenants' among them. It moves within a
    /// long transaction too.
    pub rows_read: u64,
    /// Replies of the walsender since the mover began: shows that the source answers although
    /// nothing changes. On an idle source it grows about once a second.
    pub keepalives: u64,
    /// The sink that the mover builds upon: it lacked nothing when the mover began. To be expected
    /// from then on, or the promotion of a failover that did no harm would explain away whatever
    /// comes later.
    pub sink: Option<SinkIdentity>,
}
