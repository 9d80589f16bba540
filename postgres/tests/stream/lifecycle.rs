//! How a mover begins, ends, dies and is superseded.

use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby};
use monarch_model::{Epoch, Lsn, MoveId};
use monarch_postgres::Unit;
use monarch_postgres::sink::{self, SinkError};
use monarch_postgres::stream::{
    Report, SinkIdentity, SlotFault, StartOver, StreamError, identify, seal,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;
use uuid::Uuid;

use crate::world::{World, one};

/// Looks again and again until the server says yes.
async fn becomes(client: &tokio_postgres::Client, question: &str) {
    let patience = tokio::time::timeout(Duration::from_secs(60), async {
        while !one::<bool>(client, question).await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    patience.await.expect(question);
}

fn confirmed(world: &World) -> String {
    format!(
        "select confirmed_flush_lsn from pg_replication_slots where slot_name = '{}'",
        world.job.slot
    )
}

/// Guards promise 3: what was applied and not acknowledged comes again and is passed over.
#[tokio::test]
async fn a_transaction_delivered_again_is_applied_once() {
    let world = World::new().await;
    let mut mover = world.start();
    world
        .on_source("begin; insert into event values (1700, 101, 'once', 'b'); commit")
        .await;
    world.settle(&mut mover).await;
    mover.kill().await;
    // The organization changes on the sink what the source would bring again.
    let before = world.state().await.position.unwrap();
    world
        .sink
        .batch_execute("update event set label = 'sink' where id = 1700")
        .await
        .unwrap();
    let mut again = world.start();
    world
        .on_source("insert into event values (1701, 101, 'next', 'b')")
        .await;
    world.settle(&mut again).await;
    again.stop().await.unwrap();
    let label: String = one(&world.sink, "select label from event where id = 1700").await;
    assert_eq!(label, "sink");
    assert!(world.state().await.position.unwrap() > before);
}

/// Guards promise 3: a mover that dies within a transaction leaves nothing of it, and the next one
/// brings all of it.
#[tokio::test]
async fn a_transaction_is_whole_or_not_there() {
    let world = World::new().await;
    let blocker = world.sink_client().await;
    blocker
        .batch_execute("begin; insert into event values (1711, 901, 'held', 'b')")
        .await
        .unwrap();
    let mut mover = world.start();
    world
        .on_source(
            "begin; insert into event values (1710, 101, 'first', 'b');
             insert into event values (1711, 101, 'second', 'b'); commit",
        )
        .await;
    mover.until(|report| report.rows_read >= 2).await.unwrap();
    becomes(
        &world.sink,
        "select exists (select from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock')",
    )
    .await;
    mover.kill().await;
    blocker.batch_execute("rollback").await.unwrap();
    let seen: i64 = one(
        &world.sink,
        "select count(*) from event where id in (1710, 1711)",
    )
    .await;
    assert_eq!(seen, 0);
    world.follows(&[]).await;
}

/// Guards promise 3: nothing is acknowledged that the sink has not recorded, and everything is
/// that it has, also where no change was the organization's.
#[tokio::test]
async fn a_quiet_slot_advances_behind_the_sinks_record() {
    let world = World::new().await;
    let start: tokio_postgres::types::PgLsn = one(&world.source, &confirmed(&world)).await;
    let mover = world.start();
    world
        .on_source("create table elsewhere as select generate_series(1, 1000) as n")
        .await;
    world
        .on_source("insert into event values (2700, 201, 'foreign', 'b')")
        .await;
    let head: tokio_postgres::types::PgLsn =
        one(&world.source, "select pg_current_wal_insert_lsn()").await;
    assert!(head > start);
    becomes(
        &world.source,
        &format!("select ({}) >= '{head}'::pg_lsn", confirmed(&world)),
    )
    .await;
    let confirmed: tokio_postgres::types::PgLsn = one(&world.source, &confirmed(&world)).await;
    let recorded = world.state().await;
    assert!(recorded.position.unwrap() >= Lsn(confirmed.into()));
    assert_eq!(recorded.last_change, None, "nothing was the organization's");
    mover.stop().await.unwrap();
}

/// Guards the drain: a barrier is met when all before it is on the sink, and only by its unit.
#[tokio::test]
async fn a_barrier_is_met_in_order() {
    let world = World::new().await;
    let mut mover = world.start();
    world
        .on_source(
            "select pg_logical_emit_message(true, 'monarch',
               '{\"move\":\"00000000-0000-4000-8000-000000000000\",\"store\":\"default\",
                 \"nonce\":\"00000000-0000-4000-8000-000000000000\"}')",
        )
        .await;
    world
        .on_source(
            "insert into event select 1600 + n, 101, 'e' || n, 'b' from generate_series(1, 300) n",
        )
        .await;
    let nonce = world.barrier().await;
    let report = mover
        .until(|report| report.barrier.is_some())
        .await
        .unwrap();
    let barrier = report.barrier.unwrap();
    assert_eq!(barrier.nonce, nonce);
    let there: i64 = one(
        &world.sink,
        "select count(*) from event where id > 1600 and id <= 1900",
    )
    .await;
    assert_eq!(there, 300);
    let state = world.state().await;
    assert_eq!(state.barrier, Some(barrier));
    assert!(state.last_change.unwrap().lsn < barrier.lsn);
    assert!(report.acknowledged >= barrier.lsn);
    mover.stop().await.unwrap();
}

/// Guards promise 5: once a successor has begun, the old mover writes nothing.
#[tokio::test]
async fn a_superseded_mover_cannot_write() {
    let mut world = World::new().await;
    let mut old = world.start();
    world.settle(&mut old).await;
    world.take_over(2).await;
    world
        .on_source("insert into event values (1720, 101, 'late', 'b')")
        .await;
    let ended = old.ended().await;
    assert!(
        matches!(ended, StreamError::Sink(SinkError::Superseded { .. })) || ended.is_transient(),
        "{ended:?}"
    );
    let late: i64 = one(&world.sink, "select count(*) from event where id = 1720").await;
    assert_eq!(late, 0);
    let again = world.start().ended().await;
    assert!(
        matches!(again, StreamError::Sink(SinkError::Superseded { .. })),
        "{again:?}"
    );
    world.job.epoch = Epoch(2);
    world.follows(&[]).await;
}

/// Guards promise 5: a successor ends the old mover's walsender and takes the slot.
#[tokio::test]
async fn a_successor_takes_the_slot_from_a_mover_that_lives() {
    let mut world = World::new().await;
    let mut old = world.start();
    world.settle(&mut old).await;
    world.job.epoch = Epoch(2);
    world
        .follows(&["insert into event values (1730, 101, 'next', 'b')"])
        .await;
    let ended = old.ended().await;
    assert!(
        matches!(ended, StreamError::Sink(SinkError::Superseded { .. })) || ended.is_transient(),
        "{ended:?}"
    );
}

/// Guards promise 5: after the seal nobody writes.
#[tokio::test]
async fn a_sealed_unit_takes_no_change() {
    let mut world = World::new().await;
    world.take_over(2).await;
    let mut sink = world.sink_client().await;
    let job = &world.job;
    for _ in 0..2 {
        let state = seal(&mut sink, &job.unit, Epoch(2), &job.graph, &job.spine)
            .await
            .unwrap();
        assert!(state.sealed);
    }
    let ids: i64 = one(
        &world.sink,
        "select count(*) from monarch.sealed_membership",
    )
    .await;
    assert_eq!(
        ids,
        4 + 3 + 2 + 2 + 4,
        "groups, threads, topics, boards, cards"
    );
    world.job.epoch = Epoch(2);
    let ended = world.start().ended().await;
    assert!(
        matches!(ended, StreamError::Sink(SinkError::Sealed { .. })),
        "{ended:?}"
    );
}

/// A sink that lost what it had confirmed, or is another server, is told by name at the start.
#[tokio::test]
async fn a_sink_that_went_back_starts_over() {
    let mut world = World::new().await;
    let mut mover = world.start();
    world
        .on_source("insert into event values (1740, 101, 'b', 'b')")
        .await;
    let report = world.settle(&mut mover).await;
    mover.stop().await.unwrap();

    let identity = identify(&world.sink).await.unwrap();
    world.job.sink_identity = Some(identity);
    world.job.acknowledged = Some(report.acknowledged);
    world.follows(&[]).await;

    let position = world.state().await.position.unwrap();
    world.job.acknowledged = Some(Lsn(position.0 + 1));
    let ended = world.start().ended().await;
    assert!(
        matches!(
            ended,
            StreamError::StartOver(StartOver::SinkWentBack { .. })
        ),
        "{ended:?}"
    );
    world.job.acknowledged = None;

    world.job.sink_identity = Some(SinkIdentity {
        system_identifier: 7,
        ..identity
    });
    let ended = world.start().ended().await;
    assert!(
        matches!(
            ended,
            StreamError::StartOver(StartOver::SinkReplaced { .. })
        ),
        "{ended:?}"
    );
    world.job.sink_identity = None;

    let sql = "update monarch.unit set position = null";
    world.sink.batch_execute(sql).await.unwrap();
    let ended = world.start().ended().await;
    assert!(
        matches!(ended, StreamError::StartOver(StartOver::NotCopied)),
        "{ended:?}"
    );
    sink::remove(&world.sink, &world.job.unit).await.unwrap();
}

/// Guards promise 3 against the ledger's lateness: a promoted sink that lacks what its slot confirms
/// has lost it, though the ledger heard of no more than the sink has; one that was not promoted has
/// not, and its slot was made again.
#[tokio::test]
async fn a_promoted_sink_without_its_last_commits_starts_over() {
    let mut world = World::new().await;
    let early = world.state().await.position.unwrap();
    let mut mover = world.start();
    world
        .on_source("insert into event values (1742, 101, 'lost', 'b')")
        .await;
    world.settle(&mut mover).await;
    let report = mover.stop().await.unwrap();
    let back =
        format!("delete from event where id = 1742; update monarch.unit set position = '{early}'");
    world.sink.batch_execute(&back).await.unwrap();

    let identity = identify(&world.sink).await.unwrap();
    world.job.acknowledged = Some(early);
    world.job.sink_identity = Some(SinkIdentity {
        timeline: identity.timeline + 1,
        ..identity
    });
    let ended = world.start().ended().await;
    let StreamError::StartOver(StartOver::SinkWentBack {
        position,
        acknowledged,
    }) = ended
    else {
        panic!("{ended:?}");
    };
    assert_eq!((position, acknowledged), (early, report.acknowledged));

    world.job.sink_identity = Some(identity);
    let ended = world.start().ended().await;
    let StreamError::Slot { fault, .. } = &ended else {
        panic!("{ended:?}");
    };
    assert!(matches!(fault, SlotFault::Remade { .. }), "{fault:?}");
}

/// Guards a failover of the sink: a standby that is not promoted yet is waited for, and a promotion
/// is seen at once, before any checkpoint.
#[tokio::test]
async fn a_promotion_of_the_sink_is_waited_for_and_seen() {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V17))
        .await
        .unwrap();
    let mut client = primary.admin("postgres").await.unwrap();
    sink::ensure_schema(&mut client).await.unwrap();
    let before = identify(&client).await.unwrap();
    let standby = Standby::of(&primary).await.unwrap();
    standby.catch_up(&primary).await.unwrap();
    let mut client = standby.admin("postgres").await.unwrap();
    assert_eq!(identify(&client).await.unwrap(), before);

    let unit = Unit {
        move_id: MoveId(Uuid::new_v4()),
        org: "1".parse().unwrap(),
        store: "default".parse().unwrap(),
    };
    let patience = Duration::from_secs(20);
    let early = sink::take_over(&mut client, &unit, Epoch(1), patience).await;
    let early = StreamError::from(early.unwrap_err());
    assert!(early.is_transient(), "{early:?}");

    assert!(one::<bool>(&client, "select pg_promote()").await);
    let after = identify(&client).await.unwrap();
    assert_eq!(after.system_identifier, before.system_identifier);
    assert_eq!(after.timeline, before.timeline + 1);
    sink::take_over(&mut client, &unit, Epoch(1), patience)
        .await
        .unwrap();
}

/// A slot that is gone, or was made again by somebody else, is told by name at the start.
#[tokio::test]
async fn a_slot_that_is_another_fails_the_move() {
    let world = World::new().await;
    let slot = world.job.slot.clone();
    world
        .on_source(&format!("select pg_drop_replication_slot('{slot}')"))
        .await;
    let ended = world.start().ended().await;
    assert!(
        matches!(
            ended,
            StreamError::Slot {
                fault: SlotFault::Missing,
                ..
            }
        ),
        "{ended:?}"
    );
    world
        .on_source("insert into event values (1741, 101, 'unseen', 'b')")
        .await;
    world
        .on_source(&format!(
            "select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
        ))
        .await;
    let ended = world.start().ended().await;
    assert!(
        matches!(
            ended,
            StreamError::Slot {
                fault: SlotFault::Remade { .. },
                ..
            }
        ),
        "{ended:?}"
    );
    assert!(!ended.is_transient());
}

/// A lost connection is told as such, so that the same is tried again.
#[tokio::test]
async fn a_lost_connection_is_transient() {
    let world = World::new().await;
    let name = world.job.unit.application(Epoch(1));
    for client in [&world.source, &world.sink] {
        let mut mover = world.start();
        world.settle(&mut mover).await;
        let end = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where application_name = '{name}'"
        );
        let ended: i64 = one(client, &end).await;
        assert!(ended > 0);
        world
            .on_source("insert into member values (1, gen_random_uuid()::text, 'x')")
            .await;
        let error = mover.ended().await;
        assert!(error.is_transient(), "{error:?}");
    }
    world.follows(&[]).await;
}

