//! What is looked at before a stream begins, so that nothing is built upon a sink that went back or
//! a slot that is not the one it was.
//!
//! | what is found | what it means |
//! |---|---|
//! | no position on the sink | the copy is not complete: start over |
//! | the sink is another server | start over |
//! | the sink stands before what the ledger saw acknowledged | it lost commits: start over |
//! | the slot is missing or lost | the move fails by name |
//! | the slot confirms what a promoted sink does not have | the sink lost commits: start over |
//! | it confirms what a sink of the old timeline does not have | it was made again: the move fails |
//!
//! The last two hold because the mover acknowledges nothing that the sink has not recorded. The
//! ledger hears of what is acknowledged a second late, so the slot itself is asked too.

use std::time::Duration;

use monarch_model::{Epoch, Lsn};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::error::{SlotFault, StartOver, StreamError};
use super::{Job, SinkIdentity};
use crate::sink::{self, SinkError, State, TakeOver};
use crate::slot::{self, Slot};
use crate::{Doing, Error, Unit};

/// How long a start waits for an older mover's sessions to end.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where a sink stands that can be built upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// The unit's position on it.
    pub(super) position: Lsn,
    /// Whether it is on another timeline than the one that the copy was made on, and so may lack
    /// its last commits. After the seal this is not asked: nothing starts over then.
    pub(super) promoted: bool,
    /// Which server it is; after the seal this is not asked either.
    pub(super) sink: Option<SinkIdentity>,
}

/// Makes the job's mover the unit's writer, and checks that its sink can be built upon; how the
/// unit stands, and where.
pub(super) async fn take_sink(
    sink: &mut Client,
    job: &Job,
) -> Result<(State, Standing), StreamError> {
    let state = match sink::take_over(sink, &job.unit, job.epoch, TAKE_OVER_TIMEOUT).await? {
        TakeOver::Held(state) => state,
        TakeOver::Superseded { .. } => {
            return Err(StreamError::Sink(SinkError::Superseded {
                store: job.unit.store.clone(),
                epoch: job.epoch,
            }));
        }
    };
    if state.sealed {
        return Err(StreamError::Sink(SinkError::Sealed {
            store: job.unit.store.clone(),
        }));
    }
    let mut promoted = false;
    let found = identify(sink).await?;
    if let Some(expected) = job.sink_identity {
        if found.system_identifier != expected.system_identifier {
            return Err(StartOver::SinkReplaced {
                expected: expected.system_identifier,
                found: found.system_identifier,
            }
            .into());
        }
        promoted = found.timeline != expected.timeline;
    }
    let position = position(&state, job.acknowledged)?;
    let standing = Standing {
        position,
        promoted,
        sink: Some(found),
    };
    Ok((state, standing))
}

/// Where the unit stands, if the sink has what the ledger saw acknowledged.
fn position(state: &State, acknowledged: Option<Lsn>) -> Result<Lsn, StartOver> {
    match (state.position, acknowledged) {
        (None, _) => Err(StartOver::NotCopied),
        (Some(position), Some(acknowledged)) if position < acknowledged => {
            Err(StartOver::SinkWentBack {
                position,
                acknowledged,
            })
        }
        (Some(position), _) => Ok(position),
    }
}

/// Which server a sink is. Recorded when a copy begins and compared at every start.
///
/// A promotion comes before the checkpoint that names its timeline, often by minutes; until then
/// the end of recovery names it.
///
/// # Errors
///
/// When the server refuses.
pub async fn identify(sink: &Client) -> Result<SinkIdentity, Error> {
    let doing = "identify the sink";
    let row = sink
        .query_one(
            "select s.system_identifier, greatest(c.timeline_id, r.min_recovery_end_timeline)
             from pg_catalog.pg_control_system() as s, pg_catalog.pg_control_checkpoint() as c,
                  pg_catalog.pg_control_recovery() as r",
            &[],
        )
        .await
        .doing(doing)?;
    Ok(SinkIdentity {
        system_identifier: row.try_get(0).doing(doing)?,
        timeline: row.try_get(1).doing(doing)?,
    })
}

