//! `monarch outbox stuck`

use clap::Args;
use serde_json::json;

use super::{Limit, Side, answer};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Of a deep shard the first ten thousand messages are marked as such.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    #[command(flatten)]
    limit: Limit,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    let question = outbox.diagnostics().stuck(arguments.limit.limit);
    let columns = [
        "cell",
        "scope",
        "shard",
        "category",
        "messages",
        "oldest",
        "next attempt",
    ];
    answer(context, &arguments.side, &question, columns, |stuck| {
        let registry = outbox.registry();
        let cells = [
            stuck.cell.clone().unwrap_or_default(),
            registry.scope_label(stuck.scope),
            stuck.shard.to_string(),
            registry.category_label(stuck.category),
            stuck.depth.to_string(),
            stuck.oldest_message.to_string(),
            stuck.next_attempt.to_string(),
        ];
        let value = json!({
            "cell": stuck.cell, "scope": stuck.scope, "shard": stuck.shard,
            "category": stuck.category, "depth": stuck.depth, "next_attempt": stuck.next_attempt,
            "oldest_message": stuck.oldest_message, "newest_message": stuck.newest_message,
        });
        (cells, value)
    })
    .await
}