/// Guards the keepalives: while the sink keeps a mover waiting, the walsender still hears from it,
/// and what it hears acknowledges nothing.
#[tokio::test]
async fn a_mover_that_waits_for_its_sink_answers_the_walsender() {
    let world = World::new().await;
    let blocker = world.sink_client().await;
    blocker
        .batch_execute("begin; lock table event")
        .await
        .unwrap();
    let mut mover = world.start();
    world
        .on_source("insert into event values (1750, 101, 'waits', 'b')")
        .await;
    mover.until(|report| report.rows_read >= 1).await.unwrap();
    let heard = format!(
        "select max(reply_time)::text from pg_stat_replication where application_name = '{}'",
        world.job.unit.application(Epoch(1))
    );
    for _ in 0..2 {
        let last: String = one(&world.source, &heard).await;
        becomes(&world.source, &format!("select ({heard}) > '{last}'")).await;
    }
    let confirmed: tokio_postgres::types::PgLsn = one(&world.source, &confirmed(&world)).await;
    assert!(Lsn(confirmed.into()) <= world.state().await.position.unwrap());
    // It dies before its commit: nothing of it was acknowledged, and all of it comes again.
    mover.kill().await;
    blocker.batch_execute("rollback").await.unwrap();
    let waits: i64 = one(&world.sink, "select count(*) from event where id = 1750").await;
    assert_eq!(waits, 0);
    world.follows(&[]).await;
}

