//! Streams one unit's changes for as long as the move lasts.
//!
//! Each try takes a new epoch, takes the unit over on the sink, and goes on where the sink's own
//! record stands. It ends by itself in one good way only: its unit was sealed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::{
    Barrier, DatabaseIdentity, LedgerError, Purpose, SourceCommit, StreamProgress, Unit, UnitStart,
};
use monarch_model::unit::UnitEvent;
use monarch_model::{Epoch, Lsn, StoreName, chain};
use monarch_postgres::sequences::{KeepError, Keeper, Outcome, Raised};
use monarch_postgres::sessions;
use monarch_postgres::sink::{self, SinkError};
use monarch_postgres::stream::{
    self, Batching, Job, Observer, Report, SinkIdentity, Spool, StreamError,
};
use monarch_workflows::contract::{StreamOutput, UnitRef};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::code::Code;
use crate::failure::Fault;
use crate::reporting::{beating, tell_ledger};
use crate::retained_log::RetainedLog;
use crate::schema;
use crate::snapshot::{SEQUENCE_HEADROOM, still_mine};
use crate::verification::Verifier;
use crate::vitals::Vitals;
use crate::world::{Caller, Place, World};

/// What a heartbeat of a stream says.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Beat {
    received: Lsn,
    applied: Lsn,
    acknowledged: Lsn,
    source_head: Lsn,
    changes: u64,
    transactions: u64,
    rows_read: u64,
    keepalives: u64,
    #[serde(skip)]
    last_change: Option<(Lsn, Timestamp)>,
    #[serde(skip)]
    barrier: Option<Barrier>,
    #[serde(skip)]
    sink: Option<SinkIdentity>,
}

/// Leaves the newest report for whoever carries it on.
struct Leave {
    beat: watch::Sender<Beat>,
    lag_bytes: watch::Sender<Option<u64>>,
}

impl Observer for Leave {
    fn observe(&mut self, report: &Report) {
        let lag = report.source_head.bytes_since(report.applied);
        self.lag_bytes.send_replace(Some(lag));
        self.beat.send_replace(Beat {
            received: report.received,
            applied: report.applied,
            acknowledged: report.acknowledged,
            source_head: report.source_head,
            changes: report.changes,
            transactions: report.transactions,
            rows_read: report.rows_read,
            keepalives: report.keepalives,
            last_change: report
                .last_change
                .map(|change| (change.lsn, change.committed_at)),
            barrier: report.barrier.map(|b| Barrier {
                nonce: b.nonce,
                lsn: b.lsn,
            }),
            sink: report.sink,
        });
    }
}

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: UnitRef,
) -> Result<StreamOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let place = case.place(&input.store)?;
    let (id, store) = (input.move_id, &input.store);
    let known = world.ledger.unit(id, store).await?;
    let epoch = match world.ledger.next_epoch(id, store, Purpose::Mover).await {
        Ok(epoch) => epoch,
        Err(LedgerError::Sealed { .. }) => return Ok(sealed(&known)),
        Err(error) => return Err(error.into()),
    };
    world
        .ledger
        .unit_transition(id, store, epoch, UnitEvent::BeginStream, Value::Null)
        .await?;
    end_older(&place, epoch).await?;
    let cancel = CancellationToken::new();
    let retained = RetainedLog::new(&place, &known);
    let (leave, progress) = watch::channel(Beat::default());
    let telling = tell_ledger(
        progress.clone(),
        cancel.clone(),
        recorder(world, &place, &known, epoch, retained.clone()),
    );
    let job = job(&place, epoch, &known)?;
    let (tell_lag, lag_bytes) = watch::channel(None);
    let mut observer = Leave {
        beat: leave,
        lag_bytes: tell_lag,
    };
    // One comparison at a time.
    let (alignments, asked) = mpsc::channel(1);
    let verifier = Verifier {
        place: &place,
        epoch,
        alignments,
        lag_bytes,
    };
    let streaming = Box::pin(async {
        match stream::run(&job, &mut observer, asked, &cancel).await {
            Err(StreamError::Sink(SinkError::Sealed { .. })) => Ok(sealed(&known)),
            Err(_) if is_superseded(&place, epoch).await? => Err(superseded(store)),
            Err(error) => Err(error.into()),
            // Only the ledger's word that a successor has begun ends a stream well.
            Ok(_) => Err(superseded(store)),
        }
    });
    let work = async {
        tokio::select! {
            done = streaming => done,
            changed = Box::pin(schema::until_changed(&place)) => Err(changed),
            spent = Box::pin(retained.until_spent()) => Err(spent),
            never = Box::pin(keep_sequences_ahead(&place)) => match never? {},
            never = Box::pin(verifier.run()) => match never {},
        }
    };
    let done = beating(&vitals, progress, &cancel, work).await;
    drop(telling);
    done
}

/// What an older mover reads on the source, for a comparison above all, holds back vacuum there.
async fn end_older(place: &Place<'_>, epoch: Epoch) -> Result<(), Fault> {
    let primary = place.source_session(epoch).await?;
    sessions::end_older(&primary, &place.unit, epoch).await?;
    if place.decodes_on_standby() {
        let decoder = place.decode_session(epoch).await?;
        sessions::end_older(&decoder, &place.unit, epoch).await?;
    }
    Ok(())
}

/// Whether a successor has begun: whatever a mover then meets is its doing. One that was superseded
/// before it took its unit over has made the row again that its successor may have removed for good.
async fn is_superseded(place: &Place<'_>, epoch: Epoch) -> Result<bool, Fault> {
    if still_mine(place, epoch).await? {
        return Ok(false);
    }
    let sink = place.sink_session(Caller::Watcher).await?;
    sink::remove_own(&*sink, &place.unit, epoch).await?;
    Ok(true)
}

