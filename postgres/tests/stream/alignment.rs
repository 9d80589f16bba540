//! Both sides are read as of one position while rows come.

use std::time::Duration;

use monarch_harness::PgVersion;
use monarch_postgres::stream::StreamError;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::world::{World, one};

/// What a writer pauses for, so that the mover keeps up and all alignments are under traffic.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(30);

/// One round of a writer: inserts, updates, a subtree that comes and goes, another tenant's rows,
/// and transactions that overlap those of the other writers.
fn round(writer: i64, n: i64) -> String {
    let id = 10_000 * (writer + 1) + n;
    format!(
        "begin;
         insert into event values ({id}, 102, 'w{writer} {n}', 'b');
         update event set label = label || '.' where id = 1000 + {other} % 20 + 1;
         insert into note values ({id}, '1-2', 'n'), ({id} + 500000, '2-2', 'n');
         commit;
         begin;
         update \"group\" set project_id = case project_id when 20 then 10 else 20 end
           where id = 104 and {writer} = 0;
         update topic set project_id = case project_id when 20 then 10 else 20 end
           where id = 101 and {writer} = 1;
         delete from event where id = {id} - 5;
         commit;",
        other = n * 3 + writer * 7,
    )
}

async fn write_on(client: Client, writer: i64) {
    for n in 0.. {
        client.batch_execute(&round(writer, n)).await.unwrap();
        tokio::time::sleep(BETWEEN_ROUNDS).await;
    }
}

/// Guards verification while streaming: at every one of many alignments under traffic both sides
/// have the same rows, and they are of different states.
async fn both_sides_agree(world: &World) {
    let mut mover = world.start();
    let mut writers = JoinSet::new();
    for writer in 0..3 {
        writers.spawn(write_on(world.source_client().await, writer));
    }
    let mut states = Vec::new();
    for _ in 0..8 {
        let [source, sink] = world.compared(&mover).await;
        assert_eq!(sink, source);
        states.push(source);
    }
    states.dedup();
    assert!(states.len() > 5, "only {} states were seen", states.len());
    writers.shutdown().await;
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.assert_same().await;
}

#[tokio::test]
async fn both_sides_agree_at_every_alignment_under_traffic() {
    both_sides_agree(&World::new().await).await;
}

#[tokio::test]
async fn so_they_do_where_a_standby_is_decoded() {
    both_sides_agree(&World::decoded_on_a_standby(PgVersion::V16).await).await;
}

/// Guards that a difference is seen, where the source is idle and nothing comes to align with.
#[tokio::test]
async fn a_row_that_is_wrong_on_the_sink_is_seen() {
    let world = World::new().await;
    let mover = world.start();
    let [source, sink] = world.compared(&mover).await;
    assert_eq!(sink, source);
    let spoil =
        "set session_replication_role = replica; update event set label = 'x' where id = 1001";
    let sink = world.sink_client().await;
    sink.batch_execute(spoil).await.unwrap();
    let [source, sink] = world.compared(&mover).await;
    assert_ne!(sink, source);
    mover.stop().await.unwrap();
}

/// Guards the stream: while both snapshots are read, and when whoever asked has gone, it goes on; and
/// what is read stays as it was.
#[tokio::test]
async fn the_stream_goes_on_while_both_sides_are_read() {
    let world = World::new().await;
    let mut mover = world.start();
    let (alignment, answer) = world.alignment().await;
    mover.ask.send(alignment).await.unwrap();
    let both = answer.await.unwrap().unwrap();
    let events = "select count(*) from public.event";
    let before: i64 = one(&both.source, events).await;
    world
        .on_source("insert into event values (77, 101, 'later', 'b')")
        .await;
    let report = world.settle(&mut mover).await;
    assert!(report.applied > both.position);
    assert_eq!(one::<i64>(&both.source, events).await, before);
    let later = "select count(*) from public.event where id = 77";
    assert_eq!(one::<i64>(&both.sink, later).await, 0);
    assert_eq!(one::<i64>(&world.sink, later).await, 1);

    let (alignment, gone) = world.alignment().await;
    drop(gone);
    mover.ask.send(alignment).await.unwrap();
    world
        .on_source("insert into event values (78, 101, 'later yet', 'b')")
        .await;
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.assert_same().await;
}

/// Guards a comparison against a transaction that is under way: it is in neither side, and it is
/// not waited for.
#[tokio::test]
async fn an_open_transaction_is_in_neither_side() {
    let world = World::new().await;
    let mut mover = world.start();
    let open = world.source_client().await;
    open.batch_execute("begin; insert into event values (79, 101, 'open', 'b')")
        .await
        .unwrap();
    let compared = world.compared(&mover);
    let [source, sink] = tokio::time::timeout(Duration::from_secs(60), compared)
        .await
        .expect("an open transaction is waited for");
    assert_eq!(sink, source);
    open.batch_execute("commit").await.unwrap();
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
}

/// Guards the stream against whoever asks: his session on the source is dead when he is served. He
/// is told so, and the mover goes on.
#[tokio::test]
async fn an_asker_whose_session_is_dead_does_not_end_the_mover() {
    let world = World::new().await;
    let mut mover = world.start();
    let (alignment, answer) = world.alignment().await;
    world
        .on_source(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity
              where datname = current_database() and application_name = 'stream test'",
        )
        .await;
    mover.ask.send(alignment).await.unwrap();
    assert!(answer.await.unwrap().is_err());
    world
        .on_source("insert into event values (80, 101, 'later', 'b')")
        .await;
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.assert_same().await;
}

/// Guards the stream where the source waits for a synchronous standby that is away: what the log has
/// brought no snapshot sees, so there is no comparison, and all that comes goes on arriving.
#[tokio::test]
async fn no_comparison_while_a_synchronous_standby_is_away_but_the_stream_goes_on() {
    let world = World::on_its_own(PgVersion::V15, &[]).await;
    let mut mover = world.start();
    world.settle(&mut mover).await;
    for sql in [
        "alter system set synchronous_standby_names = 'nobody'",
        "select pg_reload_conf()",
    ] {
        world.on_source(sql).await;
    }
    let waiting = world.source_client().await;
    let commit = tokio::spawn(async move {
        let insert = "insert into event values (81, 101, 'waits', 'b')";
        waiting.batch_execute(insert).await
    });
    mover.until(|report| report.changes > 0).await.unwrap();
    let (alignment, answer) = world.alignment().await;
    mover.ask.send(alignment).await.unwrap();
    let refused = answer.await.unwrap();
    assert!(matches!(refused, Err(StreamError::NoMoment { .. })));
    for sql in [
        "set synchronous_commit = local",
        "insert into event values (82, 101, 'does not wait', 'b')",
    ] {
        world.on_source(sql).await;
    }
    mover.until(|report| report.changes > 1).await.unwrap();
    for sql in [
        "alter system reset synchronous_standby_names",
        "select pg_reload_conf()",
    ] {
        world.on_source(sql).await;
    }
    commit.await.unwrap().unwrap();
    let [source, sink] = world.compared(&mover).await;
    assert_eq!(sink, source);
    mover.stop().await.unwrap();
    world.assert_same().await;
}
