//! A move as an operator sees it: the ledger, which is always there, and what the workflow itself
//! knows when it can be asked. Rates and times are derived here, from one reading, by pure code.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::{Ledger, Move, Unit, Verification, VerificationOutcome};
use monarch_model::{Lsn, OrgId, Phase, StoreName, UnitStatus};
use monarch_workflows::org_move::Status;
use serde::Serialize;

use crate::advice::{may_be_asked, take_up};
use crate::console::{fit, lines, named, plain, table};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::units_of_measure::{bytes, count, duration, seconds};

/// One reading of a move.
#[derive(Debug, Serialize)]
pub(crate) struct MoveView {
    /// When it was read, by our own clock.
    pub(crate) at: Timestamp,
    /// The ledger's row; none before the move is registered.
    #[serde(rename = "move")]
    pub(crate) of: Option<MoveRow>,
    /// A workflow that has not registered a move, and will not if it has ended.
    pub(crate) attempt: Option<Attempt>,
    /// The organization's move before that attempt.
    pub(crate) earlier: Option<MoveRow>,
    /// Why nobody drives the move, if that is so.
    pub(crate) forsaken: Option<String>,
    /// Its units, by store.
    pub(crate) units: Vec<UnitView>,
    /// Whether its units are held, as the ledger has it.
    pub(crate) held: bool,
    /// What stands of the comparisons that were asked for, of a live move.
    pub(crate) verifications: Vec<Verification>,
    /// What the workflow answers.
    pub(crate) workflow: Option<Status>,
    /// Why it does not.
    pub(crate) workflow_silent: Option<String>,
}

