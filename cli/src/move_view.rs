//! A move as an operator sees it: the ledger, which is always there, and what the workflow itself
//! knows when it can be asked. Rates and times are derived here, from one reading, by pure code.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::{Ledger, Move, Unit};
use monarch_model::{Lsn, StoreName, UnitStatus};
use monarch_workflows::org_move::Status;
use serde::Serialize;

use crate::console::{lines, plain, table};
use crate::failure::Failure;
use crate::units_of_measure::{bytes, count, duration};

/// One reading of a move.
#[derive(Debug, Serialize)]
pub(crate) struct MoveView {
    /// When it was read, by our own clock.
    pub(crate) at: Timestamp,
    /// The ledger's row; none before the move is registered.
    #[serde(rename = "move")]
    pub(crate) of: Option<MoveRow>,
    /// Its units, by store.
    pub(crate) units: Vec<UnitView>,
    /// What the workflow answers.
    pub(crate) workflow: Option<Status>,
    /// Why it does not.
    pub(crate) workflow_silent: Option<String>,
}

/// A move without the token of its control plane, which is nobody's business but the worker's.
#[derive(Debug, Clone, Serialize)]
#[serde(into = "serde_json::Value")]
pub(crate) struct MoveRow(pub(crate) Move);

impl From<MoveRow> for serde_json::Value {
    fn from(row: MoveRow) -> Self {
        let mut value = serde_json::to_value(row.0).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("token");
        }
        value
    }
}

/// One unit, with what follows from its counters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct UnitView {
    pub(crate) store: StoreName,
    pub(crate) status: UnitStatus,
    pub(crate) rows_copied: u64,
    pub(crate) rows_estimated: Option<u64>,
    pub(crate) bytes_copied: u64,
    pub(crate) bytes_per_second: Option<u64>,
    pub(crate) eta_seconds: Option<u64>,
    pub(crate) tables_done: u32,
    pub(crate) tables_total: Option<u32>,
    pub(crate) changes_applied: u64,
    pub(crate) applied: Option<Lsn>,
    pub(crate) lag_bytes: Option<u64>,
    pub(crate) retained_wal_bytes: Option<u64>,
    pub(crate) heartbeat_age_seconds: Option<u64>,
    pub(crate) rows_evicted: u64,
    pub(crate) late_changes: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) error_count: i64,
}

impl UnitView {
    /// What a unit's row says at a time.
    pub(crate) fn new(unit: &Unit, now: Timestamp) -> Self {
        let copy = &unit.copy;
        let copying_for = unit.copy_started_at.map(|begun| {
            let until = unit.copied_at.filter(|end| *end >= begun).unwrap_or(now);
            elapsed(begun, until)
        });
        let rate = |n: u64| per_second(n, copying_for);
        let eta_seconds = match unit.status {
            UnitStatus::Copying => eta(copy.rows_copied, copy.rows_estimated, copying_for),
            _ => None,
        };
        Self {
            store: unit.store.clone(),
            status: unit.status,
            rows_copied: copy.rows_copied,
            rows_estimated: copy.rows_estimated,
            bytes_copied: copy.bytes_copied,
            bytes_per_second: rate(copy.bytes_copied),
            eta_seconds,
            tables_done: copy.tables_done,
            tables_total: copy.tables_total,
            changes_applied: unit.stream.changes_applied,
            applied: unit.stream.applied,
            lag_bytes: unit.stream.lag_bytes,
            retained_wal_bytes: unit.stream.retained_wal_bytes,
            heartbeat_age_seconds: unit.heartbeat_at.map(|at| elapsed(at, now).as_secs()),
            rows_evicted: unit.rows_evicted.values().sum(),
            late_changes: unit.late_changes.values().sum(),
            last_error: unit
                .last_error
                .as_ref()
                .map(|error| plain(&format!("{}: {}", error.code, error.text))),
            error_count: unit.error_count,
        }
    }

    /// Rows of rows, in a cell of a table.
    pub(crate) fn rows(&self) -> String {
        match self.rows_estimated {
            Some(estimated) if self.status == UnitStatus::Copying => {
                format!("{} of ~{}", count(self.rows_copied), count(estimated))
            }
            _ => count(self.rows_copied),
        }
    }
}

/// Time from one moment to a later one; none when clocks disagree.
fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

fn per_second(n: u64, over: Option<Duration>) -> Option<u64> {
    let millis = over?.as_millis();
    if n == 0 || millis == 0 {
        return None;
    }
    u64::try_from(u128::from(n) * 1000 / millis).ok()
}

/// The time that the rows left will take at the average pace so far.
fn eta(done: u64, estimated: Option<u64>, over: Option<Duration>) -> Option<u64> {
    let left = estimated?.checked_sub(done)?;
    if done == 0 {
        return None;
    }
    u64::try_from(over?.as_millis() * u128::from(left) / u128::from(done) / 1000).ok()
}

