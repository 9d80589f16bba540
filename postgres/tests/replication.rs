//! The replication connection and its decoder against real servers.

#![allow(clippy::unwrap_used)] // also in what the tests share

use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_model::Lsn;
use monarch_postgres::connect::Environment;
use monarch_postgres::replication::{
    Frame, ReplicationConnection, SlotKind, Status, StreamOptions,
};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};

async fn database() -> ConnectOptions {
    let cluster = shared::cluster(PgVersion::V15).await;
    let dsn = cluster.create_database(&fresh_name("repl")).await.unwrap();
    ConnectOptions::parse(&dsn, &Environment::empty()).unwrap()
}

fn writer() -> SessionPurpose {
    SessionPurpose::writer("monarch test")
}

async fn replication(options: &ConnectOptions) -> ReplicationConnection {
    ReplicationConnection::connect(options, &writer())
        .await
        .unwrap()
}

/// Guards promise 2: each change is in exactly one of the snapshot and the stream.
#[tokio::test]
async fn a_snapshot_and_its_stream_meet_at_the_consistent_point() {
    let options = database().await;
    let mut session = Session::connect(&options, &writer()).await.unwrap();
    session
        .batch_execute(
            "create table public.t (id int primary key, v text);
             create publication p for table public.t;
             insert into public.t values (1, 'before')",
        )
        .await
        .unwrap();
    let slot = fresh_name("slot");
    let exported = replication(&options)
        .await
        .create_slot(&slot, SlotKind::Temporary)
        .await
        .unwrap();
    session
        .batch_execute("insert into public.t values (2, 'after')")
        .await
        .unwrap();
    let transaction = session
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    transaction
        .batch_execute(&format!("set transaction snapshot '{}'", exported.snapshot))
        .await
        .unwrap();
    let rows = transaction
        .query("select id from public.t", &[])
        .await
        .unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [1]);
    transaction.commit().await.unwrap();

    let mut stream = exported
        .release()
        .start(&slot, Lsn::default(), &StreamOptions::new(["p"]))
        .await
        .unwrap();
    let mut kinds = String::new();
    while !kinds.ends_with('C') {
        match stream.next().await.unwrap() {
            Frame::XLogData { data, .. } => kinds.push(char::from(data[0])),
            Frame::Keepalive { .. } => stream.send_status(Status::default(), true).await.unwrap(),
        }
    }
    assert_eq!(kinds, "BRIC");
    let mut connection = stream.stop().await.unwrap();
    assert_eq!(connection.identify_system().await.unwrap().timeline, 1);
}