/// Guards the heartbeat: on a source where nothing changes the walsender's replies are reported, and
/// they are its own: when it halts, silence is what is heard.
#[tokio::test]
async fn an_idle_source_is_heard_and_a_hanging_one_is_not() {
    // No other test writes to this server, so its log stands still.
    let world = World::between(PgVersion::V16, PgVersion::V14).await;
    let mut mover = world.start();
    let settled = world.settle(&mut mover).await;
    let replies = async {
        let mut last = settled;
        let mut replies = 0;
        while replies < 3 {
            let heard = |report: &Report| report.keepalives > last.keepalives;
            let next = mover.until(heard).await.unwrap();
            replies += u32::from(next.source_head == last.source_head);
            last = next;
        }
    };
    let patience = Duration::from_secs(60);
    let heard = tokio::time::timeout(patience, replies).await;
    heard.expect("the walsender is not heard");
    let walsender = format!(
        "select pid from pg_stat_replication where application_name = '{}'",
        world.job.unit.application(Epoch(1))
    );
    let walsender = Pid::from_raw(one(&world.source, &walsender).await).unwrap();
    kill_process(walsender, Signal::STOP).unwrap();
    sleep(Duration::from_millis(500)).await;
    let halted = mover.until(|_| true).await.unwrap().keepalives;
    sleep(Duration::from_secs(3)).await;
    let later = mover.until(|_| true).await.unwrap().keepalives;
    kill_process(walsender, Signal::CONT).unwrap();
    assert_eq!(later, halted);
    mover
        .until(|report| report.keepalives > halted)
        .await
        .unwrap();
    mover.stop().await.unwrap();
}

