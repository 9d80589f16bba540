//! The steering: from a request to cut over to the flip, or back to `active`.

use std::time::Duration;

use futures::FutureExt as _;
use monarch_model::Phase;
use temporalio_workflow::{WorkflowCancellationToken, workflows::select};

use super::outcome::{self, Stopped, Verdict};
use super::step::{self, Patience, call};
use super::{Ctx, CutOverAnswer, Plan};
use crate::contract::{Because, DrainInput, DrainRef, MoveApi, MoveRef, ReadinessInput, failure};
use crate::input::{CutOver, CutOverPolicy};

/// How long one look at the drain waits before it names what is in the way; less where the pause
/// may not be much longer.
const LOOK: Duration = Duration::from_secs(5);

/// The longest rest between two tries of a move that cuts over by itself. Rests double up to it: a
/// copy of days must not fill the workflow's history, nor a difference that stays fence the
/// organization again and again.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Why a paused move does not cut over.
const PAUSED: &str = "paused: resume it first";

/// What a drain waits for between the barrier and the seal.
const COMPARING: &str = "both sides are being compared";

/// How an attempt to cut over ended.
enum Attempt {
    Flipped(Option<Duration>),
    /// Back in `active`, or never left it.
    Reopened(Vec<String>),
    Interrupted,
    Fatal(Stopped),
}

/// Serves requests to cut over until one flips or the move is interrupted.
pub(super) async fn run(ctx: &Ctx, plan: &Plan) -> Verdict {
    let mut pause = LOOK;
    loop {
        let Some(request) = next_request(ctx, plan).await else {
            return verdict_of_interruption(ctx);
        };
        let attempt = attempt(ctx, plan, &request).await;
        let (answer, verdict) = conclude(ctx, plan, attempt);
        ctx.state_mut(|s| {
            s.cut_over = None;
            s.cut_over_answer = Some(answer);
        });
        if let Some(verdict) = verdict {
            return verdict;
        }
        if plan.input.cut_over == CutOverPolicy::Auto {
            rest(ctx, pause).await;
            pause = (pause * 2).min(LONGEST_REST);
        }
    }
}

/// An operator's request, or the move's own when it cuts over by itself; `None` if interrupted.
async fn next_request(ctx: &Ctx, plan: &Plan) -> Option<CutOver> {
    if plan.input.cut_over == CutOverPolicy::Auto {
        ctx.state_mut(|s| {
            s.cut_over.get_or_insert_default();
        });
    }
    let mut asked = ctx.wait_condition_with_options(
        |s| s.cut_over.is_some() && !s.is_interrupted(),
        step::deaf(),
    );
    let mut interruption = Box::pin(step::interrupted(ctx).fuse());
    select! {
        () = interruption => None,
        _ = asked => ctx.state(|s| s.cut_over.clone()),
    }
}

/// Between two tries of a move that cuts over by itself.
async fn rest(ctx: &Ctx, pause: Duration) {
    let token = WorkflowCancellationToken::new();
    let mut pause = Box::pin(ctx.timer(step::timer(pause, token.clone())));
    let mut interruption = Box::pin(step::interrupted(ctx).fuse());
    select! {
        _ = pause => {}
        () = interruption => token.cancel(),
    }
}

/// Readiness, then the drain under its deadline, then the flip.
async fn attempt(ctx: &Ctx, plan: &Plan, request: &CutOver) -> Attempt {
    let patience = Patience::from(&plan.input);
    let writes_stopped = request.writes_stopped;
    let look = ReadinessInput {
        move_id: plan.move_id,
        writes_stopped,
    };
    let Some(ready) = step::interruptible(ctx, |token| {
        call(ctx, MoveApi::readiness, look, patience.long(token))
    })
    .await
    else {
        return Attempt::Interrupted;
    };
    let step = match ready {
        Ok(ready) => {
            let mut refusals = ready.refusals;
            // Asked here and now: from the next step on a pause is refused.
            if ctx.state(|s| s.status.paused) {
                refusals.insert(0, PAUSED.to_owned());
            }
            if !refusals.is_empty() {
                return Attempt::Reopened(refusals);
            }
            ready.step
        }
        Err(stopped) => return Attempt::Fatal(stopped),
    };
    let number = ctx.state_mut(|s| {
        s.status.cut_over_attempts += 1;
        s.status.cut_over_attempts
    });
    let drain = DrainRef {
        move_id: plan.move_id,
        attempt: number,
        step,
        writes_stopped,
    };
    match drain_and_seal(ctx, plan, &drain).await {
        Ok(Sealing::Sealed) if ctx.state(|s| s.is_interrupted()) => Attempt::Interrupted,
        Ok(Sealing::Sealed) => flip(ctx, plan, drain).await,
        Ok(Sealing::Interrupted) => Attempt::Interrupted,
        Ok(Sealing::Missed(reasons)) => reopen(ctx, plan, reasons).await,
        Err(stopped) => Attempt::Fatal(stopped),
    }
}