/// Checks that the slot can be streamed from where the sink stands, and ends an older mover that
/// still streams it.
pub(super) async fn take_slot(
    source: &Client,
    name: &str,
    unit: &Unit,
    epoch: Epoch,
    standing: Standing,
) -> Result<(), StreamError> {
    let deadline = Instant::now() + TAKE_OVER_TIMEOUT;
    loop {
        let seen = slot::inspect(source, name).await?;
        if let Some(fault) = fault(seen.as_ref(), standing.position) {
            return Err(blame(name, fault, standing.promoted));
        }
        let Some(pid) = seen.and_then(|slot| slot.active_pid) else {
            return Ok(());
        };
        let holder = application(source, pid).await?;
        let holder = holder.and_then(|name| unit.epoch_in(&name));
        if holder.is_some_and(|holder| holder > epoch) {
            return Err(StreamError::Sink(SinkError::Superseded {
                store: unit.store.clone(),
                epoch,
            }));
        }
        if Instant::now() >= deadline {
            // The start of the stream will say that it is in use.
            return Ok(());
        }
        if holder.is_some_and(|holder| holder < epoch) {
            source
                .execute("select pg_catalog.pg_terminate_backend($1)", &[&pid])
                .await
                .doing("end an older mover's walsender")?;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// What is wrong with a slot that is to be streamed from `position`.
fn fault(slot: Option<&Slot>, position: Lsn) -> Option<SlotFault> {
    let Some(slot) = slot else {
        return Some(SlotFault::Missing);
    };
    if slot.is_lost() {
        let told = slot
            .invalidation_reason
            .as_ref()
            .or(slot.wal_status.as_ref());
        let state = told.map_or_else(|| "conflicting".to_owned(), String::clone);
        return Some(SlotFault::Lost { state });
    }
    let confirmed = slot.confirmed_flush?;
    (confirmed > position).then_some(SlotFault::Remade {
        confirmed,
        position,
    })
}

/// Whose fault it is: a promoted sink that lacks what its slot confirms has lost it.
fn blame(slot: &str, fault: SlotFault, promoted: bool) -> StreamError {
    match fault {
        SlotFault::Remade {
            confirmed,
            position,
        } if promoted => StartOver::SinkWentBack {
            position,
            acknowledged: confirmed,
        }
        .into(),
        fault => StreamError::Slot {
            slot: slot.to_owned(),
            fault,
        },
    }
}

/// What a session calls itself.
async fn application(source: &Client, pid: i32) -> Result<Option<String>, Error> {
    let doing = "look who reads the slot";
    let row = source
        .query_opt(
            "select application_name from pg_catalog.pg_stat_activity where pid = $1",
            &[&pid],
        )
        .await
        .doing(doing)?;
    row.map(|row| row.try_get(0)).transpose().doing(doing)
}

/// What each sink transaction starts with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preamble {
    /// Its text.
    pub(super) sql: &'static str,
    /// Whether the sink's triggers and foreign keys act in spite of it.
    pub(super) cascades: bool,
}

/// Triggers and foreign keys are not fired by the mover: the rows already were through them on the
/// source. A role that may not say so gets what can be deferred deferred.
pub(super) async fn preamble(sink: &mut Client) -> Result<Preamble, Error> {
    let doing = "ask whether triggers can be kept from firing";
    let tx = sink.transaction().await.doing(doing)?;
    match tx.batch_execute(AS_REPLICA).await {
        Ok(()) => Ok(Preamble {
            sql: AS_REPLICA,
            cascades: false,
        }),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Preamble {
            sql: AS_OTHERS,
            cascades: true,
        }),
        Err(error) => Err(error).doing(doing),
    }
}

const AS_REPLICA: &str = "set local session_replication_role = replica; \
                          set local synchronous_commit = on; set constraints all deferred";
const AS_OTHERS: &str = "set local synchronous_commit = on; set constraints all deferred";

#[cfg(test)]
mod tests {
    use super::*;

    fn state(position: Option<Lsn>) -> State {
        State {
            epoch: Epoch(1),
            position,
            last_change: None,
            barrier: None,
            sealed: false,
            horizon: None,
        }
    }

    /// Guards promise 3: a sink that lost what it had confirmed is never built upon.
    #[test]
    fn a_sink_that_went_back_is_noticed() {
        let at = |lsn| Some(Lsn(lsn));
        assert_eq!(position(&state(at(9)), None), Ok(Lsn(9)));
        assert_eq!(position(&state(at(9)), at(9)), Ok(Lsn(9)));
        assert_eq!(position(&state(None), at(9)), Err(StartOver::NotCopied));
        assert_eq!(
            position(&state(at(8)), at(9)),
            Err(StartOver::SinkWentBack {
                position: Lsn(8),
                acknowledged: Lsn(9)
            })
        );
    }
}
