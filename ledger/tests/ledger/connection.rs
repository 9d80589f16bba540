//! Losing and finding the ledger.

use std::time::Duration;

use futures::future::join_all;
use monarch_config::Dsn;
use monarch_harness::{Cluster, ClusterOptions, PgVersion};
use monarch_ledger::{Ledger, Registration, Transition};
use monarch_model::Phase;
use monarch_model::phase::PhaseEvent;
use serde_json::json;

use crate::fixture::{Fixture, JOURNAL, VERSIONS, connect, new_move, stuck};

/// Guards the long life of a worker: a session that was ended while idle is replaced, unseen.
#[tokio::test]
async fn an_ended_session_is_replaced() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        join_all((0..4).map(|_| fixture.ledger.move_by_id(id))).await;
        fixture
            .admin
            .execute(
                "select pg_terminate_backend(pid) from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid()",
                &[],
            )
            .await
            .unwrap();
        for _ in 0..5 {
            assert_eq!(fixture.the_move(id).await.id, id);
        }
    }
}

/// Guards the limit: many requests share a few connections, and all are answered.
#[tokio::test]
async fn many_requests_share_few_connections() {
    for version in VERSIONS {
        let (fixture, id) = Fixture::with_move(version).await;
        let answers = join_all((0..100).map(|_| fixture.ledger.live_move())).await;
        assert!(
            answers
                .iter()
                .all(|found| matches!(found, Ok(Some(m)) if m.id == id))
        );
        let sessions: i64 = fixture
            .admin
            .query_one(
                "select count(*) from pg_stat_activity
                  where datname = current_database() and application_name = 'monarch_ledger'",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert!((1..=4).contains(&sessions), "{sessions} sessions");
    }
}

/// Guards against a cancelled request: dropped in the middle of its transaction it leaves neither
/// a change nor a lock behind.
#[tokio::test]
async fn a_cancelled_request_leaves_nothing_behind() {
    for version in VERSIONS {
        let (mut fixture, id) = Fixture::with_move(version).await;
        let lock = fixture.admin.transaction().await.unwrap();
        lock.batch_execute("lock table monarch_ledger.move_event in exclusive mode")
            .await
            .unwrap();
        let ledger = fixture.ledger.clone();
        let request = tokio::spawn(async move {
            ledger
                .transition(id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
                .await
        });
        stuck(&fixture.watcher, JOURNAL).await;
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        lock.rollback().await.unwrap();
        let outcome = fixture
            .ledger
            .transition(id, PhaseEvent::BeginAbort, Phase::Active, json!({}))
            .await;
        assert_eq!(outcome.unwrap(), Transition::Made);
        assert_eq!(fixture.kinds(id).await, ["registered", "begin_abort"]);
    }
}

/// Guards promise 4 through a kill -9 of the ledger's server: the error says that waiting helps,
/// and asking again succeeds; what was answered before is still there.
#[tokio::test]
async fn a_killed_server_is_waited_for() {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V17))
        .await
        .unwrap();
    let dsn = cluster.create_database("ledger").await.unwrap();
    let ledger = connect(&dsn).await;
    ledger.init().await.unwrap();
    let new = new_move("1");
    ledger.register(&new).await.unwrap();
    cluster.kill_9().await.unwrap();
    let error = ledger
        .transition(new.id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(monarch_harness::PASSWORD), "{shown}");
    cluster.restart().await.unwrap();
    let made = async {
        loop {
            match ledger
                .transition(new.id, PhaseEvent::BeginDrain, Phase::Active, json!({}))
                .await
            {
                Ok(made) => break made,
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    assert_eq!(made.await, Transition::Made);
    assert!(matches!(
        ledger.register(&new).await.unwrap(),
        Registration::AlreadyRegistered(_)
    ));
}

/// Guards the operator: an address where nobody listens is told at the start, as something that
/// waiting may mend, and without the password.
#[tokio::test]
async fn an_address_where_nobody_listens_is_told_at_once() {
    let dsn = "host=127.0.0.1 port=1 user=u password=hidden dbname=d";
    let error = Ledger::connect(&Dsn::new(dsn)).await.unwrap_err();
    assert!(error.is_transient());
    assert!(!format!("{error} {error:?}").contains("hidden"));
}
