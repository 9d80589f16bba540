//! The objects of one blob store: copied while the rows stream, deleted on the losing side.
//!
//! Rows carry keys and the ledger keeps them ([`crate::keys`]); here a mover walks those without a
//! copy, again and again for as long as the move lasts. New keys are looked for often, since a
//! cut-over waits for them; keys that were found missing or in trouble now and then, since only a
//! person or the application mends those.
//!
//! Nothing that a bucket says ends a move: it is tried again, shown in the status, and holds the
//! cut-over back. Of a bucket's answer no key is told: keys are values of rows.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use monarch_blobs::{
    self as blobs, BlobError, BlobUnit, Bucket, CellReferences, Environment, EvictionPermit,
    Limits, Mover, Removed, Rows, Snapshot, Walked, tables_naming,
};
use monarch_config::{Database, Missing, Store, StoreKind};
use monarch_ledger::{BlobChoice, BlobRecord, CopyProgress, Purpose};
use monarch_model::unit::UnitEvent;
use monarch_model::{CellName, StoreName, TableName, UnitStatus};
use monarch_postgres::sql::{qualified, quote_ident};
use monarch_postgres::{Doing, Session, SessionPurpose};
use monarch_workflows::contract::{EvictOutput, UnitRef};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::deletion;
use crate::failure::Fault;
use crate::reporting::beating;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, World, options};

/// How often new keys are looked for: in a drain it adds to the write pause.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often keys that are missing or in trouble are looked for again.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(15);
/// How often it is asked whether all that the copied rows name is copied too.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How often it is told how far the copy is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Counting reads every key: it takes no more than so small a part of the time.
const COUNTING_PART: u32 = 20;
/// How many keys are asked about at once.
const PAGE: u32 = 1_000;
/// What a session that looks at rows for their keys calls itself.
const APPLICATION: &str = "monarch blobs";

impl From<BlobError> for Fault {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Cancelled => Fault::Cancelled,
            BlobError::Ledger(error) => error.into(),
            BlobError::Object {
                doing,
                place,
                fault,
                ..
            } => Fault::NotYet(format!("{doing} an object in {place}: {fault}")),
            BlobError::Refused { place, refusal, .. } => {
                Fault::NotYet(format!("{place} cannot hold a key: {refusal}"))
            }
            BlobError::Changing { place, .. } => Fault::NotYet(format!(
                "an object in {place} changed during each of its copies"
            )),
            BlobError::Torn { place, .. } => {
                Fault::NotYet(format!("an object in {place} is not as it was written"))
            }
            error @ (BlobError::Open { .. } | BlobError::Lost | BlobError::References(_)) => {
                Fault::NotYet(monarch_model::chain(&error))
            }
        }
    }
}

/// Copies objects for as long as the move lasts; ends only when it is told to, or in error.
pub(crate) async fn run(world: Arc<World>, vitals: Vitals, input: UnitRef) -> Result<(), Fault> {
    aside(async move || keep(&world, vitals, input).await).await
}

async fn keep(world: &World, vitals: Vitals, input: UnitRef) -> Result<(), Fault> {
    let case = world.open(input.move_id).await?;
    let (id, store) = (input.move_id, &input.store);
    let known = world.ledger.unit(id, store).await?;
    let unit = unit(world, &input, Purpose::Mover).await?;
    if known.status == UnitStatus::Pending {
        world
            .ledger
            .unit_transition(id, store, unit.epoch, UnitEvent::BeginCopy, Value::Null)
            .await?;
    }
    let source = bucket(&case, &case.of.source_cell, store).await?;
    let sink = bucket(&case, &case.of.sink_cell, store).await?;
    let cancel = CancellationToken::new();
    let mover = Mover::new(
        unit.clone(),
        source,
        sink,
        Limits::default(),
        cancel.clone(),
    );
    let (leave, progress) = watch::channel(Snapshot::default());
    let work = Box::pin(at_work(&case, &unit, &mover, leave));
    beating(&vitals, progress, &cancel, work).await
}

/// Copies, and tells of it, until one of both fails.
async fn at_work(
    case: &Case<'_>,
    unit: &BlobUnit,
    mover: &Mover,
    leave: watch::Sender<Snapshot>,
) -> Result<(), Fault> {
    let never = tokio::select! {
        never = keep_copying(case, unit, mover) => never,
        never = tell(unit, mover, leave) => never,
    };
    never.map(|never| match never {})
}