enum Sealing {
    Sealed,
    Interrupted,
    /// The pause grew too long, or a check failed, before the seal.
    Missed(Vec<String>),
}

/// Fence, barrier, drained, verified, sealed; no longer than the longest write pause.
async fn drain_and_seal(ctx: &Ctx, plan: &Plan, drain: &DrainRef) -> Result<Sealing, Stopped> {
    step::enter(ctx, plan, Phase::Draining);
    step::blocked(ctx, plan, Vec::new());
    let token = WorkflowCancellationToken::new();
    let mut work = Box::pin(toward_seal(ctx, plan, drain, token.clone()).fuse());
    let clock = WorkflowCancellationToken::new();
    let mut deadline = Box::pin(ctx.timer(step::timer(plan.input.max_pause(), clock.clone())));
    let mut interruption = Box::pin(step::interrupted(ctx).fuse());
    let cut_short = select! {
        sealed = work => {
            clock.cancel();
            return sealed.map(|refusals| match refusals {
                refusals if refusals.is_empty() => Sealing::Sealed,
                refusals => Sealing::Missed(refusals),
            });
        }
        () = interruption => Sealing::Interrupted,
        _ = deadline => {
            let mut reasons = ctx.state(|s| s.status.blocked_by.clone());
            reasons.insert(0, format!(
                "the write pause reached its limit of {} s", plan.input.max_pause_seconds
            ));
            Sealing::Missed(reasons)
        }
    };
    token.cancel();
    clock.cancel();
    match work.await {
        Ok(_) | Err(Stopped::Cancelled) => Ok(cut_short),
        Err(failed) => Err(failed),
    }
}

/// The steps of the drain, in order; returns why it must go back, or nothing once it is sealed.
async fn toward_seal(
    ctx: &Ctx,
    plan: &Plan,
    drain: &DrainRef,
    token: WorkflowCancellationToken,
) -> Result<Vec<String>, Stopped> {
    let patience = Patience::from(&plan.input);
    let options = || patience.long(token.clone());
    let fence = call(ctx, MoveApi::fence, drain.clone(), options()).await?;
    if !fence.refusals.is_empty() {
        return Ok(fence.refusals);
    }
    loop {
        let look = DrainInput {
            drain: drain.clone(),
            within: LOOK.min(plan.input.max_pause() / 4),
        };
        let drained = call(ctx, MoveApi::drain, look, options()).await?;
        step::blocked(ctx, plan, drained.blockers.clone());
        if !drained.blockers.is_empty() {
            continue;
        }
        // A pause that reaches its limit meanwhile says why.
        step::blocked(ctx, plan, vec![COMPARING.to_owned()]);
        let verified = call(
            ctx,
            MoveApi::verify,
            MoveRef {
                move_id: plan.move_id,
            },
            options(),
        )
        .await?;
        if !verified.differences.is_empty() {
            return Ok(verified.differences);
        }
        step::blocked(ctx, plan, Vec::new());
        // What came while both sides were compared is proved again: it shows as a blocker or is
        // on the sink.
        let look = DrainInput {
            drain: drain.clone(),
            within: LOOK,
        };
        let still = call(ctx, MoveApi::drain, look, options()).await?;
        if !still.blockers.is_empty() {
            step::blocked(ctx, plan, still.blockers);
            continue;
        }
        let sealed = call(ctx, MoveApi::seal, drain.clone(), options()).await?;
        if sealed.reopened.is_empty() {
            ctx.state_mut(|s| s.sealed = true);
            return Ok(Vec::new());
        }
        ctx.state_mut(|s| s.opened += 1);
        let reopened = sealed
            .reopened
            .iter()
            .map(|store| format!("{store}: a change came behind the barrier"));
        step::blocked(ctx, plan, reopened.collect());
    }
}

