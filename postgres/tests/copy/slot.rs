//! Slots are made in time or not at all, and never left behind.

use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby};
use monarch_model::{Epoch, Lsn, MoveId};
use monarch_postgres::replication::{SlotKind, StreamOptions};
use monarch_postgres::slot::{self, Making, SlotError};
use monarch_postgres::{Unit, publication};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::world::{World, one, org, replication, store};

fn unit(name: &str) -> Unit {
    Unit {
        move_id: MoveId(Uuid::from_u128(7)),
        org: org("1"),
        store: store(name),
    }
}

/// A server of its own: an open transaction holds up every slot on its server.
async fn server() -> (Cluster, Client) {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V15))
        .await
        .unwrap();
    let client = cluster.admin("postgres").await.unwrap();
    client
        .batch_execute("create table t (id bigint)")
        .await
        .unwrap();
    (cluster, client)
}

async fn left(client: &Client) -> (i64, i64) {
    (
        one(client, "select count(*) from pg_replication_slots").await,
        one(
            client,
            "select count(*) from pg_stat_activity where backend_type = 'walsender'",
        )
        .await,
    )
}

async fn until_a_slot_is_being_made(client: &Client) {
    while left(client).await.0 == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Guards the operator's time: the wait is bounded, who is waited for is named, nothing is left.
#[tokio::test]
async fn who_holds_up_a_slot_is_named() {
    let (cluster, client) = server().await;
    let unit = unit("default");
    let mut owner = cluster.admin("postgres").await.unwrap();
    owner
        .batch_execute(
            "begin; insert into t values (1); prepare transaction 'left alone';
             set application_name = 'nightly job'",
        )
        .await
        .unwrap();
    let pid: i32 = one(&owner, "select pg_backend_pid()").await;
    let open = owner.transaction().await.unwrap();
    open.batch_execute("insert into t values (2)")
        .await
        .unwrap();

    let connection = replication(&cluster.dsn("postgres"), &unit, 1).await;
    let making = Making {
        unit: &unit,
        epoch: Epoch(1),
        decoder: &client,
        primary: &client,
        timeout: Duration::from_millis(500),
        cancel: &CancellationToken::new(),
    };
    let name = unit.slot(Epoch(1));
    let command = connection.create_slot(&name, SlotKind::Permanent);
    let error = making.create(command, async || Ok(true)).await.unwrap_err();
    let text = error.to_string();
    let SlotError::Blocked { blockers, .. } = error else {
        panic!("{text}");
    };
    let named: Vec<_> = blockers
        .iter()
        .map(|blocker| {
            (
                blocker.pid,
                blocker.name.as_str(),
                blocker.age_seconds.is_some(),
            )
        })
        .collect();
    assert!(named.contains(&(Some(pid), "nightly job", true)), "{text}");
    assert!(named.contains(&(None, "left alone", true)), "{text}");
    assert_eq!(left(&client).await, (0, 0));

    open.commit().await.unwrap();
    owner
        .batch_execute("commit prepared 'left alone'")
        .await
        .unwrap();
    let connection = replication(&cluster.dsn("postgres"), &unit, 1).await;
    let command = connection.create_slot(&name, SlotKind::Permanent);
    let patient = Making {
        timeout: Duration::from_secs(60),
        ..making
    };
    let made = patient.create(command, async || Ok(true)).await.unwrap();
    let seen = slot::inspect(&client, &name).await.unwrap().unwrap();
    assert_eq!(seen.confirmed_flush, Some(made.consistent_point));
    assert!(!seen.is_lost() && seen.active_pid.is_none());
}

/// Guards promise 7: an abort works while a slot is waited for, and leaves nothing of it.
#[tokio::test]
async fn a_mover_told_to_stop_while_it_waits_leaves_nothing() {
    let (cluster, client) = server().await;
    let unit = unit("default");
    let mut owner = cluster.admin("postgres").await.unwrap();
    let open = owner.transaction().await.unwrap();
    open.batch_execute("insert into t values (2)")
        .await
        .unwrap();
    let cancel = CancellationToken::new();
    let making = Making {
        unit: &unit,
        epoch: Epoch(1),
        decoder: &client,
        primary: &client,
        timeout: Duration::from_secs(600),
        cancel: &cancel,
    };
    let connection = replication(&cluster.dsn("postgres"), &unit, 1).await;
    let name = unit.slot(Epoch(1));
    let command = connection.create_slot(&name, SlotKind::Permanent);
    let look = cluster.admin("postgres").await.unwrap();
    let (made, ()) = tokio::join!(making.create(command, async || Ok(true)), async {
        until_a_slot_is_being_made(&look).await;
        cancel.cancel();
    });
    assert!(matches!(made, Err(SlotError::Cancelled { .. })));
    assert_eq!(left(&client).await, (0, 0));
    open.commit().await.unwrap();
    assert_eq!(left(&client).await, (0, 0));
}

/// Guards promise 7: a command that was not even begun when it was given up makes no slot later.
#[tokio::test]
async fn a_command_that_comes_after_giving_up_makes_no_slot() {
    let (cluster, client) = server().await;
    let unit = unit("default");
    let connection = replication(&cluster.dsn("postgres"), &unit, 1).await;
    let (let_go, go_on) = tokio::sync::oneshot::channel::<()>();
    let name = unit.slot(Epoch(1));
    let late = tokio::spawn(async move {
        go_on.await.unwrap();
        connection.create_slot(&name, SlotKind::Permanent).await
    });
    let cancel = CancellationToken::new();
    cancel.cancel();
    let making = Making {
        unit: &unit,
        epoch: Epoch(1),
        decoder: &client,
        primary: &client,
        timeout: Duration::from_secs(600),
        cancel: &cancel,
    };
    let never = std::future::pending::<monarch_postgres::Result<()>>();
    let made = making.create(never, async || Ok(true)).await;
    assert!(matches!(made, Err(SlotError::Cancelled { .. })));
    let_go.send(()).unwrap();
    assert!(late.await.unwrap().is_err());
    assert_eq!(left(&client).await, (0, 0));
}

/// Guards promise 7: a slot that is still being made goes too, with who makes it.
#[tokio::test]
async fn dropping_all_ends_a_mover_that_still_waits() {
    let (cluster, client) = server().await;
    let unit = unit("default");
    let mut owner = cluster.admin("postgres").await.unwrap();
    let open = owner.transaction().await.unwrap();
    open.batch_execute("insert into t values (2)")
        .await
        .unwrap();
    let connection = replication(&cluster.dsn("postgres"), &unit, 1).await;
    let name = unit.slot(Epoch(1));
    let zombie =
        tokio::spawn(async move { connection.create_slot(&name, SlotKind::Permanent).await });
    // Another has not begun yet.
    let _idle = replication(&cluster.dsn("postgres"), &unit, 2).await;
    until_a_slot_is_being_made(&client).await;
    slot::drop_all(&client, &unit).await.unwrap();
    assert_eq!(left(&client).await, (0, 0));
    assert!(zombie.await.unwrap().is_err());
    open.commit().await.unwrap();
    assert_eq!(left(&client).await, (0, 0));
}

/// Guards promise 5: who was superseded while it made a slot drops it again, and only its own.
#[tokio::test]
async fn a_superseded_mover_leaves_no_slot() {
    let world = World::new(PgVersion::V15, PgVersion::V14).await;
    let successor = world.slot(2).await.unwrap();
    let making = Making {
        unit: &world.unit,
        epoch: Epoch(1),
        decoder: &world.source,
        primary: &world.source,
        timeout: Duration::from_secs(120),
        cancel: &CancellationToken::new(),
    };
    let name = world.unit.slot(Epoch(1));
    let command = world.replication(1).await;
    let command = command.create_slot(&name, SlotKind::Permanent);
    let error = making
        .create(command, async || Ok(false))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        SlotError::Superseded {
            epoch: Epoch(1),
            ..
        }
    ));

    let command = world.replication(1).await;
    let command = command.create_slot(&name, SlotKind::Permanent);
    let unknown = making.create(command, async || Err("the ledger is away".into()));
    assert!(matches!(unknown.await, Err(SlotError::EpochUnknown { .. })));

    let slots = slot::of_unit(&world.source, &world.unit).await.unwrap();
    let names: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(names, [successor.slot.as_str()]);
    slot::drop_all(&world.source, &world.unit).await.unwrap();
}

