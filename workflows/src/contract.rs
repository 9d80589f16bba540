//! The activities of a move: their names in history, what they take and what they give.
//!
//! History keeps ids, positions, counts and digests only: no row value and no DSN may appear in any
//! type of this module. Each activity may run twice, die at any line and run again elsewhere, with
//! the same result.
//!
//! An activity that refuses in the ordinary course (a unit is not ready, a writer is in the way)
//! *returns* that; it *fails* only where the move cannot go on as it is. A failure that must not be
//! retried carries one of the names in [`failure`].

mod api;

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_model::{CellName, Lsn, MoveId, OrgId, Phase, StoreName, TableName, UnitStatus};
use serde::{Deserialize, Serialize};

/// Names of the failures that end an activity for good.
pub mod failure {
    /// Not final: another try may do it.
    pub const RETRIED: &str = "retried";
    /// The configuration or the start input cannot be used.
    pub const BAD_INPUT: &str = "bad-input";
    /// Preflight found what forbids the move; the findings are in the message.
    pub const PREFLIGHT_REFUSED: &str = "preflight-refused";
    /// The move that was to be adopted is driven still, by the workflow in the message.
    pub const STILL_DRIVEN: &str = "still-driven";
    /// Another move is live; its id is in the message.
    pub const LIVE_MOVE: &str = "live-move";
    /// The unit must be copied again from a new slot: its sink went back, or its copy was cut off.
    pub const START_OVER: &str = "start-over";
    /// Eviction found what must not be deleted, or a slot that still lives.
    pub const EVICTION_REFUSED: &str = "eviction-refused";
    /// The drain did not succeed and the organization writes on the source again.
    pub const NOT_DRAINED: &str = "not-drained";
    /// The move was given up.
    pub const ABORTED: &str = "aborted";
    /// A finding that ends the move before its flip; the finding's own code leads the message.
    pub const FATAL: &str = "fatal";
}

/// One move.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MoveRef {
    /// The move.
    pub move_id: MoveId,
}

/// One unit of a move.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitRef {
    /// The move.
    pub move_id: MoveId,
    /// The unit's store.
    pub store: StoreName,
}

/// A move and why something is done to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Because {
    /// The move.
    pub move_id: MoveId,
    /// A short name of the reason, from [`failure`] or a finding.
    pub code: String,
    /// The reason in words, for the ledger and the page.
    pub reason: String,
}

/// What preflight looks at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PreflightInput {
    /// The organization as the caller wrote it.
    pub org: OrgId,
    /// The cell it leaves; `from` of the fleet where absent.
    pub from: Option<CellName>,
    /// The cell it goes to; `to` of the fleet where absent.
    pub to: Option<CellName>,
    /// The tables whose disagreeing edges the caller accepts by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_disagreeing_edges: Vec<TableName>,
}

/// What preflight found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PreflightOutput {
    /// The cell it leaves.
    pub from: CellName,
    /// The cell it goes to.
    pub to: CellName,
    /// Whether the fleet names a control plane that fences and flips by machine.
    pub can_fence: bool,
    /// Each finding that forbids the move, in one line.
    pub refusals: Vec<String>,
    /// How many findings only warn.
    pub warnings: u32,
}

/// What becomes a row of the ledger.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterInput {
    /// The id that the workflow drew: registering twice is registering once.
    pub move_id: MoveId,
    /// The organization as the caller wrote it.
    pub org: OrgId,
    /// The cell it leaves.
    pub from: CellName,
    /// The cell it goes to.
    pub to: CellName,
    /// The workflow that drives the move.
    pub workflow_id: String,
    /// Its run.
    pub run_id: String,
    /// The options of the start input, for the record.
    pub options: serde_json::Value,
}

/// The registered move.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterOutput {
    /// The organization in the text form that its key's type prints.
    pub org: OrgId,
    /// The units, in the order in which eviction deletes: stores whose rows others refer to last.
    pub units: Vec<StoreName>,
    /// The units of objects.
    #[serde(default)]
    pub blobs: Vec<StoreName>,
    /// SHA-256 of the static spine's ids.
    pub spine_digest: String,
    /// How many ids the static spine has.
    pub spine_ids: u64,
}

