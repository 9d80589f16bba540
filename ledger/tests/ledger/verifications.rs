//! Comparisons that are asked for while a unit streams.

use monarch_ledger::{Answer, LedgerError, Purpose, Verdict, Verification};
use monarch_model::{Epoch, Lsn, MoveId, Phase, StoreName, UnitStatus};
use serde_json::json;

use crate::fixture::{Fixture, VERSIONS, store};

fn equal() -> Answer {
    Answer {
        outcome: Verdict::Equal,
        lsn: Some(Lsn(77)),
        detail: json!({ "tables": 3 }),
    }
}

impl Fixture {
    /// A unit that streams under its first epoch.
    async fn streaming(version: monarch_harness::PgVersion) -> (Self, MoveId, StoreName, Epoch) {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        fixture
            .put_units(id, &["default"], UnitStatus::Streaming)
            .await;
        (fixture, id, store, epoch)
    }

    async fn newest(&self, id: MoveId) -> Verification {
        let mut all = self.ledger.newest_verifications(id).await.unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

/// Guards the answer: it is recorded once, whoever asks meanwhile waits for the same, and the
/// journal has both question and answer.
#[tokio::test]
async fn a_comparison_is_asked_for_taken_up_and_answered_once() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::streaming(version).await;
        let ledger = &fixture.ledger;
        let begin = || ledger.begin_verification(id, &store, epoch);
        assert_eq!(begin().await.unwrap(), None);
        assert_eq!(ledger.ask_verification(id, &store).await.unwrap(), 1);
        assert_eq!(ledger.ask_verification(id, &store).await.unwrap(), 1);
        assert_eq!(begin().await.unwrap(), Some(1));
        // A reply that was lost.
        assert_eq!(begin().await.unwrap(), Some(1));
        let end = |answer: Answer| async move {
            ledger
                .end_verification(id, &"default".parse().unwrap(), epoch, 1, &answer)
                .await
        };
        end(equal()).await.unwrap();
        let differs = Answer {
            outcome: Verdict::Differs,
            ..equal()
        };
        end(differs).await.unwrap();
        let newest = fixture.newest(id).await;
        assert_eq!(newest.outcome, Some(Verdict::Equal));
        assert_eq!(newest.lsn, Some(Lsn(77)));
        assert_eq!(newest.detail, json!({ "tables": 3 }));
        assert_eq!(ledger.ask_verification(id, &store).await.unwrap(), 2);
        assert_eq!(fixture.newest(id).await.outcome, None);
        let kinds = fixture.kinds(id).await;
        let of = |kind: &str| kinds.iter().filter(|one| *one == kind).count();
        assert_eq!(of("verification_asked"), 2);
        assert_eq!(of("verification"), 1);
    }
}

/// Guards the stream: a mover that died over a comparison does not make its successor die over it
/// too, and neither says anything once a newer one has begun.
#[tokio::test]
async fn a_successor_ends_what_an_older_mover_took_up() {
    for version in VERSIONS {
        let (fixture, id, store, older) = Fixture::streaming(version).await;
        let ledger = &fixture.ledger;
        ledger.ask_verification(id, &store).await.unwrap();
        ledger.begin_verification(id, &store, older).await.unwrap();
        let newer = ledger.next_epoch(id, &store, Purpose::Mover).await.unwrap();
        for late in [
            ledger
                .end_verification(id, &store, older, 1, &equal())
                .await
                .unwrap_err(),
            ledger
                .begin_verification(id, &store, older)
                .await
                .unwrap_err(),
        ] {
            assert!(
                matches!(late, LedgerError::Superseded { .. }),
                "{version}: {late:?}"
            );
        }
        let taken = ledger.begin_verification(id, &store, newer).await.unwrap();
        assert_eq!(taken, None);
        let newest = fixture.newest(id).await;
        assert_eq!(newest.outcome, Some(Verdict::Unanswered));
        // Asked again, it is the successor's.
        assert_eq!(ledger.ask_verification(id, &store).await.unwrap(), 2);
        let taken = ledger.begin_verification(id, &store, newer).await.unwrap();
        assert_eq!(taken, Some(2));
    }
}

/// Guards against a question that nobody will answer.
#[tokio::test]
async fn only_a_unit_that_streams_in_an_active_move_is_asked() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let store = store("default");
        let ask = || fixture.ledger.ask_verification(id, &store);
        let refused = |asked: Result<i32, LedgerError>| {
            assert!(
                matches!(asked, Err(LedgerError::NotStreaming { .. })),
                "{version}: {asked:?}"
            );
        };
        refused(ask().await);
        fixture
            .put_units(id, &["default"], UnitStatus::Streaming)
            .await;
        fixture.put(id, Phase::Draining).await;
        refused(ask().await);
        fixture.put(id, Phase::Active).await;
        assert_eq!(ask().await.unwrap(), 1);
    }
}