/// Does work on a thread of its own: walks over objects borrow in ways that keep the compiler from
/// seeing that they could change threads. Whoever is dropped while waiting takes the work along.
async fn aside<T: Send + 'static>(
    work: impl AsyncFnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let runtime = Handle::current();
    let gone = CancellationToken::new();
    let _guard = gone.clone().drop_guard();
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                done = work() => done,
                () = gone.cancelled() => Err(Fault::Cancelled),
            }
        })
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Fault::NotYet(
            "the work on objects came to no end".to_owned(),
        ))
    })
}

/// The unit under a new epoch.
async fn unit(world: &World, input: &UnitRef, purpose: Purpose) -> Result<BlobUnit, Fault> {
    let (id, store) = (input.move_id, &input.store);
    let epoch = world.ledger.next_epoch(id, store, purpose).await?;
    Ok(BlobUnit {
        ledger: world.ledger.clone(),
        move_id: id,
        store: store.clone(),
        epoch,
    })
}

async fn bucket(case: &Case<'_>, cell: &CellName, store: &StoreName) -> Result<Bucket, Fault> {
    let placed = case.world.cell(cell)?.blobs.get(store);
    let place = placed.ok_or_else(|| {
        Fault::BadInput(format!("cell {cell} has no place for blob store {store}"))
    })?;
    Ok(Bucket::open(place, &Environment::of_process()).await?)
}

async fn keep_copying(
    case: &Case<'_>,
    unit: &BlobUnit,
    mover: &Mover,
) -> Result<Infallible, Fault> {
    let mut last_whole: Option<Instant> = None;
    let mut is_copied = false;
    let mut asked_at = Instant::now();
    loop {
        let is_due = last_whole.is_none_or(|at| at.elapsed() >= LOOK_AGAIN_EVERY);
        let walked = if is_due { Walked::All } else { Walked::Fresh };
        let pass = mover.pass(walked).await?;
        if !pass.is_whole {
            return Err(Fault::Cancelled);
        }
        if is_due {
            last_whole = Some(Instant::now());
        }
        if is_copied || asked_at.elapsed() < ASK_EVERY {
            sleep(LOOK_EVERY).await;
            continue;
        }
        asked_at = Instant::now();
        if rows_are_copied(case).await? && gate(case, &unit.store).await?.is_none() {
            let (id, store) = (unit.move_id, &unit.store);
            unit.ledger
                .unit_transition(id, store, unit.epoch, UnitEvent::CopyDone, Value::Null)
                .await?;
            is_copied = true;
        }
    }
}

/// Whether every key that the snapshots have is recorded.
async fn rows_are_copied(case: &Case<'_>) -> Result<bool, Fault> {
    let units = case.row_units().await?;
    Ok(units.iter().all(|unit| unit.status >= UnitStatus::Copied))
}

/// Leaves the progress for the heartbeat and tells the ledger. What a mover waits for is bounded by
/// the timeouts of its requests, so its heartbeat goes on while a service copies something large.
async fn tell(
    unit: &BlobUnit,
    mover: &Mover,
    leave: watch::Sender<Snapshot>,
) -> Result<Infallible, Fault> {
    let (id, store) = (unit.move_id, &unit.store);
    let mut progress = CopyProgress::default();
    let mut count_at = Instant::now();
    loop {
        if Instant::now() >= count_at {
            let begun = Instant::now();
            let counts = unit.ledger.blob_counts(id).await?;
            let counts = counts.get(store).copied().unwrap_or_default();
            progress.rows_copied = counts.copied;
            progress.bytes_copied = counts.copied_bytes;
            progress.rows_estimated = Some(counts.recorded);
            count_at = Instant::now() + begun.elapsed() * COUNTING_PART;
        }
        leave.send_replace(mover.progress().snapshot());
        unit.ledger
            .record_copy_progress(id, store, unit.epoch, &progress)
            .await?;
        sleep(TELL_EVERY).await;
    }
}

/// Why the objects of each store hold the cut-over back, once `deadline` has passed; nothing as soon
/// as none does. Behind a barrier the sink's rows are the source's, and all their keys are recorded.
pub(crate) async fn blockers(case: &Case<'_>, deadline: Instant) -> Result<Vec<String>, Fault> {
    let mut blockers = Vec::new();
    for unit in case.blob_units().await? {
        let store = &unit.store;
        let held = loop {
            match gate(case, store).await? {
                Some(_) if Instant::now() < deadline => sleep(LOOK_EVERY).await,
                held => break held,
            }
        };
        blockers.extend(held.map(|why| format!("{store}: {why}")));
    }
    Ok(blockers)
}

