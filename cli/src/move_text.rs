//! A reading of a move as text, for `status` and where a picture is taken away.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::Move;
use monarch_view::units_of_measure::{bytes, count, duration, elapsed, seconds};
use monarch_view::{MoveRow, MoveView};

use crate::console::{fit, lines, plain, table};

/// A reading as text.
pub(crate) fn text(view: &MoveView) -> String {
    let mut text = headline(view);
    if !view.units.is_empty() {
        let _ = write!(text, "\n\n{}", unit_table(view));
    }
    let remarks = view.remarks();
    if !remarks.is_empty() {
        let _ = write!(text, "\n\n{}", remarks.join("\n"));
    }
    if let Some(why) = &view.workflow_silent {
        let _ = write!(text, "\n\nfrom the ledger alone: {}", plain(why));
    }
    if let Some(MoveRow(earlier)) = &view.earlier {
        let phase = earlier.phase.as_str();
        let _ = write!(
            text,
            "\n\nbefore it:\n{}",
            described(earlier, phase, view.at)
        );
    }
    text
}

fn headline(view: &MoveView) -> String {
    match (&view.of, &view.attempt) {
        (Some(MoveRow(of)), _) => described(of, view.phase(), view.at),
        (None, Some(attempt)) => format!(
            "{}: organization {}, not registered\nworkflow {}, run {}",
            view.phase(),
            plain(attempt.org.as_str()),
            plain(&attempt.workflow_id),
            attempt.run_id
        ),
        (None, None) => view.phase().to_owned(),
    }
}

fn described(of: &Move, phase: &str, now: Timestamp) -> String {
    let mut text = format!(
        "{phase}: organization {} from {} to {}\nmove {}, workflow {}, for {}",
        plain(of.org.as_str()),
        of.source_cell,
        of.sink_cell,
        of.id,
        plain(&of.workflow_id),
        duration(elapsed(of.created_at, of.ended_at.unwrap_or(now))),
    );
    if let Some(pause) = of.write_pause_ms.and_then(|ms| u64::try_from(ms).ok()) {
        let pause = duration(Duration::from_millis(pause));
        let _ = write!(text, ", writes were paused for {pause}");
    }
    text
}

/// What a narrow terminal does without, by its place in the table: applied, bytes, rate, eta, heard,
/// changes.
const DISPENSABLE: [usize; 6] = [7, 3, 4, 5, 9, 6];

fn unit_table(view: &MoveView) -> String {
    let mut table = table([
        "store", "status", "rows", "bytes", "rate", "eta", "changes", "applied", "lag", "heard",
    ]);
    let dash = || "-".to_owned();
    for unit in &view.units {
        let ago = |age| format!("{} ago", seconds(age));
        table.add_row([
            plain(unit.store.as_str()),
            view.doing(unit).to_owned(),
            unit.rows(),
            bytes(unit.bytes_copied),
            unit.bytes_per_second
                .map_or_else(dash, |rate| format!("{}/s", bytes(rate))),
            unit.eta_seconds.map_or_else(dash, seconds),
            count(unit.changes_applied),
            unit.applied.map_or_else(dash, |lsn| lsn.to_string()),
            unit.lag_bytes.map_or_else(dash, bytes),
            unit.heartbeat_age_seconds.map_or_else(dash, ago),
        ]);
    }
    let width = table.width();
    fit(&mut table, width, &DISPENSABLE);
    lines(&table)
}
