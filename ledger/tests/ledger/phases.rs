//! The phases of a move.

use futures::future::join_all;
use monarch_ledger::{Expected, LedgerError, Reason, Transition, Why};
use monarch_model::phase::{self, PhaseEvent};
use monarch_model::{Phase, UnitStatus};
use serde_json::json;

use crate::fixture::{Fixture, JOURNAL, VERSIONS, new_move, stuck};

/// The stores of the fixture's move.
const BOTH: [&str; 2] = ["default", "events"];

/// How far every unit must be before a move makes a transition.
fn required(event: PhaseEvent) -> UnitStatus {
    match event {
        PhaseEvent::BeginEvict => UnitStatus::SlotDropped,
        PhaseEvent::Finalize | PhaseEvent::Aborted => UnitStatus::Evicted,
        _ => UnitStatus::Pending,
    }
}

/// Guards promises 6, 7 and 8: a move is never said to be further than its units. One unit that is
/// behind refuses it by name, and neither phase nor journal changes.
#[tokio::test]
async fn a_move_goes_no_further_than_its_units() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        fixture.put_units(id, &BOTH, UnitStatus::Evicted).await;
        for event in PhaseEvent::ALL {
            let Some(from) = Phase::ALL
                .into_iter()
                .find(|p| phase::next(*p, event).is_ok())
            else {
                continue;
            };
            for status in UnitStatus::ALL {
                fixture.put(id, from).await;
                fixture.put_units(id, &["events"], status).await;
                let before = fixture.events(id).await.len();
                let outcome = fixture.ledger.transition(id, event, from, json!({})).await;
                if status >= required(event) {
                    assert_eq!(outcome.unwrap(), Transition::Made, "{event} {status}");
                    continue;
                }
                let error = outcome.unwrap_err();
                assert!(
                    error
                        .to_string()
                        .ends_with(&format!("store events is {status}")),
                    "{error}"
                );
                assert!(!error.is_transient());
                assert_eq!(fixture.the_move(id).await.phase, from);
                assert_eq!(fixture.events(id).await.len(), before);
            }
        }
    }
}

/// Guards promise 6: the database agrees with the table, pair by pair, and each transition that is
/// made has its journal row.
#[tokio::test]
async fn every_phase_and_event_does_what_the_table_says() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        fixture.put_units(id, &BOTH, UnitStatus::Evicted).await;
        for from in Phase::ALL {
            for event in PhaseEvent::ALL {
                fixture.put(id, from).await;
                let before = fixture.events(id).await.len();
                let outcome = fixture.ledger.transition(id, event, from, json!({})).await;
                let found = fixture.the_move(id).await.phase;
                let events = fixture.events(id).await;
                match phase::next(from, event) {
                    Ok(target) => {
                        assert_eq!(outcome.unwrap(), Transition::Made, "{from} {event}");
                        assert_eq!(found, target);
                        assert_eq!(events.len(), before + 1);
                        let row = events.last().unwrap();
                        assert_eq!(row.kind, event.as_str());
                        assert_eq!(row.before.as_deref(), Some(from.as_str()));
                        assert_eq!(row.after.as_deref(), Some(target.as_str()));
                    }
                    Err(illegal) => {
                        let error = outcome.unwrap_err();
                        assert!(
                            matches!(error, LedgerError::IllegalTransition(e) if e == illegal),
                            "{error:?}"
                        );
                        assert_eq!((found, events.len()), (from, before));
                    }
                }
            }
        }
    }
}

/// Guards the compare-and-swap: whoever believes the move elsewhere is told where it stands, and
/// changes nothing.
#[tokio::test]
async fn a_request_that_expects_another_phase_is_refused_by_the_phase_found() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        for found in Phase::ALL {
            fixture.put(id, found).await;
            for expected in Phase::ALL.into_iter().filter(|phase| *phase != found) {
                for event in PhaseEvent::ALL {
                    let Ok(target) = phase::next(expected, event) else {
                        continue;
                    };
                    let outcome = fixture
                        .ledger
                        .transition(id, event, expected, json!({}))
                        .await;
                    if target == found {
                        assert_eq!(outcome.unwrap(), Transition::AlreadyMade);
                    } else {
                        let error = outcome.unwrap_err();
                        assert!(
                            matches!(error, LedgerError::PhaseFound { found: f, .. } if f == found),
                            "{error:?}"
                        );
                    }
                }
            }
            assert_eq!(fixture.the_move(id).await.phase, found);
        }
        assert_eq!(fixture.kinds(id).await, ["registered"]);
    }
}

