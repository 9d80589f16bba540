//! Making the schema.

use futures::future::join_all;
use monarch_ledger::{Ledger, LedgerError, Purpose, SCHEMA_VERSION, worker_grants};
use monarch_model::Phase;
use monarch_model::phase::PhaseEvent;
use monarch_model::unit::UnitEvent;
use serde_json::json;

use crate::fixture::{Fixture, VERSIONS, connect, new_move, store};

/// Guards promise 4: a second `ledger init`, also beside the first, changes nothing.
#[tokio::test]
async fn the_schema_is_made_once_however_many_make_it() {
    for version in VERSIONS {
        let fixture = Fixture::bare(version).await;
        let ledgers = join_all((0..6).map(|_| connect(&fixture.dsn))).await;
        for made in join_all(ledgers.iter().map(Ledger::init)).await {
            assert_eq!(made.unwrap(), SCHEMA_VERSION, "{version}");
        }
        assert_eq!(fixture.ledger.init().await.unwrap(), SCHEMA_VERSION);
        let rows = fixture
            .admin
            .query("select 1 from monarch_ledger.schema_version", &[])
            .await
            .unwrap();
        assert_eq!(rows.len(), usize::try_from(SCHEMA_VERSION).unwrap());
        assert_eq!(
            fixture.ledger.schema_version().await.unwrap(),
            SCHEMA_VERSION
        );
    }
}

/// Guards the operator: a missing schema is told as such by whatever meets it.
#[tokio::test]
async fn without_a_schema_everything_says_to_run_init() {
    for version in VERSIONS {
        let fixture = Fixture::bare(version).await;
        let ledger = &fixture.ledger;
        let new = new_move("1");
        let errors = [
            ledger.schema_version().await.unwrap_err(),
            ledger.live_move().await.unwrap_err(),
            ledger.register(&new).await.unwrap_err(),
            ledger
                .transition(new.id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
                .await
                .unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, LedgerError::NotInitialised), "{error:?}");
            assert!(error.to_string().contains("monarch ledger init"));
            assert!(!error.is_transient());
        }
    }
}

/// Guards promise 6: an older program does not write into a shape that it does not know.
#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        fixture
            .admin
            .execute(
                "insert into monarch_ledger.schema_version (version, name) values (99, 'later')",
                &[],
            )
            .await
            .unwrap();
        for error in [
            fixture.ledger.schema_version().await.unwrap_err(),
            fixture.ledger.init().await.unwrap_err(),
        ] {
            assert!(
                matches!(error, LedgerError::SchemaTooNew { found: 99, .. }),
                "{error:?}"
            );
        }
    }
}

/// Guards least privilege: the grants that we print are enough for a worker's whole life, and do
/// not let it forget a move or rewrite a spine.
#[tokio::test]
async fn a_worker_needs_no_more_than_its_grants() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let role = format!("wor\"ker_{}", fixture.database);
        let quoted = role.replace('"', "\"\"");
        fixture
            .admin
            .batch_execute(&format!(
                "create role \"{quoted}\" login password 'p'; {}",
                worker_grants(&role)
            ))
            .await
            .unwrap();
        let dsn = fixture
            .dsn
            .replace("user=postgres", &format!("user='{role}'"))
            .replace(
                &format!("password={}", monarch_harness::PASSWORD),
                "password=p",
            );
        let worker = connect(&dsn).await;
        assert_eq!(worker.schema_version().await.unwrap(), SCHEMA_VERSION);
        assert_eq!(worker.init().await.unwrap(), SCHEMA_VERSION);

        let new = new_move("1");
        let store = store("default");
        worker.register(&new).await.unwrap();
        let epoch = worker
            .next_epoch(new.id, &store, Purpose::Mover)
            .await
            .unwrap();
        worker
            .unit_transition(new.id, &store, epoch, UnitEvent::BeginCopy, json!({}))
            .await
            .unwrap();
        worker
            .record_error(new.id, &store, epoch, "slot_lost", "the slot is gone")
            .await
            .unwrap();
        worker
            .transition(new.id, PhaseEvent::BeginAbort, Phase::Active, json!({}))
            .await
            .unwrap();

        let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        for forbidden in [
            "delete from monarch_ledger.move",
            "delete from monarch_ledger.move_unit",
            "update monarch_ledger.move_spine set id = '7'",
            "delete from monarch_ledger.move_spine",
            "truncate monarch_ledger.move_event",
            "alter table monarch_ledger.move_event disable trigger all",
        ] {
            let error = client.batch_execute(forbidden).await.unwrap_err();
            assert_eq!(
                error.code(),
                Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE),
                "{forbidden}"
            );
        }
    }
}