/// Why keys without a copy hold the cut-over back. A key that no row of the organization names any
/// more does not: its object may have gone with its row.
async fn gate(case: &Case<'_>, store: &StoreName) -> Result<Option<String>, Fault> {
    let (id, ledger) = (case.of.id, &case.world.ledger);
    let accepts_missing = accepts_missing(blob_store(case, store)?);
    if ledger.blobs_are_copied(id, store, accepts_missing).await? {
        return Ok(None);
    }
    let fresh = ledger
        .blob_keys(id, store, BlobChoice::Fresh, None, 1)
        .await?;
    if !fresh.records.is_empty() {
        return Ok(Some("objects are still to be copied".to_owned()));
    }
    let cells = Naming::open(case, store).await?;
    let mut after = None;
    loop {
        let choice = BlobChoice::Uncopied;
        let page = ledger
            .blob_keys(id, store, choice, after.as_ref(), PAGE)
            .await?;
        let holding: Vec<&BlobRecord> = page
            .records
            .iter()
            .filter(|record| !(accepts_missing && record.is_missing))
            .collect();
        let keys: Vec<&str> = holding.iter().map(|record| record.key.as_str()).collect();
        let named = cells.named(&keys).await?;
        let holding = holding
            .into_iter()
            .filter(|record| named.contains(&record.key));
        if let Some(why) = told(holding) {
            return Ok(Some(why));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(None),
        }
    }
}

/// The keys by what is wrong with them and by the table that names them: never the keys themselves.
fn told<'a>(records: impl Iterator<Item = &'a BlobRecord>) -> Option<String> {
    let mut counts: BTreeMap<(&str, &TableName), u64> = BTreeMap::new();
    for record in records {
        let why = record.problem.as_deref().unwrap_or("missing");
        *counts.entry((why, &record.table)).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|((why, table), count)| format!("{count} of {table} {why}"))
        .collect();
    (!parts.is_empty()).then(|| format!("keys without a copy, at least: {}", parts.join(", ")))
}

fn accepts_missing(store: &Store) -> bool {
    matches!(
        store.kind,
        StoreKind::Blob {
            missing: Missing::Accept,
            ..
        }
    )
}

fn blob_store<'c>(case: &Case<'c>, store: &StoreName) -> Result<&'c Store, Fault> {
    let known = case.world.config.graph.store(store);
    known
        .filter(|store| store.is_blob() && store.migrate)
        .ok_or_else(|| {
            Fault::BadInput(format!("the manifest has no blob store {store} that moves"))
        })
}

/// The organization's rows on the sink that may name keys of a store.
struct Naming {
    queries: Vec<(Session, Vec<String>)>,
}

impl Naming {
    async fn open(case: &Case<'_>, store: &StoreName) -> Result<Self, Fault> {
        let mut queries = Vec::new();
        for place in case.places().await? {
            let tables = place.tables();
            let naming = tables
                .iter()
                .filter(|table| table.blobs.iter().any(|blob| blob.store == *store));
            if naming.clone().next().is_none() {
                continue;
            }
            let sink = place.sink_session(Caller::Watcher).await?;
            let scope = place.scope(&place.catalog(&sink).await?)?;
            let mut asked = Vec::new();
            for table in naming {
                let predicate = scope.predicate(&table.name, "t")?;
                for blob in table.blobs.iter().filter(|blob| blob.store == *store) {
                    let column = quote_ident(&blob.column);
                    asked.push(format!(
                        "select distinct t.{column}::text from {} as t
                          where t.{column}::text = any($1) and ({predicate})",
                        qualified(&table.name)
                    ));
                }
            }
            queries.push((sink, asked));
        }
        Ok(Self { queries })
    }

    /// Those of `keys` that a row names.
    async fn named(&self, keys: &[&str]) -> Result<BTreeSet<String>, Fault> {
        let doing = "look which keys rows name";
        let mut named = BTreeSet::new();
        if keys.is_empty() {
            return Ok(named);
        }
        for (sink, queries) in &self.queries {
            for query in queries {
                for row in sink.query(query, &[&keys]).await.doing(doing)? {
                    named.insert(row.try_get(0).doing(doing)?);
                }
            }
        }
        Ok(named)
    }
}

/// Says that no mover of the store's objects is wanted any more: they may be deleted.
pub(crate) async fn end_movers(case: &Case<'_>, purpose: Purpose) -> Result<(), Fault> {
    for known in case.blob_units().await? {
        if known.status < UnitStatus::SlotDropped {
            let input = UnitRef {
                move_id: case.of.id,
                store: known.store,
            };
            end_mover(&unit(case.world, &input, purpose).await?).await?;
        }
    }
    Ok(())
}

async fn end_mover(unit: &BlobUnit) -> Result<(), Fault> {
    let (id, store) = (unit.move_id, &unit.store);
    unit.ledger
        .unit_transition(id, store, unit.epoch, UnitEvent::SlotDropped, Value::Null)
        .await?;
    Ok(())
}

