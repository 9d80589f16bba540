//! Epochs, and the statuses of a unit.

use std::collections::BTreeSet;

use futures::future::join_all;
use monarch_ledger::{Barrier, LedgerError, Purpose, Transition};
use monarch_model::phase::PhaseEvent;
use monarch_model::unit::{self, UnitEvent};
use monarch_model::{Epoch, Lsn, MoveId, Phase, StoreName, UnitStatus, names};
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{Fixture, VERSIONS, store};

const EVENTS: [UnitEvent; 6] = [
    UnitEvent::BeginCopy,
    UnitEvent::CopyDone,
    UnitEvent::BeginStream,
    UnitEvent::SlotDropped,
    UnitEvent::BeginEvict,
    UnitEvent::Evicted,
];

impl Fixture {
    async fn put_unit(&self, id: MoveId, store: &StoreName, status: UnitStatus) {
        self.admin
            .execute(
                "update monarch_ledger.move_unit set status = $3, slot = null
                  where move_id = $1 and store = $2",
                &[&id.0, &store.as_str(), &status.as_str()],
            )
            .await
            .unwrap();
    }
}

/// Guards promise 5: no two writers ever hold one epoch.
#[tokio::test]
async fn epochs_grow_and_are_given_once() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let (one, other) = (store("default"), store("events"));
        let taken =
            join_all((0..20).map(|_| fixture.ledger.next_epoch(id, &one, Purpose::Mover))).await;
        let taken: BTreeSet<Epoch> = taken.into_iter().map(Result::unwrap).collect();
        assert_eq!(taken, (1..=20).map(Epoch).collect());
        let of_other = fixture.ledger.next_epoch(id, &other, Purpose::Mover).await;
        assert_eq!(of_other.unwrap(), Epoch(1));
    }
}

/// Guards promise 5: whom an epoch is given is a matter of the phase; an ended move gives none.
#[tokio::test]
async fn an_epoch_is_refused_where_its_purpose_has_no_place() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let store = store("default");
        for phase in Phase::ALL {
            fixture.put(id, phase).await;
            for purpose in Purpose::ALL {
                let outcome = fixture.ledger.next_epoch(id, &store, purpose).await;
                if purpose.is_allowed_in(phase) {
                    assert!(phase.is_live());
                    outcome.unwrap();
                } else {
                    let error = outcome.unwrap_err();
                    assert!(matches!(error, LedgerError::NoEpoch { .. }), "{error:?}");
                }
            }
        }
        for late in [
            Phase::Aborting,
            Phase::Failed,
            Phase::Flipping,
            Phase::CutOver,
        ] {
            assert!(!Purpose::Mover.is_allowed_in(late), "{late}");
        }
    }
}

/// Guards the seal: after it no mover follows, until a reopened move voids what was proved.
#[tokio::test]
async fn a_sealed_unit_has_no_mover_until_the_move_is_reopened() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = &fixture.ledger;
        let store = store("default");
        ledger
            .transition(id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
            .await
            .unwrap();
        let mover = ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        let barrier = Barrier {
            nonce: Uuid::new_v4(),
            lsn: Lsn(7),
        };
        ledger
            .record_barrier(id, &store, mover, barrier)
            .await
            .unwrap();
        let seal = ledger.next_epoch(id, &store, Purpose::Seal).await.unwrap();
        ledger.record_seal(id, &store, seal).await.unwrap();
        ledger.record_seal(id, &store, seal).await.unwrap();
        assert!(
            fixture
                .ledger
                .unit(id, &store)
                .await
                .unwrap()
                .sealed_at
                .is_some()
        );
        let refused = ledger.next_epoch(id, &store, Purpose::Mover).await;
        assert!(matches!(refused, Err(LedgerError::Sealed { .. })));

        ledger
            .transition(id, PhaseEvent::Reopen, Phase::Draining, json!({}))
            .await
            .unwrap();
        let unit = ledger.unit(id, &store).await.unwrap();
        assert_eq!((unit.barrier, unit.sealed_at), (None, None));
        ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        let sealed = fixture.kinds(id).await;
        assert_eq!(sealed.iter().filter(|kind| *kind == "sealed").count(), 1);
    }
}

