//! The lease.

use std::collections::BTreeSet;

use futures::future::join_all;
use monarch_ledger::{LedgerError, Registration};
use monarch_model::{MoveId, Phase, names};
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{Fixture, VERSIONS, new_move, spine, store};

/// Guards promise 6: what is registered is there in full, units and spine included.
#[tokio::test]
async fn a_registered_move_is_there_in_full() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let new = new_move("1");
        let Registration::Registered(made) = fixture.ledger.register(&new).await.unwrap() else {
            panic!("not registered");
        };
        assert_eq!(fixture.the_move(new.id).await, made);
        assert_eq!(
            (made.phase, made.step, made.ended_at),
            (Phase::Active, 0, None)
        );
        let recorded = fixture.ledger.whole_spine(new.id).await.unwrap();
        assert_eq!(
            (recorded.digest(), &recorded),
            (made.spine_digest, &new.spine)
        );
        let project = "project".parse().unwrap();
        assert_eq!(
            fixture.ledger.spine(new.id, &project).await.unwrap(),
            ["1", "10", "2"]
        );
        let units = fixture.ledger.units(new.id).await.unwrap();
        let prefixes: Vec<_> = units.iter().map(|unit| unit.slot_prefix.clone()).collect();
        let expected: Vec<_> = new
            .stores
            .iter()
            .map(|store| names::unit_prefix(new.id, &new.org, store))
            .collect();
        assert_eq!(prefixes, expected);
        assert_eq!(fixture.kinds(new.id).await, ["registered"]);
    }
}

/// Guards promise 4: the reply is lost, the activity runs again and reads another spine; the first
/// one holds.
#[tokio::test]
async fn a_lost_reply_of_register_does_no_harm() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let mut new = new_move("1");
        let Registration::Registered(first) = fixture.ledger.register(&new).await.unwrap() else {
            panic!("not registered");
        };
        new.spine = spine(&["1", "2", "10", "11"]);
        new.token = Uuid::new_v4();
        new.stores.reverse();
        let again = fixture.ledger.register(&new).await.unwrap();
        assert_eq!(again, Registration::AlreadyRegistered(first));
        assert_eq!(fixture.kinds(new.id).await, ["registered"]);
    }
}

/// Guards promise 6: an id never names two different moves.
#[tokio::test]
async fn an_id_that_names_another_move_is_refused() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let new = new_move("1");
        fixture.ledger.register(&new).await.unwrap();
        let mut others = [new.clone(), new.clone(), new.clone()];
        others[0].org = "2".parse().unwrap();
        others[1].sink_cell = "us3".parse().unwrap();
        others[2].stores.pop();
        for other in others {
            let error = fixture.ledger.register(&other).await.unwrap_err();
            assert!(
                matches!(error, LedgerError::RegisteredOtherwise { .. }),
                "{error:?}"
            );
        }
    }
}

/// Guards promise 6: one live move in the fleet, whoever else asks, and it is named.
#[tokio::test]
async fn a_second_live_move_is_refused_and_the_first_named() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let first = new_move("1");
        fixture.ledger.register(&first).await.unwrap();
        for phase in Phase::ALL {
            fixture.put(first.id, phase).await;
            for org in ["1", "2"] {
                let second = new_move(org);
                let outcome = fixture.ledger.register(&second).await.unwrap();
                if phase.is_live() {
                    let (id, org) = (first.id, first.org.clone());
                    assert_eq!(outcome, Registration::LiveMove { id, org, phase });
                    assert_eq!(fixture.ledger.move_by_id(second.id).await.unwrap(), None);
                    assert!(fixture.ledger.units(second.id).await.unwrap().is_empty());
                } else {
                    assert!(matches!(outcome, Registration::Registered(_)), "{phase}");
                    fixture.put(second.id, Phase::Aborted).await;
                }
            }
        }
    }
}

/// Guards promise 6 when many ask at once: the database decides, not a look before the leap.
#[tokio::test]
async fn of_many_moves_at_once_one_gets_the_lease() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let moves: Vec<_> = (0..12).map(|n| new_move(&n.to_string())).collect();
        let outcomes = join_all(moves.iter().map(|new| fixture.ledger.register(new))).await;
        let mut registered = Vec::new();
        let mut named = BTreeSet::<MoveId>::new();
        for outcome in outcomes {
            match outcome.unwrap() {
                Registration::Registered(made) => registered.push(made.id),
                Registration::LiveMove { id, .. } => {
                    named.insert(id);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(registered.len(), 1);
        assert_eq!(named.into_iter().collect::<Vec<_>>(), registered);
    }
}

/// Guards promise 4 when attempts overlap: one move, one journal row.
#[tokio::test]
async fn overlapping_attempts_register_one_move() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let new = new_move("1");
        let outcomes = join_all((0..8).map(|_| fixture.ledger.register(&new))).await;
        let made = outcomes
            .into_iter()
            .filter(|outcome| matches!(outcome, Ok(Registration::Registered(_))))
            .count();
        assert_eq!(made, 1);
        assert_eq!(fixture.kinds(new.id).await, ["registered"]);
    }
}

/// Guards promise 1 in the ledger: names and ids are values, whatever they are made of.
#[tokio::test]
async fn values_may_hold_quotes() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let mut new = new_move("O'Brien\"; drop table move; -- \\ 雪 {a,NULL}");
        new.source_cell = "it's".parse().unwrap();
        new.stores = vec![store("a'b\"c\\d,{e}"), store("NULL")];
        new.spine = spine(&["a'b", "\"q\"", "{x,y}", "NULL", "\\", "", "雪"]);
        new.options = json!({ "note": "it's \"quoted\" \u{0} \\u0000", "k'e\"y": [1, null] });
        let Registration::Registered(made) = fixture.ledger.register(&new).await.unwrap() else {
            panic!("not registered");
        };
        assert_eq!((&made.org, &made.source_cell), (&new.org, &new.source_cell));
        assert_eq!(
            made.options["note"],
            json!("it's \"quoted\" \u{FFFD} \\u0000")
        );
        assert_eq!(fixture.ledger.whole_spine(new.id).await.unwrap(), new.spine);
        let latest = fixture.ledger.latest_move_of(&new.org).await.unwrap();
        assert_eq!(latest, Some(made));
        let mut stores: Vec<_> = fixture
            .ledger
            .units(new.id)
            .await
            .unwrap()
            .into_iter()
            .map(|unit| unit.store)
            .collect();
        stores.sort();
        new.stores.sort();
        assert_eq!(stores, new.stores);
    }
}

/// Guards promise 10: a failing row is quoted by the server, and must not be by us.
#[tokio::test]
async fn an_error_names_the_constraint_and_no_value() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let mut new = new_move("secret-organization");
        new.sink_cell = new.source_cell.clone();
        let error = fixture.ledger.register(&new).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("move_cells"), "{source}");
        let shown = format!("{error} {source} {error:?}");
        assert!(!shown.contains("secret-organization"), "{shown}");
    }
}
