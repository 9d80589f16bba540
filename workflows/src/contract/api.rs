//! The table of activities. The macro makes constants without docs and wants these very bodies,
//! hence the exceptions to the lints, for this file alone.
#![allow(clippy::unimplemented, missing_docs, unused_variables)]

use temporalio_macros::activity_definitions;
use temporalio_workflow::common::ActivityError;

use super::*;

/// The activities. Bodies are never run: the macro takes names and types from them.
pub struct MoveApi;

#[activity_definitions]
impl MoveApi {
    /// Looks at every database of the move and changes nothing.
    #[activity(name = "preflight")]
    pub fn preflight(input: PreflightInput) -> Result<PreflightOutput, ActivityError> {
        unimplemented!()
    }

    /// Reads the static spine and writes the move and its units: the lease.
    #[activity(name = "register")]
    pub fn register(input: RegisterInput) -> Result<RegisterOutput, ActivityError> {
        unimplemented!()
    }

    /// Puts another workflow in the place of one that is gone.
    #[activity(name = "adopt")]
    pub fn adopt(input: AdoptInput) -> Result<AdoptOutput, ActivityError> {
        unimplemented!()
    }

    /// Publications, a slot with its exported snapshot, and the copy of all rows seen in it.
    #[activity(name = "snapshot")]
    pub fn snapshot(input: UnitRef) -> Result<SnapshotOutput, ActivityError> {
        unimplemented!()
    }

    /// Applies changes until its unit is sealed; only then does it complete.
    #[activity(name = "stream")]
    pub fn stream(input: UnitRef) -> Result<StreamOutput, ActivityError> {
        unimplemented!()
    }

    /// Copies objects that rows name for as long as the move lasts; never completes.
    #[activity(name = "copy_objects")]
    pub fn copy_objects(input: UnitRef) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Looks at a move's queues until others are without a worker than the caller knows of.
    #[activity(name = "roll_call")]
    pub fn roll_call(input: RollCallInput) -> Result<RollCallOutput, ActivityError> {
        unimplemented!()
    }

    /// Watches the slot of a paused unit; fails when what it keeps of the log outgrows its budget.
    #[activity(name = "hold")]
    pub fn hold(input: UnitRef) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Looks at ledger and cells and says why a cut-over may not begin.
    #[activity(name = "readiness")]
    pub fn readiness(input: ReadinessInput) -> Result<ReadinessOutput, ActivityError> {
        unimplemented!()
    }

    /// `active → draining`, and the organization's writes stop.
    #[activity(name = "fence")]
    pub fn fence(input: DrainRef) -> Result<FenceOutput, ActivityError> {
        unimplemented!()
    }

    /// Waits for open writers, writes the barriers, waits until they are applied.
    #[activity(name = "drain")]
    pub fn drain(input: DrainInput) -> Result<DrainOutput, ActivityError> {
        unimplemented!()
    }

    /// Compares the organization's rows on both sides, table by table.
    #[activity(name = "verify")]
    pub fn verify(input: MoveRef) -> Result<VerifyOutput, ActivityError> {
        unimplemented!()
    }

    /// Makes every unit read-only for good, or none.
    #[activity(name = "seal")]
    pub fn seal(input: DrainRef) -> Result<SealOutput, ActivityError> {
        unimplemented!()
    }

    /// Lifts the fence, its token revoked first, and goes back to `active`.
    #[activity(name = "reopen")]
    pub fn reopen(input: Because) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// `draining → flipping`, the routing changes, is read back, `cut_over`.
    #[activity(name = "flip")]
    pub fn flip(input: DrainRef) -> Result<FlipOutput, ActivityError> {
        unimplemented!()
    }

    /// Reads a sealed unit's slot to its head, records what it held, and drops it.
    #[activity(name = "close_tail")]
    pub fn close_tail(input: UnitRef) -> Result<TailOutput, ActivityError> {
        unimplemented!()
    }

    /// `cut_over → evicting`, if nothing forbids it.
    #[activity(name = "begin_evict")]
    pub fn begin_evict(input: BeginEvictInput) -> Result<BeginEvictOutput, ActivityError> {
        unimplemented!()
    }

    /// Deletes the organization's rows of one store from the source.
    #[activity(name = "evict")]
    pub fn evict(input: UnitRef) -> Result<EvictOutput, ActivityError> {
        unimplemented!()
    }

    /// Deletes the organization's objects of one blob store from the source, if it says so.
    #[activity(name = "evict_objects")]
    pub fn evict_objects(input: UnitRef) -> Result<EvictOutput, ActivityError> {
        unimplemented!()
    }

    /// Removes the move's own rows from the sink and ends it: `evicting → finalized`.
    #[activity(name = "finalize")]
    pub fn finalize(input: MoveRef) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Records a fatal finding (`failed`) and lifts the fence.
    #[activity(name = "fail")]
    pub fn fail(input: Because) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Begins to give the move up (`aborting`) and lifts the fence.
    #[activity(name = "begin_abort")]
    pub fn begin_abort(input: Because) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Drops a unit's slots and publications on the source and looks for them in vain.
    #[activity(name = "drop_slots")]
    pub fn drop_slots(input: UnitRef) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Deletes the organization's rows of one store from the sink.
    #[activity(name = "scrub")]
    pub fn scrub(input: UnitRef) -> Result<EvictOutput, ActivityError> {
        unimplemented!()
    }

    /// Takes back from the sink the objects of one blob store that the move put there.
    #[activity(name = "scrub_objects")]
    pub fn scrub_objects(input: UnitRef) -> Result<EvictOutput, ActivityError> {
        unimplemented!()
    }

    /// `aborting → aborted`.
    #[activity(name = "conclude_abort")]
    pub fn conclude_abort(input: MoveRef) -> Result<(), ActivityError> {
        unimplemented!()
    }

    /// Cuts the range of ids of each outbox into parts.
    #[activity(name = "outbox_partitions")]
    pub fn outbox_partitions(input: OutboxInput) -> Result<OutboxParts, ActivityError> {
        unimplemented!()
    }

    /// Delivers what is due in one part.
    #[activity(name = "outbox_partition")]
    pub fn outbox_partition(input: OutboxPart) -> Result<OutboxDrained, ActivityError> {
        unimplemented!()
    }

    /// Ends moves that nobody drives any more.
    #[activity(name = "sweep")]
    pub fn sweep(input: SweepInput) -> Result<SweepOutput, ActivityError> {
        unimplemented!()
    }
}

/// Markers: an implementation names the activity it implements by one of these.
pub mod marker {
    pub use super::move_api::{
        Adopt, BeginAbort, BeginEvict, CloseTail, ConcludeAbort, CopyObjects, Drain, DropSlots,
        Evict, EvictObjects, Fail, Fence, Finalize, Flip, Hold, OutboxPartition, OutboxPartitions,
        Preflight, Readiness, Register, Reopen, RollCall, Scrub, ScrubObjects, Seal, Snapshot,
        Stream, Sweep, Verify,
    };
}
