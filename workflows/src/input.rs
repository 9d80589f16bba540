//! What starts and steers a move, as its caller writes it.
//!
//! The start input is JSON from anywhere: a typed client, the page, the `temporal` command. A start
//! input that does not decode would make Temporal retry the first task for ever, so the workflow
//! takes it raw and [`OrgMoveInput::parse`] says what is wrong with it.

use std::time::{Duration, SystemTime};

use monarch_model::{CellName, MoveId, OrgId, TableName};
use serde::{Deserialize, Serialize};

/// The start input of [`OrgMove`](crate::OrgMove): `{"org_id": 1}` and, where wished, more.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrgMoveInput {
    /// The root row's key: an integer or a string.
    pub org_id: OrgId,
    /// The cell the organization leaves; `from` of the fleet where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CellName>,
    /// The cell it goes to; `to` of the fleet where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<CellName>,
    /// Carries on this move of the organization, whose workflow is gone, in the place of starting
    /// one: from wherever the ledger says that it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<MoveId>,
    /// Whether the move cuts over by itself once every unit is ready.
    #[serde(default)]
    pub cut_over: CutOverPolicy,
    /// When the source is evicted after the flip.
    #[serde(default)]
    pub eviction: EvictionPolicy,
    /// Longest time in seconds from fence to seal before the fence is lifted again.
    #[serde(default = "default_max_pause_seconds")]
    pub max_pause_seconds: u32,
    /// Whether a move that failed scrubs the sink at once, or waits for `abort`.
    #[serde(default)]
    pub scrub_on_failure: bool,
    /// A mover that has reported nothing for so many seconds is taken for dead.
    #[serde(default = "default_heartbeat_seconds")]
    pub heartbeat_seconds: u32,
    /// The tables whose rows move by their chosen edge though another of their edges names another
    /// organization; in any other table such rows refuse the move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_disagreeing_edges: Vec<TableName>,
}

fn default_max_pause_seconds() -> u32 {
    30
}

fn default_heartbeat_seconds() -> u32 {
    20
}

/// Who decides that a move cuts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOverPolicy {
    /// The operator, by the `cut_over` update.
    #[default]
    Manual,
    /// The move itself, once every unit is ready; only where the fleet can fence by machine.
    Auto,
}

/// When the organization's rows leave the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionPolicy {
    /// When the operator asks for it, by the `evict` update.
    #[default]
    Manual,
    /// So many seconds after the flip, or earlier when asked for.
    AfterSeconds(u64),
    /// At once.
    Now,
}

/// A start input that cannot be used, with every fault that was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the start input of OrgMove cannot be used: {0}; expected for example {{\"org_id\": 1}} or \
     {{\"org_id\": 1, \"from\": \"us1\", \"to\": \"us2\", \"cut_over\": \"auto\", \
     \"eviction\": {{\"after_seconds\": 3600}}}}"
)]
pub struct BadInput(String);

impl OrgMoveInput {
    /// A move by hand in every respect.
    pub fn new(org_id: OrgId) -> Self {
        Self {
            org_id,
            from: None,
            to: None,
            adopt: None,
            cut_over: CutOverPolicy::Manual,
            eviction: EvictionPolicy::Manual,
            max_pause_seconds: default_max_pause_seconds(),
            scrub_on_failure: false,
            heartbeat_seconds: default_heartbeat_seconds(),
            accept_disagreeing_edges: Vec::new(),
        }
    }

    /// Reads the start input.
    pub fn parse(json: &[u8]) -> Result<Self, BadInput> {
        let bad = |error: serde_json::Error| BadInput(error.to_string());
        // A list would be taken for the fields in their order.
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(json).map_err(bad)?;
        let input: Self = serde_json::from_value(fields.into()).map_err(bad)?;
        let mut faults = Vec::new();
        if !(1..=3_600).contains(&input.max_pause_seconds) {
            faults.push("max_pause_seconds must be from 1 to 3,600");
        }
        if !(2..=3_600).contains(&input.heartbeat_seconds) {
            faults.push("heartbeat_seconds must be from 2 to 3,600");
        }
        if faults.is_empty() {
            Ok(input)
        } else {
            Err(BadInput(faults.join("; ")))
        }
    }

