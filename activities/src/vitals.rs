//! An activity's signs of life, and its ear for being told to stop.
//!
//! Where work has a loop of its own, that loop reports what moved ([`Vitals::beat`]). Where a
//! server is asked for something that takes a while (a slot, a digest, a lock), the wait itself is
//! named and reported ([`Vitals::during`]): a named wait is bounded by the timeouts of its session.

use std::pin::Pin;
use std::time::Duration;

use monarch_workflows::contract::UnitRef;
use serde::Serialize;
use temporalio_sdk::activities::{ActivityContext, ActivityError};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::failure::{Fault, Stance};
use crate::world::World;

/// Between two reports of a named wait. Temporal takes no more than one in 0.8 of the heartbeat
/// timeout; the timeout is at least two seconds.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// How long work that cleans up after itself may take to do so once it is told to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(90);

/// The activity's line to Temporal.
#[derive(Clone)]
pub(crate) struct Vitals {
    ctx: ActivityContext,
}

/// What is being waited for.
#[derive(Serialize)]
struct Waiting {
    waiting_for: &'static str,
}

impl Vitals {
    pub(crate) fn of(ctx: &ActivityContext) -> Self {
        Self { ctx: ctx.clone() }
    }

    /// Reports what moved.
    pub(crate) async fn beat<T: Serialize + Send + Sync + 'static>(&self, what: T) {
        // A heartbeat that does not serialize would be a fault of ours; the timeout tells.
        let _ = self.ctx.record_heartbeat(what).await;
    }

    /// Reports what is being waited for.
    pub(crate) async fn waiting_for(&self, waiting_for: &'static str) {
        self.beat(Waiting { waiting_for }).await;
    }

    /// Resolves when the activity is to stop.
    pub(crate) async fn told_to_stop(&self) {
        self.ctx.cancelled().await;
    }

    /// Does `work` while reporting that it is being waited for; drops it when told to stop.
    pub(crate) async fn during<T>(
        &self,
        waiting_for: &'static str,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = self.reporting(waiting_for, work) => done,
            () = self.told_to_stop() => Err(Fault::Cancelled),
        }
    }

    /// The same for work that would leave something on a server if it were dropped: when told to
    /// stop it cancels `cancel`, and waits, within bounds, until the work has cleaned up and ends.
    pub(crate) async fn during_to_its_end<T>(
        &self,
        waiting_for: &'static str,
        cancel: &CancellationToken,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = self.reporting(waiting_for, work.as_mut()) => return done,
            () = self.told_to_stop() => cancel.cancel(),
        }
        timeout(STOPPED_WITHIN, self.reporting(waiting_for, work))
            .await
            .unwrap_or(Err(Fault::Cancelled))
    }

    async fn reporting<T>(
        &self,
        waiting_for: &'static str,
        mut work: Pin<&mut impl Future<Output = Result<T, Fault>>>,
    ) -> Result<T, Fault> {
        let mut tick = interval(BEAT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = tick.tick() => self.waiting_for(waiting_for).await,
            }
        }
    }
}

/// Runs an activity's work and turns its fault into Temporal's failure, which the worker logs.
pub(crate) async fn attend<T>(
    ctx: &ActivityContext,
    stance: Stance,
    work: impl AsyncFnOnce(Vitals) -> Result<T, Fault>,
) -> Result<T, ActivityError> {
    Box::pin(work(Vitals::of(ctx)))
        .await
        .map_err(|fault| fault.into_activity_error(stance))
}

/// The same for the work of one unit, whose faults are left in the ledger too, where status shows
/// them: nobody should have to look for a blocker in a log.
pub(crate) async fn attend_unit<T>(
    world: &World,
    ctx: &ActivityContext,
    stance: Stance,
    unit: UnitRef,
    work: impl AsyncFnOnce(Vitals, UnitRef) -> Result<T, Fault>,
) -> Result<T, ActivityError> {
    attend(ctx, stance, async |vitals| {
        let done = work(vitals, unit.clone()).await;
        if let Err(fault) = &done {
            note(world, &unit, fault).await;
        }
        done
    })
    .await
}

async fn note(world: &World, unit: &UnitRef, fault: &Fault) {
    if matches!(fault, Fault::Cancelled | Fault::Superseded(_)) {
        return;
    }
    let (id, store, ledger) = (unit.move_id, &unit.store, &world.ledger);
    let recorded = async {
        let epoch = ledger.unit(id, store).await?.epoch;
        ledger
            .record_error(id, store, epoch, fault.code(), &fault.story())
            .await
    };
    if let Err(error) = recorded.await {
        tracing::warn!(%store, error = %error, "an error was not recorded");
    }
}
