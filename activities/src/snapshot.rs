//! Copies one unit: publications, a slot with its exported snapshot, and every row seen in it.
//!
//! Each try takes a new epoch and begins from nothing: what an earlier try left is scrubbed from
//! the sink and dropped on the source before anything new is made, so two snapshots are never
//! mixed. The slot's name carries the epoch; a try that was superseded while it made its slot drops
//! that slot itself.

use std::time::Duration;

use monarch_ledger::{CopyProgress, DatabaseIdentity, Purpose, UnitStart};
use monarch_model::unit::UnitEvent;
use monarch_model::{Epoch, UnitStatus};
use monarch_postgres::catalog::Catalog;
use monarch_postgres::evict::{self, ScrubPermit};
use monarch_postgres::replication::{ExportedSlot, ReplicationConnection, SlotKind};
use monarch_postgres::sequences::{Fed, Outcome, Raised};
use monarch_postgres::slot::{self, Making};
use monarch_postgres::snapshot::{self, Job, Observer, Progress};
use monarch_postgres::{Session, SessionPurpose, publication, sequences, sessions, sink, stream};
use monarch_workflows::contract::{SnapshotOutput, UnitRef};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::code::Code;
use crate::failure::Fault;
use crate::reporting::{beating, tell_ledger};
use crate::schema;
use crate::vitals::Vitals;
use crate::world::{Case, Place, World};

/// How long the slot's making waits for transactions that were open before it.
const OLD_TRANSACTIONS_WITHIN: Duration = Duration::from_secs(60);

/// How long a standby may take to replay the publications.
const STANDBY_WITHIN: Duration = Duration::from_secs(60);

/// How many ids beyond the source's newest the sink's sequences are raised, where there are so many
/// more: the organization may be given them on the source before the move is over. At ten thousand
/// a second they last for a day.
pub(crate) const SEQUENCE_HEADROOM: u32 = 1_000_000_000;

/// What a heartbeat of a copy says.
#[derive(Debug, Clone, Default, Serialize)]
struct Beat {
    table: Option<String>,
    #[serde(flatten)]
    copy: CopyProgress,
}

/// Leaves the newest progress for whoever reports it.
struct Leave(watch::Sender<Beat>);

impl Observer for Leave {
    fn progress(&mut self, progress: &Progress) {
        self.0.send_replace(Beat {
            table: Some(progress.table.to_string()),
            copy: CopyProgress {
                rows_copied: progress.rows,
                bytes_copied: progress.bytes,
                rows_estimated: Some(progress.rows_estimate),
                tables_done: progress.tables_done as u32,
                tables_total: Some(progress.tables_total as u32),
            },
        });
    }
}

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: UnitRef,
) -> Result<SnapshotOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let place = case.place(&input.store)?;
    let known = world.ledger.unit(input.move_id, &input.store).await?;
    let epoch = world
        .ledger
        .next_epoch(input.move_id, &input.store, Purpose::Mover)
        .await?;
    let ready = vitals
        .during("the unit to be made ready for a copy", async {
            ready(&case, &place, epoch, known.status).await
        })
        .await?;
    let cancel = CancellationToken::new();
    let (made, slot) = vitals
        .during_to_its_end(
            "a slot and its snapshot",
            &cancel,
            Box::pin(make_slot(&place, epoch, ready, &cancel)),
        )
        .await?;
    copy(&place, epoch, made, slot, &vitals).await
}

/// The sessions that a slot is made with.
struct Ready {
    primary: Session,
    decoder: Session,
    sink: Session,
    replication: ReplicationConnection,
}

/// The sessions that rows are copied through.
struct Made {
    decoder: Session,
    sink: Session,
}