/// A workflow without a move.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Attempt {
    pub(crate) org: OrgId,
    pub(crate) workflow_id: String,
    pub(crate) run_id: String,
    /// Why it ended before it registered a move; none while it runs.
    pub(crate) ended: Option<String>,
    /// What to do about that.
    pub(crate) to_do: Option<String>,
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
    /// Whether what is counted as rows are objects.
    pub(crate) of_objects: bool,
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
        // What was last heard of a slot says nothing once it is dropped.
        let has_slot = !matches!(
            unit.status,
            UnitStatus::SlotDropped | UnitStatus::Evicting | UnitStatus::Evicted
        );
        let rate = |n: u64| per_second(n, copying_for);
        let eta_seconds = match unit.status {
            UnitStatus::Copying => eta(copy.rows_copied, copy.rows_estimated, copying_for),
            _ => None,
        };
        Self {
            store: unit.store.clone(),
            of_objects: unit.of_objects,
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
            lag_bytes: unit.stream.lag_bytes.filter(|_| has_slot),
            retained_wal_bytes: unit.stream.retained_wal_bytes.filter(|_| has_slot),
            heartbeat_age_seconds: unit.heartbeat_at.map(|at| elapsed(at, now).as_secs()),
            rows_evicted: unit.rows_evicted.values().sum(),
            late_changes: unit.late_changes.values().sum(),
            last_error: unit
                .last_error
                .as_ref()
                .map(|error| plain(&named(&error.code, &error.text))),
            error_count: unit.error_count,
        }
    }

    /// Rows of rows, or objects of objects, in a cell of a table.
    pub(crate) fn rows(&self) -> String {
        let done = count(self.rows_copied);
        match self.rows_estimated {
            Some(named) if self.of_objects && named > self.rows_copied => {
                format!("{done} of {} objects", count(named))
            }
            _ if self.of_objects => format!("{done} objects"),
            Some(estimated) if self.status == UnitStatus::Copying => {
                format!("{done} of ~{}", count(estimated))
            }
            _ => done,
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
        let mut held = false;
        let mut verifications = Vec::new();
        if let Some(of) = of.as_ref().filter(|of| of.phase.is_live()) {
            held = of.phase == Phase::Active && ledger.is_held(of.id).await?;
            verifications = ledger.standing_verifications(of.id).await?;
        }
        let at = Timestamp::now();
        Ok(Self {
            at,
            of: of.map(MoveRow),
            attempt: None,
            earlier: None,
            forsaken: None,
            units: units.iter().map(|unit| UnitView::new(unit, at)).collect(),
            held,
            verifications,
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

    /// A workflow that has no move, after the organization's last one.
    pub(crate) fn of_attempt(attempt: Attempt, earlier: Option<Move>) -> Self {
        Self {
            at: Timestamp::now(),
            of: None,
            attempt: Some(attempt),
            earlier: earlier.map(MoveRow),
            forsaken: None,
            units: Vec::new(),
            held: false,
            verifications: Vec::new(),
            workflow: None,
            workflow_silent: None,
        }
    }

    /// Whether the movers are stopped until somebody resumes them: the workflow's word if there is
    /// one, since the ledger hears of a pause, and of its end, a moment later.
    fn is_paused(&self) -> bool {
        let phase = self.of.as_ref().map(|row| row.0.phase);
        let told = self.workflow.as_ref().map(|status| status.paused);
        phase == Some(Phase::Active) && told.unwrap_or(self.held)
    }

    /// The move's phase in a word; before it is registered, what the workflow does.
    pub(crate) fn phase(&self) -> &'static str {
        match (&self.of, &self.attempt) {
            (Some(_), _) if self.is_paused() => "active, paused",
            (Some(row), _) => row.0.phase.as_str(),
            (None, Some(attempt)) if attempt.ended.is_some() => "not begun",
            (None, Some(_)) => "preflight",
            (None, None) => "not registered",
        }
    }

    /// Whether the move is or was given up: what is deleted then is the copy, not the original.
    fn is_undone(&self) -> bool {
        self.of
            .as_ref()
            .is_some_and(|row| matches!(row.0.phase, Phase::Aborting | Phase::Aborted))
    }

    /// What a unit is doing, in a word.
    pub(crate) fn doing(&self, unit: &UnitView) -> &'static str {
        match unit.status {
            UnitStatus::Evicting if self.is_undone() => "scrubbing",
            UnitStatus::Evicted if self.is_undone() => "scrubbed",
            _ if self.is_paused() => "paused",
            status => status.as_str(),
        }
    }

    /// What is in the way and what was verified, by whoever knows, each said once.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let row = self.of.as_ref().map(|row| &row.0);
        if let Some(reason) = row.and_then(|row| row.reason.as_ref()) {
            remarks.push(format!("reason: {}", named(&reason.code, &reason.text)));
        }
        remarks.extend(
            self.attempt
                .iter()
                .filter_map(|attempt| attempt.ended.clone()),
        );
        if let Some(status) = &self.workflow {
            remarks.extend(self.remarks_of(status));
        }
        // What an ended move met on its way is in its journal.
        let met = self
            .units
            .iter()
            .filter(|_| row.is_none_or(|row| row.phase.is_live()));
        for unit in met {
            let Some(error) = &unit.last_error else {
                continue;
            };
            if !said_in(&remarks, error) {
                remarks.push(format!(
                    "{}: last error (of {}): {error}",
                    unit.store, unit.error_count
                ));
            }
        }
        remarks.extend(self.verifications.iter().map(verified));
        if self.is_paused() {
            remarks.push("paused: slots go on holding log".to_owned());
        }
        remarks.extend(self.forsaken.clone());
        remarks.extend(self.to_do().map(|what| format!("to do: {what}")));
        remarks.iter().map(|remark| plain(remark)).collect()
    }

    /// What the workflow knows that is in the way.
    fn remarks_of(&self, status: &Status) -> Vec<String> {
        // Once the move is active again, what was in the way is of an attempt that is over.
        let subject = match status.phase {
            Some(Phase::Active) => format!("cut-over {}", status.cut_over_attempts.max(1)),
            _ => "in the way".to_owned(),
        };
        let blocked = status.blocked_by.iter();
        let mut remarks: Vec<String> = blocked.map(|by| format!("{subject}: {by}")).collect();
        let reason = self.of.as_ref().and_then(|row| row.0.reason.as_ref());
        let is_news = |why: &&String| reason.is_none_or(|reason| !reason.text.contains(*why));
        let failure = status.failure.iter().filter(is_news);
        remarks.extend(failure.map(|why| format!("failure: {why}")));
        let abort = status.abort_reason.iter().filter(is_news);
        remarks.extend(abort.map(|why| format!("abort: {why}")));
        let unserved = status.unserved.iter();
        remarks.extend(unserved.map(|queue| format!("no worker serves queue {queue}")));
        remarks
    }

    /// What only an operator can do now.
    fn to_do(&self) -> Option<String> {
        if let Some(attempt) = &self.attempt {
            return attempt.to_do.clone();
        }
        let of = &self.of.as_ref()?.0;
        if self.forsaken.is_some() {
            return Some(take_up(of));
        }
        let waits = of.phase == Phase::Failed && !self.is_to_be_scrubbed();
        let paused = self.is_paused();
        (waits || paused).then(|| may_be_asked(Some(of.phase), paused, &of.org))
    }

    /// Whether a failed move goes on to its abort: it was started so, or somebody has asked for it.
    fn is_to_be_scrubbed(&self) -> bool {
        let options = self.of.as_ref().map(|row| &row.0.options);
        let asked = self
            .workflow
            .as_ref()
            .is_some_and(|status| status.abort_reason.is_some());
        asked || options.is_some_and(|options| options["scrub_on_failure"] == true)
    }

    /// How the move ended, if nothing more comes of it without an operator.
    pub(crate) fn end(&self) -> Option<Exit> {
        if let Some(attempt) = &self.attempt {
            return attempt.ended.is_some().then_some(Exit::Failed);
        }
        if self.forsaken.is_some() {
            return Some(Exit::Failed);
        }
        match self.of.as_ref()?.0.phase {
            Phase::Finalized => Some(Exit::Done),
            Phase::Aborted => Some(Exit::Failed),
            Phase::Failed if !self.is_to_be_scrubbed() => Some(Exit::Failed),
            _ => None,
        }
    }
}

/// What a comparison came to, the same words at each look.
fn verified(one: &Verification) -> String {
    let told = format!("{}: verification {}", one.store, one.number);
    let at = one.ended_at.unwrap_or(one.asked_at);
    let at = at.strftime("%H:%M:%SZ");
    match one.outcome {
        None if one.begun_at.is_none() => format!("{told} waits for its mover"),
        None => format!("{told} is under way since {at}"),
        Some(VerificationOutcome::Equal) => {
            let rows = one.detail["source"]["rows"].as_u64().map(count);
            let rows = rows.map(|rows| format!(" in {rows} rows"));
            format!(
                "{told} found both sides equal{} at {at}",
                rows.unwrap_or_default()
            )
        }
        Some(VerificationOutcome::Differs) => {
            let differences = one.detail["differences"].as_array();
            let differences = differences.into_iter().flatten();
            let named: Vec<&str> = differences.filter_map(|told| told.as_str()).collect();
            format!(
                "{told} found at {at} that both sides differ ({}): no cut-over until a later one \
                 finds them equal",
                named.join("; ")
            )
        }
        Some(VerificationOutcome::Unanswered) => {
            let why = one.detail["why"].as_str().unwrap_or("no reason given");
            format!("{told} ended without an answer at {at}: {why}")
        }
    }
}

/// Whether a remark tells the same already.
fn said_in(remarks: &[String], text: &str) -> bool {
    remarks.iter().any(|remark| remark.contains(text))
}

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
