//! Ends moves that nobody drives any more.
//!
//! A workflow that was terminated runs no clean-up, and a worker that is gone for good drops no
//! slot: the source would keep log for them until its disk is full. The sweep looks at every move
//! that still has something in a cell. One whose workflow does not run any more loses its slots, its
//! publications and its fence, and is failed by name; where Temporal does not answer, silence of
//! its movers past a limit decides. It is left alone for a while first: an operator who terminates a
//! workflow to put another in its place must find the move as it was. Past the flip nothing is taken
//! back: there the sweep only reads the slots' tails out and drops them, and says that the move waits
//! for a workflow. Of a move that is `flipping` the routing tells on which side of it the move is; as
//! long as the flip has not happened, the organization can write nowhere, and it is taken back.

use std::time::{Duration, SystemTime};

use monarch_ledger::{Move, Purpose, Reason, SweepCandidate};
use monarch_model::{Phase, UnitStatus};
use monarch_workflows::contract::{SweepInput, SweepOutput};
use temporalio_client::errors::WorkflowInteractionError;
use temporalio_client::{
    Client, NamespacedClient as _, WorkflowDescribeOptions, WorkflowExecutionInfo,
    WorkflowExecutionStatus,
};

use crate::code::Code;
use crate::failure::Fault;
use crate::world::{Case, World};
use crate::{blobs, close_tail, fence, flip, scrub};

/// What is known of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It runs.
    Open,
    /// It does not run any more; since when, as long as Temporal remembers it.
    Closed {
        /// When it ended.
        since: Option<SystemTime>,
    },
    /// Temporal did not answer.
    Unknown,
}

/// Says whether a move's workflow still runs.
pub trait Workflows: Sync {
    /// What is known of a run; of the newest one under the id where none is named.
    fn look(&self, workflow_id: &str, run_id: Option<&str>) -> impl Future<Output = Run> + Send;
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
    async fn look(&self, workflow_id: &str, run_id: Option<&str>) -> Run {
        let run = WorkflowExecutionInfo::builder()
            .namespace(self.0.namespace())
            .workflow_id(workflow_id)
            .maybe_run_id(run_id.map(str::to_owned))
            .build();
        let handle = run.bind_untyped(self.0.clone());
        match handle.describe(WorkflowDescribeOptions::default()).await {
            Ok(run) if run.status() == WorkflowExecutionStatus::Running => Run::Open,
            Ok(run) => Run::Closed {
                since: run.close_time(),
            },
            Err(WorkflowInteractionError::NotFound(_)) => Run::Closed { since: None },
            Err(error) => {
                tracing::warn!(workflow_id, error = %error, "Temporal does not say whether it runs");
                Run::Unknown
            }
        }
    }
}

/// What is known of the workflow that drives a move: the run that the ledger names or, once that has
/// ended, the newest one under its id. The ledger does not know of a run that a reset made, nor yet
/// of one that is about to adopt the move.
async fn driver(of: &Move, workflows: &impl Workflows) -> Run {
    match workflows.look(&of.workflow_id, Some(&of.run_id)).await {
        // The id of a move that is over may be another move's by now.
        Run::Closed { since } if of.phase.is_live() => {
            match workflows.look(&of.workflow_id, None).await {
                Run::Closed { since: newest } => Run::Closed {
                    since: since.max(newest),
                },
                known => known,
            }
        }
        known => known,
    }
}

/// Looks at every move once and ends what nobody drives. Returns one line for each move that was
/// ended, that needs a person, that is left alone for now, or that could not be ended.
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
        waiting: Vec::new(),
        not_ended: Vec::new(),
    };
    for candidate in world.ledger.sweep_candidates().await? {
        let of = &candidate.of;
        let told = |what: &str| {
            format!(
                "move {} of organization {} ({}): {what}",
                of.id, of.org, of.phase
            )
        };
        let silent = Duration::try_from(candidate.silent_for).unwrap_or_default();
        match judge(driver(of, workflows).await, of.phase, silent, &input) {
            Verdict::Driven => continue,
            Verdict::MayBeAdopted { for_another } => {
                let seconds = for_another.as_secs();
                output.waiting.push(told(&format!(
                    "its workflow does not run any more; left alone for another {seconds} s, so \
                     that it can be adopted"
                )));
                continue;
            }
            Verdict::Forsaken => {}
        }
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

/// What is to be made of a move.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Somebody drives it, as far as is known.
    Driven,
    /// Nobody does, and somebody may be about to.
    MayBeAdopted { for_another: Duration },
    /// Nobody drives it.
    Forsaken,
}