/// A registered move whose workflow is gone, and the one that carries it on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdoptInput {
    /// The move.
    pub move_id: MoveId,
    /// The organization as the caller wrote it: a move of another one is not adopted.
    pub org: OrgId,
    /// The workflow that drives it from now on.
    pub workflow_id: String,
    /// Its run.
    pub run_id: String,
}

/// Where an adopted move stands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdoptOutput {
    /// The organization.
    pub org: OrgId,
    /// The cell it leaves.
    pub from: CellName,
    /// The cell it goes to.
    pub to: CellName,
    /// The move's phase.
    pub phase: Phase,
    /// Whether its movers were paused.
    #[serde(default)]
    pub paused: bool,
    /// The units, in the order in which eviction deletes, and where each stands.
    pub units: Vec<(StoreName, UnitStatus)>,
    /// The units of objects, and where each stands.
    #[serde(default)]
    pub blobs: Vec<(StoreName, UnitStatus)>,
    /// The attempt to cut over that is under way, or was the last.
    pub last_drain: Option<DrainRef>,
    /// From the fence to the flip, if it flipped.
    pub write_pause: Option<Duration>,
    /// Why it failed or is given up: a code and words.
    pub reason: Option<(String, String)>,
}

/// What a snapshot copied.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotOutput {
    /// Where snapshot and stream meet.
    pub consistent_point: Lsn,
    /// Rows copied.
    pub rows: u64,
    /// Bytes relayed.
    pub bytes: u64,
}

/// Where a stream stood when its unit was sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamOutput {
    /// The source position up to which everything in scope is on the sink.
    pub position: Lsn,
}

/// Whose workers are looked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RollCallInput {
    /// The task queues of a move.
    pub queues: Vec<String>,
    /// Those of them that no worker serves, as far as the caller knows.
    pub unserved: Vec<String>,
}

/// Who was missing at a roll call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RollCallOutput {
    /// The queues that no worker serves, in the order in which they were asked for.
    pub unserved: Vec<String>,
}

/// Why and how a readiness check is made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadinessInput {
    /// The move.
    pub move_id: MoveId,
    /// The operator's word that the organization's writes are stopped.
    pub writes_stopped: bool,
}

/// Whether a cut-over may begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadinessOutput {
    /// How many transitions the ledger had made of the move when it was looked at.
    pub step: i64,
    /// Every reason why not; empty when it may.
    pub refusals: Vec<String>,
}

/// One attempt to cut over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DrainRef {
    /// The move.
    pub move_id: MoveId,
    /// Counts from 1; each attempt has a token of its own in the control plane.
    pub attempt: u32,
    /// The ledger's count of transitions at the readiness check: a fence that arrives after the
    /// move has gone on is refused.
    pub step: i64,
    /// The operator's word that the organization's writes are stopped and that the routing will
    /// follow; without it the fleet's `control` does both.
    pub writes_stopped: bool,
}

/// The organization's writes are stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FenceOutput {
    /// Whether the fence holds, read back; else the reasons.
    pub refusals: Vec<String>,
}

/// What one look at the drain waits for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DrainInput {
    /// The attempt.
    pub drain: DrainRef,
    /// How long to wait for writers and units before the blockers are returned.
    pub within: Duration,
}

/// How far the drain is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DrainOutput {
    /// Who or what is in the way, by name; empty when every unit has applied its barrier.
    pub blockers: Vec<String>,
    /// The barrier of each unit.
    pub barriers: BTreeMap<StoreName, Lsn>,
}

/// What the comparison of both sides says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VerifyOutput {
    /// Tables compared.
    pub tables: u64,
    /// Rows compared.
    pub rows: u64,
    /// SHA-256 over the digests of all tables.
    pub digest: String,
    /// Each table that differs, with both counts; empty when all agree.
    pub differences: Vec<String>,
}

