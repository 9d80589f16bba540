//! The sink's row of a unit: one writer, and nothing moves back.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_harness::PgVersion;
use monarch_model::{Epoch, Lsn};
use monarch_postgres::sink::{self, Barrier, LastChange, Progress, SinkError, TakeOver};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::world::{World, one, table};

const PATIENT: Duration = Duration::from_secs(30);

async fn world() -> World {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    sink::ensure_schema(&mut world.sink).await.unwrap();
    world
}

async fn take_over(world: &World, client: &mut Client, epoch: i64) -> TakeOver {
    sink::take_over(client, &world.unit, Epoch(epoch), PATIENT)
        .await
        .unwrap()
}

fn at(position: u64) -> Progress {
    Progress {
        position: Lsn(position),
        last_change: None,
        barrier: None,
        horizon: None,
    }
}

/// Guards promise 5: a mover that lives on after its successor has begun lands nothing.
#[tokio::test]
async fn a_superseded_mover_can_not_commit() {
    let world = world().await;
    let mut old = world.sink_session().await;
    let mut new = world.mover_session(2).await;
    assert!(matches!(
        take_over(&world, &mut old, 1).await,
        TakeOver::Held(_)
    ));
    assert!(matches!(
        take_over(&world, &mut new, 2).await,
        TakeOver::Held(_)
    ));
    assert_eq!(
        take_over(&world, &mut old, 1).await,
        TakeOver::Superseded { by: Epoch(2) }
    );

    let tx = old.transaction().await.unwrap();
    let error = sink::hold(&tx, &world.unit, Epoch(1)).await.unwrap_err();
    assert!(matches!(
        error,
        SinkError::Superseded {
            epoch: Epoch(1),
            ..
        }
    ));
    tx.rollback().await.unwrap();
    let tx = old.transaction().await.unwrap();
    let error = sink::advance(&tx, &world.unit, Epoch(1), &at(5))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        SinkError::Superseded {
            epoch: Epoch(1),
            ..
        }
    ));
    tx.rollback().await.unwrap();
    assert!(matches!(
        sink::begin_copy(&old, &world.unit, Epoch(1)).await,
        Err(SinkError::Superseded { .. })
    ));
    let state = sink::read(&new, &world.unit).await.unwrap().unwrap();
    assert_eq!((state.epoch, state.position), (Epoch(2), None));
}

/// Guards promise 5: a commit in flight lands before the successor begins, or never.
#[tokio::test]
async fn taking_over_waits_for_the_transaction_in_flight() {
    let world = world().await;
    // It does not call itself a mover, so it is waited for and not ended.
    let mut old = world.sink_session().await;
    take_over(&world, &mut old, 1).await;
    let tx = old.transaction().await.unwrap();
    sink::hold(&tx, &world.unit, Epoch(1)).await.unwrap();
    tx.execute(
        "insert into member (organization_id, email) values (1, 'in flight')",
        &[],
    )
    .await
    .unwrap();

    let mut impatient = world.mover_session(2).await;
    let pid: i32 = one(tx.client(), "select pg_backend_pid()").await;
    let error = sink::take_over(&mut impatient, &world.unit, Epoch(2), Duration::ZERO)
        .await
        .unwrap_err();
    assert!(matches!(error, SinkError::StillHeld { pids, .. } if pids == [pid]));

    let mut new = world.mover_session(2).await;
    let unit = world.unit.clone();
    let taking =
        tokio::spawn(async move { sink::take_over(&mut new, &unit, Epoch(2), PATIENT).await });
    until_someone_waits(&world).await;
    assert!(!taking.is_finished());
    tx.commit().await.unwrap();
    assert!(matches!(taking.await.unwrap().unwrap(), TakeOver::Held(_)));
    let landed: i64 = one(
        &world.sink,
        "select count(*) from member where email = 'in flight'",
    )
    .await;
    assert_eq!(landed, 1);
}