/// Clears what an earlier try left, and makes what must be there before the slot.
async fn ready(
    case: &Case<'_>,
    place: &Place<'_>,
    epoch: Epoch,
    status: UnitStatus,
) -> Result<Ready, Fault> {
    let mut primary = place.source_session(epoch).await?;
    let decoder = place.decode_session(epoch).await?;
    let mut sink = place.sink_session(epoch).await?;
    let catalog = place.catalog(&primary).await?;
    clear(case, place, epoch, status, &mut sink).await?;
    if !still_mine(place, epoch).await? {
        sink::remove_own(&*sink, &place.unit, epoch).await?;
        return Err(Fault::Superseded(place.unit.store.to_string()));
    }
    schema::note(place, &catalog).await?;
    for server in [&primary, &decoder] {
        sessions::end_older(server, &place.unit, epoch).await?;
        slot::drop_older(server, &place.unit, epoch).await?;
    }
    publish(place, &mut primary, &decoder, &catalog).await?;
    raise_sequences(place, &primary, &mut sink).await?;
    let purpose = SessionPurpose::reader(place.application(epoch)).holding_snapshot();
    let replication = ReplicationConnection::connect(&place.source_decode()?, &purpose).await?;
    Ok(Ready {
        primary,
        decoder,
        sink,
        replication,
    })
}

/// Takes the unit over on the sink and deletes what an earlier copy of this move left there. A
/// unit whose copy never began has left nothing, and preflight saw the organization's rows absent.
async fn clear(
    case: &Case<'_>,
    place: &Place<'_>,
    epoch: Epoch,
    status: UnitStatus,
    sink: &mut Session,
) -> Result<(), Fault> {
    let catalog = place.catalog(sink).await?;
    let scope = place.scope(&catalog)?;
    let graph = &case.world.config.graph;
    let tables = match status {
        UnitStatus::Pending => Vec::new(),
        _ => evict::doomed(graph, &place.unit.store, &scope, &catalog)?,
    };
    let permit = ScrubPermit::in_phase(case.of.phase)
        .ok_or_else(|| Fault::NotYet(format!("the move is {}", case.of.phase)))?;
    evict::scrub_rows(sink, &place.unit, epoch, &tables, &permit, &mut |_, _| {}).await?;
    Ok(())
}

/// The publications on the primary, and the standby's word that it has them too.
async fn publish(
    place: &Place<'_>,
    primary: &mut Session,
    decoder: &Session,
    catalog: &Catalog,
) -> Result<(), Fault> {
    let graph = &place.case.world.config.graph;
    let plan = publication::plan(&place.unit, graph, &place.scope(catalog)?, catalog)?;
    publication::ensure(primary, &plan).await?;
    if place.decodes_on_standby() {
        publication::wait_replayed(&**primary, &**decoder, STANDBY_WITHIN).await?;
    }
    Ok(())
}

/// Moved ids must never meet what the sink's other tenants are given by default.
pub(crate) async fn raise_sequences(
    place: &Place<'_>,
    primary: &Session,
    sink: &mut Session,
) -> Result<(), Fault> {
    let catalog = place.catalog(primary).await?;
    let scope = place.scope(&catalog)?;
    let tables = place.tables();
    let mut predicates = Vec::new();
    for table in &tables {
        predicates.push(scope.predicate(&table.name, "t")?);
    }
    let fed: Vec<Fed<'_>> = tables
        .iter()
        .zip(&predicates)
        .map(|(table, predicate)| Fed { table, predicate })
        .collect();
    let own = place.own_ids()?;
    let outcomes = sequences::raise(&**primary, sink, &fed, SEQUENCE_HEADROOM, own).await?;
    let ended = outcomes
        .iter()
        .find(|outcome| matches!(outcome.raised, Raised::Exhausted { .. }));
    match ended {
        None => Ok(()),
        Some(Outcome {
            sequence, table, ..
        }) => Err(Fault::Fatal {
            code: Code::SequenceExhausted,
            text: format!(
                "{table}: the sink's sequence {sequence} ends before the ids that move in do"
            ),
        }),
    }
}

