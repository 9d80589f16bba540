//! `monarch outbox skip`

use clap::Args;

use super::{Side, switched};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// By the scope's switch, an option in the table monarch_outbox_option of the outbox's database; an
/// application that keeps its options elsewhere has the switch there.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// The scope, by name or number
    #[arg(long, value_name = "SCOPE")]
    scope: String,
    /// The shard's identifier, such as the organization's id
    #[arg(long = "shard", value_name = "ID", allow_negative_numbers = true)]
    identifier: i64,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let Arguments {
        side,
        scope,
        identifier,
    } = arguments;
    switched(context, side, scope, *identifier, true).await
}