/// Guards the sink of other tenants' traffic: what is foreign opens no transaction there.
#[tokio::test]
async fn a_foreign_transaction_does_not_touch_the_sink() {
    let world = World::new().await;
    let blocker = world.sink_client().await;
    let mut mover = world.start();
    world.settle(&mut mover).await;
    blocker
        .batch_execute("begin; lock table event, post, monarch.unit in access exclusive mode")
        .await
        .unwrap();
    let before = mover.until(|_| true).await.unwrap().rows_read;
    world
        .on_source(
            "insert into event select 2600 + n, 201, 'f' || n, 'b' from generate_series(1, 50) n",
        )
        .await;
    world
        .on_source("insert into post values (2900, 777, 'nobody')")
        .await;
    mover
        .until(|report| report.rows_read >= before + 51)
        .await
        .unwrap();
    blocker.batch_execute("rollback").await.unwrap();
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.assert_same().await;
}

/// Guards promise 10, and promise 1: a unique value that another tenant holds on the sink, under an
/// index of any kind, fails the move, told without the value.
#[tokio::test]
async fn another_tenants_unique_value_fails_the_move() {
    for sql in [
        "create unique index told_once on event (label) where id in (9001, 1760)",
        "create unique index told_once on event (lower(label), (id is null))
           where id in (9001, 1760)",
        "alter table event add constraint told_once
           exclude using btree (label with =) where (id in (9001, 1760))",
        // It refuses only when the sink commits, by a trigger that fires if it is told to.
        "alter table event add constraint told_once exclude using btree (label with =)
           where (id in (9001, 1760)) deferrable initially deferred;
         do $$ begin execute (select format('alter table event enable always trigger %I', tgname)
           from pg_trigger where tgfoid = 'unique_key_recheck'::regproc); end $$",
    ] {
        let world = World::new().await;
        world.sink.batch_execute(sql).await.unwrap();
        let label: String = one(&world.sink, "select label from event where id = 9001").await;
        let mover = world.start();
        for sql in [
            format!("insert into event values (1760, 101, '{label} ', 's3cret')"),
            format!("update event set label = '{label}' where id = 1760"),
        ] {
            world.on_source(&sql).await;
        }
        let ended = mover.ended().await;
        let StreamError::Refused { table, source } = &ended else {
            panic!("{sql}: {ended:?}");
        };
        assert_eq!(table.to_string(), "event");
        assert!(!ended.is_transient());
        let told = format!("{ended} {ended:?} {source} {source:?}");
        assert!(told.contains("told_once"), "{told}");
        assert!(!told.contains(&label) && !told.contains("s3cret"), "{told}");
    }
}

