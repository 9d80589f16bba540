//! Delivers, on a schedule, what stands in the outbox of the routing. Any number of workers may do it
//! side by side: drains give way to each other shard by shard.

use monarch_config::Control;
use monarch_outbox::{Partition, Report};
use monarch_workflows::contract::{OutboxDrained, OutboxInput, OutboxPart, OutboxParts};

use crate::control::ControlError;
use crate::failure::Fault;
use crate::routing;
use crate::vitals::Vitals;
use crate::world::World;

/// The outbox's range of ids, cut; nothing where it is empty, or where there is none.
pub(crate) async fn partitions(
    world: &World,
    vitals: Vitals,
    input: OutboxInput,
) -> Result<OutboxParts, Fault> {
    let fleet = &world.config.fleet;
    let Some(Control::Database(dsn)) = &fleet.control else {
        return Ok(OutboxParts::default());
    };
    let look = async {
        let session = routing::session(dsn).await?;
        let drain = routing::drain(fleet).map_err(ControlError::from)?;
        drain.gauge(&session).await.map_err(failed)?;
        let parts = drain.partitions(&session, input.partitions).await;
        Ok(parts.map_err(failed)?)
    };
    let parts = vitals.during("the outbox's range of ids", look).await?;
    Ok(OutboxParts {
        partitions: parts
            .into_iter()
            .map(|Partition { low, high }| OutboxPart { low, high })
            .collect(),
    })
}

/// Delivers what is due in one part.
pub(crate) async fn partition(
    world: &World,
    vitals: Vitals,
    OutboxPart { low, high }: OutboxPart,
) -> Result<OutboxDrained, Fault> {
    let fleet = &world.config.fleet;
    let Some(Control::Database(dsn)) = &fleet.control else {
        return Ok(OutboxDrained::default());
    };
    let drained = async {
        let mut session = routing::session(dsn).await?;
        let drain = routing::drain(fleet).map_err(ControlError::from)?;
        let report = drain.partition(&mut session, Partition { low, high }).await;
        Ok(report.map_err(failed)?)
    };
    let Report {
        delivered,
        coalesced,
        busy,
        failed,
        ..
    } = vitals.during("the outbox to be drained", drained).await?;
    Ok(OutboxDrained {
        delivered,
        coalesced,
        busy,
        failed,
    })
}

fn failed(error: monarch_outbox::DrainError) -> ControlError {
    ControlError::Outbox(monarch_model::chain(&error))
}