#[tokio::test]
async fn a_move_that_is_not_there_is_named() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let id = new_move("1").id;
        let error = fixture
            .ledger
            .transition(id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
            .await
            .unwrap_err();
        assert!(matches!(error, LedgerError::NoSuchMove(other) if other == id));
    }
}

/// Guards promise 4: of overlapping attempts one makes the transition, and the others know.
#[tokio::test]
async fn of_concurrent_transitions_one_is_made() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let outcomes = join_all((0..8).map(|_| {
            fixture
                .ledger
                .transition(id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
        }))
        .await;
        let made = outcomes
            .into_iter()
            .filter(|outcome| *outcome.as_ref().unwrap() == Transition::Made)
            .count();
        assert_eq!(made, 1);
        assert_eq!(fixture.kinds(id).await, ["registered", "begin_drain"]);
    }
}

/// Guards the rivals: of an abort and a flip that start from one phase, one wins and the other is
/// told.
#[tokio::test]
async fn an_abort_and_a_flip_cannot_both_win() {
    for version in VERSIONS {
        for _ in 0..8 {
            let (fixture, id) = Fixture::with_move(version).await;
            fixture.put(id, Phase::Draining).await;
            let (flip, abort) = tokio::join!(
                fixture
                    .ledger
                    .transition(id, PhaseEvent::BeginFlip, Phase::Draining, json!({})),
                fixture
                    .ledger
                    .transition(id, PhaseEvent::BeginAbort, Phase::Draining, json!({})),
            );
            let (won, lost) = match (flip, abort) {
                (Ok(Transition::Made), Err(lost)) => (Phase::Flipping, lost),
                (Err(lost), Ok(Transition::Made)) => (Phase::Aborting, lost),
                other => panic!("{other:?}"),
            };
            assert!(matches!(lost, LedgerError::PhaseFound { found, .. } if found == won));
            assert_eq!(fixture.the_move(id).await.phase, won);
        }
    }
}

/// Guards against the request that comes too late: the phase is the expected one again, and yet
/// the move has gone on.
#[tokio::test]
async fn a_late_request_is_not_taken_for_a_timely_one() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = &fixture.ledger;
        let at_start = fixture.the_move(id).await.expected();
        for (event, phase) in [
            (PhaseEvent::BeginDrain, Phase::Active),
            (PhaseEvent::Reopen, Phase::Draining),
        ] {
            ledger
                .transition(id, event, phase, json!({}))
                .await
                .unwrap();
        }
        let late = ledger
            .transition(id, PhaseEvent::BeginDrain, at_start, json!({}))
            .await
            .unwrap_err();
        assert!(
            matches!(late, LedgerError::StepFound { found: 2, .. }),
            "{late:?}"
        );
        let timely = fixture.the_move(id).await.expected();
        assert_eq!(
            timely,
            Expected {
                phase: Phase::Active,
                step: Some(2)
            }
        );
        for outcome in [Transition::Made, Transition::AlreadyMade] {
            assert_eq!(
                ledger
                    .transition(id, PhaseEvent::BeginDrain, timely, json!({}))
                    .await
                    .unwrap(),
                outcome
            );
        }
    }
}

/// Guards an adopted move against the sweep that looked at it before: it is not failed, though it is
/// in the same phase at the same step.
#[tokio::test]
async fn a_move_that_was_adopted_meanwhile_is_not_failed() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = &fixture.ledger;
        let found = fixture.the_move(id).await;
        ledger
            .adopt(id, &found.workflow_id, "a later run")
            .await
            .unwrap();
        let failed = ledger.fail_forsaken(&found, json!({})).await.unwrap();
        assert_eq!(failed, None, "{version}");
        assert_eq!(fixture.the_move(id).await.phase, Phase::Active);

        let found = fixture.the_move(id).await;
        for outcome in [Transition::Made, Transition::AlreadyMade] {
            let failed = ledger.fail_forsaken(&found, json!({})).await.unwrap();
            assert_eq!(failed, Some(outcome), "{version}");
        }
        assert_eq!(fixture.the_move(id).await.phase, Phase::Failed);
    }
}

