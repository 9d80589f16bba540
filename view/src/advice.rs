//! What an operator can do about a move, by where it stands: told with every refusal and by
//! `monarch move status`.

use monarch_ledger::Move;
use monarch_model::{OrgId, Phase};

/// Why nothing happens to a live move whose workflow does not run; `became` says what became of it.
pub fn forsaken(of: &Move, became: &str) -> String {
    format!(
        "nobody drives move {}, which is {}: workflow {} {became}",
        of.id, of.phase, of.workflow_id
    )
}

/// What to do about that.
pub fn take_up(of: &Move) -> String {
    format!(
        "carry it on with `monarch move adopt --org {0}`; to end it, `monarch sweep --closed-for 0` \
         first, then adopt and abort it",
        of.org
    )
}

/// What is said of a request to a move that has ended, and what applies instead.
pub fn over(of: &Move) -> (String, String) {
    let lives_in = match of.phase {
        Phase::Finalized => &of.sink_cell,
        _ => &of.source_cell,
    };
    let at = of.ended_at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ"));
    let since = at.map(|at| format!(" since {at}")).unwrap_or_default();
    let said = format!(
        "the last move of organization {0} has ended: move {1} is {2}{since}, and the organization \
         lives in {lives_in}",
        of.org, of.id, of.phase
    );
    let to_do = format!(
        "see `monarch move status --move {}`; a new move begins with `monarch move start --org {}`",
        of.id, of.org
    );
    (said, to_do)
}

/// What an operator may do with a move that stands there.
pub fn may_be_asked(phase: Option<Phase>, paused: bool, org: &OrgId) -> String {
    let named = |commands: &[&str]| {
        let commands = commands
            .iter()
            .map(|command| format!("`monarch move {command} --org {org}`"));
        commands.collect::<Vec<_>>().join(", ")
    };
    match phase {
        None => format!(
            "wait until it is active ({}), or give it up ({})",
            named(&["watch"]),
            named(&["abort"])
        ),
        Some(Phase::Active) if paused => named(&["resume", "abort"]),
        Some(Phase::Active) => named(&["verify", "cut-over", "pause", "abort"]),
        Some(Phase::Draining) => named(&["watch", "abort"]),
        Some(Phase::Flipping | Phase::Aborting) => named(&["watch"]),
        Some(Phase::CutOver | Phase::Evicting) => named(&["evict", "watch"]),
        Some(Phase::Failed) => format!("{} scrubs the sink", named(&["abort"])),
        Some(Phase::Finalized | Phase::Aborted) => "see `monarch move list`".to_owned(),
    }
}

/// Whether an error that a store met is tried again, and what to do about it.
pub fn of_error(code: &str, phase: Phase) -> (&'static str, &'static str) {
    if phase == Phase::Failed {
        return (
            "no: the move stopped",
            "mend what it names; `monarch move abort` scrubs the sink, then start again",
        );
    }
    match code {
        "cell" => (
            "yes, until it succeeds",
            "see whether the store's databases are up, and reachable from where its worker runs",
        ),
        "ledger" => (
            "yes, until it succeeds",
            "see whether the ledger is up, and reachable from where the worker runs",
        ),
        "control" => (
            "yes, for as long as the write pause may last",
            "see the log of the control plane, and of the worker of the queue `monarch`",
        ),
        "not-yet" => ("yes, until it is so", "end what it names, if it stays"),
        "start-over" => (
            "yes: the store is copied again from a new slot",
            "nothing, unless it comes again",
        ),
        "eviction-refused" => (
            "no: it waits for your word",
            "look at what it lists; `monarch move evict --help` says how it is accepted",
        ),
        _ => (
            "yes, unless the move fails by it",
            "look for the code in docs/operations.md",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a move refuses, its operator is told what it would take.
    #[test]
    fn every_phase_has_something_to_do() {
        let org: OrgId = "7".parse().unwrap();
        for phase in Phase::ALL {
            let said = may_be_asked(Some(phase), false, &org);
            assert!(said.contains("`monarch move "), "{phase}: {said}");
        }
        assert_eq!(
            may_be_asked(Some(Phase::Active), true, &org),
            "`monarch move resume --org 7`, `monarch move abort --org 7`"
        );
    }
}
