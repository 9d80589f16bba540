//! What the holder of an epoch reports.

use std::collections::BTreeMap;

use monarch_ledger::{
    Barrier, CopyProgress, DatabaseIdentity, LedgerError, Purpose, SourceCommit, StreamProgress,
    Tail, UnitStart,
};
use monarch_model::unit::UnitEvent;
use monarch_model::{Lsn, TableName, UnitStatus};
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{Fixture, VERSIONS, store};

fn copy(rows: u64, tables: u32) -> CopyProgress {
    CopyProgress {
        rows_copied: rows,
        bytes_copied: rows * 100,
        rows_estimated: Some(1_000),
        tables_done: tables,
        tables_total: Some(9),
    }
}

fn stream(at: u64) -> StreamProgress {
    StreamProgress {
        received: Some(Lsn(at + 3)),
        applied: Some(Lsn(at + 1)),
        acknowledged: Some(Lsn(at)),
        source_head: Some(Lsn(at + 9)),
        last_change: Some(SourceCommit {
            lsn: Lsn(at),
            committed_at: jiff::Timestamp::from_second(i64::try_from(at).unwrap()).unwrap(),
        }),
        changes_applied: at,
        transactions_applied: at / 2,
        lag_bytes: Some(8),
        retained_wal_bytes: Some(at),
    }
}

fn start() -> UnitStart {
    let database = |name: &str| DatabaseIdentity {
        system_identifier: u64::MAX.to_string(),
        timeline: 1,
        database: name.to_owned(),
    };
    UnitStart {
        source: database("a'b"),
        sink: database("c\"d"),
        consistent_point: Lsn(0xFFFF_FFFF_FFFF_FFFF),
    }
}

fn rows(counts: &[(&str, u64)]) -> BTreeMap<TableName, u64> {
    counts
        .iter()
        .map(|(table, rows)| (table.parse().unwrap(), *rows))
        .collect()
}

/// Guards style rule 9: reports that arrive late or twice change nothing.
#[tokio::test]
async fn progress_never_goes_back() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        for progress in [copy(500, 3), copy(400, 2), copy(500, 3)] {
            ledger
                .record_copy_progress(id, &store, epoch, &progress)
                .await
                .unwrap();
            assert_eq!(ledger.unit(id, &store).await.unwrap().copy, copy(500, 3));
        }
        let mut older = stream(50);
        // What may go either way is the same in both.
        older.retained_wal_bytes = Some(100);
        for progress in [stream(100), older, stream(100), StreamProgress::default()] {
            ledger
                .record_stream_progress(id, &store, epoch, &progress)
                .await
                .unwrap();
            assert_eq!(ledger.unit(id, &store).await.unwrap().stream, stream(100));
        }
        let high = Lsn(u64::MAX);
        let to_the_end = StreamProgress {
            applied: Some(high),
            ..StreamProgress::default()
        };
        ledger
            .record_stream_progress(id, &store, epoch, &to_the_end)
            .await
            .unwrap();
        let unit = ledger.unit(id, &store).await.unwrap();
        assert_eq!(unit.stream.applied, Some(high));
        assert!(unit.heartbeat_at.is_some());
    }
}

/// Guards against a clock on the source that was set back: the last change is the later commit,
/// with its own time.
#[tokio::test]
async fn the_last_change_is_the_later_commit_whatever_its_clock_said() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let at = |lsn, second| StreamProgress {
            last_change: Some(SourceCommit {
                lsn: Lsn(lsn),
                committed_at: jiff::Timestamp::from_second(second).unwrap(),
            }),
            ..StreamProgress::default()
        };
        for progress in [at(10, 100), at(20, 90), at(15, 200)] {
            fixture
                .ledger
                .record_stream_progress(id, &store, epoch, &progress)
                .await
                .unwrap();
        }
        let unit = fixture.ledger.unit(id, &store).await.unwrap();
        assert_eq!(unit.stream.last_change, at(20, 90).last_change);
    }
}

/// Guards promise 5: what a superseded mover reports is refused, by name, and leaves no trace.
#[tokio::test]
async fn a_zombies_progress_is_refused() {
    for version in VERSIONS {
        let (fixture, id, store, zombie) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let current = ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        let before = ledger.unit(id, &store).await.unwrap();
        let events = fixture.events(id).await;
        let barrier = Barrier {
            nonce: Uuid::new_v4(),
            lsn: Lsn(1),
        };
        let tail = Tail {
            snapshot: "1:1:".to_owned(),
            lsn: Lsn(1),
        };
        let counts = rows(&[("project", 1)]);
        let refusals = [
            ledger.record_start(id, &store, zombie, &start()).await,
            ledger
                .record_copy_progress(id, &store, zombie, &copy(1, 1))
                .await,
            ledger
                .record_stream_progress(id, &store, zombie, &stream(1))
                .await,
            ledger.record_barrier(id, &store, zombie, barrier).await,
            ledger.record_seal(id, &store, zombie).await,
            ledger.record_tail(id, &store, zombie, &tail, &counts).await,
            ledger.record_eviction(id, &store, zombie, &counts).await,
            ledger
                .record_error(id, &store, zombie, "code", "text")
                .await,
        ];
        for refusal in refusals {
            let error = refusal.unwrap_err();
            assert!(
                matches!(error, LedgerError::Superseded { epoch, current: c, .. }
                    if epoch == zombie && c == current),
                "{error:?}"
            );
            assert!(!error.is_transient());
        }
        assert_eq!(ledger.unit(id, &store).await.unwrap(), before);
        assert_eq!(fixture.events(id).await, events);
    }
}

