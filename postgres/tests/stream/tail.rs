//! What is read behind the seal.

use std::collections::BTreeMap;

use monarch_model::{Epoch, TableName};
use monarch_postgres::stream::{read_tail, seal};

use crate::world::World;

fn late(tables: &[(&str, u64)]) -> BTreeMap<TableName, u64> {
    let named = |(table, count): &(&str, u64)| (table.parse().unwrap(), *count);
    tables.iter().map(named).collect()
}

async fn sealed() -> World {
    let mut world = World::new().await;
    let mut mover = world.start();
    world
        .on_source(
            "insert into \"group\" (id, project_id) overriding system value values (190, 10)",
        )
        .await;
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.take_over(2).await;
    world.job.epoch = Epoch(2);
    let mut sink = world.sink_client().await;
    let job = &world.job;
    seal(&mut sink, &job.unit, Epoch(2), &job.graph, &job.spine)
        .await
        .unwrap();
    world
}

/// Guards promise 8: what the organization does on the source behind the seal is counted, what
/// others do is not, and nothing on the sink changes.
#[tokio::test]
async fn late_changes_are_counted_and_not_applied() {
    let world = sealed().await;
    let tail = read_tail(&world.job, &world.job.source).await.unwrap();
    assert_eq!(tail.late_changes, late(&[]));

    world
        .on_source(
            "insert into event values (1900, 190, 'late', 'b'), (2900, 201, 'foreign', 'b');
             update event set label = 'late' where id in (1001, 2001);
             delete from event where id in (1002, 2002);
             insert into \"group\" (id, project_id) overriding system value
               values (191, 10), (291, 20);
             insert into project values (12, 1, 'late')",
        )
        .await;
    let before = world.state().await;
    for _ in 0..2 {
        let tail = read_tail(&world.job, &world.job.source).await.unwrap();
        assert_eq!(
            tail.late_changes,
            late(&[("event", 3), ("group", 1), ("project", 1)])
        );
        assert!(tail.snapshot.contains(':'));
        assert!(tail.head > before.position.unwrap());
    }
    assert_eq!(world.state().await, before);
}

/// Guards the org's new life on the sink: what it does there says nothing about the tail, and what
/// is delivered again is passed over.
#[tokio::test]
async fn the_tail_is_judged_by_what_was_sealed() {
    let world = sealed().await;
    world
        .sink
        .batch_execute(
            "insert into \"group\" (id, project_id, title) overriding system value
               values (201, 10, 'new life');
             delete from event where id = 1003",
        )
        .await
        .unwrap();
    world
        .on_source("insert into event values (2900, 201, 'foreign', 'b')")
        .await;
    let tail = read_tail(&world.job, &world.job.source).await.unwrap();
    assert_eq!(tail.late_changes, late(&[]));
}
