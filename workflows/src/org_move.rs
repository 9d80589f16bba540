//! The walk of one organization from its source cell to its sink cell.
//!
//! Three parts run side by side until the flip, joined in `before_flip`: the *movers* (one loop a
//! unit: snapshot, then stream, with pause and starting over), the *steering* (an operator's or the
//! automatic cut-over, the drain with its deadline), and whatever interrupts them (an abort, a
//! cancellation, a fatal finding). They talk through the workflow's state alone. What follows is
//! decided by how they end:
//!
//! ```text
//!             preflight, register
//!                     │
//!        movers ∥ steering  (active ⇄ draining)
//!        │            │               │
//!     Flipped     GivenUp           Fatal
//!        │            │               │ failed; slots go at once
//!   tails, evict      │◀── abort ─────┘
//!        │            │
//!    finalized     aborted
//! ```
//!
//! A move whose workflow is gone can be adopted by another one, which enters the picture wherever the
//! ledger says that the move stands (`At`).
//!
//! Every wait hears an interruption; every activity carries a token of its own, so that cancelling
//! the workflow never takes away the clean-up.

// The macros make constants that they do not document.
#![allow(missing_docs)]

mod ending;
mod movers;
mod outcome;
mod roll_call;
mod start;
mod steering;
mod step;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// What the `status` query answers.
pub use monarch_model::WorkflowStatus as Status;
use monarch_model::{CellName, MoveId, OrgId, Phase, StoreName};
use serde::{Deserialize, Serialize};
use temporalio_common::data_converters::RawValue;
use temporalio_common::search_attributes::SearchAttributeKey;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_workflow::{
    SyncWorkflowContext, WorkflowCancellationToken, WorkflowContext, WorkflowContextView,
    WorkflowResult, workflows::join,
};

use crate::contract::{DrainRef, failure};
use crate::input::{Abort, CutOver, Evict, OrgMoveInput};
use outcome::{Failure, Verdict};

/// The organization of a move, for lists in the Temporal Web UI.
pub const ORG_ID: SearchAttributeKey<String> = SearchAttributeKey::keyword("OrgId");
/// The phase of a move.
pub const MOVE_PHASE: SearchAttributeKey<String> = SearchAttributeKey::keyword("MovePhase");
/// The cell that the organization leaves.
pub const SOURCE_CELL: SearchAttributeKey<String> = SearchAttributeKey::keyword("SourceCell");
/// The cell that the organization goes to.
pub const SINK_CELL: SearchAttributeKey<String> = SearchAttributeKey::keyword("SinkCell");

/// The id of the workflow that moves `org`: a second one for the same organization is refused by
/// Temporal itself, one for another organization by the ledger.
pub fn workflow_id(org: &OrgId) -> String {
    format!("org-move-{org}")
}

/// How a move ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrgMoveResult {
    /// The move.
    pub move_id: MoveId,
    /// `finalized` or `aborted`.
    pub phase: Phase,
    /// From fence to flip in milliseconds, if it flipped.
    pub write_pause_ms: Option<u64>,
    /// Why it was given up, if it was.
    pub reason: Option<String>,
}

/// What the `cut_over` update answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CutOverAnswer {
    /// Where the move stands afterwards.
    pub phase: Option<Phase>,
    /// From fence to flip in milliseconds, if it flipped.
    pub write_pause_ms: Option<u64>,
    /// Why it did not flip; empty if it did.
    pub refusals: Vec<String>,
}

/// The workflow's state: what handlers write and the run reads.
#[workflow]
#[derive(Default)]
pub struct OrgMove {
    status: Status,
    abort: Option<Abort>,
    cancelled: bool,
    fatal: Option<Failure>,
    sealed: bool,
    /// How often units that were sealed were opened again.
    opened: u32,
    cut_over: Option<CutOver>,
    cut_over_answer: Option<CutOverAnswer>,
    evict: Option<Evict>,
    /// When the last request to evict was taken, in milliseconds since 1970.
    evict_asked_at: u64,
    /// Whether every slot was read to its head, so that what came late is known.
    tails_closed: bool,
}

/// What the run has learnt and no longer changes.
struct Plan {
    move_id: MoveId,
    input: OrgMoveInput,
    org: OrgId,
    from: CellName,
    to: CellName,
    /// In the order in which eviction deletes.
    units: Vec<StoreName>,
    /// The units of objects.
    blobs: Vec<StoreName>,
    /// Units that were copied before this run.
    copied: BTreeSet<StoreName>,
}

