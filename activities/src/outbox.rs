//! Delivers, on a schedule, what stands in the outboxes of control or of a cell. Any number of workers
//! may do it side by side: drains give way to each other shard by shard.

use std::time::Duration;

use monarch_config::{Control as ControlPlane, Dsn, Fleet};
use monarch_model::{CellName, chain};
use monarch_outbox::{Cell, Control, Drain, DrainError, Partition, Report, Silo};
use monarch_postgres::Session;
use monarch_workflows::contract::{
    OutboxDrained, OutboxInput, OutboxPart, OutboxParts, OutboxPlace,
};
use tokio_util::sync::CancellationToken;

use crate::control::ControlError;
use crate::failure::Fault;
use crate::vitals::Vitals;
use crate::world::World;
use crate::{deliver, routing};

/// How long one activity drains a part. What is left is the next run's, which cuts anew: a queue that
/// grows is shared by all parts again.
const TURN: Duration = Duration::from_secs(240);

/// An outbox whose messages are delivered here, and a session with its database.
struct Opened {
    session: Session,
    drain: EitherDrain,
}

enum EitherDrain {
    Cell(Drain<Cell>),
    Control(Drain<Control>),
}

/// The ranges of ids of the outboxes, cut; nothing of one that is empty, or not there.
pub(crate) async fn partitions(
    world: &World,
    vitals: Vitals,
    input: OutboxInput,
) -> Result<OutboxParts, Fault> {
    let fleet = &world.config.fleet;
    let look = async {
        let mut partitions = Vec::new();
        for place in places(fleet, input.cell.as_ref()) {
            let Some(Opened { session, drain }) = open(fleet, &place).await? else {
                continue;
            };
            let parts = match &drain {
                EitherDrain::Cell(drain) => cut(drain, &session, input.partitions).await,
                EitherDrain::Control(drain) => cut(drain, &session, input.partitions).await,
            };
            let parts = parts.map_err(failed)?.into_iter();
            partitions.extend(parts.map(|Partition { low, high }| OutboxPart {
                low,
                high,
                place: place.clone(),
            }));
        }
        Ok(OutboxParts { partitions })
    };
    vitals.during("the outbox's range of ids", look).await
}

/// Delivers what is due in one part.
pub(crate) async fn partition(
    world: &World,
    vitals: Vitals,
    OutboxPart { low, high, place }: OutboxPart,
) -> Result<OutboxDrained, Fault> {
    let stop = CancellationToken::new();
    let work = async {
        let opened = open(&world.config.fleet, &place).await?;
        let Some(Opened { mut session, drain }) = opened else {
            return Ok(Report::default());
        };
        let part = Partition { low, high };
        let report = match drain {
            EitherDrain::Cell(drain) => take_turn(drain, &mut session, part, &stop).await,
            EitherDrain::Control(drain) => take_turn(drain, &mut session, part, &stop).await,
        };
        Ok(report.map_err(failed)?)
    };
    let Report {
        delivered,
        coalesced,
        busy,
        failed,
        ..
    } = vitals
        .during_to_its_end("the outbox to be drained", &stop, work)
        .await?;
    Ok(OutboxDrained {
        delivered,
        coalesced,
        busy,
        failed,
    })
}

/// The outboxes of a cell, or control's, that the fleet has delivered by us.
fn places(fleet: &Fleet, cell: Option<&CellName>) -> Vec<OutboxPlace> {
    let Some(name) = cell else {
        return match (&fleet.control, &fleet.control_outbox) {
            (Some(ControlPlane::Database(_)), Some(_)) => {
                vec![OutboxPlace::Routing, OutboxPlace::Control]
            }
            (Some(ControlPlane::Database(_)), None) => vec![OutboxPlace::Routing],
            _ => Vec::new(),
        };
    };
    let cell = fleet.cell(name).filter(|cell| cell.outbox.is_some());
    let databases = cell.map_or(0, |cell| cell.databases.len());
    let place = |database| OutboxPlace::Cell {
        cell: name.clone(),
        database,
    };
    (0..databases).map(place).collect()
}

/// Opens an outbox; nothing where there is none, or the fleet no longer says who takes its messages.
async fn open(fleet: &Fleet, place: &OutboxPlace) -> Result<Option<Opened>, Fault> {
    match place {
        OutboxPlace::Routing => match &fleet.control {
            Some(ControlPlane::Database(dsn)) => open_routing(fleet, dsn).await,
            _ => Ok(None),
        },
        OutboxPlace::Control => match (&fleet.control, &fleet.control_outbox) {
            (Some(ControlPlane::Database(dsn)), Some(deliver)) => {
                let session = routing::session(dsn).await?;
                let drain = deliver::drain(deliver, &session).await.map_err(unusable)?;
                Ok(opened(session, drain.map(EitherDrain::Control)))
            }
            _ => Ok(None),
        },
        OutboxPlace::Cell { cell, database } => {
            let cell = fleet.cell(cell);
            let database = cell.and_then(|cell| cell.databases.get(*database));
            let deliver = cell.and_then(|cell| cell.outbox.as_ref());
            let (Some(database), Some(deliver)) = (database, deliver) else {
                return Ok(None);
            };
            let session = routing::session(&database.primary).await?;
            let drain = deliver::drain(deliver, &session).await.map_err(unusable)?;
            Ok(opened(session, drain.map(EitherDrain::Cell)))
        }
    }
}

async fn open_routing(fleet: &Fleet, dsn: &Dsn) -> Result<Option<Opened>, Fault> {
    let session = routing::session(dsn).await?;
    let drain = routing::drain(fleet).map_err(ControlError::from)?;
    Ok(opened(session, Some(EitherDrain::Control(drain))))
}

fn opened(session: Session, drain: Option<EitherDrain>) -> Option<Opened> {
    drain.map(|drain| Opened { session, drain })
}

async fn cut<S: Silo>(
    drain: &Drain<S>,
    session: &Session,
    parts: u32,
) -> Result<Vec<Partition>, DrainError> {
    drain.gauge(session).await?;
    drain.partitions(session, parts).await
}

/// Drains a part until it has nothing that is due, or the turn is over.
async fn take_turn<S: Silo>(
    drain: Drain<S>,
    session: &mut Session,
    part: Partition,
    stop: &CancellationToken,
) -> Result<Report, DrainError> {
    let drain = drain.stop_on(stop.clone());
    let mut draining = Box::pin(drain.partition(session, part));
    tokio::select! {
        report = &mut draining => return report,
        () = tokio::time::sleep(TURN) => stop.cancel(),
    }
    draining.await
}

fn failed(error: DrainError) -> ControlError {
    ControlError::Outbox(chain(&error))
}

fn unusable(error: deliver::DeliverError) -> ControlError {
    ControlError::Outbox(chain(&error))
}