/// Makes the slot under this epoch's name, if the unit is still this try's afterwards, and says in
/// the ledger where the copy begins.
async fn make_slot(
    place: &Place<'_>,
    epoch: Epoch,
    ready: Ready,
    cancel: &CancellationToken,
) -> Result<(Made, ExportedSlot), Fault> {
    let Ready {
        primary,
        decoder,
        sink,
        mut replication,
    } = ready;
    let name = place.unit.slot(epoch);
    let system = replication.identify_system().await?;
    let making = Making {
        unit: &place.unit,
        epoch,
        decoder: &decoder,
        primary: &primary,
        timeout: OLD_TRANSACTIONS_WITHIN,
        cancel,
    };
    let slot = making
        .create(
            replication.create_slot(&name, SlotKind::Permanent),
            || async {
                still_mine(place, epoch)
                    .await
                    .map_err(|fault| fault.story().into())
            },
        )
        .await?;
    let start = UnitStart {
        source: DatabaseIdentity {
            system_identifier: system.system_identifier,
            timeline: system.timeline,
            database: place.source_decode()?.dbname().to_owned(),
        },
        sink: identity(&sink, place).await?,
        consistent_point: slot.consistent_point,
    };
    let ledger = &place.case.world.ledger;
    let (id, store) = (place.unit.move_id, &place.unit.store);
    ledger
        .unit_transition(id, store, epoch, UnitEvent::BeginCopy, json!({}))
        .await?;
    ledger.record_start(id, store, epoch, &start).await?;
    Ok((Made { decoder, sink }, slot))
}

/// Copies what the slot's snapshot sees, and reports as it goes.
async fn copy(
    place: &Place<'_>,
    epoch: Epoch,
    made: Made,
    slot: ExportedSlot,
    vitals: &Vitals,
) -> Result<SnapshotOutput, Fault> {
    let Made {
        mut decoder,
        mut sink,
    } = made;
    let (id, store) = (place.unit.move_id, place.unit.store.clone());
    let ledger = place.case.world.ledger.clone();
    let cancel = CancellationToken::new();
    let (leave, progress) = watch::channel(Beat::default());
    let record = {
        let (ledger, store) = (ledger.clone(), store.clone());
        move |beat: Beat| {
            let (ledger, store) = (ledger.clone(), store.clone());
            async move {
                ledger
                    .record_copy_progress(id, &store, epoch, &beat.copy)
                    .await
            }
        }
    };
    let telling = tell_ledger(progress.clone(), cancel.clone(), record);
    let keys = place.keys();
    let job = Job {
        unit: &place.unit,
        epoch,
        graph: &place.case.world.config.graph,
        spine: &place.case.spine,
        snapshot: &slot.snapshot,
        consistent_point: slot.consistent_point,
        keys: &keys,
    };
    let mut observer = Leave(leave);
    let copied = beating(vitals, progress, &cancel, async {
        Ok(snapshot::copy(&job, &mut decoder, &mut sink, &mut observer, &cancel).await?)
    })
    .await?;
    drop(telling);
    let rows = copied.tables.iter().map(|table| table.rows).sum();
    let bytes = copied.tables.iter().map(|table| table.bytes).sum();
    let newest = observer.0.borrow().copy;
    ledger
        .record_copy_progress(id, &store, epoch, &newest)
        .await?;
    let detail = json!({ "rows": rows, "bytes": bytes });
    ledger
        .unit_transition(id, &store, epoch, UnitEvent::CopyDone, detail)
        .await?;
    Ok(SnapshotOutput {
        consistent_point: slot.consistent_point,
        rows,
        bytes,
    })
}

/// Whether no newer epoch was handed out.
pub(crate) async fn still_mine(place: &Place<'_>, epoch: Epoch) -> Result<bool, Fault> {
    let unit = place
        .case
        .world
        .ledger
        .unit(place.unit.move_id, &place.unit.store)
        .await?;
    Ok(unit.epoch == epoch)
}

/// Which database a sink session is on.
pub(crate) async fn identity(
    session: &Session,
    place: &Place<'_>,
) -> Result<DatabaseIdentity, Fault> {
    let server = stream::identify(session).await?;
    Ok(DatabaseIdentity {
        system_identifier: server.system_identifier.to_string(),
        timeline: u32::try_from(server.timeline).unwrap_or_default(),
        database: place.sink()?.dbname().to_owned(),
    })
}