/// Guards promise 6: a crash between the phase and its journal row leaves neither.
#[tokio::test]
async fn a_crash_between_phase_and_journal_leaves_neither() {
    for version in VERSIONS {
        let (mut fixture, id) = Fixture::with_move(version).await;
        let lock = fixture.admin.transaction().await.unwrap();
        lock.batch_execute("lock table monarch_ledger.move_event in exclusive mode")
            .await
            .unwrap();
        let ledger = fixture.ledger.clone();
        let drain = tokio::spawn(async move {
            ledger
                .transition(id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
                .await
        });
        // The phase is changed and the journal row waits: end the session there.
        let pid = stuck(&fixture.watcher, JOURNAL).await;
        fixture
            .watcher
            .execute("select pg_terminate_backend($1)", &[&pid])
            .await
            .unwrap();
        let error = drain.await.unwrap().unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        lock.rollback().await.unwrap();
        assert_eq!(fixture.the_move(id).await.phase, Phase::Active);
        assert_eq!(fixture.kinds(id).await, ["registered"]);
    }
}

/// Guards the report of the write pause: it runs from the fence that led to the flip, not from one
/// that was lifted.
#[tokio::test]
async fn the_write_pause_runs_from_the_last_fence_to_the_flip() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = &fixture.ledger;
        let go = async |event, phase| {
            ledger
                .transition(id, event, phase, json!({}))
                .await
                .unwrap();
            fixture.the_move(id).await
        };
        let first = go(PhaseEvent::BeginDrain, Phase::Active).await;
        assert!(first.fenced_at.is_some());
        let reopened = go(PhaseEvent::Reopen, Phase::Draining).await;
        assert_eq!(reopened.fenced_at, None);
        let second = go(PhaseEvent::BeginDrain, Phase::Active).await;
        assert!(second.fenced_at > first.fenced_at);
        go(PhaseEvent::BeginFlip, Phase::Draining).await;
        let refused = go(PhaseEvent::FlipRefused, Phase::Flipping).await;
        assert_eq!(refused.fenced_at, second.fenced_at);
        go(PhaseEvent::BeginFlip, Phase::Draining).await;
        let flipped = go(PhaseEvent::Flipped, Phase::Flipping).await;
        let pause = flipped
            .flipped_at
            .unwrap()
            .duration_since(flipped.fenced_at.unwrap());
        let recorded = flipped.write_pause_ms.unwrap();
        assert!((pause.as_millis() - i128::from(recorded)).abs() <= 1);
        fixture.put_units(id, &BOTH, UnitStatus::Evicted).await;
        go(PhaseEvent::BeginEvict, Phase::CutOver).await;
        let ended = go(PhaseEvent::Finalize, Phase::Evicting).await;
        assert_eq!(ended.fenced_at, second.fenced_at);
        assert_eq!(ended.write_pause_ms, Some(recorded));
        assert!(ended.ended_at.is_some());
        assert_eq!(ended.step, 9);
    }
}

/// Guards the operator's question "why": the failure's reason outlives the abort that cleans up
/// after it, and a reason cannot break the abort.
#[tokio::test]
async fn the_reason_of_a_failure_outlives_its_abort() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let reason = |code: &str, text: &str| Reason {
            code: code.to_owned(),
            text: text.to_owned(),
        };
        let failure = reason("slot_lost", "the slot of store 'it''s' is gone");
        fixture
            .ledger
            .transition(id, PhaseEvent::Fail, Phase::Active, failure.clone())
            .await
            .unwrap();
        let why = Why {
            reason: Some(reason("operator", "\u{0}<script>\u{202e}")),
            detail: json!({ "by": "nul \u{0}" }),
        };
        fixture
            .ledger
            .transition(id, PhaseEvent::BeginAbort, Phase::Failed, why)
            .await
            .unwrap();
        assert_eq!(fixture.the_move(id).await.reason, Some(failure));
        let told = fixture.events(id).await.pop().unwrap().detail;
        assert_eq!(
            told,
            json!({
                "by": "nul \u{FFFD}",
                "reason": { "code": "operator", "text": "\u{FFFD}<script>\u{202e}" },
            })
        );
    }
}
