//! What the program prints: results on standard output, failures on standard error.

use std::io::{self, Write as _};

use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
pub(crate) use monarch_view::words::{named, plain};
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// In which form results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON document, for programs.
    Json,
}

/// Prints one line.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints bytes as they are.
pub(crate) fn put(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Prints a result: as JSON, or as the lines that `text` makes of it.
pub(crate) fn show<T: Serialize>(
    output: Output,
    result: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    match output {
        Output::Text => say(text(result).trim_end()),
        Output::Json => {
            let json = serde_json::to_string_pretty(result)
                .map_err(|error| Failure::failed(format!("write the result: {error}")))?;
            say(&json)
        }
    }
}

/// Prints a result as JSON on one line: one of several.
pub(crate) fn say_json<T: Serialize>(result: &T) -> Result<(), Failure> {
    let json = serde_json::to_string(result)
        .map_err(|error| Failure::failed(format!("write the result: {error}")))?;
    say(&json)
}

/// Prints a failure. One that cannot be printed is dropped: there is nowhere left to say so.
pub(crate) fn complain(failure: &Failure, output: Output) {
    let Failure::Told(report) = failure else {
        return;
    };
    let text = match output {
        Output::Json => serde_json::to_string(report).unwrap_or_default(),
        Output::Text => {
            let mut text = format!("monarch: {}", report.error);
            // Of a typing mistake nobody asks whether it was tried again.
            if report.exit != Exit::Usage {
                text.push_str("\n  tried again: ");
                text.push_str(report.retried);
            }
            if !report.to_do.is_empty() {
                text.push_str("\n  to do: ");
                text.push_str(&report.to_do);
            }
            text
        }
    };
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says on standard error what a command waits for.
pub(crate) fn mention(text: &str) {
    let _ = writeln!(io::stderr().lock(), "monarch: {text}");
}

/// An empty table with these columns. It fits a terminal; a pipe gets lines as long as they are.
pub(crate) fn table<const N: usize>(columns: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(columns);
    if let Some(last) = table.column_iter_mut().last() {
        last.set_padding((1, 0));
    }
    table
}

/// Hides columns, in this order, until the rest fits a width: broken cells are harder to read than
/// fewer of them. A pipe has no width, and gets them all.
pub(crate) fn fit(table: &mut Table, width: Option<u16>, dispensable: &[usize]) {
    const PADDING: usize = 2;
    let Some(width) = width.map(usize::from) else {
        return;
    };
    let widths = table.column_max_content_widths();
    let mut needed: usize = widths.iter().map(|&one| usize::from(one) + PADDING).sum();
    for &column in dispensable {
        if needed <= width {
            return;
        }
        if let Some(hidden) = table.column_mut(column) {
            hidden.set_constraint(ColumnConstraint::Hidden);
            needed -= usize::from(widths[column]) + PADDING;
        }
    }
}

/// A table's text, without the blanks that fill its last column up.
pub(crate) fn lines(table: &Table) -> String {
    table
        .to_string()
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status is read at a glance, on any terminal.
    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_whole_words() {
        let at = |width| {
            let mut table = table(["store", "status", "applied"]);
            table.set_width(width);
            table.add_row(["default", "streaming", "0/23083E8"]);
            fit(&mut table, Some(width), &[2]);
            lines(&table)
        };
        assert_eq!(
            at(40),
            " store    status     applied\n default  streaming  0/23083E8"
        );
        assert_eq!(at(22), " store    status\n default  streaming");
    }
}
