//! `monarch move abort`

use clap::Args;
use monarch_model::{OrgId, Phase};
use monarch_view::advice::may_be_asked;
use monarch_workflows::OrgMove;
use monarch_workflows::input::Abort;
use serde_json::json;
use temporalio_client::WorkflowSignalOptions;
use temporalio_common::data_converters::{PayloadConverter, RawValue};

use super::driver::Driver;
use crate::args::Organization;
use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move::{self, GLANCE};

/// Movers stop, the fence is lifted, slots and publications go, the sink is scrubbed. It is refused
/// after the flip. The request lasts: without a worker, it is served when one comes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    /// Why, for the ledger and for whoever asks later
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = &arguments.organization.org;
    let client = context.temporal().await?;
    let driver = Driver::find(&context.ledger()?, &client, org).await?;
    let asked = ask(&driver, org, &arguments.reason).await?;
    let result = json!({
        "workflow_id": driver.handle.info().workflow_id,
        "asked": "abort",
        "worker_answers": asked.worker_answers,
    });
    console::show(context.output(), &result, |_| text(&asked, org))?;
    Ok(Exit::Done)
}

/// A request that was made.
pub(crate) struct Asked {
    phase: Option<Phase>,
    worker_answers: bool,
}

/// Asks a move to be given up.
pub(crate) async fn ask(driver: &Driver, org: &OrgId, reason: &str) -> Result<Asked, Failure> {
    let phase = driver.of.as_ref().map(|of| of.phase);
    refuse_late(phase, org)?;
    let handle = &driver.handle;
    let abort = Abort {
        reason: reason.to_owned(),
    };
    let payload = RawValue::from_value(&abort, &PayloadConverter::default());
    handle
        .signal(OrgMove::abort, payload, WorkflowSignalOptions::default())
        .await
        .map_err(|error| org_move::lookup_failure(&handle.info().workflow_id, error))?;
    let silent = match org_move::status(handle, GLANCE).await {
        Err(failure) if failure.is_unreachable() => Some(failure),
        _ => None,
    };
    Ok(Asked {
        phase,
        worker_answers: silent.is_none(),
    })
}

/// What is refused needs no worker: the ledger has the phase.
fn refuse_late(phase: Option<Phase>, org: &OrgId) -> Result<(), Failure> {
    match phase {
        Some(phase @ (Phase::CutOver | Phase::Evicting)) => Err(Failure::not_ready(format!(
            "the move is {phase}: the organization lives on the other cell, and there is no way back"
        ))
        .advising(may_be_asked(Some(phase), false, org))),
        Some(phase @ Phase::Aborting) => Err(Failure::not_ready("it is being given up already")
            .advising(may_be_asked(Some(phase), false, org))),
        _ => Ok(()),
    }
}

pub(crate) fn text(asked: &Asked, org: &OrgId) -> String {
    let mut text = format!("asked to give up; see it end with `monarch move watch --org {org}`");
    if asked.phase == Some(Phase::Flipping) {
        text.push_str("\nthe routing is being changed: it is given up only if that is refused");
    }
    if !asked.worker_answers {
        text.push_str("\nno worker answers: it is given up when one does; start `monarch worker`");
    }
    text
}