/// A workflow that runs is never swept; one that has ended is after a while, which only the ledger's
/// `silent` can tell where Temporal has forgotten it; where nothing is known, silence decides.
fn judge(driver: Run, phase: Phase, silent: Duration, input: &SweepInput) -> Verdict {
    match driver {
        Run::Open => Verdict::Driven,
        // Nobody adopts a move that is over.
        Run::Closed { .. } if !phase.is_live() => Verdict::Forsaken,
        Run::Closed { since } => {
            let closed_for = since.map_or(silent, |since| since.elapsed().unwrap_or_default());
            match input.closed_for.checked_sub(closed_for) {
                Some(for_another) if !for_another.is_zero() => {
                    Verdict::MayBeAdopted { for_another }
                }
                _ => Verdict::Forsaken,
            }
        }
        Run::Unknown if silent >= input.silent_for => Verdict::Forsaken,
        Run::Unknown => Verdict::Driven,
    }
}

/// Returns what was done or is to be done; nothing if the move needs neither, or has gone on since
/// it was looked at.
async fn end(world: &World, candidate: &SweepCandidate) -> Result<Option<String>, Fault> {
    let case = world.open(candidate.of.id).await?;
    let as_found = |of: &Move| (of.step, of.workflow_id.clone(), of.run_id.clone());
    if as_found(&case.of) != as_found(&candidate.of) {
        return Ok(None);
    }
    match case.of.phase {
        Phase::Active | Phase::Draining | Phase::Aborting => fail(&case).await,
        Phase::Failed | Phase::Finalized | Phase::Aborted => {
            let dropped = drop_all(&case).await?;
            if case.of.phase == Phase::Failed {
                fence::lift(&case).await?;
            }
            Ok((dropped > 0).then(|| format!("{dropped} units lost the slots that were left")))
        }
        Phase::Flipping => match flip::take_back(&case).await {
            Ok(true) => fail(&world.open(case.of.id).await?).await,
            Ok(false) => past_flip(&case).await,
            Err(fault) => {
                // However it stands, the log must not pile up until the routing can be asked.
                close_tails(&case).await?;
                Err(fault)
            }
        },
        Phase::CutOver | Phase::Evicting => past_flip(&case).await,
    }
}

/// What can be done for a move whose organization lives on the sink.
async fn past_flip(case: &Case<'_>) -> Result<Option<String>, Fault> {
    let closed = close_tails(case).await?;
    Ok(Some(format!(
        "nothing is taken back past the flip; {closed} units had their log read and lost their \
         slots; carry it on with `monarch move adopt --org {}`",
        case.of.org
    )))
}

/// Fails a move that has not flipped; nothing happens to it if it was adopted meanwhile.
async fn fail(case: &Case<'_>) -> Result<Option<String>, Fault> {
    let why = Reason {
        code: Code::Forsaken.as_str().to_owned(),
        text: "its workflow does not run any more; swept".to_owned(),
    };
    let ledger = &case.world.ledger;
    if ledger.fail_forsaken(&case.of, why).await?.is_none() {
        return Ok(None);
    }
    // The slots first: while a control plane is away, the log must not pile up.
    let dropped = drop_all(case).await?;
    fence::lift(case).await?;
    Ok(Some(format!(
        "failed, {dropped} units lost their slots and publications; scrub the sink with \
         `monarch move adopt --org {org}` and `monarch move abort --org {org}`",
        org = case.of.org
    )))
}

/// Reads the tail of every slot that is left and drops it; returns how many were.
async fn close_tails(case: &Case<'_>) -> Result<usize, Fault> {
    let mut closed = 0;
    for unit in case.row_units().await? {
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
    if case.of.phase.is_live() {
        blobs::end_movers(case, Purpose::Sweep).await?;
    }
    for unit in case.row_units().await? {
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

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: SweepInput = SweepInput {
        silent_for: Duration::from_secs(600),
        closed_for: Duration::from_secs(300),
    };

    fn judged(driver: Run, phase: Phase, silent_seconds: u64) -> &'static str {
        match judge(driver, phase, Duration::from_secs(silent_seconds), &INPUT) {
            Verdict::Driven => "driven",
            Verdict::MayBeAdopted { for_another } => {
                assert!(for_another <= INPUT.closed_for);
                "may be adopted"
            }
            Verdict::Forsaken => "forsaken",
        }
    }

    /// Guards the operator who terminates a workflow to put another in its place.
    #[test]
    fn a_move_is_left_alone_for_a_while_after_its_workflow_ended() {
        let ago = |seconds| Run::Closed {
            since: SystemTime::now().checked_sub(Duration::from_secs(seconds)),
        };
        let forgotten = Run::Closed { since: None };
        for (driver, phase, silent_seconds, expected) in [
            (Run::Open, Phase::Active, 10_000, "driven"),
            (ago(10), Phase::Active, 10_000, "may be adopted"),
            (ago(310), Phase::Active, 0, "forsaken"),
            (ago(10), Phase::Aborted, 0, "forsaken"),
            (forgotten, Phase::Draining, 10, "may be adopted"),
            (forgotten, Phase::Draining, 310, "forsaken"),
            (Run::Unknown, Phase::Active, 310, "driven"),
            (Run::Unknown, Phase::Active, 610, "forsaken"),
        ] {
            let said = judged(driver, phase, silent_seconds);
            assert_eq!(said, expected, "{driver:?} {phase} {silent_seconds}");
        }
    }
}