type Ctx = WorkflowContext<OrgMove>;

#[workflow_methods]
impl OrgMove {
    /// Moves one organization; see [`OrgMoveInput`] for what `start` takes.
    #[run]
    pub async fn run(
        ctx: &mut WorkflowContext<Self>,
        start: RawValue,
    ) -> WorkflowResult<OrgMoveResult> {
        let json = start
            .payloads
            .first()
            .map(|payload| payload.data.as_slice());
        let input = OrgMoveInput::parse(json.unwrap_or_default())
            .map_err(|error| outcome::fails(failure::BAD_INPUT, error.to_string()))?;
        let prepared = match input.adopt {
            Some(move_id) => Some(start::adopt(ctx, input, move_id).await?),
            None => start::prepare(ctx, input).await?,
        };
        let Some((plan, at)) = prepared else {
            return Err(ending::given_up_before_register(ctx));
        };
        let over = WorkflowCancellationToken::new();
        let to_its_end = async {
            let end = match drive(ctx, &plan, at).await {
                Verdict::Flipped { write_pause } => {
                    ending::after_flip(ctx, &plan, write_pause).await
                }
                Verdict::GivenUp => ending::give_up(ctx, &plan).await,
                Verdict::Fatal(failure) => ending::fail(ctx, &plan, failure).await,
            };
            step::cancel(ctx, &over, "the move has ended");
            end
        };
        let ((), end) = join!(roll_call::run(ctx, &plan, &over), to_its_end);
        ctx.wait_condition_with_options(|_| ctx.all_handlers_finished(), step::deaf())
            .await?;
        end
    }

    /// Gives the move up: takes effect in every phase before `flipping`, is noted after it.
    #[signal]
    pub fn abort(&mut self, _ctx: &mut SyncWorkflowContext<Self>, raw: RawValue) {
        let abort = Abort::parse(raw.payloads.first().map(|payload| payload.data.as_slice()));
        self.request_abort(abort);
    }

    /// What the workflow knows of the move.
    #[query]
    pub fn status(&self, _ctx: &WorkflowContextView) -> Status {
        self.status.clone()
    }

    #[update_validator(cut_over)]
    fn validate_cut_over(
        &self,
        _ctx: &WorkflowContextView,
        _request: &CutOver,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.status.phase {
            Some(Phase::Active) if self.cut_over.is_none() => Ok(()),
            Some(Phase::Active | Phase::Draining | Phase::Flipping) => {
                Err("a cut-over is already under way; watch it with `monarch move watch`".into())
            }
            Some(phase) => Err(format!("a move that is {phase} cannot cut over").into()),
            None => Err("the move is not registered yet; wait until it is active".into()),
        }
    }

    /// Cuts over: refused with every reason if a unit is not ready, else drained, sealed and
    /// flipped; answers when that is done or undone.
    #[update]
    pub async fn cut_over(ctx: &mut WorkflowContext<Self>, request: CutOver) -> CutOverAnswer {
        if request.is_stale(ctx.workflow_time()) {
            return CutOverAnswer {
                phase: ctx.state(|s| s.status.phase),
                write_pause_ms: None,
                refusals: vec!["the request waited longer than its caller: ask again".to_owned()],
            };
        }
        // Taken at once, so that a second request is refused by the validator.
        ctx.state_mut(|s| {
            s.cut_over_answer = None;
            s.cut_over = Some(request);
        });
        let _ = ctx
            .wait_condition_with_options(
                |s| s.cut_over_answer.is_some() || s.is_interruptible() && s.is_interrupted(),
                step::deaf(),
            )
            .await;
        ctx.state(|s| {
            s.cut_over_answer.clone().unwrap_or_else(|| CutOverAnswer {
                phase: s.status.phase,
                write_pause_ms: None,
                refusals: vec!["the move is being given up".to_owned()],
            })
        })
    }

    #[update_validator(evict)]
    fn validate_evict(
        &self,
        _ctx: &WorkflowContextView,
        request: &Evict,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let accepts = request.accept_late_changes || request.accept_newer_rows;
        match self.status.phase {
            // A word given now would count for what nobody has seen yet.
            Some(Phase::CutOver) if accepts && !self.tails_closed => {
                Err("the logs are still being read to their heads; look and ask again then".into())
            }
            Some(Phase::CutOver | Phase::Evicting) => Ok(()),
            Some(phase) => Err(format!("a move that is {phase} cannot evict its source").into()),
            None => Err("the move is not registered yet".into()),
        }
    }

