//! What is asked of the ledger.

use monarch_ledger::{Purpose, Registration};
use monarch_model::unit::UnitEvent;
use monarch_model::{MoveId, Phase};
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{Fixture, VERSIONS, new_move};

#[tokio::test]
async fn moves_are_found_by_id_by_organization_and_by_age() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let ledger = &fixture.ledger;
        assert_eq!(ledger.live_move().await.unwrap(), None);
        let mut made = Vec::new();
        for org in ["1", "2", "1"] {
            let new = new_move(org);
            let Registration::Registered(first) = ledger.register(&new).await.unwrap() else {
                panic!("not registered");
            };
            assert_eq!(ledger.live_move().await.unwrap(), Some(first));
            fixture.put(new.id, Phase::Aborted).await;
            made.push(new);
        }
        let newest_first: Vec<MoveId> = made.iter().rev().map(|new| new.id).collect();
        let ids = |moves: Vec<monarch_ledger::Move>| -> Vec<MoveId> {
            moves.into_iter().map(|found| found.id).collect()
        };
        assert_eq!(ids(ledger.moves(10).await.unwrap()), newest_first);
        assert_eq!(ids(ledger.moves(2).await.unwrap()), newest_first[..2]);
        let latest = ledger.latest_move_of(&made[0].org).await.unwrap().unwrap();
        assert_eq!(latest.id, made[2].id);
        assert_eq!(ledger.live_move().await.unwrap(), None);
        let nobody = MoveId(Uuid::new_v4());
        assert_eq!(ledger.move_by_id(nobody).await.unwrap(), None);
        assert_eq!(
            ledger.latest_move_of(&"3".parse().unwrap()).await.unwrap(),
            None
        );
    }
}

/// Guards promise 7: a sweep sees every live move and every end that left a slot, and no other.
#[tokio::test]
async fn a_sweep_sees_what_may_have_left_a_slot() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let ledger = &fixture.ledger;
        let live = ledger.sweep_candidates().await.unwrap();
        assert_eq!(live.len(), 1);
        assert_eq!(live[0].last_heartbeat_at, None);
        assert!(!live[0].silent_for.is_negative());

        ledger
            .unit_transition(id, &store, epoch, UnitEvent::BeginCopy, json!({}))
            .await
            .unwrap();
        let copying = ledger.sweep_candidates().await.unwrap();
        assert_eq!(
            copying[0].last_heartbeat_at,
            ledger.unit(id, &store).await.unwrap().heartbeat_at
        );
        assert_eq!(copying[0].of.workflow_id, "org-move-1");

        let units = ledger.units(id).await.unwrap();
        let mut epochs = Vec::new();
        for unit in &units {
            let epoch = ledger.next_epoch(id, &unit.store, Purpose::Sweep).await;
            epochs.push(epoch.unwrap());
        }
        fixture.put(id, Phase::Aborted).await;
        for (unit, epoch) in units.iter().zip(epochs) {
            let left = ledger.sweep_candidates().await.unwrap();
            assert_eq!(left.len(), 1, "{} may have a slot", unit.store);
            assert_eq!(left[0].units.len(), 2);
            ledger
                .unit_transition(id, &unit.store, epoch, UnitEvent::SlotDropped, json!({}))
                .await
                .unwrap();
        }
        assert_eq!(ledger.sweep_candidates().await.unwrap(), []);
        fixture.put(id, Phase::Failed).await;
        assert_eq!(ledger.sweep_candidates().await.unwrap().len(), 1);
    }
}

/// Guards `--output json`: the shape that scripts read.
#[tokio::test]
async fn records_are_plain_json() {
    for version in VERSIONS {
        let (fixture, id, store, epoch) = Fixture::with_epoch(version).await;
        let shown = serde_json::to_value(fixture.the_move(id).await).unwrap();
        assert_eq!(shown["phase"], json!("active"));
        assert_eq!(shown["id"], json!(id.to_string()));
        let progress = monarch_ledger::StreamProgress {
            applied: Some(monarch_model::Lsn(0x16_B374_D848)),
            ..Default::default()
        };
        fixture
            .ledger
            .record_stream_progress(id, &store, epoch, &progress)
            .await
            .unwrap();
        let unit = fixture.ledger.unit(id, &store).await.unwrap();
        let shown = serde_json::to_value(unit).unwrap();
        assert_eq!(shown["stream"]["applied"], json!("16/B374D848"));
        assert_eq!(shown["status"], json!("pending"));
    }
}
