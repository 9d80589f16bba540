//! Large transactions and much of other tenants' traffic.

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
    let mut world = World::with(&before).await;
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

/// Guards the memory promise and the drain's clock: what others update and delete, however much, is
/// read through, changes no row on the sink, and is no change of the organization.
#[tokio::test]
async fn what_others_do_by_the_thousand_is_no_change() {
    let world = large().await;
    decode_in_parts(&world, true).await;
    let mut mover = world.start();
    world
        .on_source("update event set label = 'ours' where id = 1001")
        .await;
    let settled = world.settle(&mut mover).await;
    world
        .on_source("update event set label = label || '?' where group_id = 201 and id >= 500000")
        .await;
    for part in 0..20 {
        world
            .on_source(&format!(
                "delete from event where id between 500001 + {part} * 1000 and 501000 + {part} * 1000"
            ))
            .await;
    }
    let report = world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    decode_in_parts(&world, false).await;
    let read = u64::try_from(2 * OTHERS).unwrap();
    assert!(report.rows_read - settled.rows_read >= read, "{report:?}");
    assert_eq!(report.changes, settled.changes);
    assert_eq!(report.last_change, settled.last_change);
    assert_eq!(world.state().await.last_change, settled.last_change);
    world.assert_same().await;
}
