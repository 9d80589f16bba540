//! `monarch move status`

use clap::Args;
use monarch_ledger::{Ledger, Move};
use monarch_model::OrgId;
use monarch_worker::temporal;
use monarch_workflows::OrgMove;
use temporalio_client::Client;

use super::{find, none_such};
use crate::args::Which;
use crate::console;
use crate::context::{Context, identity};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::move_view::{self, MoveView};
use crate::org_move::{self, Handle};

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
    console::show(context.output(), &view, move_view::text)?;
    Ok(Exit::Done)
}

/// One reading of ledger and workflow. The ledger must be there; Temporal need not.
pub(super) async fn look(
    ledger: &Ledger,
    client: Result<&Client, &Failure>,
    which: &Which,
) -> Result<MoveView, Failure> {
    let of = find(ledger, which).await?;
    let handle = client.map(|client| workflow_of(client, of.as_ref(), which.org.as_ref()));
    let answer = match handle {
        Err(failure) => Err(Failure::unreachable(failure.what())),
        Ok(None) => return Err(none_such(which)),
        Ok(Some(handle)) => org_move::status(&handle).await,
    };
    let of = match (of, &answer) {
        // A workflow that is ahead of the newest row is of a move that is not registered yet.
        (Some(of), Ok(status)) if status.move_id != Some(of.id) && which.move_id.is_none() => {
            of.phase.is_live().then_some(of)
        }
        (None, Err(_)) => return Err(none_such(which)),
        (of, _) => of,
    };
    let told = of.as_ref().is_none_or(|of| of.phase.is_live());
    let view = MoveView::read(ledger, of).await?;
    // An ended move has nothing to add, and a later run of the same id would speak of another.
    Ok(if told { view.with(answer) } else { view })
}

/// The workflow that drives a move, or would drive the one that is not registered yet.
fn workflow_of(client: &Client, of: Option<&Move>, org: Option<&OrgId>) -> Option<Handle> {
    match (of, org) {
        (Some(of), _) => Some(client.get_workflow_handle::<OrgMove>(of.workflow_id.clone())),
        (None, Some(org)) => Some(org_move::handle(client, org)),
        (None, None) => None,
    }
}