/// Deletes the organization's objects from the source, where the store says that they are its own.
pub(crate) async fn evict(
    world: Arc<World>,
    vitals: Vitals,
    input: UnitRef,
) -> Result<EvictOutput, Fault> {
    aside(async move || delete(&world, vitals, input).await).await
}

async fn delete(world: &World, vitals: Vitals, input: UnitRef) -> Result<EvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let known = world.ledger.unit(input.move_id, &input.store).await?;
    if known.status == UnitStatus::Evicted {
        return deleted(&case, &input.store).await;
    }
    let unit = begin(world, &input, Purpose::Evict).await?;
    let removed = match EvictionPermit::of(blob_store(&case, &input.store)?) {
        None => Removed {
            is_whole: true,
            ..Removed::default()
        },
        Some(permit) => {
            let source = bucket(&case, &case.of.source_cell, &input.store).await?;
            let (limits, cancel) = (Limits::default(), CancellationToken::new());
            let work = async { Ok(blobs::evict(&unit, &source, permit, &limits, &cancel).await?) };
            vitals
                .during("objects to be deleted from the source", Box::pin(work))
                .await?
        }
    };
    conclude(&case, &unit, removed).await
}

/// Takes back from the sink the objects that this move put there. The rows are scrubbed by then:
/// what names an object still is somebody else's row.
pub(crate) async fn scrub(
    world: Arc<World>,
    vitals: Vitals,
    input: UnitRef,
) -> Result<EvictOutput, Fault> {
    aside(async move || take_back(&world, vitals, input).await).await
}

async fn take_back(world: &World, vitals: Vitals, input: UnitRef) -> Result<EvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let store = &input.store;
    let known = world.ledger.unit(input.move_id, store).await?;
    if known.status == UnitStatus::Evicted {
        return deleted(&case, store).await;
    }
    if case
        .row_units()
        .await?
        .iter()
        .any(|unit| unit.status != UnitStatus::Evicted)
    {
        return Err(Fault::NotYet("the rows are not scrubbed yet".to_owned()));
    }
    let unit = begin(world, &input, Purpose::Scrub).await?;
    let source = bucket(&case, &case.of.source_cell, store).await?;
    let sink = bucket(&case, &case.of.sink_cell, store).await?;
    let cell = world.cell(&case.of.sink_cell)?;
    let mut sessions = Vec::new();
    for database in &cell.databases {
        sessions.push((database, looker(database).await?));
    }
    let graph = &world.config.graph;
    let references = CellReferences {
        store,
        databases: sessions
            .iter()
            .map(|(database, session)| Rows {
                session,
                tables: tables_naming(graph, &database.stores, store),
                own: None,
            })
            .collect(),
    };
    let (limits, cancel) = (Limits::default(), CancellationToken::new());
    let work =
        async { Ok(blobs::scrub(&unit, &source, &sink, &references, &limits, &cancel).await?) };
    let removed = vitals
        .during("objects to be taken back from the sink", Box::pin(work))
        .await?;
    conclude(&case, &unit, removed).await
}

async fn looker(database: &Database) -> Result<Session, Fault> {
    let purpose = SessionPurpose::reader(APPLICATION);
    Ok(Session::connect(&options(&database.primary)?, &purpose).await?)
}

/// Takes the unit's next epoch and says that its objects are being deleted.
async fn begin(world: &World, input: &UnitRef, purpose: Purpose) -> Result<BlobUnit, Fault> {
    let unit = unit(world, input, purpose).await?;
    end_mover(&unit).await?;
    deletion::begun(world, input, unit.epoch).await?;
    Ok(unit)
}

/// Records what stays, in numbers, and that the unit is done.
async fn conclude(
    case: &Case<'_>,
    unit: &BlobUnit,
    removed: Removed,
) -> Result<EvictOutput, Fault> {
    let (id, store, ledger) = (unit.move_id, &unit.store, &unit.ledger);
    if !removed.is_whole {
        return Err(Fault::NotYet("not every object was dealt with".to_owned()));
    }
    let detail = json!({ "objects_deleted": removed.gone, "objects_kept": removed.kept });
    ledger
        .unit_transition(id, store, unit.epoch, UnitEvent::Evicted, detail)
        .await?;
    deleted(case, store).await
}

/// How many objects are gone from the losing side.
async fn deleted(case: &Case<'_>, store: &StoreName) -> Result<EvictOutput, Fault> {
    let counts = case.world.ledger.blob_counts(case.of.id).await?;
    let counts = counts.get(store).copied().unwrap_or_default();
    Ok(EvictOutput {
        rows: counts.evicted + counts.scrubbed,
    })
}
