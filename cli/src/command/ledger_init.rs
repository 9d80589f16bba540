//! `monarch ledger init`

use clap::Args;
use monarch_ledger::{LedgerError, worker_grants};
use serde_json::json;

use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Also print the grants that a role of this name needs to work with the ledger
    #[arg(long, value_name = "ROLE")]
    grants_for: Option<String>,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let version = match context.ledger()?.init().await {
        Err(error @ LedgerError::Database { .. }) if !error.is_transient() => {
            return Err(Failure::from(error).advising(
                "look up the SQLSTATE; 42501 is a missing right: the schema's owner may, and to make \
                 it `create` on the database is needed",
            ));
        }
        made => made?,
    };
    let grants = arguments.grants_for.as_deref().map(worker_grants);
    let result = json!({ "schema_version": version, "grants": grants });
    console::show(context.output(), &result, |_| {
        let made = format!("the ledger's schema is at version {version}");
        grants.map_or(made.clone(), |grants| format!("-- {made}\n{grants}"))
    })?;
    Ok(Exit::Done)
}
