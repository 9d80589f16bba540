//! `monarch move status`

use clap::Args;
use monarch_ledger::{Ledger, Move};
use monarch_model::OrgId;
use monarch_view::advice::forsaken;
use monarch_view::{Attempt, MoveView};
use monarch_worker::temporal;
use monarch_workflows::OrgMove;
use monarch_workflows::org_move::Status;
use temporalio_client::{Client, WorkflowExecutionStatus};

use super::start::begin_again;
use super::{find, none_such};
use crate::args::Which;
use crate::console;
use crate::context::{Context, identity};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::move_text;
use crate::org_move::{self, Liveness};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let ledger = context.ledger()?;
    let client = Box::pin(temporal::connect(&identity()))
        .await
        .map_err(Failure::from);
    let view = look(&ledger, client.as_ref(), &arguments.which).await?;
    console::show(context.output(), &view, move_text::text)?;
    Ok(Exit::Done)
}

/// One reading of ledger and workflow. The ledger must be there; Temporal need not.
pub(super) async fn look(
    ledger: &Ledger,
    client: Result<&Client, &Failure>,
    which: &Which,
) -> Result<MoveView, Failure> {
    let of = find(ledger, which).await?;
    match (of, client) {
        (None, Err(_)) => Err(none_such(which)),
        (None, Ok(client)) => match &which.org {
            Some(org) => attempt(client, org, None)
                .await?
                .ok_or_else(|| none_such(which)),
            None => Err(none_such(which)),
        },
        (Some(of), Err(away)) => {
            // An ended move has nothing to add.
            let is_live = of.phase.is_live();
            let view = MoveView::read(ledger, Some(of)).await?;
            let silent = Err(away.what().to_owned());
            Ok(if is_live { view.with(silent) } else { view })
        }
        (Some(of), Ok(client)) if of.phase.is_live() => driven(ledger, client, of).await,
        (Some(of), Ok(client)) => {
            // Whoever asks for an organization wants to know of a newer try to move it.
            let newer = match &which.org {
                Some(org) => attempt(client, org, Some(&of)).await?,
                None => None,
            };
            match newer {
                Some(attempt) => Ok(attempt),
                None => Ok(MoveView::read(ledger, Some(of)).await?),
            }
        }
    }
}

/// A live move, and what its workflow says.
async fn driven(ledger: &Ledger, client: &Client, of: Move) -> Result<MoveView, Failure> {
    let answer = match drive(ledger, client, &of).await? {
        Drive::Answers(status) => Ok(*status),
        Drive::Silent(why) => Err(why),
        Drive::Over => return Ok(MoveView::read(ledger, ledger.move_by_id(of.id).await?).await?),
        Drive::Gone(why) => {
            let view = MoveView::read(ledger, Some(of)).await?;
            return Ok(MoveView {
                forsaken: Some(why),
                ..view
            });
        }
    };
    Ok(MoveView::read(ledger, Some(of)).await?.with(answer))
}

/// What is known of the workflow that drives a move.
pub(crate) enum Drive {
    /// It runs, and a worker answers for it.
    Answers(Box<Status>),
    /// It says nothing; why.
    Silent(String),
    /// It does not run though its move is live; in words.
    Gone(String),
    /// Workflow and move have ended.
    Over,
}

/// Asks the workflow of a live move.
pub(crate) async fn drive(ledger: &Ledger, client: &Client, of: &Move) -> Result<Drive, Failure> {
    let handle = client.get_workflow_handle::<OrgMove>(of.workflow_id.clone());
    let liveness = match org_move::liveness(&handle).await {
        Ok(liveness) => liveness,
        Err(failure) => return Ok(Drive::Silent(failure.what().to_owned())),
    };
    if liveness.is_running() {
        let answer = org_move::said(&handle).await;
        return Ok(answer.map_or_else(Drive::Silent, |status| Drive::Answers(Box::new(status))));
    }
    // It may have ended since the ledger was read, and have said so there.
    let now = ledger.move_by_id(of.id).await?;
    let now = now.as_ref().unwrap_or(of);
    if !now.phase.is_live() {
        return Ok(Drive::Over);
    }
    let mut why = forsaken(now, liveness.in_words());
    if let Liveness::Closed {
        how: WorkflowExecutionStatus::Failed,
        ..
    } = liveness
        && let Err(ended) = org_move::outcome(&handle).await?
    {
        why.push_str(&format!(" ({})", ended.why));
    }
    Ok(Drive::Gone(why))
}

/// The organization's workflow, if it is not the one that drove `before`: it has no move yet, or
/// ended without one.
async fn attempt(
    client: &Client,
    org: &OrgId,
    before: Option<&Move>,
) -> Result<Option<MoveView>, Failure> {
    let handle = org_move::handle(client, org);
    let (run_id, runs) = match org_move::liveness(&handle).await? {
        Liveness::Running { run_id } => (run_id, true),
        Liveness::Closed { run_id, .. } => (run_id, false),
        Liveness::Missing => return Ok(None),
    };
    if before.is_some_and(|of| of.run_id == run_id) {
        return Ok(None);
    }
    let mut attempt = Attempt {
        org: org.clone(),
        workflow_id: handle.info().workflow_id.clone(),
        run_id,
        ended: None,
        to_do: None,
    };
    if runs {
        let answer = org_move::said(&handle).await;
        return Ok(Some(
            MoveView::of_attempt(attempt, before.cloned()).with(answer),
        ));
    }
    match org_move::outcome(&handle).await? {
        // It registered, moved and ended between our two looks: the next one sees its row.
        Ok(_) => return Ok(None),
        Err(ended) => {
            attempt.to_do = Some(begin_again(&ended, org, ""));
            attempt.ended = Some(ended.why);
        }
    }
    Ok(Some(MoveView::of_attempt(attempt, before.cloned())))
}
