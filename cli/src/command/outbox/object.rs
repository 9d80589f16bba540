//! `monarch outbox object`

use clap::Args;

use super::{Limit, Side, WAITING, answer, category_of, waiting};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Payloads are shown by the SQL alone: they may hold anything.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// The category, by name or number
    #[arg(long, value_name = "CATEGORY")]
    category: String,
    /// The object's identifier, such as the id of a row
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    object: i64,
    #[command(flatten)]
    limit: Limit,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    let registry = outbox.registry();
    let category = category_of(registry, &arguments.category)?;
    let limit = arguments.limit.limit;
    let question = outbox
        .diagnostics()
        .object(category, arguments.object, limit);
    let row = |message: &_| waiting(registry, message);
    answer(context, &arguments.side, &question, WAITING, row).await
}
