//! A move on a terminal: a headline, a bar per store, and what is in the way, drawn in place.
//!
//! No line is longer than the terminal is wide and there are no more than it has: a terminal that
//! breaks or scrolls a line leaves what was drawn before standing, and shows an old phase beside the
//! new one.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use monarch_model::UnitStatus;
use monarch_view::units_of_measure::seconds;
use monarch_view::{MoveView, UnitView};
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::progress;
use crate::console::plain;
use crate::failure::Failure;

/// What is assumed of a terminal that does not tell its size.
const USUAL: Size = Size {
    columns: 80,
    rows: 24,
};
/// Below this width a bar would leave too little room for what it stands for.
const ROOM_FOR_BARS: usize = 70;
const BAR: usize = 20;
/// The longest name of a store that is shown whole.
const NAME: usize = 16;
/// What reads as cut off.
const ELLIPSIS: char = '…';

#[derive(Debug, Clone, Copy)]
struct Size {
    columns: usize,
    rows: usize,
}

/// What stands on the terminal.
#[derive(Default)]
pub(super) struct Picture {
    lines: Vec<String>,
}

impl Picture {
    /// None where standard output cannot be drawn upon.
    pub(super) fn on_terminal() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        (io::stdout().is_terminal() && !is_dumb).then(Self::default)
    }

    /// Draws a reading in the place of the one before.
    pub(super) fn draw(&mut self, view: &MoveView) -> Result<(), Failure> {
        let size = size();
        self.put(lines(view, size), size)
    }

    /// Lets the last reading stand and says below it why there is no newer one.
    pub(super) fn remark(&mut self, text: &str) -> Result<(), Failure> {
        let size = size();
        let mut lines = self.lines.clone();
        lines.retain(|line| !line.starts_with(ELLIPSIS));
        lines.truncate(size.rows.saturating_sub(2));
        lines.push(cut(&format!("{ELLIPSIS} {}", plain(text)), size.columns));
        self.put(lines, size)
    }

    /// Takes away what stands there.
    pub(super) fn clear(&mut self) -> Result<(), Failure> {
        self.put(Vec::new(), size())
    }

    fn put(&mut self, lines: Vec<String>, size: Size) -> Result<(), Failure> {
        let text = redrawn(&self.lines, &lines, size);
        self.lines = lines;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

fn size() -> Size {
    let told = tcgetwinsize(io::stdout()).ok();
    let told = told.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    match told {
        Some((columns, rows)) if columns > 0 && rows > 0 => Size { columns, rows },
        _ => USUAL,
    }
}

/// Up to the first of the old lines, which may have been broken since if the terminal became
/// narrower; then each new line over an old one, and nothing below.
fn redrawn(old: &[String], new: &[String], size: Size) -> String {
    let stands: usize = old
        .iter()
        .map(|line| line.width().div_ceil(size.columns).max(1))
        .sum();
    let mut text = match stands {
        0 => String::new(),
        rows => format!("\u{1b}[{rows}F"),
    };
    for line in new {
        text.push_str(line);
        text.push_str("\u{1b}[K\n");
    }
    text.push_str("\u{1b}[J");
    text
}

/// A reading in lines that fit.
fn lines(view: &MoveView, size: Size) -> Vec<String> {
    let mut lines = vec![cut(&headline(view), size.columns)];
    let names = view.units.iter().map(|unit| unit.store.as_str().width());
    let name = names.max().unwrap_or_default().min(NAME);
    for unit in &view.units {
        lines.push(cut(&bar(view, unit, name, size.columns), size.columns));
    }
    for remark in view.remarks() {
        wrap(&remark, size.columns, &mut lines);
    }
    if let Some(why) = &view.workflow_silent {
        let why = format!("from the ledger alone: {}", plain(why));
        wrap(&why, size.columns, &mut lines);
    }
    // The last row is the cursor's.
    lines.truncate(size.rows.saturating_sub(1).max(1));
    lines
}

/// `organization 2: us1 → us2, active, 42s`
fn headline(view: &MoveView) -> String {
    let Some(of) = view.of.as_ref().map(|row| &row.0) else {
        let org = view.attempt.as_ref().map(|attempt| attempt.org.as_str());
        return format!(
            "organization {}: {}",
            plain(org.unwrap_or("?")),
            view.phase()
        );
    };
    let until = of.ended_at.unwrap_or(view.at);
    let lasts = Duration::try_from(until.duration_since(of.created_at)).unwrap_or_default();
    format!(
        "organization {}: {} → {}, {}, {}",
        plain(of.org.as_str()),
        of.source_cell,
        of.sink_cell,
        view.phase(),
        seconds(lasts.as_secs())
    )
}

fn bar(view: &MoveView, unit: &UnitView, name: usize, columns: usize) -> String {
    let mut line = cut(&plain(unit.store.as_str()), name);
    line.push_str(&" ".repeat((name + 2).saturating_sub(line.width())));
    if columns >= ROOM_FOR_BARS {
        let filled = filled(unit);
        line.push('[');
        line.push_str(&"=".repeat(filled));
        line.push_str(&" ".repeat(BAR - filled));
        line.push_str("]  ");
    }
    line.push_str(&progress(view, unit));
    line
}

/// How much of a bar a copy has filled.
fn filled(unit: &UnitView) -> usize {
    let whole = match unit.status {
        UnitStatus::Pending | UnitStatus::Copying => unit.rows_estimated.unwrap_or_default(),
        _ => 0,
    };
    let done = match unit.status {
        UnitStatus::Pending => 0,
        UnitStatus::Copying => unit.rows_copied,
        _ => return BAR,
    };
    let filled = u128::from(done) * BAR as u128 / u128::from(whole.max(done).max(1));
    usize::try_from(filled).unwrap_or(BAR).min(BAR)
}

/// The beginning of a line, as much of it as fits.
fn cut(line: &str, columns: usize) -> String {
    if line.width() <= columns {
        return line.to_owned();
    }
    let mut short = String::new();
    let mut width = 0;
    for c in line.chars() {
        width += c.width().unwrap_or(0);
        if width >= columns {
            break;
        }
        short.push(c);
    }
    short.push(ELLIPSIS);
    short
}

/// Breaks a sentence between words; a word that is longer than a line is cut.
fn wrap(text: &str, columns: usize, lines: &mut Vec<String>) {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.width() + 1 + word.width() > columns {
            lines.push(cut(&line, columns));
            line = " ".to_owned();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(cut(&line, columns));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{unit, view};
    use super::*;

    /// At any width: one headline, and no line that the terminal would break.
    #[test]
    fn every_line_fits_the_terminal() {
        let mut copying = unit(UnitStatus::Copying, 1_000);
        copying.store = "a-store-of-a-long-name-indeed".parse().unwrap();
        copying.last_error = Some("source: the connection is closed; ".repeat(6));
        copying.error_count = 2;
        let view = view(vec![copying, unit(UnitStatus::Streaming, 4_000)]);
        for columns in 1..200 {
            let drawn = lines(&view, Size { columns, rows: 24 });
            for line in &drawn {
                assert!(line.width() <= columns.max(1), "{columns}: {line:?}");
            }
            assert!(drawn.len() < 24, "{columns}: {drawn:#?}");
        }
    }

    #[test]
    fn a_narrow_terminal_has_the_words_and_a_wide_one_the_bars() {
        let view = view(vec![unit(UnitStatus::Copying, 1_000)]);
        let at = |columns| lines(&view, Size { columns, rows: 24 }).join("\n");
        insta::assert_snapshot!(at(100), @r"
        organization 1: preflight
        default  [=====               ]  copying  1,000 of ~4,000 rows  2.0 KiB  1.0 KiB/s  1m 30s left
        ");
        insta::assert_snapshot!(at(50), @r"
        organization 1: preflight
        default  copying  1,000 of ~4,000 rows  2.0 KiB  …
        ");
    }

    /// What stands there is drawn over even where the terminal broke it, having become narrower.
    #[test]
    fn a_picture_is_drawn_over_the_one_before() {
        let size = Size {
            columns: 10,
            rows: 24,
        };
        let old = ["a".repeat(25), String::new()];
        let new = ["b".to_owned()];
        assert_eq!(
            redrawn(&old, &new, size),
            "\u{1b}[4Fb\u{1b}[K\n\u{1b}[J",
            "three rows of the first line, and one of the second"
        );
        assert_eq!(redrawn(&[], &new, size), "b\u{1b}[K\n\u{1b}[J");
    }
}