/// The flip itself: from here only the control plane can refuse.
async fn flip(ctx: &Ctx, plan: &Plan, drain: DrainRef) -> Attempt {
    step::enter(ctx, plan, Phase::Flipping);
    let options = Patience::from(&plan.input).long(WorkflowCancellationToken::new());
    match call(ctx, MoveApi::flip, drain, options).await {
        Ok(flipped) if flipped.refusals.is_empty() => Attempt::Flipped(flipped.write_pause),
        Ok(refused) => reopen(ctx, plan, refused.refusals).await,
        Err(stopped) => Attempt::Fatal(stopped),
    }
}

/// Takes back a drain that an earlier workflow began; `None` once the move is active again.
pub(super) async fn take_back(ctx: &Ctx, plan: &Plan) -> Option<Verdict> {
    let reasons = vec!["the workflow that drained is gone".to_owned()];
    let attempt = reopen(ctx, plan, reasons).await;
    conclude(ctx, plan, attempt).1
}

/// Ends a flip that an earlier workflow began; `None` if it was refused and the move is active
/// again.
pub(super) async fn flip_again(ctx: &Ctx, plan: &Plan, drain: DrainRef) -> Option<Verdict> {
    let attempt = flip(ctx, plan, drain).await;
    conclude(ctx, plan, attempt).1
}

/// Back to `active`: the token revoked, the fence lifted, the units unsealed.
async fn reopen(ctx: &Ctx, plan: &Plan, reasons: Vec<String>) -> Attempt {
    let because = Because {
        move_id: plan.move_id,
        code: failure::NOT_DRAINED.to_owned(),
        reason: reasons.join("; "),
    };
    let options = Patience::from(&plan.input).long(WorkflowCancellationToken::new());
    match call(ctx, MoveApi::reopen, because, options).await {
        Ok(()) => {
            ctx.state_mut(|s| {
                s.sealed = false;
                s.opened += 1;
            });
            step::enter(ctx, plan, Phase::Active);
            Attempt::Reopened(reasons)
        }
        Err(stopped) => Attempt::Fatal(stopped),
    }
}

/// What the caller of the cut-over is told, and whether the steering is over.
fn conclude(ctx: &Ctx, plan: &Plan, attempt: Attempt) -> (CutOverAnswer, Option<Verdict>) {
    let answer = |phase, write_pause: Option<Duration>, refusals| CutOverAnswer {
        phase,
        write_pause_ms: write_pause.map(outcome::milliseconds),
        refusals,
    };
    match attempt {
        Attempt::Flipped(write_pause) => {
            step::blocked(ctx, plan, Vec::new());
            step::enter(ctx, plan, Phase::CutOver);
            let verdict = Verdict::Flipped { write_pause };
            (
                answer(Some(Phase::CutOver), write_pause, Vec::new()),
                Some(verdict),
            )
        }
        Attempt::Reopened(reasons) => {
            step::blocked(ctx, plan, reasons.clone());
            (answer(Some(Phase::Active), None, reasons), None)
        }
        Attempt::Interrupted => {
            let reasons = vec!["the move is being given up".to_owned()];
            let phase = ctx.state(|s| s.status.phase);
            (
                answer(phase, None, reasons),
                Some(verdict_of_interruption(ctx)),
            )
        }
        Attempt::Fatal(Stopped::Failed(failure)) => {
            let reasons = vec![failure.to_string()];
            (
                answer(Some(Phase::Failed), None, reasons),
                Some(Verdict::Fatal(failure)),
            )
        }
        Attempt::Fatal(Stopped::Cancelled) => (
            answer(None, None, vec!["cancelled".to_owned()]),
            Some(Verdict::GivenUp),
        ),
    }
}

/// A fatal finding outranks an abort: its reason is the one to keep.
fn verdict_of_interruption(ctx: &Ctx) -> Verdict {
    ctx.state(|s| s.fatal.clone())
        .map_or(Verdict::GivenUp, Verdict::Fatal)
}
