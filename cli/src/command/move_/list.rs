//! `monarch move list`

use std::time::Duration;

use clap::Args;
use monarch_ledger::Move;
use monarch_view::MoveRow;
use monarch_view::units_of_measure::duration;

use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let moves = context.ledger()?.moves(arguments.limit).await?;
    let rows: Vec<MoveRow> = moves.into_iter().map(MoveRow).collect();
    console::show(context.output(), &rows, |rows| text(rows))?;
    Ok(Exit::Done)
}

fn text(rows: &[MoveRow]) -> String {
    if rows.is_empty() {
        return "no move yet".to_owned();
    }
    let mut table = table([
        "move",
        "organization",
        "from",
        "to",
        "phase",
        "started",
        "ended",
        "write pause",
    ]);
    for MoveRow(of) in rows {
        table.add_row([
            of.id.to_string(),
            plain(of.org.as_str()),
            of.source_cell.to_string(),
            of.sink_cell.to_string(),
            of.phase.to_string(),
            second(of.created_at),
            of.ended_at.map_or_else(|| "-".to_owned(), second),
            write_pause(of),
        ]);
    }
    lines(&table)
}

fn second(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn write_pause(of: &Move) -> String {
    of.write_pause_ms
        .and_then(|ms| u64::try_from(ms).ok())
        .map_or_else(|| "-".to_owned(), |ms| duration(Duration::from_millis(ms)))
}
