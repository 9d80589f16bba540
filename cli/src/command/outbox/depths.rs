//! `monarch outbox depths`

use clap::Args;
use serde_json::json;

use super::{Limit, Side, answer};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Counts every message.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    #[command(flatten)]
    limit: Limit,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    let question = outbox.diagnostics().depths(arguments.limit.limit);
    let columns = ["cell", "scope", "shard", "messages"];
    answer(context, &arguments.side, &question, columns, |depth| {
        let cells = [
            depth.cell.clone().unwrap_or_default(),
            outbox.registry().scope_label(depth.scope),
            depth.shard.to_string(),
            depth.depth.to_string(),
        ];
        let value = json!({
            "cell": depth.cell, "scope": depth.scope, "shard": depth.shard, "depth": depth.depth,
        });
        (cells, value)
    })
    .await
}
