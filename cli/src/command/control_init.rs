//! `monarch control init`

use clap::Args;
use monarch_activities::routing::{self, RoutingError};
use serde_json::json;

use crate::console;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Needs `control.dsn` in the fleet. What is there is left as it is.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) async fn run(_: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let made = Box::pin(routing::init(&context.config()?)).await;
    let made = made.map_err(|error| match error {
        RoutingError::Database(error) => error.into(),
        error => Failure::usage(error.to_string()),
    })?;
    console::show(context.output(), &json!({ "made": made }), |_| {
        made.join("\n")
    })?;
    Ok(Exit::Done)
}
