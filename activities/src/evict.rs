//! Deletes the organization from the source, once nothing forbids it.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_ledger::Purpose;
use monarch_model::phase::PhaseEvent;
use monarch_model::{Phase, TableName, UnitStatus};
use monarch_postgres::Session;
use monarch_postgres::evict::{self, EvictionPermit, Evidence};
use monarch_workflows::contract::{BeginEvictInput, BeginEvictOutput, EvictOutput, UnitRef};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::deletion;
use crate::failure::Fault;
use crate::journal::newest;
use crate::vitals::Vitals;
use crate::world::{Case, World};

/// How long open transactions are waited for before it is tried again.
const OPEN_TRANSACTIONS_WITHIN: Duration = Duration::from_secs(60);

/// `cut_over → evicting`, if every slot was read to its head and nothing came late.
pub(crate) async fn begin(
    world: &World,
    input: BeginEvictInput,
) -> Result<BeginEvictOutput, Fault> {
    let case = world.open(input.move_id).await?;
    if case.of.phase == Phase::Evicting && !input.accept_late_changes {
        return Ok(BeginEvictOutput {
            refusals: Vec::new(),
        });
    }
    let mut refusals = Vec::new();
    for unit in world.ledger.units(case.of.id).await? {
        let store = &unit.store;
        if unit.status < UnitStatus::SlotDropped {
            refusals.push(format!(
                "{store}: its slot was not read to its head and dropped"
            ));
        }
        if input.accept_late_changes {
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
    if refusals.is_empty() && case.of.phase == Phase::CutOver {
        let detail = json!({ "accept_late_changes": input.accept_late_changes });
        let expected = case.of.expected();
        world
            .ledger
            .transition(case.of.id, PhaseEvent::BeginEvict, expected, detail)
            .await?;
    }
    Ok(BeginEvictOutput { refusals })
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
    let horizon = match known.tail {
        Some(tail) => tail.snapshot,
        // The operator took upon himself what the lost log may have held.
        None if is_accepted(&case).await? => fresh_horizon(&primary).await?,
        None => {
            let why = "no snapshot was recorded at the log's head";
            return Err(Fault::EvictionRefused(why.to_owned()));
        }
    };
    let prefixes = slot_prefixes(&case).await?;
    let evidence = Evidence {
        late_changes: unaccepted(&case, &known.late_changes).await?,
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

/// What the names of the slots of all units of this move begin with.
async fn slot_prefixes(case: &Case<'_>) -> Result<Vec<String>, Fault> {
    let units = case.world.ledger.units(case.of.id).await?;
    Ok(units.into_iter().map(|unit| unit.slot_prefix).collect())
}

/// The late changes that the operator has not taken upon himself.
async fn unaccepted(case: &Case<'_>, seen: &BTreeMap<TableName, u64>) -> Result<u64, Fault> {
    Ok(if is_accepted(case).await? {
        0
    } else {
        seen.values().sum()
    })
}

/// Whether the operator answers for what came late.
async fn is_accepted(case: &Case<'_>) -> Result<bool, Fault> {
    let begun = newest(case.world, case.of.id, PhaseEvent::BeginEvict.as_str()).await?;
    Ok(begun.is_some_and(|detail| detail["accept_late_changes"] == Value::Bool(true)))
}

/// Everything that is committed now.
async fn fresh_horizon(primary: &Session) -> Result<String, Fault> {
    let deadline = Instant::now() + OPEN_TRANSACTIONS_WITHIN;
    let recorded = evict::record_horizon(primary, deadline).await?;
    Ok(recorded.horizon.to_string())
}
