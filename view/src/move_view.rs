//! A move as an operator sees it: the ledger, which is always there, and what the workflow itself
//! knows when it can be asked. Rates and times are derived here, from one reading, by pure code.

use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::{Ledger, LedgerError, Move, Unit, Verification, VerificationOutcome};
use monarch_model::{Lsn, OrgId, Phase, StoreName, UnitStatus, WorkflowStatus};
use serde::Serialize;

use crate::advice::{may_be_asked, take_up};
use crate::units_of_measure::{count, elapsed};
use crate::words::{named, plain};

/// One reading of a move.
#[derive(Debug, Serialize)]
pub struct MoveView {
    /// When it was read, by our own clock.
    pub at: Timestamp,
    /// The ledger's row; none before the move is registered.
    #[serde(rename = "move")]
    pub of: Option<MoveRow>,
    /// A workflow that has not registered a move, and will not if it has ended.
    pub attempt: Option<Attempt>,
    /// The organization's move before that attempt.
    pub earlier: Option<MoveRow>,
    /// Why nobody drives the move, if that is so.
    pub forsaken: Option<String>,
    /// Its units, by store.
    pub units: Vec<UnitView>,
    /// Whether its units are held, as the ledger has it.
    pub held: bool,
    /// What stands of the comparisons that were asked for, of a live move.
    pub verifications: Vec<Verification>,
    /// What the workflow answers.
    pub workflow: Option<WorkflowStatus>,
    /// Why it does not.
    pub workflow_silent: Option<String>,
}

/// How a move ended, or where nothing more comes of it without an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The organization lives on the sink alone.
    Finalized,
    /// It does not.
    NotFinalized,
}

/// A workflow without a move.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// The organization.
    pub org: OrgId,
    /// The workflow.
    pub workflow_id: String,
    /// Its run.
    pub run_id: String,
    /// Why it ended before it registered a move; none while it runs.
    pub ended: Option<String>,
    /// What to do about that.
    pub to_do: Option<String>,
}

/// A move without the token of its control plane, which is nobody's business but the worker's.
#[derive(Debug, Clone, Serialize)]
#[serde(into = "serde_json::Value")]
pub struct MoveRow(
    /// The whole row.
    pub Move,
);

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
pub struct UnitView {
    /// The store.
    pub store: StoreName,
    /// Whether what is counted as rows are objects.
    pub of_objects: bool,
    /// Where it stands.
    pub status: UnitStatus,
    /// Rows committed on the sink by the snapshot.
    pub rows_copied: u64,
    /// Rows in all, as the planner sees it.
    pub rows_estimated: Option<u64>,
    /// Bytes of those that are copied.
    pub bytes_copied: u64,
    /// The copy's average pace.
    pub bytes_per_second: Option<u64>,
    /// What is left of the copy at that pace.
    pub eta_seconds: Option<u64>,
    /// Tables whose last row is copied.
    pub tables_done: u32,
    /// Tables in all.
    pub tables_total: Option<u32>,
    /// Changes of the organization applied since the copy.
    pub changes_applied: u64,
    /// What is durable on the sink.
    pub applied: Option<Lsn>,
    /// Bytes of log between that and the source's head.
    pub lag_bytes: Option<u64>,
    /// Bytes of log that the slot keeps.
    pub retained_wal_bytes: Option<u64>,
    /// Since progress was last recorded.
    pub heartbeat_age_seconds: Option<u64>,
    /// Rows deleted on the losing side.
    pub rows_evicted: u64,
    /// Changes behind the barrier.
    pub late_changes: u64,
    /// The last error, led by its code.
    pub last_error: Option<String>,
    /// Errors recorded.
    pub error_count: i64,
}

impl UnitView {
    /// What a unit's row says at a time.
    pub fn new(unit: &Unit, now: Timestamp) -> Self {
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
    pub fn rows(&self) -> String {
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
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn read(ledger: &Ledger, of: Option<Move>) -> Result<Self, LedgerError> {
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
            held,
            verifications,
            ..Self::of_rows(of, &units, at)
        })
    }

    /// What a move's row and its units' rows say at a time.
    pub fn of_rows(of: Option<Move>, units: &[Unit], at: Timestamp) -> Self {
        Self {
            at,
            of: of.map(MoveRow),
            attempt: None,
            earlier: None,
            forsaken: None,
            units: units.iter().map(|unit| UnitView::new(unit, at)).collect(),
            held: false,
            verifications: Vec::new(),
            workflow: None,
            workflow_silent: None,
        }
    }

    /// The same, with the workflow's answer or its silence.
    pub fn with(mut self, answer: Result<WorkflowStatus, String>) -> Self {
        match answer {
            Ok(status) => self.workflow = Some(status),
            Err(why) => self.workflow_silent = Some(why),
        }
        self
    }

    /// A workflow that has no move, after the organization's last one.
    pub fn of_attempt(attempt: Attempt, earlier: Option<Move>) -> Self {
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
    pub fn is_paused(&self) -> bool {
        let phase = self.of.as_ref().map(|row| row.0.phase);
        let told = self.workflow.as_ref().map(|status| status.paused);
        phase == Some(Phase::Active) && told.unwrap_or(self.held)
    }

    /// The move's phase in a word; before it is registered, what the workflow does.
    pub fn phase(&self) -> &'static str {
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
    pub fn doing(&self, unit: &UnitView) -> &'static str {
        match unit.status {
            UnitStatus::Evicting if self.is_undone() => "scrubbing",
            UnitStatus::Evicted if self.is_undone() => "scrubbed",
            _ if self.is_paused() => "paused",
            status => status.as_str(),
        }
    }

    /// What is in the way and what was verified, by whoever knows, each said once.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks_beside(self.verifications.iter().map(verified))
    }

    /// The same without what was verified, for where that has a place of its own.
    pub fn obstacles(&self) -> Vec<String> {
        self.remarks_beside(std::iter::empty())
    }

    fn remarks_beside(&self, verified: impl Iterator<Item = String>) -> Vec<String> {
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
        remarks.extend(verified);
        if self.is_paused() {
            remarks.push("paused: slots go on holding log".to_owned());
        }
        remarks.extend(self.forsaken.clone());
        remarks.extend(self.to_do().map(|what| format!("to do: {what}")));
        remarks.iter().map(|remark| plain(remark)).collect()
    }

    /// What the workflow knows that is in the way.
    fn remarks_of(&self, status: &WorkflowStatus) -> Vec<String> {
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
    pub fn end(&self) -> Option<End> {
        if let Some(attempt) = &self.attempt {
            return attempt.ended.is_some().then_some(End::NotFinalized);
        }
        if self.forsaken.is_some() {
            return Some(End::NotFinalized);
        }
        match self.of.as_ref()?.0.phase {
            Phase::Finalized => Some(End::Finalized),
            Phase::Aborted => Some(End::NotFinalized),
            Phase::Failed if !self.is_to_be_scrubbed() => Some(End::NotFinalized),
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
