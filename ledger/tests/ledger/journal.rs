//! The journal.

use futures::future::join_all;
use monarch_model::phase::PhaseEvent;
use monarch_model::{MoveId, Phase};
use serde_json::json;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::fixture::{Fixture, VERSIONS, store};

/// Guards promise 6: what happened cannot be made not to have happened, not even by the owner.
#[tokio::test]
async fn the_journal_cannot_be_edited() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        for edit in [
            "update monarch_ledger.move_event set kind = 'other'",
            "delete from monarch_ledger.move_event",
            "truncate monarch_ledger.move_event",
            "delete from monarch_ledger.move_event where false",
        ] {
            let error = fixture.admin.batch_execute(edit).await.unwrap_err();
            assert_eq!(
                error.code(),
                Some(&SqlState::INSUFFICIENT_PRIVILEGE),
                "{edit}"
            );
        }
        assert_eq!(fixture.kinds(id).await, ["registered"]);
    }
}

/// A page shows the end of a journal of any length, in its order.
#[tokio::test]
async fn the_end_of_a_journal_is_its_newest_events_in_order() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        for n in 0..5 {
            let kind = format!("note_{n}");
            fixture
                .ledger
                .note(id, None, &kind, json!({}))
                .await
                .unwrap();
        }
        let newest = fixture.ledger.newest_events(id, 3).await.unwrap();
        let kinds: Vec<&str> = newest.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, ["note_2", "note_3", "note_4"]);
        let all = fixture.ledger.newest_events(id, 100).await.unwrap();
        assert_eq!(all, fixture.events(id).await);
    }
}

/// Guards the feed: a reader who goes on from the last id it saw misses nothing, though writers of
/// several units commit at once.
#[tokio::test]
async fn a_reader_of_the_journal_misses_nothing() {
    const NOTES: usize = 60;
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = fixture.ledger.clone();
        let writers = tokio::spawn(async move {
            let stores = [store("default"), store("events")];
            join_all((0..NOTES).map(|n| {
                let of = stores.get(n % 3);
                let ledger = ledger.clone();
                async move {
                    ledger
                        .note(id, of, &format!("note_{n}"), json!({ "n": n }))
                        .await
                        .unwrap();
                }
            }))
            .await;
        });
        let mut seen = Vec::new();
        while seen.len() < NOTES + 1 {
            let finished = writers.is_finished();
            let after = seen.last().copied().unwrap_or(0);
            let page = fixture.ledger.events(id, after, 7).await.unwrap();
            assert!(!(finished && page.is_empty()), "missed some: {seen:?}");
            seen.extend(page.iter().map(|event| event.id));
        }
        writers.await.unwrap();
        assert!(seen.is_sorted());
    }
}

/// Guards the same where it is decided: while one writer is about to write, the next waits for the
/// move, not beside it, so that a later id is never committed before an earlier one.
#[tokio::test]
async fn writers_of_one_journal_take_turns() {
    for version in VERSIONS {
        let (mut fixture, id) = Fixture::with_move(version).await;
        let lock = fixture.admin.transaction().await.unwrap();
        lock.batch_execute("lock table monarch_ledger.move_event in exclusive mode")
            .await
            .unwrap();
        let writers = ["one", "other"].map(|kind| {
            let ledger = fixture.ledger.clone();
            tokio::spawn(async move { ledger.note(id, None, kind, json!({})).await })
        });
        let waiting = "select starts_with(query, 'select phase from monarch_ledger.move')
                         from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        let rows = loop {
            let rows = fixture.watcher.query(waiting, &[]).await.unwrap();
            if rows.len() == 2 {
                break rows;
            }
        };
        let for_the_move = rows.iter().filter(|row| row.get(0)).count();
        assert_eq!(for_the_move, 1);
        lock.rollback().await.unwrap();
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
    }
}

/// Guards promise 4: an activity that runs again tells the same once.
#[tokio::test]
async fn a_repeated_note_is_written_once() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let ledger = &fixture.ledger;
        let default = store("default");
        for (of, by) in [
            (None, "it's me"),
            (None, "it's me"),
            (Some(&default), "it's me"),
            (None, "another"),
            (None, "it's me"),
        ] {
            ledger
                .note(id, of, "abort_ignored", json!({ "by": by }))
                .await
                .unwrap();
        }
        assert_eq!(fixture.events(id).await.len(), 1 + 4);
        let nobody = MoveId(Uuid::new_v4());
        assert!(ledger.note(nobody, None, "x", json!({})).await.is_err());
    }
}

/// Guards the page: events of one move are not shown for another, and an event says its store.
#[tokio::test]
async fn events_are_of_one_move_and_name_their_store() {
    for version in VERSIONS {
        let (fixture, id, store, _) = Fixture::with_epoch(version).await;
        fixture
            .ledger
            .transition(id, PhaseEvent::BeginAbort, Phase::Active, json!({ "n": 1 }))
            .await
            .unwrap();
        let events = fixture.events(id).await;
        let shown: Vec<_> = events
            .iter()
            .map(|event| (event.kind.as_str(), event.store.as_ref()))
            .collect();
        assert_eq!(
            shown,
            [
                ("registered", None),
                ("epoch", Some(&store)),
                ("begin_abort", None)
            ]
        );
        assert!(events.iter().all(|event| event.move_id == id));
        let other = fixture.events(MoveId(Uuid::new_v4())).await;
        assert_eq!(other, []);
        let limited = fixture.ledger.events(id, events[0].id, 1).await.unwrap();
        assert_eq!(limited, events[1..2]);
    }
}
