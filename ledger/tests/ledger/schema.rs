//! Making the schema.

use futures::future::join_all;
use monarch_ledger::{
    Answer, Ledger, LedgerError, Purpose, SCHEMA_VERSION, VerificationOutcome, worker_grants,
};
use monarch_model::phase::PhaseEvent;
use monarch_model::unit::UnitEvent;
use monarch_model::{Epoch, Lsn, MoveId, Phase, UnitStatus};
use monarch_postgres::sql::quote_ident;
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

impl Fixture {
    /// A role of its own that can log in and has been granted nothing; returns its DSN.
    async fn role(&self, name: &str) -> String {
        let create = format!("create role {} login password 'p'", quote_ident(name));
        self.admin.batch_execute(&create).await.unwrap();
        let password = format!("password={}", monarch_harness::PASSWORD);
        self.dsn
            .replace("user=postgres", &format!("user='{name}'"))
            .replace(&password, "password=p")
    }
}

/// A comparison is asked for, taken up, answered and read under the worker's role.
async fn verifies(fixture: &Fixture, worker: &Ledger, id: MoveId, epoch: Epoch) {
    fixture
        .put_units(id, &["default"], UnitStatus::Streaming)
        .await;
    let store = store("default");
    assert_eq!(worker.ask_verification(id, &store).await.unwrap(), 1);
    let begun = worker.begin_verification(id, &store, epoch).await.unwrap();
    assert_eq!(begun, Some(1));
    let answer = Answer {
        outcome: VerificationOutcome::Equal,
        lsn: Some(Lsn(77)),
        detail: json!({}),
    };
    worker
        .end_verification(id, &store, epoch, 1, &answer)
        .await
        .unwrap();
    assert_eq!(worker.standing_verifications(id).await.unwrap().len(), 1);
}

/// Guards promise 4 over an upgrade: the tables of a newer version are a worker's to work with and a
/// reader's to read, as the older ones were, and nobody else's.
#[tokio::test]
async fn an_upgrade_carries_over_what_roles_were_granted() {
    for version in VERSIONS {
        let fixture = Fixture::new(version).await;
        let names = ["worker", "reader", "stranger"].map(|name| {
            let database = &fixture.database;
            format!("{name}_{database}")
        });
        let [worker, reader, stranger] = &names;
        let dsn = fixture.role(worker).await;
        fixture.role(reader).await;
        fixture.role(stranger).await;
        // What version 2 was, and what it printed for a worker.
        let older = format!(
            "drop table monarch_ledger.verification;
             alter table monarch_ledger.move_unit drop column of_objects;
             delete from monarch_ledger.schema_version where version > 2;
             grant usage on schema monarch_ledger to {worker}, {reader};
             grant select on all tables in schema monarch_ledger to {worker}, {reader};
             grant insert, update on monarch_ledger.move, monarch_ledger.move_unit,
                 monarch_ledger.blob_key to {worker};
             grant insert on monarch_ledger.move_spine, monarch_ledger.move_event to {worker}"
        );
        fixture.admin.batch_execute(&older).await.unwrap();
        assert_eq!(fixture.ledger.init().await.unwrap(), SCHEMA_VERSION);

        let work = connect(&dsn).await;
        assert_eq!(work.schema_version().await.unwrap(), SCHEMA_VERSION);
        let new = new_move("1");
        work.register(&new).await.unwrap();
        let epoch = work
            .next_epoch(new.id, &store("default"), Purpose::Mover)
            .await
            .unwrap();
        verifies(&fixture, &work, new.id, epoch).await;
        for (role, privilege, has) in [
            (worker, "delete", false),
            (worker, "truncate", false),
            (reader, "select", true),
            (reader, "insert", false),
            (reader, "update", false),
            (stranger, "select", false),
        ] {
            let asked = "select has_table_privilege($1, 'monarch_ledger.verification', $2)";
            let row = fixture.admin.query_one(asked, &[role, &privilege]).await;
            assert_eq!(row.unwrap().get::<_, bool>(0), has, "{role}: {privilege}");
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
        let dsn = fixture.role(&role).await;
        fixture
            .admin
            .batch_execute(&worker_grants(&role))
            .await
            .unwrap();
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
        verifies(&fixture, &worker, new.id, epoch).await;
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