    pub(crate) fn max_pause(&self) -> Duration {
        Duration::from_secs(self.max_pause_seconds.into())
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.heartbeat_seconds.into())
    }
}

/// The argument of the `cut_over` update.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutOver {
    /// The operator's word that the organization's writes on the source are stopped and that the
    /// routing will follow. Needed where the fleet has no `control`.
    #[serde(default)]
    pub writes_stopped: bool,
    /// Until when the request may be taken up, in seconds since 1970. One that waited for a worker
    /// longer than its caller did is refused: nobody expects writes to stop any more.
    #[serde(default)]
    pub valid_until: Option<u64>,
}

impl CutOver {
    /// Whether its time has passed.
    pub fn is_stale(&self, now: Option<SystemTime>) -> bool {
        let until = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        self.valid_until
            .map(until)
            .zip(now)
            .is_some_and(|(until, now)| until < now)
    }
}

/// The argument of the `evict` update.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// The operator's word that changes written on the source after the barrier were carried over
    /// by hand, so that eviction may delete them there.
    #[serde(default)]
    pub accept_late_changes: bool,
    /// The operator's word that row versions on the source that are newer than what was copied were
    /// looked at, so that eviction may delete those that are there now.
    #[serde(default)]
    pub accept_newer_rows: bool,
}

/// The argument of the `abort` signal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Abort {
    /// Why the move is given up, for ledger and page.
    #[serde(default = "no_reason")]
    pub reason: String,
}

fn no_reason() -> String {
    "no reason given".to_owned()
}

impl Abort {
    /// Reads the signal's payload; an operator who wants out is never refused for the wording.
    pub(crate) fn parse(json: Option<&[u8]>) -> Self {
        let reason = json.and_then(|json| {
            let value: serde_json::Value = serde_json::from_slice(json).ok()?;
            let text = value
                .get("reason")
                .and_then(|r| r.as_str())
                .or(value.as_str())?;
            Some(text.chars().take(1_000).collect())
        });
        Self {
            reason: reason.unwrap_or_else(no_reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_input_is_an_organization() {
        let input = OrgMoveInput::parse(br#"{"org_id": 1}"#).unwrap();
        assert_eq!(input.org_id.as_str(), "1");
        assert_eq!(input.eviction, EvictionPolicy::Manual);
        assert_eq!(input.max_pause_seconds, 30);
    }

    #[test]
    fn a_cut_over_that_waited_longer_than_its_caller_is_stale() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let until = |valid_until| CutOver {
            valid_until,
            ..CutOver::default()
        };
        assert!(until(Some(999)).is_stale(Some(now)));
        assert!(!until(Some(1_000)).is_stale(Some(now)));
        assert!(!until(None).is_stale(Some(now)), "no limit was set");
    }

    #[test]
    fn an_input_that_cannot_be_used_says_why_and_what_is_expected() {
        for (json, says) in [
            ("", "EOF"),
            ("{}", "org_id"),
            (r#"{"org_id": 1, "form": "us1"}"#, "form"),
            (
                r#"{"org_id": 1, "max_pause_seconds": 0}"#,
                "max_pause_seconds",
            ),
            (r#"{"org_id": 1.5}"#, "org_id"),
            ("[1]", "map"),
        ] {
            let error = OrgMoveInput::parse(json.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(says) && error.contains("expected"),
                "{json}: {error}"
            );
        }
    }

    #[test]
    fn every_payload_of_an_abort_aborts() {
        for (json, reason) in [
            (Some(r#"{"reason": "too slow"}"#), "too slow"),
            (Some(r#""too slow""#), "too slow"),
            (Some("{not json"), "no reason given"),
            (Some("7"), "no reason given"),
            (None, "no reason given"),
        ] {
            assert_eq!(Abort::parse(json.map(str::as_bytes)).reason, reason);
        }
    }
}