impl MoveView {
    /// Reads a move's row anew, and its units. What the workflow says is added by the caller.
    pub(crate) async fn read(ledger: &Ledger, of: Option<Move>) -> Result<Self, Failure> {
        let units = match &of {
            Some(of) => ledger.units(of.id).await?,
            None => Vec::new(),
        };
        let at = Timestamp::now();
        Ok(Self {
            at,
            of: of.map(MoveRow),
            units: units.iter().map(|unit| UnitView::new(unit, at)).collect(),
            workflow: None,
            workflow_silent: None,
        })
    }

    /// The same, with the workflow's answer or its silence.
    pub(crate) fn with(mut self, answer: Result<Status, Failure>) -> Self {
        match answer {
            Ok(status) => self.workflow = Some(status),
            Err(failure) => self.workflow_silent = Some(failure.what().to_owned()),
        }
        self
    }

    /// The move's phase in a word; before it is registered, what the workflow does.
    pub(crate) fn phase(&self) -> &'static str {
        match (&self.of, &self.workflow) {
            (Some(row), _) => row.0.phase.as_str(),
            (None, Some(_)) => "preflight",
            (None, None) => "not registered",
        }
    }

    /// What is in the way, by whoever knows.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(reason) = self.of.as_ref().and_then(|row| row.0.reason.as_ref()) {
            remarks.push(format!("reason: {}: {}", reason.code, reason.text));
        }
        if let Some(status) = &self.workflow {
            remarks.extend(
                status
                    .blocked_by
                    .iter()
                    .map(|by| format!("in the way: {by}")),
            );
            remarks.extend(status.failure.iter().map(|why| format!("failure: {why}")));
            remarks.extend(
                status
                    .abort_reason
                    .iter()
                    .map(|why| format!("abort: {why}")),
            );
            remarks.extend(
                status
                    .unserved
                    .iter()
                    .map(|queue| format!("no worker serves queue {queue}")),
            );
            if status.paused {
                remarks.push("paused: slots go on holding log".to_owned());
            }
        }
        for unit in &self.units {
            if let Some(error) = &unit.last_error {
                remarks.push(format!(
                    "{}: last error (of {}): {error}",
                    unit.store, unit.error_count
                ));
            }
        }
        remarks.iter().map(|remark| plain(remark)).collect()
    }
}

/// A reading as text.
pub(crate) fn text(view: &MoveView) -> String {
    let mut text = headline(view);
    if !view.units.is_empty() {
        let _ = write!(text, "\n\n{}", unit_table(&view.units));
    }
    let remarks = view.remarks();
    if !remarks.is_empty() {
        let _ = write!(text, "\n\n{}", remarks.join("\n"));
    }
    if let Some(why) = &view.workflow_silent {
        let _ = write!(text, "\n\nfrom the ledger alone: {}", plain(why));
    }
    text
}

fn headline(view: &MoveView) -> String {
    let Some(MoveRow(of)) = &view.of else {
        return view.phase().to_owned();
    };
    let mut text = format!(
        "{}: organization {} from {} to {}\nmove {}, workflow {}, for {}",
        of.phase,
        plain(of.org.as_str()),
        of.source_cell,
        of.sink_cell,
        of.id,
        plain(&of.workflow_id),
        duration(elapsed(of.created_at, of.ended_at.unwrap_or(view.at))),
    );
    if let Some(pause) = of.write_pause_ms.and_then(|ms| u64::try_from(ms).ok()) {
        let pause = duration(Duration::from_millis(pause));
        let _ = write!(text, ", writes were paused for {pause}");
    }
    text
}

fn unit_table(units: &[UnitView]) -> String {
    let mut table = table([
        "store", "status", "rows", "bytes", "rate", "eta", "changes", "applied", "lag", "heard",
    ]);
    let dash = || "-".to_owned();
    for unit in units {
        let ago = |seconds| format!("{} ago", duration(Duration::from_secs(seconds)));
        table.add_row([
            plain(unit.store.as_str()),
            unit.status.to_string(),
            unit.rows(),
            bytes(unit.bytes_copied),
            unit.bytes_per_second
                .map_or_else(dash, |rate| format!("{}/s", bytes(rate))),
            unit.eta_seconds
                .map_or_else(dash, |s| duration(Duration::from_secs(s))),
            count(unit.changes_applied),
            unit.applied.map_or_else(dash, |lsn| lsn.to_string()),
            unit.lag_bytes.map_or_else(dash, bytes),
            unit.heartbeat_age_seconds.map_or_else(dash, ago),
        ]);
    }
    lines(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_and_time_left_follow_from_one_reading() {
        let over = Some(Duration::from_secs(10));
        assert_eq!(per_second(1_000, over), Some(100));
        assert_eq!(eta(1_000, Some(4_000), over), Some(30));
        assert_eq!(
            eta(5_000, Some(4_000), over),
            None,
            "an estimate that was too low"
        );
        assert_eq!(eta(0, Some(4_000), over), None);
        assert_eq!(per_second(5, Some(Duration::ZERO)), None);
    }
}
