//! `monarch outbox shard`

use clap::Args;

use super::{Limit, Outbox, Side, WAITING, WhichShard, answer, waiting};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Payloads are shown by the SQL alone: they may hold anything.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    #[command(flatten)]
    shard: WhichShard,
    #[command(flatten)]
    limit: Limit,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    let (ask, limit) = (outbox.diagnostics(), arguments.limit.limit);
    let registry = outbox.registry();
    let question = match &outbox {
        Outbox::Cell(_) => ask.shard(&arguments.shard.of_cell(registry)?, limit),
        Outbox::Control(_) => ask.shard(&arguments.shard.of_control(registry)?, limit),
    };
    let row = |message: &_| waiting(registry, message);
    answer(context, &arguments.side, &question, WAITING, row).await
}