/// Guards promise 6 for units: the database agrees with the table, pair by pair, journal included.
#[tokio::test]
async fn every_status_and_event_does_what_the_table_says() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        for from in UnitStatus::ALL {
            for event in EVENTS {
                let evicts = matches!(event, UnitEvent::BeginEvict | UnitEvent::Evicted);
                let phase = if evicts {
                    Phase::Aborting
                } else {
                    Phase::Active
                };
                fixture.put(id, phase).await;
                fixture.put_unit(id, &store, from).await;
                let before = fixture.events(id).await.len();
                let outcome = fixture
                    .ledger
                    .unit_transition(id, &store, epoch, event, json!({}))
                    .await;
                let found = fixture.ledger.unit(id, &store).await.unwrap().status;
                let journaled = fixture.events(id).await.len() - before;
                match unit::next(from, event) {
                    Ok(after) => {
                        let repeats = after == from && event != UnitEvent::BeginCopy;
                        let (expected, rows) = if repeats {
                            (Transition::AlreadyMade, 0)
                        } else {
                            (Transition::Made, 1)
                        };
                        assert_eq!(outcome.unwrap(), expected, "{from} {event}");
                        assert_eq!((found, journaled), (after, rows));
                    }
                    Err(_) => {
                        let error = outcome.unwrap_err();
                        assert!(matches!(error, LedgerError::IllegalUnitTransition { .. }));
                        assert_eq!((found, journaled), (from, 0));
                    }
                }
            }
        }
    }
}

/// Guards promise 5: whoever was superseded changes no status.
#[tokio::test]
async fn a_zombie_changes_no_status() {
    for version in VERSIONS {
        let (fixture, id, store, zombie) = Fixture::with_epoch(version).await;
        let current = fixture
            .ledger
            .next_epoch(id, &store, Purpose::Mover)
            .await
            .unwrap();
        for event in EVENTS {
            let error = fixture
                .ledger
                .unit_transition(id, &store, zombie, event, json!({}))
                .await
                .unwrap_err();
            assert!(
                matches!(error, LedgerError::Superseded { current: c, .. } if c == current),
                "{error:?}"
            );
        }
        let unit = fixture.ledger.unit(id, &store).await.unwrap();
        assert_eq!((unit.status, unit.slot), (UnitStatus::Pending, None));
    }
}

/// Guards promise 7: nothing is copied or streamed any more for a move that is being given up, but
/// its slots can always be dropped.
#[tokio::test]
async fn a_move_that_is_given_up_copies_no_more() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        for phase in [
            Phase::Aborting,
            Phase::Failed,
            Phase::Aborted,
            Phase::Finalized,
        ] {
            fixture.put(id, phase).await;
            for (status, event) in [
                (UnitStatus::Pending, UnitEvent::BeginCopy),
                (UnitStatus::Copying, UnitEvent::CopyDone),
                (UnitStatus::Copied, UnitEvent::BeginStream),
            ] {
                fixture.put_unit(id, &store, status).await;
                let error = fixture
                    .ledger
                    .unit_transition(id, &store, epoch, event, json!({}))
                    .await
                    .unwrap_err();
                assert!(matches!(error, LedgerError::UnitHeldByPhase { .. }));
                let dropped = fixture
                    .ledger
                    .unit_transition(id, &store, epoch, UnitEvent::SlotDropped, json!({}))
                    .await;
                assert_eq!(dropped.unwrap(), Transition::Made);
            }
        }
    }
}

/// Guards promise 2: a copy that begins over has a slot of its own, so that two snapshots are
/// never mixed; the same request again is the same copy.
#[tokio::test]
async fn a_copy_that_begins_over_takes_a_new_slot() {
    for version in VERSIONS {
        let (fixture, id, store, first) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let begin = async |epoch| {
            ledger
                .unit_transition(id, &store, epoch, UnitEvent::BeginCopy, json!({}))
                .await
        };
        assert_eq!(begin(first).await.unwrap(), Transition::Made);
        assert_eq!(begin(first).await.unwrap(), Transition::AlreadyMade);
        let unit = ledger.unit(id, &store).await.unwrap();
        assert_eq!(unit.slot, Some(names::slot(&unit.slot_prefix, first)));
        ledger
            .unit_transition(id, &store, first, UnitEvent::CopyDone, json!({}))
            .await
            .unwrap();
        let error = begin(first).await.unwrap_err();
        assert!(matches!(error, LedgerError::CopyNeedsEpoch { .. }));

        let second = ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        assert_eq!(begin(second).await.unwrap(), Transition::Made);
        let again = ledger.unit(id, &store).await.unwrap();
        assert_eq!(again.slot, Some(names::slot(&unit.slot_prefix, second)));
        assert_eq!(again.copied_at, None);
        assert!(again.copy_started_at > unit.copy_started_at);
    }
}
