//! `monarch outbox category`

use clap::Args;
use serde_json::json;

use super::{Side, answer, category_of};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// The category, by name or number
    #[arg(long, value_name = "CATEGORY")]
    category: String,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let outbox = arguments.side.outbox()?;
    let category = category_of(outbox.registry(), &arguments.category)?;
    let question = outbox.diagnostics().category(category);
    let columns = ["category", "messages"];
    answer(context, &arguments.side, &question, columns, |pending| {
        let cells = [category.to_string(), pending.to_string()];
        let value = json!({ "category": category.number, "pending": pending });
        (cells, value)
    })
    .await
}
