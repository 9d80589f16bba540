//! The table of what a worker hosts: each activity of the contract, and whether it may fail for
//! good.

// The macro makes constants that it does not document.
#![allow(missing_docs)]

use std::sync::Arc;

use monarch_workflows::contract::{
    AdoptInput, AdoptOutput, Because, BeginEvictInput, BeginEvictOutput, DrainInput, DrainOutput,
    DrainRef, EvictOutput, FenceOutput, FlipOutput, MoveRef, OutboxDrained, OutboxInput,
    OutboxPart, OutboxParts, PreflightInput, PreflightOutput, ReadinessInput, ReadinessOutput,
    RegisterInput, RegisterOutput, RollCallInput, RollCallOutput, SealOutput, SnapshotOutput,
    StreamOutput, SweepInput, SweepOutput, TailOutput, UnitRef, VerifyOutput, marker,
};
use temporalio_macros::activities;
use temporalio_sdk::activities::{ActivityContext, ActivityError};

use crate::failure::Stance::{MayFail, MustEnd};
use crate::vitals::{attend, attend_unit};
use crate::world::World;
use crate::{
    adopt, blobs, close_tail, drain, ending, evict, fence, flip, hold, outbox, preflight,
    readiness, register, roll_call, scrub, seal, snapshot, stream, sweep, verify,
};

/// The activities that steer a move.
pub struct Steering(pub Arc<World>);

/// The activities that move, delete and drop.
pub struct Movers(pub Arc<World>);

#[activities]
impl Steering {
    #[activity(definition = marker::Preflight)]
    pub async fn preflight(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: PreflightInput,
    ) -> Result<PreflightOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            preflight::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Register)]
    pub async fn register(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: RegisterInput,
    ) -> Result<RegisterOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            register::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Adopt)]
    pub async fn adopt(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: AdoptInput,
    ) -> Result<AdoptOutput, ActivityError> {
        let workflows = sweep::Temporal::new(ctx.client());
        attend(&ctx, MayFail, async |vitals| {
            vitals
                .during(
                    "the move's own workflow to be asked for",
                    adopt::run(&self.0, &workflows, input),
                )
                .await
        })
        .await
    }

    #[activity(definition = marker::Readiness)]
    pub async fn readiness(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: ReadinessInput,
    ) -> Result<ReadinessOutput, ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            readiness::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::RollCall)]
    pub async fn roll_call(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: RollCallInput,
    ) -> Result<RollCallOutput, ActivityError> {
        let client = ctx.client();
        attend(&ctx, MustEnd, async |vitals| {
            roll_call::run(client, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Fence)]
    pub async fn fence(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: DrainRef,
    ) -> Result<FenceOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            fence::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Drain)]
    pub async fn drain(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: DrainInput,
    ) -> Result<DrainOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            drain::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Verify)]
    pub async fn verify(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: MoveRef,
    ) -> Result<VerifyOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            verify::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Seal)]
    pub async fn seal(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: DrainRef,
    ) -> Result<SealOutput, ActivityError> {
        attend(&ctx, MayFail, async |vitals| {
            seal::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Reopen)]
    pub async fn reopen(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: Because,
    ) -> Result<(), ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            fence::reopen(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Flip)]
    pub async fn flip(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: DrainRef,
    ) -> Result<FlipOutput, ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            flip::run(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::BeginEvict)]
    pub async fn begin_evict(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: BeginEvictInput,
    ) -> Result<BeginEvictOutput, ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            evict::begin(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Finalize)]
    pub async fn finalize(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: MoveRef,
    ) -> Result<(), ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            ending::finalize(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Fail)]
    pub async fn fail(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: Because,
    ) -> Result<(), ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            ending::fail(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::BeginAbort)]
    pub async fn begin_abort(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: Because,
    ) -> Result<(), ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            ending::begin_abort(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::ConcludeAbort)]
    pub async fn conclude_abort(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: MoveRef,
    ) -> Result<(), ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            ending::conclude_abort(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::OutboxPartitions)]
    pub async fn outbox_partitions(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: OutboxInput,
    ) -> Result<OutboxParts, ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            outbox::partitions(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::OutboxPartition)]
    pub async fn outbox_partition(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: OutboxPart,
    ) -> Result<OutboxDrained, ActivityError> {
        attend(&ctx, MustEnd, async |vitals| {
            outbox::partition(&self.0, vitals, input).await
        })
        .await
    }

    #[activity(definition = marker::Sweep)]
    pub async fn sweep(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: SweepInput,
    ) -> Result<SweepOutput, ActivityError> {
        let workflows = sweep::Temporal::new(ctx.client());
        attend(&ctx, MustEnd, async |vitals| {
            let sweep = Box::pin(sweep::run(&self.0, &workflows, input));
            vitals
                .during("moves that nobody drives", async { Ok(sweep.await?) })
                .await
        })
        .await
    }
}

#[activities]
impl Movers {
    #[activity(definition = marker::Snapshot)]
    pub async fn snapshot(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<SnapshotOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MayFail, input, async |vitals, unit| {
            snapshot::run(&self.0, vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::Stream)]
    pub async fn stream(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<StreamOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MayFail, input, async |vitals, unit| {
            Box::pin(stream::run(&self.0, vitals, unit)).await
        })
        .await
    }

    #[activity(definition = marker::Hold)]
    pub async fn hold(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<(), ActivityError> {
        attend_unit(&self.0, &ctx, MayFail, input, async |vitals, unit| {
            hold::run(&self.0, vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::CopyObjects)]
    pub async fn copy_objects(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<(), ActivityError> {
        attend_unit(&self.0, &ctx, MayFail, input, async |vitals, unit| {
            blobs::run(Arc::clone(&self.0), vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::EvictObjects)]
    pub async fn evict_objects(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<EvictOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            blobs::evict(Arc::clone(&self.0), vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::ScrubObjects)]
    pub async fn scrub_objects(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<EvictOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            blobs::scrub(Arc::clone(&self.0), vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::CloseTail)]
    pub async fn close_tail(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<TailOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            close_tail::run(&self.0, vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::Evict)]
    pub async fn evict(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<EvictOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            evict::run(&self.0, vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::DropSlots)]
    pub async fn drop_slots(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<(), ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            scrub::drop_slots(&self.0, vitals, unit).await
        })
        .await
    }

    #[activity(definition = marker::Scrub)]
    pub async fn scrub(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: UnitRef,
    ) -> Result<EvictOutput, ActivityError> {
        attend_unit(&self.0, &ctx, MustEnd, input, async |vitals, unit| {
            scrub::run(&self.0, vitals, unit).await
        })
        .await
    }
}