fn superseded(store: &StoreName) -> Fault {
    Fault::Superseded(format!("{store}: the ledger has a newer epoch"))
}

/// Where a sealed unit stands.
fn sealed(known: &Unit) -> StreamOutput {
    StreamOutput {
        position: known.stream.applied.unwrap_or_default(),
    }
}

/// The job of a mover, or of whoever reads a sealed unit's tail.
pub(crate) fn job(place: &Place<'_>, epoch: Epoch, known: &Unit) -> Result<Job, Fault> {
    let world = place.case.world;
    let slot = known.slot.clone().ok_or_else(|| {
        Fault::StartOver(format!(
            "{}: the ledger knows no slot of it",
            place.unit.store
        ))
    })?;
    Ok(Job {
        unit: place.unit.clone(),
        epoch,
        graph: Arc::clone(&world.graph),
        spine: Arc::new(place.case.spine.clone()),
        source: place.source_decode()?,
        primary: place.source_primary()?,
        sink: place.sink()?,
        slot,
        acknowledged: known.stream.acknowledged,
        sink_identity: sink_identity(known)?,
        spool: Spool::new(&world.spool),
        keys: place.keys(),
        batching: Batching::default(),
    })
}

/// Which sink the copy went to, as the ledger has it. What cannot be read is no reason to skip the
/// comparison.
fn sink_identity(known: &Unit) -> Result<Option<SinkIdentity>, Fault> {
    let Some(sink) = &known.sink_database else {
        return Ok(None);
    };
    let identity = || {
        Some(SinkIdentity {
            system_identifier: sink.system_identifier.parse().ok()?,
            timeline: i32::try_from(sink.timeline).ok()?,
        })
    };
    identity().map(Some).ok_or_else(|| Fault::Fatal {
        code: Code::SinkUnknown,
        text: format!(
            "{}: the ledger's word on which database was copied to cannot be read",
            known.store
        ),
    })
}

/// Turns the mover's reports into the ledger's record. Counts are of this try; what earlier tries
/// counted is added, since the ledger's only grow.
fn recorder(
    world: &World,
    place: &Place<'_>,
    known: &Unit,
    epoch: Epoch,
    retained: RetainedLog,
) -> impl Fn(Beat) -> futures::future::BoxFuture<'static, Result<(), LedgerError>> + Send + 'static
{
    let ledger = world.ledger.clone();
    let (id, store) = (place.unit.move_id, place.unit.store.clone());
    let (changes, transactions) = (
        known.stream.changes_applied,
        known.stream.transactions_applied,
    );
    let start = Arc::new(known.clone());
    move |beat| {
        let (ledger, store, retained) = (ledger.clone(), store.clone(), retained.clone());
        let start = Arc::clone(&start);
        Box::pin(async move {
            if let Some(start) = beat.sink.and_then(|sink| on_new_timeline(&start, sink)) {
                ledger.record_start(id, &store, epoch, &start).await?;
            }
            if let Some(barrier) = beat.barrier {
                ledger.record_barrier(id, &store, epoch, barrier).await?;
            }
            let known = |lsn: Lsn| (lsn != Lsn::default()).then_some(lsn);
            let last = beat.last_change;
            let progress = StreamProgress {
                received: known(beat.received),
                applied: known(beat.applied),
                acknowledged: known(beat.acknowledged),
                source_head: known(beat.source_head),
                last_change: last.map(|(lsn, committed_at)| SourceCommit { lsn, committed_at }),
                changes_applied: changes + beat.changes,
                transactions_applied: transactions + beat.transactions,
                lag_bytes: Some(beat.source_head.bytes_since(beat.applied)),
                retained_wal_bytes: retained.bytes(),
            };
            ledger
                .record_stream_progress(id, &store, epoch, &progress)
                .await
        })
    }
}

/// What is to be recorded once a mover builds upon a sink that was promoted and lacked nothing: the
/// next one expects that timeline. Again is the same.
fn on_new_timeline(known: &Unit, sink: SinkIdentity) -> Option<UnitStart> {
    if sink_identity(known).ok()? == Some(sink) {
        return None;
    }
    let database = known.sink_database.as_ref()?.database.clone();
    Some(UnitStart {
        source: known.source_database.clone()?,
        sink: DatabaseIdentity {
            system_identifier: sink.system_identifier.to_string(),
            timeline: u32::try_from(sink.timeline).ok()?,
            database,
        },
        consistent_point: known.consistent_point?,
    })
}

/// How often the sink's sequences are looked at.
const SEQUENCES_EVERY: Duration = Duration::from_secs(60);

/// Raises the sink's sequences before the source's ids overtake them: another tenant of the sink
/// must never be given an id that the organization already has.
async fn keep_sequences_ahead(place: &Place<'_>) -> Result<Infallible, Fault> {
    let keeper = Keeper {
        unit: &place.unit,
        graph: &place.case.world.config.graph,
        spine: &place.case.spine,
        source: &place.source_primary()?,
        sink: &place.sink()?,
        application: &place.application(Caller::Watcher),
        headroom: SEQUENCE_HEADROOM,
        own: place.own_ids()?,
    };
    let store = &place.unit.store;
    let mut looked = |look: Result<Vec<Outcome>, KeepError>| match look {
        Ok(outcomes) => {
            let ended = |outcome: &&Outcome| matches!(outcome.raised, Raised::Exhausted { .. });
            for Outcome {
                sequence, table, ..
            } in outcomes.iter().filter(ended)
            {
                tracing::warn!(%store, %table, sequence, "the sequence ends before the moved ids");
            }
        }
        Err(error) => tracing::warn!(%store, error = %chain(&error), "sequences not raised"),
    };
    Ok(keeper.keep(SEQUENCES_EVERY, &mut looked).await)
}
