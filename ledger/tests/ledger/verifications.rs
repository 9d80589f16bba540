//! Comparisons that are asked for while a unit streams.

use monarch_ledger::{Answer, LedgerError, Purpose, Verification, VerificationOutcome};
use monarch_model::{Epoch, Lsn, MoveId, Phase, StoreName, UnitStatus};
use serde_json::json;

use crate::fixture::{Fixture, VERSIONS, store};

fn equal() -> Answer {
    Answer {
        outcome: VerificationOutcome::Equal,
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

    async fn verification(&self, id: MoveId, store: &StoreName, number: i32) -> Verification {
        let found = self.ledger.verification(id, store, number).await.unwrap();
        found.unwrap()
    }

    /// What stands of the unit's comparisons: numbers and outcomes.
    async fn standing(&self, id: MoveId) -> Vec<(i32, Option<VerificationOutcome>)> {
        let standing = self.ledger.standing_verifications(id).await.unwrap();
        standing
            .into_iter()
            .map(|one| (one.number, one.outcome))
            .collect()
    }
}

/// Guards the answer: it is recorded once, who asks before it is taken up waits for the same, and
/// the journal has both question and answer.
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
        let differs = Answer {
            outcome: VerificationOutcome::Differs,
            ..equal()
        };
        for answer in [equal(), differs] {
            ledger
                .end_verification(id, &store, epoch, 1, &answer)
                .await
                .unwrap();
        }
        let ended = fixture.verification(id, &store, 1).await;
        assert_eq!(ended.outcome, Some(VerificationOutcome::Equal));
        assert_eq!(ended.lsn, Some(Lsn(77)));
        assert_eq!(ended.detail, json!({ "tables": 3 }));
        let kinds = fixture.kinds(id).await;
        let of = |kind: &str| kinds.iter().filter(|one| *one == kind).count();
        assert_eq!(of("verification_asked"), 1);
        assert_eq!(of("verification"), 1);
    }
}

/// Guards who asks while one is under way: that one may have begun hours ago, so another follows
/// it. What was found before stands meanwhile, and over one that ends without an answer.
#[tokio::test]
async fn a_difference_stands_until_a_later_comparison_finds_none() {
    use VerificationOutcome::{Differs, Equal, Unanswered};
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::streaming(version).await;
        let ledger = &fixture.ledger;
        let ask = || ledger.ask_verification(id, &store);
        let begin = || ledger.begin_verification(id, &store, epoch);
        let end = async |number, outcome| {
            let answer = Answer { outcome, ..equal() };
            ledger
                .end_verification(id, &store, epoch, number, &answer)
                .await
                .unwrap();
        };
        assert_eq!(ask().await.unwrap(), 1);
        assert_eq!(begin().await.unwrap(), Some(1));
        assert_eq!(ask().await.unwrap(), 2);
        assert_eq!(ask().await.unwrap(), 2);
        assert_eq!(fixture.standing(id).await, [(1, None), (2, None)]);
        end(1, Differs).await;
        assert_eq!(fixture.standing(id).await, [(1, Some(Differs)), (2, None)]);
        assert_eq!(begin().await.unwrap(), Some(2));
        end(2, Unanswered).await;
        assert_eq!(fixture.standing(id).await, [(1, Some(Differs))]);
        assert_eq!(ask().await.unwrap(), 3);
        assert_eq!(begin().await.unwrap(), Some(3));
        end(3, Equal).await;
        assert_eq!(fixture.standing(id).await, [(3, Some(Equal))]);
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
        let ended = fixture.verification(id, &store, 1).await;
        assert_eq!(ended.outcome, Some(VerificationOutcome::Unanswered));
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
        // Nor is it taken up beside a drain.
        fixture.put(id, Phase::Draining).await;
        let epoch = fixture
            .ledger
            .next_epoch(id, &store, Purpose::Mover)
            .await
            .unwrap();
        let taken = fixture.ledger.begin_verification(id, &store, epoch);
        assert_eq!(taken.await.unwrap(), None);
    }
}