/// Guards the memory promise: a large transaction is spooled, what its savepoints took back is
/// never seen, and its rows arrive.
#[tokio::test]
async fn a_large_transaction_arrives_through_the_spool() {
    let mut world = World::new().await;
    world
        .on_source("alter system set logical_decoding_work_mem = '64kB'")
        .await;
    world.on_source("select pg_reload_conf()").await;
    let folder = tempfile::tempdir().unwrap();
    world.job.spool.folder = folder.path().to_owned();
    world.job.spool.memory_bytes = 64 * 1024;
    let rows = 30_000;
    world
        .follows(&[&format!(
            "begin;
             insert into \"group\" (id, project_id, title) overriding system value
               values (180, 10, 'large');
             insert into event select 100000 + n, 180, 'e' || n, 'body ' || n
               from generate_series(1, {rows}) n;
             savepoint a;
             update event set label = 'lost ' || id where group_id = 180;
             rollback to a;
             update event set body = body || '!' where group_id = 180 and id % 10 = 0;
             commit"
        )])
        .await;
    let there: i64 = one(
        &world.sink,
        "select count(*) from event where group_id = 180",
    )
    .await;
    assert_eq!(there, rows);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    world
        .follows(&["delete from \"group\" where id = 180"])
        .await;
    world
        .on_source("alter system reset logical_decoding_work_mem")
        .await;
    world.on_source("select pg_reload_conf()").await;
}
