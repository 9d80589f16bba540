//! Ends moves that nobody drives any more.
//!
//! A workflow that was terminated runs no clean-up, and a worker that is gone for good drops no
//! slot: the source would keep log for them until its disk is full. The sweep looks at every move
//! that still has something in a cell. One whose workflow does not run any more loses its slots, its
//! publications and its fence, and is failed by name; where Temporal does not answer, silence of
//! its movers past a limit decides. Past the flip nothing is taken back: there the sweep only reads
//! the slots' tails out and drops them, and says that the move waits for a workflow.

use std::time::Duration;

use monarch_ledger::{Purpose, Reason, SweepCandidate};
use monarch_model::phase::PhaseEvent;
use monarch_model::{Phase, UnitStatus};
use monarch_workflows::contract::{SweepInput, SweepOutput};
use temporalio_client::errors::WorkflowInteractionError;
use temporalio_client::{
    Client, NamespacedClient as _, WorkflowDescribeOptions, WorkflowExecutionInfo,
    WorkflowExecutionStatus,
};

use crate::failure::Fault;
use crate::world::{Case, World};
use crate::{close_tail, fence, scrub};

/// Says whether a move's workflow still runs.
pub trait Workflows: Sync {
    /// Whether the run is open; none if Temporal did not answer, so that nothing is known.
    fn is_running(
        &self,
        workflow_id: &str,
        run_id: &str,
    ) -> impl Future<Output = Option<bool>> + Send;
}

/// Temporal's own word.
pub struct Temporal(Client);

impl Temporal {
    /// Asks through `client`.
    pub fn new(client: Client) -> Self {
        Self(client)
    }
}

impl Workflows for Temporal {
    async fn is_running(&self, workflow_id: &str, run_id: &str) -> Option<bool> {
        let run = WorkflowExecutionInfo::builder()
            .namespace(self.0.namespace())
            .workflow_id(workflow_id)
            .run_id(run_id)
            .build();
        let handle = run.bind_untyped(self.0.clone());
        match handle.describe(WorkflowDescribeOptions::default()).await {
            Ok(run) => Some(run.status() == WorkflowExecutionStatus::Running),
            Err(WorkflowInteractionError::NotFound(_)) => Some(false),
            Err(error) => {
                tracing::warn!(workflow_id, error = %error, "Temporal does not say whether it runs");
                None
            }
        }
    }
}

/// Looks at every move once and ends what nobody drives. Returns one line for each move that was
/// ended, that needs a person, or that could not be ended.
///
/// # Errors
/// The ledger could not be read. What stands in the way of one move does not stop the others: it is
/// a line of the result.
pub async fn run(
    world: &World,
    workflows: &impl Workflows,
    input: SweepInput,
) -> Result<SweepOutput, SweepError> {
    let mut output = SweepOutput {
        swept: Vec::new(),
        not_ended: Vec::new(),
    };
    for candidate in world.ledger.sweep_candidates().await? {
        if !is_forsaken(&candidate, workflows, input.silent_for).await {
            continue;
        }
        let of = &candidate.of;
        let told = |what: &str| {
            format!(
                "move {} of organization {} ({}): {what}",
                of.id, of.org, of.phase
            )
        };
        match end(world, &candidate).await {
            Ok(Some(what)) => output.swept.push(told(&what)),
            Ok(None) => {}
            Err(fault) => {
                let why = format!("could not be ended: {}; sweep again", fault.story());
                output.not_ended.push(told(&why));
            }
        }
    }
    Ok(output)
}

/// The ledger did not answer.
#[derive(Debug, thiserror::Error)]
#[error("look for moves that nobody drives")]
pub struct SweepError(#[from] monarch_ledger::LedgerError);

/// Whether nobody drives the move: its workflow is known not to run, or nothing is known of it and
/// its movers were silent for so long. A workflow that runs is never swept.
async fn is_forsaken(
    candidate: &SweepCandidate,
    workflows: &impl Workflows,
    silent_for: Duration,
) -> bool {
    let of = &candidate.of;
    let silent = Duration::try_from(candidate.silent_for).unwrap_or_default() >= silent_for;
    match workflows.is_running(&of.workflow_id, &of.run_id).await {
        Some(running) => !running,
        None => silent,
    }
}

/// Returns what was done or is to be done; nothing if the move needs neither.
async fn end(world: &World, candidate: &SweepCandidate) -> Result<Option<String>, Fault> {
    let case = world.open(candidate.of.id).await?;
    match case.of.phase {
        Phase::Active | Phase::Draining | Phase::Aborting => {
            let why = Reason {
                code: "forsaken".to_owned(),
                text: "its workflow does not run any more; swept".to_owned(),
            };
            world
                .ledger
                .transition(case.of.id, PhaseEvent::Fail, case.of.expected(), why)
                .await?;
            // The slots first: while a control plane is away, the log must not pile up.
            let dropped = drop_all(&case).await?;
            fence::lift(&case).await?;
            Ok(Some(format!(
                "failed, {dropped} units lost their slots and publications; scrub the sink with \
                 `monarch move adopt --org {org}` and `monarch move abort --org {org}`",
                org = case.of.org
            )))
        }
        Phase::Failed | Phase::Finalized | Phase::Aborted => {
            let dropped = drop_all(&case).await?;
            if case.of.phase == Phase::Failed {
                fence::lift(&case).await?;
            }
            Ok((dropped > 0).then(|| format!("{dropped} units lost the slots that were left")))
        }
        Phase::Flipping | Phase::CutOver | Phase::Evicting => {
            let closed = close_tails(&case).await?;
            Ok(Some(format!(
                "nothing is taken back past the flip; {closed} units had their log read and lost \
                 their slots; carry it on with `monarch move adopt --org {}`",
                case.of.org
            )))
        }
    }
}

/// Reads the tail of every slot that is left and drops it; returns how many were.
async fn close_tails(case: &Case<'_>) -> Result<usize, Fault> {
    let mut closed = 0;
    for unit in case.world.ledger.units(case.of.id).await? {
        if unit.status < UnitStatus::SlotDropped {
            close_tail::close(&case.place(&unit.store)?).await?;
            closed += 1;
        }
    }
    Ok(closed)
}

/// Drops the slots and publications of every unit that may have some; returns how many had.
async fn drop_all(case: &Case<'_>) -> Result<usize, Fault> {
    let mut dropped = 0;
    for unit in case.world.ledger.units(case.of.id).await? {
        if unit.status >= UnitStatus::SlotDropped {
            continue;
        }
        let place = case.place(&unit.store)?;
        // Nobody is given an epoch of a move that has ended; the last one still counts.
        let epoch = if case.of.phase.is_live() {
            let ledger = &case.world.ledger;
            ledger
                .next_epoch(case.of.id, &unit.store, Purpose::Sweep)
                .await?
        } else {
            unit.epoch
        };
        scrub::dropped(&place, epoch).await?;
        dropped += 1;
    }
    Ok(dropped)
}