async fn until_someone_waits(world: &World) {
    loop {
        let waiting: bool = one(
            &world.sink,
            "select exists (select from pg_locks l join pg_stat_activity a using (pid)
                            where not l.granted and a.datname = current_database())",
        )
        .await;
        if waiting {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Guards promise 5: an older mover's session is ended, with what it had not committed.
#[tokio::test]
async fn taking_over_ends_older_sessions_of_this_unit_alone() {
    let world = world().await;
    let mut old = world.mover_session(1).await;
    take_over(&world, &mut old, 1).await;
    let newer = world.mover_session(7).await;
    let mut other_unit = world.unit.clone();
    other_unit.store = "events".parse().unwrap();
    let other = world.sink_session().await;
    let name = other_unit.application(Epoch(1));
    other
        .batch_execute(&format!("set application_name = '{name}'"))
        .await
        .unwrap();
    let tx = old.transaction().await.unwrap();
    sink::hold(&tx, &world.unit, Epoch(1)).await.unwrap();
    tx.execute(
        "insert into member (organization_id, email) values (1, 'lost')",
        &[],
    )
    .await
    .unwrap();

    let mut new = world.mover_session(2).await;
    assert!(matches!(
        take_over(&world, &mut new, 2).await,
        TakeOver::Held(_)
    ));
    assert!(tx.commit().await.is_err());
    let landed: i64 = one(
        &world.sink,
        "select count(*) from member where email = 'lost'",
    )
    .await;
    assert_eq!(landed, 0);
    for spared in [&newer, &other] {
        assert_eq!(one::<i32>(spared, "select 1").await, 1);
    }
}

/// Guards promise 3: what is behind is ignored, and a position is as durable as its rows.
#[tokio::test]
async fn a_position_only_moves_forward_and_with_its_transaction() {
    let world = world().await;
    let mut client = world.mover_session(1).await;
    take_over(&world, &mut client, 1).await;
    let change = LastChange {
        lsn: Lsn(90),
        committed_at: "2024-05-05T01:02:03.000004Z".parse().unwrap(),
    };
    let barrier = Barrier {
        nonce: Uuid::from_u128(5),
        lsn: Lsn(95),
    };
    let full = Progress {
        position: Lsn(100),
        last_change: Some(change),
        barrier: Some(barrier),
        horizon: None,
    };
    for progress in [full, at(40)] {
        let tx = client.transaction().await.unwrap();
        sink::advance(&tx, &world.unit, Epoch(1), &progress)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    let tx = client.transaction().await.unwrap();
    sink::advance(&tx, &world.unit, Epoch(1), &at(500))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let state = sink::read(&client, &world.unit).await.unwrap().unwrap();
    assert_eq!(state.position, Some(Lsn(100)));
    assert_eq!(state.last_change, Some(change));
    assert_eq!(state.barrier, Some(barrier));
}

/// Guards promise 5: after the seal nobody writes, not even who sealed, until it is opened.
#[tokio::test]
async fn a_sealed_unit_takes_no_writes() {
    let world = world().await;
    let mut client = world.mover_session(3).await;
    take_over(&world, &mut client, 3).await;
    let membership = BTreeMap::from([(table("App.Order"), vec!["1".to_owned(), "2".to_owned()])]);
    for _ in 0..2 {
        let tx = client.transaction().await.unwrap();
        sink::seal(&tx, &world.unit, Epoch(3), &membership)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    let seen = sink::sealed_membership(&client, &world.unit).await.unwrap();
    assert_eq!(seen, membership);
    let tx = client.transaction().await.unwrap();
    for error in [
        sink::hold(&tx, &world.unit, Epoch(3)).await,
        sink::advance(&tx, &world.unit, Epoch(3), &at(1)).await,
    ] {
        assert!(matches!(error, Err(SinkError::Sealed { .. })));
    }
    tx.rollback().await.unwrap();

    let tx = client.transaction().await.unwrap();
    sink::unseal(&tx, &world.unit, Epoch(3)).await.unwrap();
    sink::advance(&tx, &world.unit, Epoch(3), &at(1))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert!(
        sink::sealed_membership(&client, &world.unit)
            .await
            .unwrap()
            .is_empty()
    );
}

/// Guards promise 7: nothing of the unit is left, and who was at work finds out.
#[tokio::test]
async fn a_removed_unit_leaves_nothing() {
    let world = world().await;
    let mut client = world.mover_session(1).await;
    take_over(&world, &mut client, 1).await;
    let tx = client.transaction().await.unwrap();
    let membership = BTreeMap::from([(table("group"), vec!["1".to_owned()])]);
    sink::seal(&tx, &world.unit, Epoch(1), &membership)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    for _ in 0..2 {
        sink::remove(&client, &world.unit).await.unwrap();
    }
    assert_eq!(sink::read(&client, &world.unit).await.unwrap(), None);
    let left: i64 = one(
        &client,
        "select (select count(*) from monarch.unit) + (select count(*) from monarch.sealed_membership)",
    )
    .await;
    assert_eq!(left, 0);
    let tx = client.transaction().await.unwrap();
    assert!(matches!(
        sink::hold(&tx, &world.unit, Epoch(1)).await,
        Err(SinkError::Superseded { .. })
    ));
}

/// Guards promise 7: a zombie that takes over behind the scrub has made the row again; it takes that
/// row away, and never one that is a successor's, or that has the position from which a successor
/// goes on that has begun in the ledger and not yet here.
#[tokio::test]
async fn a_superseded_holder_takes_away_only_its_own_row() {
    let world = world().await;
    let mut zombie = world.sink_session().await;
    take_over(&world, &mut zombie, 1).await;
    sink::remove_own(&zombie, &world.unit, Epoch(1))
        .await
        .unwrap();
    assert_eq!(sink::read(&zombie, &world.unit).await.unwrap(), None);

    let mut successor = world.mover_session(2).await;
    take_over(&world, &mut successor, 2).await;
    sink::remove_own(&zombie, &world.unit, Epoch(1))
        .await
        .unwrap();
    let state = sink::read(&successor, &world.unit).await.unwrap();
    assert_eq!(state.map(|state| state.epoch), Some(Epoch(2)));

    let tx = successor.transaction().await.unwrap();
    let position = Progress {
        position: Lsn(7),
        last_change: None,
        barrier: None,
        horizon: None,
    };
    sink::advance(&tx, &world.unit, Epoch(2), &position)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    sink::remove_own(&successor, &world.unit, Epoch(2))
        .await
        .unwrap();
    let state = sink::read(&successor, &world.unit).await.unwrap();
    assert_eq!(state.and_then(|state| state.position), Some(Lsn(7)));
}

/// Guards promise 4: the schema is made once, however many units ask at the same time.
#[tokio::test]
async fn the_schema_is_made_by_many_at_once() {
    let world = World::new(PgVersion::V15, PgVersion::V14).await;
    assert_eq!(sink::read(&world.sink, &world.unit).await.unwrap(), None);
    sink::remove(&world.sink, &world.unit).await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(world.sink_session().await);
    }
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { sink::ensure_schema(&mut client).await }))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}
