//! Reads a sealed unit's slot to its head after the flip, records what it held, and drops it.
//!
//! What the organization wrote on the source behind the barrier is on the sink of nobody: it is
//! counted by table and forbids eviction. A horizon is set before the slot is read, so that
//! eviction can tell, days later, what was written after the log's end was seen. With the slot gone,
//! control is told of the organization's rows on the sink.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_ledger::{Purpose, Tail, Unit};
use monarch_model::{StoreName, TableName, UnitStatus};
use monarch_postgres::evict::record_horizon;
use monarch_postgres::stream::{self, StreamError};
use monarch_workflows::contract::{TailOutput, UnitRef};
use tokio::time::Instant;

use crate::failure::Fault;
use crate::org_outbox;
use crate::scrub;
use crate::stream::job;
use crate::vitals::Vitals;
use crate::world::{Place, World};

/// How long transactions that were open at the head are waited for before it is tried again.
const OPEN_TRANSACTIONS_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: UnitRef,
) -> Result<TailOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let place = case.place(&input.store)?;
    let unread = vitals
        .during("the log to be read to its head", close(&place))
        .await?;
    vitals
        .during(
            "control to be told of the rows",
            org_outbox::backfill(&place),
        )
        .await?;
    let known = world.ledger.unit(input.move_id, &input.store).await?;
    Ok(TailOutput {
        late_changes: by_name(&known.late_changes),
        unread,
    })
}

/// Reads the tail and drops the slot; again is the same. Returns why it could not be read, if it
/// never can be.
pub(crate) async fn close(place: &Place<'_>) -> Result<Option<String>, Fault> {
    let ledger = &place.case.world.ledger;
    let (id, store) = (place.unit.move_id, &place.unit.store);
    let known = ledger.unit(id, store).await?;
    if known.status >= UnitStatus::SlotDropped {
        return Ok(known
            .tail
            .is_none()
            .then(|| unread(store, "its slot was dropped unread")));
    }
    let epoch = ledger.next_epoch(id, store, Purpose::Tail).await?;
    let lost = match read(place, epoch, &known).await {
        Ok((tail, late)) => {
            ledger.record_tail(id, store, epoch, &tail, &late).await?;
            None
        }
        Err(Reading::Lost(why)) => Some(unread(store, &why)),
        Err(Reading::Failed(fault)) => return Err(fault),
    };
    scrub::dropped(place, epoch).await?;
    Ok(lost)
}

/// Why a tail was not read.
enum Reading {
    /// It never can be: the slot is gone or lost.
    Lost(String),
    /// Trying again may help.
    Failed(Fault),
}

impl<E: Into<Fault>> From<E> for Reading {
    fn from(error: E) -> Self {
        Reading::Failed(error.into())
    }
}

async fn read(
    place: &Place<'_>,
    epoch: monarch_model::Epoch,
    known: &Unit,
) -> Result<(Tail, BTreeMap<TableName, u64>), Reading> {
    let primary = place.source_session(epoch).await?;
    let deadline = Instant::now() + OPEN_TRANSACTIONS_WITHIN;
    let recorded = record_horizon(&primary, deadline).await?;
    let job = job(place, epoch, known)?;
    let tail = match stream::read_tail(&job, &place.source_primary()?).await {
        Ok(tail) => tail,
        // Nobody can read it any more: eviction is forbidden, and the slot must not stay.
        Err(
            error @ (StreamError::Slot { .. }
            | StreamError::Fatal(_)
            | StreamError::StartOver(_)
            | StreamError::Scope(_)
            | StreamError::Protocol { .. }),
        ) => return Err(Reading::Lost(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let snapshot = recorded.horizon.to_string();
    Ok((
        Tail {
            snapshot,
            lsn: tail.head,
        },
        tail.late_changes,
    ))
}

fn unread(store: &StoreName, why: &str) -> String {
    format!("{store}: what was written behind the barrier is not known: {why}")
}

fn by_name(changes: &BTreeMap<TableName, u64>) -> BTreeMap<String, u64> {
    changes
        .iter()
        .map(|(table, n)| (table.to_string(), *n))
        .collect()
}