    /// Evicts the source now, whatever the policy at the start.
    #[update]
    pub fn evict(&mut self, ctx: &mut SyncWorkflowContext<Self>, request: Evict) -> Status {
        let since_1970 = |now: SystemTime| now.duration_since(SystemTime::UNIX_EPOCH).ok();
        let now = ctx.workflow_time().and_then(since_1970);
        self.evict_asked_at = now.map_or(0, |now| {
            now.as_secs() * 1_000 + u64::from(now.subsec_millis())
        });
        self.evict = Some(request);
        self.status.clone()
    }

    #[update_validator(pause)]
    fn validate_pause(
        &self,
        _ctx: &WorkflowContextView,
        _nothing: &(),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.status.phase {
            Some(Phase::Active) if self.is_interrupted() => {
                Err("the move is being given up".into())
            }
            Some(Phase::Active) if self.status.paused => Err("the move is paused already".into()),
            Some(Phase::Active) => Ok(()),
            Some(phase) => Err(format!("a move that is {phase} cannot pause").into()),
            None => Err("the move is not registered yet".into()),
        }
    }

    /// Stops the movers; slots are kept and go on holding log.
    #[update]
    pub fn pause(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _nothing: ()) -> Status {
        self.status.paused = true;
        self.status.clone()
    }

    #[update_validator(resume)]
    fn validate_resume(
        &self,
        _ctx: &WorkflowContextView,
        _nothing: &(),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.status.phase {
            Some(Phase::Active) if self.status.paused => Ok(()),
            Some(Phase::Active) => Err("the move is not paused".into()),
            Some(phase) => Err(format!("a move that is {phase} cannot resume").into()),
            None => Err("the move is not registered yet".into()),
        }
    }

    /// Starts the movers again.
    #[update]
    pub fn resume(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _nothing: ()) -> Status {
        self.status.paused = false;
        self.status.clone()
    }
}

impl OrgMove {
    fn request_abort(&mut self, abort: Abort) {
        self.status
            .abort_reason
            .get_or_insert_with(|| abort.reason.clone());
        self.abort.get_or_insert(abort);
    }

    /// Whether movers and steering are to stop, if they still can be.
    fn is_interrupted(&self) -> bool {
        self.abort.is_some() || self.fatal.is_some()
    }

    /// From `flipping` on nothing interrupts any more: what became of the flip is the answer.
    fn is_interruptible(&self) -> bool {
        self.status.phase != Some(Phase::Flipping)
    }
}

/// Where a run takes a move up.
enum At {
    /// It copies and streams.
    Active,
    /// A drain was under way.
    Draining,
    /// A flip was under way.
    Flipping(DrainRef),
    /// The organization lives on the sink.
    Flipped { write_pause: Option<Duration> },
    /// It is being given up.
    Aborting,
    /// It failed.
    Failed(Failure),
}

/// Takes the move to the point where it has flipped, is given up or has failed.
async fn drive(ctx: &Ctx, plan: &Plan, at: At) -> Verdict {
    match at {
        At::Active => before_flip(ctx, plan).await,
        At::Draining => match steering::take_back(ctx, plan).await {
            None => before_flip(ctx, plan).await,
            Some(verdict) => verdict,
        },
        At::Flipping(drain) => match steering::flip_again(ctx, plan, drain).await {
            None => before_flip(ctx, plan).await,
            Some(verdict) => verdict,
        },
        At::Flipped { write_pause } => Verdict::Flipped { write_pause },
        At::Aborting => Verdict::GivenUp,
        At::Failed(failure) => Verdict::Fatal(failure),
    }
}

/// Movers and steering side by side, until the steering has come to a verdict and every mover has
/// stopped.
async fn before_flip(ctx: &Ctx, plan: &Plan) -> Verdict {
    let stop = WorkflowCancellationToken::new();
    let move_rows = async {
        if let Some(failure) = movers::run(ctx, plan, &stop).await {
            ctx.state_mut(|s| {
                s.status.failure = Some(failure.to_string());
                s.fatal = Some(failure);
            });
        }
    };
    let steer = async {
        let verdict = steering::run(ctx, plan).await;
        step::cancel(ctx, &stop, "the move goes on to its end");
        verdict
    };
    let ((), verdict) = join!(move_rows, steer);
    verdict
}