/// Guards promise 7: slots of every epoch go, streaming or not; nobody else's is touched.
#[tokio::test]
async fn dropping_all_slots_spares_everybody_elses() {
    let mut world = World::new(PgVersion::V17, PgVersion::V14).await;
    let idle = world.publish(1).await;
    let streaming = world.publish(12).await;
    let options = StreamOptions::new(["nothing_of_this_name"]);
    let name = streaming.slot.clone();
    let stream = streaming.release().start(&name, Lsn(0), &options);
    let stream = stream.await.unwrap();
    let foreign = format!("{}_e", world.unit.prefix());
    let ours = world.unit.clone();
    world.unit.store = store("events");
    let neighbour = world.slot(1).await.unwrap();
    world
        .source
        .execute(
            "select pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&foreign],
        )
        .await
        .unwrap();

    for _ in 0..2 {
        slot::drop_all(&world.source, &ours).await.unwrap();
        assert!(
            slot::of_unit(&world.source, &ours)
                .await
                .unwrap()
                .is_empty()
        );
        for spared in [&neighbour.slot, &foreign] {
            assert!(
                slot::inspect(&world.source, spared)
                    .await
                    .unwrap()
                    .is_some()
            );
        }
    }
    drop((idle, stream));
    slot::drop_all(&world.source, &world.unit).await.unwrap();
    slot::drop_one(&world.source, &foreign).await.unwrap();
    slot::drop_one(&world.source, &foreign).await.unwrap();
}

/// Guards decoding on a standby: a quiet primary holds nothing up, and the drop reaches it.
#[tokio::test]
async fn a_slot_is_made_on_a_standby_of_a_quiet_primary() {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let on_primary = primary.admin("postgres").await.unwrap();
    let standby = Standby::of(&primary).await.unwrap();
    let on_standby = standby.admin("postgres").await.unwrap();
    on_primary
        .batch_execute("create table t (id bigint primary key); create publication p for table t")
        .await
        .unwrap();
    let timeout = Duration::from_secs(60);
    publication::wait_replayed(&on_primary, &on_standby, timeout)
        .await
        .unwrap();
    let there: i64 = one(&on_standby, "select count(*) from pg_publication").await;
    assert_eq!(there, 1);

    let unit = unit("default");
    let making = Making {
        unit: &unit,
        epoch: Epoch(1),
        decoder: &on_standby,
        primary: &on_primary,
        timeout,
        cancel: &CancellationToken::new(),
    };
    let connection = replication(&standby.dsn("postgres"), &unit, 1).await;
    let name = unit.slot(Epoch(1));
    let command = connection.create_slot(&name, SlotKind::Permanent);
    let made = making.create(command, async || Ok(true)).await.unwrap();
    let mut reader = standby.admin("postgres").await.unwrap();
    let tx = reader
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    tx.batch_execute(&format!("set transaction snapshot '{}'", made.snapshot))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    slot::drop_all(&on_standby, &unit).await.unwrap();
    assert!(slot::of_unit(&on_standby, &unit).await.unwrap().is_empty());
}
