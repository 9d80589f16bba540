//! What is taken from an older holder, and what is left when a slot, its log or a sink goes away.

use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion, shared};
use monarch_model::{Epoch, MoveId};
use monarch_postgres::evict::Error as EvictError;
use monarch_postgres::replication::{ReplicationConnection, SlotKind, StreamOptions};
use monarch_postgres::stream::{self, SinkIdentity, SlotFault, StreamError};
use monarch_postgres::{Session, SessionPurpose, Unit, drain, sessions, slot};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::world::{Case, Move, run};

const CASE: Case<'static> = Case {
    manifest: "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  thing:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}}
",
    schema: "create table organization (id bigint primary key);
        create table thing (id bigint primary key, organization_id bigint, name text)",
    fill: "insert into organization values ($ORG);
        insert into thing select $ORG * 100 + n, $ORG, 'n' from generate_series(1, 9) n",
    owned: &[
        ("organization", "id = $ORG"),
        ("thing", "organization_id = $ORG"),
    ],
    ..Case::EMPTY
};

/// Another unit, whose names begin otherwise.
fn another(unit: &Unit) -> Unit {
    Unit {
        move_id: MoveId(Uuid::new_v4()),
        ..unit.clone()
    }
}

async fn session(it: &Move, unit: &Unit, epoch: i64) -> Session {
    let purpose = SessionPurpose::writer(unit.application(Epoch(epoch)));
    Session::connect(&it.job.source, &purpose).await.unwrap()
}