#[tokio::test]
async fn a_store_that_is_not_in_the_move_is_named() {
    for version in VERSIONS {
        let (fixture, id, _, epoch) = Fixture::with_epoch(version).await;
        let other = store("other");
        let ledger = &fixture.ledger;
        for error in [
            ledger
                .record_copy_progress(id, &other, epoch, &copy(1, 1))
                .await
                .unwrap_err(),
            ledger
                .next_epoch(id, &other, Purpose::Mover)
                .await
                .unwrap_err(),
            ledger.unit(id, &other).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, LedgerError::NoSuchUnit { store, .. } if *store == other),
                "{error:?}"
            );
        }
    }
}

/// Guards promise 2: a new copy does not inherit the positions of the one it replaces, which
/// belong to a slot that is gone.
#[tokio::test]
async fn a_copy_that_begins_over_forgets_the_positions_of_the_last() {
    for version in VERSIONS {
        let (fixture, id, store, first) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let begin = async |epoch| {
            ledger
                .unit_transition(id, &store, epoch, UnitEvent::BeginCopy, json!({}))
                .await
                .unwrap();
            ledger.unit(id, &store).await.unwrap()
        };
        begin(first).await;
        ledger
            .record_start(id, &store, first, &start())
            .await
            .unwrap();
        ledger
            .record_start(id, &store, first, &start())
            .await
            .unwrap();
        let unit = ledger.unit(id, &store).await.unwrap();
        assert_eq!(unit.source_database, Some(start().source));
        assert_eq!(unit.sink_database, Some(start().sink));
        assert_eq!(unit.consistent_point, Some(start().consistent_point));
        ledger
            .record_copy_progress(id, &store, first, &copy(10, 1))
            .await
            .unwrap();
        ledger
            .record_stream_progress(id, &store, first, &stream(10))
            .await
            .unwrap();

        let second = ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        let fresh = begin(second).await;
        assert_eq!(fresh.copy, CopyProgress::default());
        assert_eq!(fresh.stream, StreamProgress::default());
        assert_eq!(
            (fresh.source_database, fresh.consistent_point),
            (None, None)
        );
        let slots = fixture.kinds(id).await;
        assert_eq!(slots.iter().filter(|kind| *kind == "slot").count(), 1);
    }
}

/// Guards the drain: the barrier that counts is the newest, and is told once.
#[tokio::test]
async fn an_older_barrier_does_not_replace_a_newer() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let barrier = |lsn| Barrier {
            nonce: Uuid::from_u128(u128::from(lsn)),
            lsn: Lsn(lsn),
        };
        for lsn in [5, 9, 9, 5] {
            ledger
                .record_barrier(id, &store, epoch, barrier(lsn))
                .await
                .unwrap();
        }
        assert_eq!(
            ledger.unit(id, &store).await.unwrap().barrier,
            Some(barrier(9))
        );
        let told = fixture.kinds(id).await;
        assert_eq!(told.iter().filter(|kind| *kind == "barrier").count(), 2);
    }
}

/// Guards promise 8: a late change that was seen once is never forgotten, and after the slot is
/// gone nobody replaces the snapshot.
#[tokio::test]
async fn late_changes_are_never_forgotten() {
    for version in VERSIONS {
        let (fixture, id, store, _) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        fixture.flip(id).await;
        let epoch = ledger.next_epoch(id, &store, Purpose::Tail).await.unwrap();
        let tail = |lsn: u64| Tail {
            snapshot: format!("{lsn}:{lsn}:"),
            lsn: Lsn(lsn),
        };
        let seen = rows(&[("project", 2), ("it's", 1)]);
        let record = async |lsn, seen: BTreeMap<TableName, u64>| {
            ledger
                .record_tail(id, &store, epoch, &tail(lsn), &seen)
                .await
        };
        record(10, seen.clone()).await.unwrap();
        record(20, rows(&[("project", 1), ("team", 4)]))
            .await
            .unwrap();
        record(15, rows(&[])).await.unwrap();
        let unit = ledger.unit(id, &store).await.unwrap();
        let all = rows(&[("project", 2), ("it's", 1), ("team", 4)]);
        assert_eq!((unit.tail, unit.late_changes), (Some(tail(20)), all));

        ledger
            .unit_transition(id, &store, epoch, UnitEvent::SlotDropped, json!({}))
            .await
            .unwrap();
        let error = record(30, seen).await.unwrap_err();
        assert!(
            matches!(
                error,
                LedgerError::TailClosed {
                    status: UnitStatus::SlotDropped,
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

/// Guards the count of what was evicted across a crash: whoever takes over adds to it.
#[tokio::test]
async fn evicted_rows_only_grow() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        for counts in [
            rows(&[("event", 100)]),
            rows(&[("event", 40), ("group", 7)]),
            rows(&[]),
        ] {
            ledger
                .record_eviction(id, &store, epoch, &counts)
                .await
                .unwrap();
        }
        assert_eq!(
            ledger.unit(id, &store).await.unwrap().rows_evicted,
            rows(&[("event", 100), ("group", 7)])
        );
    }
}

/// Guards the journal against an endless retry: each error counts, the news is told.
#[tokio::test]
async fn a_repeated_error_is_counted_and_told_once() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let long = "x".repeat(10_000);
        for (code, text) in [
            ("unreachable", "it's away"),
            ("unreachable", "still away \u{0}"),
            ("slot_lost", long.as_str()),
        ] {
            ledger
                .record_error(id, &store, epoch, code, text)
                .await
                .unwrap();
        }
        let unit = ledger.unit(id, &store).await.unwrap();
        let last = unit.last_error.unwrap();
        assert_eq!((unit.error_count, last.code.as_str()), (3, "slot_lost"));
        assert_eq!(last.text.len(), 2_000);
        let told = fixture.kinds(id).await;
        assert_eq!(told.iter().filter(|kind| *kind == "error").count(), 2);
    }
}
