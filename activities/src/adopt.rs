//! Puts another workflow in the place of one that is gone, and says where the move stands.

use std::time::Duration;

use monarch_model::phase::PhaseEvent;
use monarch_model::{Phase, StoreName};
use monarch_postgres::evict::unit_order;
use monarch_workflows::contract::{AdoptInput, AdoptOutput, DrainRef};

use crate::failure::Fault;
use crate::journal::newest;
use crate::sweep::{Run, Workflows};
use crate::world::{Case, World};

pub(crate) async fn run(
    world: &World,
    workflows: &impl Workflows,
    input: AdoptInput,
) -> Result<AdoptOutput, Fault> {
    let case = world.open(input.move_id).await?;
    if !case
        .of
        .org
        .as_str()
        .eq_ignore_ascii_case(input.org.as_str())
    {
        let (id, org) = (case.of.id, &case.of.org);
        return Err(Fault::BadInput(format!(
            "move {id} is of organization {org}"
        )));
    }
    is_gone(&case, workflows, &input).await?;
    world
        .ledger
        .adopt(input.move_id, &input.workflow_id, &input.run_id)
        .await?;
    let order = unit_order(&world.config.graph);
    let place = |store: &StoreName| order.iter().position(|known| known == store);
    let mut units = case.row_units().await?;
    units.sort_by_key(|unit| place(&unit.store));
    let blobs = case.blob_units().await?;
    let last_drain = newest(world, input.move_id, PhaseEvent::BeginDrain.as_str()).await?;
    let last_drain = last_drain.and_then(|detail| {
        Some(DrainRef {
            move_id: input.move_id,
            attempt: u32::try_from(detail["attempt"].as_u64()?).ok()?,
            step: case.of.step,
            writes_stopped: detail["writes_stopped"].as_bool()?,
        })
    });
    let paused = case.of.phase == Phase::Active && world.ledger.is_held(input.move_id).await?;
    let pause = case.of.write_pause_ms.and_then(|ms| u64::try_from(ms).ok());
    Ok(AdoptOutput {
        org: case.of.org,
        from: case.of.source_cell,
        to: case.of.sink_cell,
        phase: case.of.phase,
        paused,
        units: units
            .into_iter()
            .map(|unit| (unit.store, unit.status))
            .collect(),
        blobs: blobs
            .into_iter()
            .map(|unit| (unit.store, unit.status))
            .collect(),
        last_drain,
        write_pause: pause.map(Duration::from_millis),
        reason: case.of.reason.map(|reason| (reason.code, reason.text)),
    })
}

/// Refuses while the workflow that the ledger knows of still runs: two would drive one move. Whoever
/// adopts again, after a lost reply, finds itself there.
async fn is_gone(
    case: &Case<'_>,
    workflows: &impl Workflows,
    input: &AdoptInput,
) -> Result<(), Fault> {
    let (workflow_id, run_id) = (&case.of.workflow_id, &case.of.run_id);
    if (workflow_id, run_id) == (&input.workflow_id, &input.run_id) {
        return Ok(());
    }
    let mut driver = workflows.look(workflow_id, Some(run_id)).await;
    // A reset puts a run under the id that the ledger does not know; under its own id the newest
    // run is the one that asks.
    if matches!(driver, Run::Closed { .. }) && *workflow_id != input.workflow_id {
        driver = workflows.look(workflow_id, None).await;
    }
    match driver {
        Run::Closed { .. } => Ok(()),
        Run::Open => Err(Fault::StillDriven(format!(
            "move {} is driven by workflow {workflow_id} (run {run_id}), which runs",
            case.of.id
        ))),
        Run::Unknown => Err(Fault::NotYet(format!(
            "whether workflow {workflow_id} still runs is not known"
        ))),
    }
}
