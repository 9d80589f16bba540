//! Processes that die, and queues that are long.

use std::process::Command;

use monarch_harness::Program;
use monarch_outbox::{
    BoxError, Cell, Drain, DrainSettings, Partition, Receivers, Report, Shard, Table,
};

use crate::fixture::{Category, Db, Log, Scope, connect, registry};

/// Set for the child of [`a_killed_receiver_is_called_again`]: the database that it drains.
const CHILD: &str = "MONARCH_OUTBOX_TEST_CHILD";

/// What the child of [`a_killed_receiver_is_called_again`] does: it hangs in its second message.
#[tokio::test]
async fn child_that_hangs_in_a_receiver() {
    let Ok(dsn) = std::env::var(CHILD) else {
        return;
    };
    let mut client = connect(&dsn).await;
    let receivers = Receivers::<Cell>::new().on(Category::Member, |message| async move {
        if message.object_identifier == 2 {
            eprintln!("hanging");
            std::future::pending::<()>().await;
        }
        Ok::<(), BoxError>(())
    });
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    drain.partition(&mut client, Partition::ALL).await.unwrap();
}

/// A process that is killed in a receiver loses nothing: its shard waits, and is then delivered.
#[tokio::test]
async fn a_killed_receiver_is_called_again() {
    let mut db = Db::new().await;
    db.write(&[
        (Category::Member, 1, 1),
        (Category::Member, 1, 2),
        (Category::Member, 1, 3),
    ])
    .await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "faults::child_that_hangs_in_a_receiver",
            "--nocapture",
        ])
        .env(CHILD, &db.dsn);
    let child = Program::start("outbox-child", &command).unwrap();
    while !child.output().unwrap().contains("hanging") {
        assert!(child.is_alive(), "{}", child.output().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    child.kill_9().await.unwrap();
    // The server notices that its client is gone, and rolls back.
    let open = "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid()";
    while db.number(open).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(db.queued().await, 3);
    let log = Log::<Cell>::new();
    let waits = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((waits.delivered, waits.shards), (0, 0));
    db.wait_out_backoffs().await;
    log.drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((log.objects(), db.queued().await), (vec![1, 2, 3], 0));
}

/// A million messages in few shards, one of them failing: the others are empty in the end, it is whole.
#[tokio::test]
async fn a_million_messages_are_drained_around_a_failing_shard() {
    let mut db = Db::new().await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier) select 0, n % 20, 3, n / 20000 from generate_series(1, 1000000) n",
    )
    .await;
    let receivers = Receivers::<Cell>::new().on(Category::Member, |message| async move {
        match message.shard_identifier() {
            7 => Err("it always fails"),
            _ => Ok(()),
        }
    });
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let mut total = Report::default();
    for partition in drain.partitions(&db.client, 5).await.unwrap() {
        total.merge(drain.partition(&mut db.client, partition).await.unwrap());
    }
    // It may have become due again meanwhile.
    assert!(total.failed >= 1);
    assert_eq!(total.delivered + total.coalesced, 950_000);
    let left = "select count(*) from sentry_regionoutbox where shard_identifier = 7";
    assert_eq!((db.queued().await, db.number(left).await), (50_000, 50_000));
}

/// No statement of a drain reads the table from end to end, however long the queue is and whatever
/// its statistics say: it would make the cost of one message grow with all. (Their plans are looked
/// at beside the statements themselves.)
#[tokio::test]
async fn no_query_of_a_drain_scans_a_long_queue() {
    let mut db = Db::new().await;
    db.run(
        "analyze sentry_regionoutbox; \
         insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier) select 0, n % 100, 3, n from generate_series(1, 300000) n;",
    )
    .await;
    let log = Log::<Cell>::new();
    let before = scans_of(&db).await;
    let shard = Shard::cell(Scope::Organization, 99);
    log.drain().shard(&mut db.client, &shard).await.unwrap();
    // One batch a shard.
    let settings = DrainSettings {
        visit_time: std::time::Duration::ZERO,
        ..DrainSettings::default()
    };
    let brief = log.drain().settings(settings);
    let report = brief
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(report.shards, 99);
    assert_eq!(scans_of(&db).await, before);
}

/// How often the outbox was read from end to end.
async fn scans_of(db: &Db) -> i64 {
    db.run("select pg_stat_force_next_flush()").await;
    db.number("select seq_scan from pg_stat_user_tables where relname = 'sentry_regionoutbox'")
        .await
}
