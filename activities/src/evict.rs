//! Deletes the organization from the source, once nothing forbids it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use monarch_ledger::Purpose;
use monarch_model::phase::PhaseEvent;
use monarch_model::{Phase, StoreName, TableName, UnitStatus, names};
use monarch_postgres::Session;
use monarch_postgres::evict::{self, EvictionPermit, Evidence, slots_alive};
use monarch_workflows::contract::{BeginEvictInput, BeginEvictOutput, EvictOutput, UnitRef};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::blobs;
use crate::deletion;
use crate::failure::Fault;
use crate::journal::newest;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, World};

/// How long open transactions are waited for before it is tried again.
const OPEN_TRANSACTIONS_WITHIN: Duration = Duration::from_secs(60);

/// The kind of the journal's rows that hold what the operator has accepted.
const ACCEPTED: &str = "eviction_accepted";

/// What the operator has accepted, in all that was said so far.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Accepted {
    /// What came between the barrier and the log's head, and what is not known of it.
    late_changes: bool,
    /// By store: row versions below this horizon were looked at, copied or not.
    newer_rows: BTreeMap<StoreName, String>,
    /// The request that was taken last.
    #[serde(default)]
    asked_at: Option<u64>,
}

/// `cut_over → evicting`, if every slot was read to its head and nothing came late. Asked again
/// while it evicts, it takes what the operator accepts since.
pub(crate) async fn begin(
    world: &World,
    vitals: Vitals,
    input: BeginEvictInput,
) -> Result<BeginEvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let mut refusals = vitals
        .during("the organization's slots", slots_of_org(&case))
        .await?;
    if case.of.phase == Phase::CutOver {
        refusals.extend(unread(&case, input.accept_late_changes).await?);
    }
    if !refusals.is_empty() {
        return Ok(BeginEvictOutput { refusals });
    }
    vitals
        .during("what is accepted to be settled", accept(&case, &input))
        .await?;
    if case.of.phase == Phase::CutOver {
        blobs::end_movers(&case, Purpose::Evict).await?;
        let expected = case.of.expected();
        world
            .ledger
            .transition(case.of.id, PhaseEvent::BeginEvict, expected, Value::Null)
            .await?;
    }
    Ok(BeginEvictOutput { refusals })
}

/// Every slot of the organization on the source, whichever of its moves made it.
pub(crate) async fn slots_of_org(case: &Case<'_>) -> Result<Vec<String>, Fault> {
    let prefixes = [names::org_prefix(&case.of.org)];
    let mut found = BTreeSet::new();
    for place in case.places().await? {
        found.extend(slots_alive(&*place.source_session(Caller::Watcher).await?, &prefixes).await?);
        if place.decodes_on_standby() {
            let decoder = place.decode_session(Caller::Watcher).await?;
            found.extend(slots_alive(&decoder, &prefixes).await?);
        }
    }
    let told = found.into_iter().map(|slot| {
        format!("slot {slot} of the organization is still on the source: drop it first")
    });
    Ok(told.collect())
}

/// What is not on the sink, or may not be.
async fn unread(case: &Case<'_>, is_accepted: bool) -> Result<Vec<String>, Fault> {
    let mut refusals = Vec::new();
    for unit in case.row_units().await? {
        let store = &unit.store;
        if unit.status < UnitStatus::SlotDropped {
            refusals.push(format!(
                "{store}: its slot was not read to its head and dropped"
            ));
        }
        if is_accepted {
            continue;
        }
        if unit.tail.is_none() {
            refusals.push(format!(
                "{store}: its log could not be read to its head, so what came late is not known"
            ));
        }
        let late = unit.late_changes.iter();
        refusals.extend(late.map(|(table, n)| format!("{store}: {n} late changes of {table}")));
    }
    Ok(refusals)
}

/// Writes into the journal what the operator accepts, beside what was accepted before. What is newer
/// than that word is not covered by it: the horizons are set now, once for each request, however often
/// it is tried. A store whose log was lost has no other horizon.
async fn accept(case: &Case<'_>, input: &BeginEvictInput) -> Result<(), Fault> {
    if !input.accept_late_changes && !input.accept_newer_rows {
        return Ok(());
    }
    let mut accepted = accepted(case).await?;
    if accepted.asked_at == Some(input.asked_at) {
        return Ok(());
    }
    accepted.asked_at = Some(input.asked_at);
    accepted.late_changes |= input.accept_late_changes;
    for place in case.places().await? {
        let unit = case
            .world
            .ledger
            .unit(case.of.id, &place.unit.store)
            .await?;
        if input.accept_newer_rows || unit.tail.is_none() {
            let primary = place.source_session(Caller::Watcher).await?;
            let horizon = fresh_horizon(&primary).await?;
            accepted.newer_rows.insert(place.unit.store, horizon);
        }
    }
    let detail = json!(accepted);
    let ledger = &case.world.ledger;
    Ok(ledger.note(case.of.id, None, ACCEPTED, detail).await?)
}

async fn accepted(case: &Case<'_>) -> Result<Accepted, Fault> {
    let told = newest(case.world, case.of.id, ACCEPTED).await?;
    let unreadable = |_| Fault::NotYet("the journal's eviction_accepted cannot be read".to_owned());
    told.map_or_else(
        || Ok(Accepted::default()),
        |detail| serde_json::from_value(detail).map_err(unreadable),
    )
}

/// Deletes one store's rows of the organization from the source.
pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: UnitRef,
) -> Result<EvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let store = &input.store;
    let known = world.ledger.unit(input.move_id, store).await?;
    if let Some(done) = deletion::done_before(&known) {
        return Ok(done);
    }
    let epoch = deletion::begin(world, &input, Purpose::Evict).await?;
    let place = case.place(store)?;
    let mut primary = place.source_session(epoch).await?;
    let decode = place.decode_session(epoch).await?;
    let catalog = place.catalog(&primary).await?;
    let scope = place.scope(&catalog)?;
    let tables = evict::doomed(&world.config.graph, store, &scope, &catalog)?;
    let accepted = accepted(&case).await?;
    let horizon = match (accepted.newer_rows.get(store), known.tail) {
        (Some(horizon), _) => horizon.clone(),
        (None, Some(tail)) => tail.snapshot,
        (None, None) => {
            let why = "no snapshot was recorded at the log's head";
            return Err(Fault::EvictionRefused(why.to_owned()));
        }
    };
    let prefixes = [names::org_prefix(&case.of.org)];
    let evidence = Evidence {
        late_changes: match accepted.late_changes {
            true => 0,
            false => known.late_changes.values().sum(),
        },
        slot_prefixes: &prefixes,
        horizon: &horizon,
    };
    let mut counts = evict::Rows::new();
    let mut count = |table: &TableName, rows: u64| {
        *counts.entry(table.clone()).or_insert(0) += rows;
    };
    let deleted = vitals
        .during("rows to be deleted from the source", async {
            let permit = EvictionPermit::issue(&[&*primary, &*decode], evidence).await?;
            Ok(evict::evict(&mut primary, &tables, &permit, &mut count).await?)
        })
        .await;
    deletion::conclude(world, &input, epoch, &counts, deleted).await
}

/// Everything that is committed now.
async fn fresh_horizon(primary: &Session) -> Result<String, Fault> {
    let deadline = Instant::now() + OPEN_TRANSACTIONS_WITHIN;
    let recorded = evict::record_horizon(primary, deadline).await?;
    Ok(recorded.horizon.to_string())
}
