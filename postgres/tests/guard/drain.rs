//! What a drain must wait for: open writers, prepared ones included, and barriers in the log.

use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion};
use monarch_postgres::drain::{self, HeldBy, Writers};
use tokio::time::Instant;
use uuid::Uuid;

use crate::cells::{Cell, fill, store, table, unit};

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Guards promise 1: a transaction that looked before the fence fell commits before the barrier,
/// or the drain says whom it waits for.
#[tokio::test]
async fn a_writer_from_before_the_fence_is_waited_for_and_named() {
    let cell = Cell::new(PgVersion::V16).await;
    let session = cell.session().await;
    let mut writing = cell.admin().await;
    let tx = writing.transaction().await.unwrap();
    tx.batch_execute("insert into organization values (1, 'one')")
        .await
        .unwrap();
    let fenced_at = drain::server_time(&session).await.unwrap();
    let tables = [table("organization"), table("event")];

    let waited = drain::wait_for_writers(&session, &tables, fenced_at, soon())
        .await
        .unwrap();
    let Writers::StillThere(blockers) = waited else {
        panic!("an open writer was not seen")
    };
    assert_eq!(blockers.len(), 1);
    assert!(matches!(blockers[0].held_by, HeldBy::Session { pid, .. } if pid > 0));
    assert_eq!(blockers[0].tables, ["public.organization"]);

    tx.commit().await.unwrap();
    let waited = drain::wait_for_writers(&session, &tables, fenced_at, later())
        .await
        .unwrap();
    assert_eq!(waited, Writers::Gone);
}

/// Guards promise 9: the fence is for one organization; the others never stop writing.
#[tokio::test]
async fn a_writer_from_after_the_fence_is_not_waited_for() {
    let cell = Cell::new(PgVersion::V16).await;
    let session = cell.session().await;
    let fenced_at = drain::server_time(&session).await.unwrap();
    let mut other = cell.admin().await;
    let tx = other.transaction().await.unwrap();
    tx.batch_execute("insert into organization values (2, 'two')")
        .await
        .unwrap();
    let tables = [table("organization")];
    assert_eq!(
        drain::write_lock_holders(&session, &tables)
            .await
            .unwrap()
            .len(),
        1
    );
    let waited = drain::wait_for_writers(&session, &tables, fenced_at, later())
        .await
        .unwrap();
    assert_eq!(waited, Writers::Gone);
}

/// Guards promise 1: a prepared transaction has no session, and still commits some day.
#[tokio::test]
async fn a_prepared_transaction_on_a_leaf_is_waited_for_by_its_name() {
    // On a server of its own: slots are not made while a prepared transaction is left.
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let cell = Cell::empty_on(&cluster).await;
    cell.run(
        "create table event (id bigint, at date, primary key (id, at)) partition by range (at);
         create table event_2024 partition of event
             for values from ('2024-01-01') to ('2025-01-01');",
    )
    .await;
    let gid = monarch_harness::fresh_name("gid");
    cell.run(&format!(
        "begin; insert into event_2024 values (1, '2024-02-03'); prepare transaction '{gid}'"
    ))
    .await;
    let session = cell.session().await;
    let fenced_at = drain::server_time(&session).await.unwrap();
    let tables = [table("event")];
    let waited = drain::wait_for_writers(&session, &tables, fenced_at, soon())
        .await
        .unwrap();
    let Writers::StillThere(blockers) = waited else {
        panic!("it was not seen")
    };
    assert_eq!(
        blockers[0].held_by,
        HeldBy::Prepared {
            gid: Some(gid.clone())
        }
    );
    assert_eq!(blockers[0].tables, ["public.event_2024"]);
    cell.run(&format!("rollback prepared '{gid}'")).await;
    let waited = drain::wait_for_writers(&session, &tables, fenced_at, later())
        .await
        .unwrap();
    assert_eq!(waited, Writers::Gone);
}

/// Readers lock tables too; a drain that waited for them would wait for every report.
#[tokio::test]
async fn a_reader_is_no_writer() {
    let cell = Cell::new(PgVersion::V16).await;
    let mut reading = cell.admin().await;
    let tx = reading.transaction().await.unwrap();
    tx.query("select * from organization for share", &[])
        .await
        .unwrap();
    let session = cell.session().await;
    let holders = drain::write_lock_holders(&session, &[table("organization")])
        .await
        .unwrap();
    assert_eq!(holders, []);
}

/// Guards promise 1: what is behind the barrier in the log is behind it for the mover, which finds
/// it by its nonce.
#[tokio::test]
async fn a_barrier_is_in_the_log_with_move_store_and_nonce() {
    let cell = Cell::new(PgVersion::V16).await;
    let admin = cell.admin().await;
    let slot = monarch_harness::fresh_name("slot");
    let make = "select pg_create_logical_replication_slot($1, 'test_decoding')";
    admin.execute(make, &[&slot]).await.unwrap();
    let session = cell.session().await;
    let unit = unit(1);
    let nonce = Uuid::new_v4();
    let before = drain::head(&session).await.unwrap();
    let at = drain::emit_barrier(&session, unit.move_id, &store(), nonce)
        .await
        .unwrap();
    assert!(at >= before);
    assert!(drain::head(&session).await.unwrap() >= at);

    let changes = "select data from pg_logical_slot_peek_changes($1, null, null)";
    let rows = admin.query(changes, &[&slot]).await.unwrap();
    let content = format!(
        r#"{{"move":"{}","store":"default","nonce":"{nonce}"}}"#,
        unit.move_id
    );
    let all: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(all.iter().any(|data| data.contains(&content)), "{all:?}");
    assert!(
        all.iter()
            .any(|data| data.contains("transactional: 1 prefix: monarch")),
        "{all:?}"
    );

    admin
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await
        .unwrap();
}

/// Guards promise 9: a slot that nobody reads keeps ever more of the log, and is seen to.
#[tokio::test]
async fn what_a_slot_keeps_of_the_log_grows_with_it() {
    let cell = Cell::new(PgVersion::V16).await;
    let session = cell.session().await;
    let slot = monarch_harness::fresh_name("slot");
    assert_eq!(drain::retained_wal(&session, &slot).await.unwrap(), None);
    let admin = cell.admin().await;
    let make = "select pg_create_logical_replication_slot($1, 'pgoutput')";
    admin.execute(make, &[&slot]).await.unwrap();
    let before = drain::retained_wal(&session, &slot).await.unwrap().unwrap();
    cell.run(&fill(1, 10, 1000)).await;
    let after = drain::retained_wal(&session, &slot).await.unwrap().unwrap();
    assert!(after.bytes.unwrap() > before.bytes.unwrap() + 100_000);
    assert!(after.safe_bytes.unwrap() > 0);
    admin
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await
        .unwrap();
}