async fn one<T>(client: &Client, sql: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Guards promise 5 on the source, where no row decides who may write: what a predecessor is about
/// to make is gone with its session, and nobody else's session is touched.
#[tokio::test]
async fn a_successor_ends_its_predecessors_sessions_on_the_source() {
    let it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
    let unit = it.job.unit.clone();
    let other = another(&unit);
    let (first, second) = (session(&it, &unit, 1).await, session(&it, &unit, 2).await);
    let (own, newer) = (session(&it, &unit, 3).await, session(&it, &unit, 4).await);
    let foreign = session(&it, &other, 1).await;
    run(
        &first,
        "begin; create publication made_too_late for table public.thing",
    )
    .await;
    sessions::end_older(&own, &unit, Epoch(3)).await.unwrap();
    sessions::end_older(&own, &unit, Epoch(3)).await.unwrap();
    for ended in [&first, &second] {
        assert!(ended.batch_execute("commit").await.is_err());
    }
    for alive in [&own, &newer, &foreign] {
        run(alive, "select 1").await;
    }
    // Its lock is free again, and what it held is not there.
    run(
        &it.source,
        "set lock_timeout = '60s'; alter table thing replica identity full",
    )
    .await;
    let made: i64 = one(&it.source, "select count(*) from pg_publication").await;
    assert_eq!(made, 0);
}

/// Guards promise 5: a successor drops the slots of those before it, also one that is being read,
/// and none of anybody who came later or has another unit.
#[tokio::test]
async fn only_the_slots_of_older_epochs_are_dropped() {
    let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
    let unit = it.job.unit.clone();
    let other = another(&unit);
    for (unit, epoch) in [(&unit, 2), (&unit, 3), (&unit, 4), (&other, 1)] {
        let purpose = SessionPurpose::reader(unit.application(Epoch(epoch)));
        ReplicationConnection::connect(&it.job.source, &purpose)
            .await
            .unwrap()
            .create_slot(&unit.slot(Epoch(epoch)), SlotKind::Permanent)
            .await
            .unwrap();
    }
    // The first one's mover lives on.
    let purpose = SessionPurpose::reader(unit.application(Epoch(1)));
    let reader = ReplicationConnection::connect(&it.job.source, &purpose)
        .await
        .unwrap();
    let names = [
        monarch_model::names::insert_publication(&unit.prefix()),
        monarch_model::names::mutation_publication(&unit.prefix()),
    ];
    let position = sink_position(&it).await;
    let _reading = reader
        .start(&unit.slot(Epoch(1)), position, &StreamOptions::new(names))
        .await
        .unwrap();
    let successor = session(&it, &unit, 3).await;
    slot::drop_older(&successor, &unit, Epoch(3)).await.unwrap();
    slot::drop_older(&successor, &unit, Epoch(3)).await.unwrap();
    let left = slot::of_unit(&successor, &unit).await.unwrap();
    let left: Vec<String> = left.into_iter().map(|slot| slot.name).collect();
    assert_eq!(left, [unit.slot(Epoch(3)), unit.slot(Epoch(4))]);
    assert_eq!(slot::of_unit(&successor, &other).await.unwrap().len(), 1);
    slot::drop_all(&successor, &unit).await.unwrap();
    slot::drop_all(&successor, &other).await.unwrap();
}

async fn sink_position(it: &Move) -> monarch_model::Lsn {
    let state = monarch_postgres::sink::read(&it.sink, &it.job.unit)
        .await
        .unwrap();
    state.unwrap().position.unwrap()
}

/// Writes log until the slot's part of it is gone, as on a server that runs out of its limit.
async fn lose_the_slot(it: &Move) {
    let status = format!(
        "select wal_status from pg_replication_slots where slot_name = '{}'",
        it.job.slot
    );
    loop {
        run(
            &it.source,
            "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000))
               from generate_series(1, 4);
             select pg_switch_wal(); checkpoint",
        )
        .await;
        if one::<Option<String>>(&it.source, &status).await.as_deref() == Some("lost") {
            return;
        }
    }
}

/// Guards promise 8: a slot that lost its log on a real server ends the stream and the reading of
/// the tail by name. Whoever answers for what the log may have held evicts by a fresh horizon, and
/// a row that came behind it still stops the eviction.
#[tokio::test]
async fn a_slot_that_lost_its_log_is_named_and_evicted_by_a_fresh_horizon() {
    let options = ClusterOptions::new(PgVersion::V17)
        .setting("max_slot_wal_keep_size = 1MB")
        .setting("min_wal_size = 32MB")
        .setting("max_wal_size = 32MB");
    let cluster = Cluster::start(options).await.unwrap();
    let mut it = Move::on(&CASE, &cluster, shared::cluster(PgVersion::V16).await).await;
    it.copy().await.unwrap();
    it.follows(&["insert into thing values (150, 1, 'streamed')"])
        .await;
    lose_the_slot(&it).await;
    let retained = drain::retained_wal(&it.source, &it.job.slot)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(retained.status, "lost");

    let mut mover = it.start();
    let stopped = it.settle(&mut mover).await.unwrap_err();
    let tail = stream::read_tail(&it.job, &it.job.source)
        .await
        .unwrap_err();
    for error in [stopped, tail] {
        assert!(!error.is_transient());
        assert!(
            matches!(
                &error,
                StreamError::Slot {
                    fault: SlotFault::Lost { .. },
                    ..
                }
            ),
            "{error:?}"
        );
    }
    let horizon = it.horizon().await;
    run(&it.source, "insert into thing values (151, 1, 'after')").await;
    match it.evict_behind(&horizon).await {
        Err(EvictError::NewerRows(rows)) => {
            assert_eq!(
                rows.into_iter().collect::<Vec<_>>(),
                [("thing".parse().unwrap(), 1)]
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        one::<i64>(
            &it.source,
            "select count(*) from thing where organization_id = 1"
        )
        .await,
        11
    );
    let horizon = it.horizon().await;
    assert_eq!(it.evict_behind(&horizon).await.unwrap(), 12);
}

/// Guards promise 3: a failover of the sink that lost nothing is behind us once a mover has built
/// upon it: what it says of its sink is expected from then on, and a slot that somebody made again
/// later is no longer blamed on the failover.
#[tokio::test]
async fn a_failover_that_did_no_harm_explains_nothing_later() {
    let mut it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
    let now = stream::identify(&it.sink).await.unwrap();
    // The copy was made before the promotion.
    it.job.sink_identity = Some(SinkIdentity {
        timeline: now.timeline - 1,
        ..now
    });
    let mut mover = it.start();
    it.settle(&mut mover).await.unwrap();
    let report = mover.stop().await.unwrap();
    assert_eq!(report.sink, Some(now));

    let remade = format!(
        "select pg_replication_slot_advance('{}', pg_current_wal_lsn())",
        it.job.slot
    );
    run(&it.source, "insert into thing values (160, 1, 'lost')").await;
    run(&it.source, &remade).await;
    let ends = async |it: &Move| {
        let mut mover = it.start();
        tokio::time::timeout(Duration::from_secs(60), it.settle(&mut mover))
            .await
            .unwrap()
            .unwrap_err()
    };
    assert!(matches!(ends(&it).await, StreamError::StartOver(_)));
    it.job.sink_identity = report.sink;
    let error = ends(&it).await;
    assert!(
        matches!(
            &error,
            StreamError::Slot {
                fault: SlotFault::Remade { .. },
                ..
            }
        ),
        "{error:?}"
    );
}