/// Whether every unit is read-only now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SealOutput {
    /// Stores with a change behind their barrier: nothing is sealed and the drain goes on.
    pub reopened: Vec<StoreName>,
}

/// Where the routing points after a flip was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlipOutput {
    /// From the fence to the read-back of the flip, when it flipped.
    pub write_pause: Option<Duration>,
    /// Why the control plane refused; empty when it flipped.
    pub refusals: Vec<String>,
}

/// What a slot still held behind the barrier when it was read to its head.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TailOutput {
    /// In-scope changes by table; any of them forbids eviction.
    pub late_changes: BTreeMap<String, u64>,
    /// Why the tail could not be read (a lost slot); forbids eviction as well.
    pub unread: Option<String>,
}

/// What eviction may overlook.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BeginEvictInput {
    /// The move.
    pub move_id: MoveId,
    /// The operator's word that the late changes were carried over by hand.
    pub accept_late_changes: bool,
    /// The operator's word that newer row versions on the source were looked at, up to now.
    #[serde(default)]
    pub accept_newer_rows: bool,
    /// When the workflow took the request, in milliseconds since 1970. It tells requests apart: the
    /// same word is not taken twice.
    #[serde(default)]
    pub asked_at: u64,
}

/// Whether eviction may begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BeginEvictOutput {
    /// Every reason why not; empty when it may.
    pub refusals: Vec<String>,
}

/// What was deleted from the losing side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EvictOutput {
    /// Rows deleted, or objects.
    pub rows: u64,
}

/// What the sweep looks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SweepInput {
    /// Where Temporal cannot be asked, a move whose movers said nothing for so long is ended.
    pub silent_for: Duration,
    /// A live move is ended once its workflow has not run for so long.
    #[serde(default = "sweep_closed_for")]
    pub closed_for: Duration,
}

/// How long a live move is left alone after its workflow has ended: whoever terminates a workflow
/// to put another in its place needs the time to.
pub const SWEEP_CLOSED_FOR: Duration = Duration::from_secs(600);

/// For schedules that were made before it was asked for.
fn sweep_closed_for() -> Duration {
    SWEEP_CLOSED_FOR
}

/// What the sweep ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SweepOutput {
    /// Moves that were ended or need a person, with what was done.
    pub swept: Vec<String>,
    /// Moves whose workflow has ended so lately that they are left alone for now.
    #[serde(default)]
    pub waiting: Vec<String>,
    /// Moves that could not be ended, with why.
    #[serde(default)]
    pub not_ended: Vec<String>,
}

/// Which outboxes are drained, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OutboxInput {
    /// Parts that the range of ids is cut into.
    pub partitions: u32,
    /// The cell whose outboxes they are; without one, control's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellName>,
}

/// One outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxPlace {
    /// Monarch's own in the control database: changes of the routing.
    #[default]
    Routing,
    /// The application's in the control database.
    Control,
    /// The application's in a database of a cell.
    Cell {
        /// The cell.
        cell: CellName,
        /// Which of its databases, from 0.
        database: usize,
    },
}

/// A part of the range of ids, both ends included.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OutboxPart {
    /// The lowest id.
    pub low: i64,
    /// The highest id.
    pub high: i64,
    /// Of which outbox.
    #[serde(default)]
    pub place: OutboxPlace,
}

/// The parts of outboxes; none of one that is empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OutboxParts {
    /// Of each outbox in the order of their ids.
    pub partitions: Vec<OutboxPart>,
}

/// What was drained.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OutboxDrained {
    /// Messages delivered.
    pub delivered: u64,
    /// Older messages that went with them.
    pub coalesced: u64,
    /// Shards in which another drain was at work.
    pub busy: u64,
    /// Messages that could not be delivered; their shards wait, each twice as long every time.
    pub failed: u64,
}

impl OutboxDrained {
    /// Adds another part's.
    pub fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.coalesced += other.coalesced;
        self.busy += other.busy;
        self.failed += other.failed;
    }
}

pub use api::MoveApi;
pub use api::marker;
