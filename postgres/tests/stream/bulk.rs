//! Large transactions and much of other tenants' traffic.

use std::time::Instant;

use monarch_harness::PgVersion;
use monarch_postgres::stream::{Report, StreamError};
use tokio_postgres::Client;

use crate::world::{World, one};

/// Rows of the organization that one UPDATE changes, and of others that another does; the second
/// takes more.
const OURS: i64 = 15_000;
const OTHERS: i64 = 20_000;

/// A world with so many events of both tenants, and transactions sent in parts.
async fn large() -> World {
    let before = format!(
        "insert into event select 100000 + n, 101, 'e ' || n, 'b' from generate_series(1, {OURS}) n;
         insert into event select 500000 + n, 201, 'e ' || n, 'b' from generate_series(1, {OTHERS}) n"
    );
    let mut world = World::with_sink(PgVersion::V15, &before).await;
    world.job.spool.memory_bytes = 64 * 1024;
    world
}

async fn decode_in_parts(world: &World, on: bool) {
    let set = if on { "set" } else { "reset" };
    let to = if on { " = '64kB'" } else { "" };
    world
        .on_source(&format!("alter system {set} logical_decoding_work_mem{to}"))
        .await;
    world.on_source("select pg_reload_conf()").await;
}

/// When the walsender last heard from the mover.
async fn heard(source: &Client, application: &str) -> Option<String> {
    let question = format!(
        "select max(reply_time)::text from pg_stat_replication where application_name = '{application}'"
    );
    one(source, &question).await
}

/// Guards the memory promise, the keepalives and the heartbeat: one UPDATE of all the organization's
/// rows is held on disk and not in memory, and while it is written the walsender hears from the
/// mover and the observer sees rows pass.
#[tokio::test]
async fn one_update_of_all_rows_is_spooled_while_both_ends_hear_of_it() {
    let mut world = large().await;
    decode_in_parts(&world, true).await;
    let folder = tempfile::tempdir().unwrap();
    // What does not fit in memory needs the folder.
    world.job.spool.folder = folder.path().join("missing");
    let mover = world.start();
    world
        .on_source("update event set label = label || '!' where group_id = 101")
        .await;
    let ended = mover.ended().await;
    assert!(matches!(ended, StreamError::Spool(_)), "{ended:?}");

    world.job.spool.folder = folder.path().to_owned();
    let mut mover = world.start();
    let application = world.job.unit.application(world.job.epoch);
    let half = u64::try_from(OURS / 2).unwrap();
    let begun = |report: &Report| report.rows_read > 100;
    let begun = mover.until(begun).await.unwrap();
    assert!(begun.changes == 0 && begun.rows_read < half, "{begun:?}");
    let first = heard(&world.source, &application).await;
    let halfway = |report: &Report| report.rows_read > half;
    let halfway = mover.until(halfway).await.unwrap();
    assert_eq!(halfway.changes, 0, "one transaction, not yet committed");
    let second = heard(&world.source, &application).await;
    assert!(second > first, "{first:?} {second:?}");
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    decode_in_parts(&world, false).await;
    world.assert_same().await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Guards the memory promise: what savepoints took back of a transaction that is sent in parts and held
/// on disk is never seen, at any depth, and what is around it is.
#[tokio::test]
async fn savepoints_of_a_transaction_that_is_sent_in_parts_are_taken_back() {
    let settings = ["logical_decoding_work_mem = 64kB"];
    let mut world = World::on_its_own(PgVersion::V16, &settings).await;
    world.job.spool.memory_bytes = 64 * 1024;
    let folder = tempfile::tempdir().unwrap();
    world.job.spool.folder = folder.path().join("missing");
    let mover = world.start();
    world
        .on_source(
            "begin;
             insert into event select 100000 + n, 101, 'kept ' || n, 'b' from generate_series(1, 3000) n;
             savepoint a;
               update event set label = 'lost ' || id where id > 100000;
               insert into \"group\" (id, project_id, title) overriding system value
                 values (170, 10, 'lost');
               insert into event select 200000 + n, 170, 'lost', 'b' || n from generate_series(1, 1) n;
               savepoint b;
                 delete from event where id between 100001 and 102000;
               release b;
               update event set group_id = 201 where id between 102001 and 102500;
             rollback to a;
             savepoint c;
               insert into event select 300000 + n, 102, 'kept ' || n, 'b'
                 from generate_series(1, 3000) n;
               savepoint d;
                 update event set label = 'lost ' || id where id > 300000;
                 delete from event where id > 302000;
               rollback to d;
               delete from event where id between 300001 and 300010;
             release c;
             update event set body = 'kept' where id > 100000 and id % 10 = 0;
             commit",
        )
        .await;
    // What does not fit in memory needs the folder.
    let ended = mover.ended().await;
    assert!(matches!(ended, StreamError::Spool(_)), "{ended:?}");
    world.job.spool.folder = folder.path().to_owned();
    world.follows(&[]).await;
    let there = "select count(*) filter (where label like 'kept%') from event where id > 100000";
    assert_eq!(one::<i64>(&world.sink, there).await, 5990);
    let parts = format!(
        "select stream_txns > 0 and stream_count > 2 from pg_stat_replication_slots
          where slot_name = '{}'",
        world.job.slot
    );
    assert!(
        one::<bool>(&world.source, &parts).await,
        "it came in one piece"
    );
}

/// What statements wrote on the sink since it was made, in the tables and in our own record. Whoever
/// wrote must have left: until then what it did is not all counted.
async fn written(world: &World) -> (i64, i64) {
    world.left_the_sink().await;
    let count = async |schema: &str| {
        let question = format!(
            "select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
             from pg_stat_user_tables where schemaname = '{schema}'"
        );
        one::<i64>(&world.sink, &question).await
    };
    (count("public").await, count("monarch").await)
}

/// Guards the memory promise and the drain's clock: what others update and delete, however much, is
/// read through, writes nothing in a table of the sink, and is no change of the organization. Where the
/// mover stands is noted once a second, not for each of their transactions.
#[tokio::test]
async fn what_others_do_by_the_thousand_is_no_change() {
    let world = large().await;
    decode_in_parts(&world, true).await;
    let mut mover = world.start();
    world
        .on_source("update event set label = 'ours' where id = 1001")
        .await;
    let settled = world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    let before = written(&world).await;
    assert!(before.0 > 0 && before.1 > 0, "{before:?}");

    let (mut mover, began) = (world.start(), Instant::now());
    world
        .on_source("update event set label = label || '?' where group_id = 201 and id >= 500000")
        .await;
    for part in 0..200 {
        world
            .on_source(&format!(
                "delete from event where id between 500001 + {part} * 100 and 500100 + {part} * 100"
            ))
            .await;
    }
    let report = world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    let seconds = i64::try_from(began.elapsed().as_secs()).unwrap();
    let after = written(&world).await;
    decode_in_parts(&world, false).await;
    let read = u64::try_from(2 * OTHERS).unwrap();
    assert!(report.rows_read >= read, "{report:?}");
    assert_eq!(report.changes, 0);
    assert_eq!(report.last_change, settled.last_change);
    assert_eq!(world.state().await.last_change, settled.last_change);
    assert_eq!(after.0, before.0, "the tables were written to");
    assert!(
        after.1 - before.1 <= seconds + 2,
        "{before:?} {after:?} in {seconds} s"
    );
    world.assert_same().await;
}
