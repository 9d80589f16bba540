//! What the page asks of a move, once somebody has confirmed it.
//!
//! What was begun is carried through though the browser that asked has gone: a request half made
//! would be one that nobody knows the end of.

use std::sync::Arc;

use monarch_model::{CellName, OrgId};
use tracing::info;

use crate::actions::{Action, offer};
use crate::follower::look_once;
use crate::guard::Posted;
use crate::problem::Problem;
use crate::reading::Reading;
use crate::site::Site;
use crate::workflows::{Eviction, Refusal, RefusalKind, Request, StartRequest};

/// The longest reason that is taken, in characters.
pub(crate) const REASON_CHARS: usize = 1_000;

/// Reads what was asked for; every fault of the form at once.
pub(crate) fn request(action: Action, posted: &Posted) -> Result<Request, Vec<&'static str>> {
    match action {
        Action::Pause => Ok(Request::Pause),
        Action::Resume => Ok(Request::Resume),
        Action::CutOver => Ok(Request::CutOver {
            writes_stopped: posted.is_ticked("writes_stopped"),
        }),
        Action::Abort => match posted.field("reason") {
            "" => Err(vec!["Say why: the ledger keeps it for whoever asks later."]),
            reason => Ok(Request::Abort {
                reason: reason.chars().take(REASON_CHARS).collect(),
            }),
        },
    }
}

/// Asks it, and says what came of it.
pub(crate) async fn ask(
    site: &Arc<Site>,
    reading: &Reading,
    action: Action,
    request: Request,
) -> Result<String, Problem> {
    let (id, org) = (reading.of.id, reading.of.org.clone());
    let back = format!("/moves/{id}");
    // Looked at anew: the page that was confirmed may be minutes old.
    let now = look_once(site, id).await?.ok_or_else(Problem::not_found)?;
    let reasons = offer(&now, action).reasons;
    if !reasons.is_empty() {
        let refusal = Refusal {
            kind: RefusalKind::NotReady,
            what: format!(
                "{} was not asked for: {}",
                action.label(),
                reasons.join("; ")
            ),
            retried: "no".to_owned(),
            to_do: "see the move's page for what it may be asked now".to_owned(),
        };
        return Err(Problem::from(refusal).leading_to(back));
    }
    info!(%id, action = action.as_str(), "asked from the page");
    let carried_through = {
        let site = Arc::clone(site);
        tokio::spawn(async move {
            let answer = site.workflows.ask(&org, request).await;
            site.news.hurry();
            answer
        })
    };
    match carried_through.await {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(refusal)) => Err(Problem::from(refusal).leading_to(back)),
        Err(_) => Err(stopped().leading_to(back)),
    }
}

fn stopped() -> Problem {
    Problem::from(Refusal {
        kind: RefusalKind::Failed,
        what: "the dashboard stopped before an answer came".to_owned(),
        retried: "no".to_owned(),
        to_do: "see whether the request was served, by `monarch move watch`".to_owned(),
    })
}

/// Reads the form that starts a move; every fault of it at once.
pub(crate) fn start_request(posted: &Posted) -> Result<StartRequest, Vec<String>> {
    let mut faults = Vec::new();
    let org = posted.whole("org").parse::<OrgId>();
    let cell = |name: &str, faults: &mut Vec<String>| match posted.field(name) {
        "" => None,
        given => match given.parse::<CellName>() {
            Ok(cell) => Some(cell),
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                None
            }
        },
    };
    let (from, to) = (cell("from", &mut faults), cell("to", &mut faults));
    if from.is_some() && from == to {
        faults.push("from and to: the same cell; expected two".to_owned());
    }
    let eviction = match posted.field("eviction") {
        "manual" | "" => Some(Eviction::Manual),
        "now" => Some(Eviction::Now),
        "after" => {
            let seconds = posted.field("eviction_seconds").parse().ok();
            if seconds.is_none() {
                faults.push("eviction: expected a number of seconds after the flip".to_owned());
            }
            seconds.map(Eviction::AfterSeconds)
        }
        _ => {
            faults.push("eviction: expected manual, now, or after a number of seconds".to_owned());
            None
        }
    };
    let max_pause: Option<u32> = posted.field("max_pause").parse().ok();
    let max_pause = max_pause.filter(|seconds| (1..=3_600).contains(seconds));
    if max_pause.is_none() {
        faults.push("longest write pause: expected 1 to 3,600 seconds".to_owned());
    }
    if let Err(error) = &org {
        faults.push(error.to_string());
    }
    match (org, eviction, max_pause) {
        (Ok(org), Some(eviction), Some(max_pause_seconds)) if faults.is_empty() => {
            Ok(StartRequest {
                org,
                from,
                to,
                cuts_over_by_itself: posted.field("cut_over") == "auto",
                eviction,
                max_pause_seconds,
                scrub_on_failure: posted.is_ticked("scrub_on_failure"),
            })
        }
        _ => Err(faults),
    }
}
