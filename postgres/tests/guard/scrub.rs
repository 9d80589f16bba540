//! A scrub takes back what a move put on the sink, however little of it is there.

use monarch_harness::PgVersion;
use monarch_model::{Epoch, Phase};
use monarch_postgres::evict::{self, Error, Rows, ScrubPermit};
use monarch_postgres::sink;

use crate::cells::{Cell, doomed, fill, graph, spine, unit};

fn permit() -> ScrubPermit {
    ScrubPermit::in_phase(Phase::Aborting).unwrap()
}

/// Guards promises 1 and 7 on a half-copied sink: static parents are missing, foreign keys are
/// off the scope's path, and another tenant is there; only the organization goes, and the unit.
#[tokio::test]
async fn a_scrub_takes_what_a_dead_copy_left_and_nothing_else() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V14).await,
    );
    source.run(&fill(1, 7, 50)).await;
    sink.run(&(fill(1, 7, 50) + &fill(2, 3, 20))).await;
    // The parents in other stores never came.
    sink.run(
        "alter table project drop constraint project_organization_id_fkey;
         alter table release drop constraint release_project_id_fkey;
         alter table \"group\" drop constraint group_project_id_fkey;
         delete from organization where id = 1; delete from project where organization_id = 1;",
    )
    .await;
    let graph = graph();
    let from = source.session().await;
    let mut to = sink.session().await;
    let spine = spine(&from, &graph, 1).await;
    let doomed = doomed(&to, &graph, 1, &spine).await;
    let unit = unit(1);
    let run = async |session: &mut monarch_postgres::Session, epoch| {
        evict::scrub(
            session,
            &unit,
            Epoch(epoch),
            &doomed,
            &permit(),
            &mut |_, _| {},
        )
        .await
    };
    let deleted = run(&mut to, 3).await.unwrap();
    assert_eq!(deleted.values().sum::<u64>(), 3 + 7 + 50 + 50);
    assert_eq!(sink.count("event").await, 20);
    assert_eq!(sink.count("tag").await, 20);
    assert_eq!(sink.count("organization").await, 1);
    assert!(sink::read(&*to, &unit).await.unwrap().is_none());
    assert_eq!(run(&mut to, 4).await.unwrap(), Rows::new());
    assert_eq!(sink.count("monarch.unit").await, 0);
}

/// Guards promise 5: who was taken over scrubs nothing.
#[tokio::test]
async fn a_superseded_scrub_deletes_nothing() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    for cell in [&source, &sink] {
        cell.run(&fill(1, 2, 2)).await;
    }
    let graph = graph();
    let spine = spine(&source.session().await, &graph, 1).await;
    let mut to = sink.session().await;
    let doomed = doomed(&to, &graph, 1, &spine).await;
    let unit = unit(1);
    sink::ensure_schema(&mut to).await.unwrap();
    let patience = std::time::Duration::from_secs(30);
    sink::take_over(&mut to, &unit, Epoch(9), patience)
        .await
        .unwrap();
    let refused = evict::scrub(&mut to, &unit, Epoch(8), &doomed, &permit(), &mut |_, _| {}).await;
    assert!(matches!(refused, Err(Error::Superseded)));
    assert_eq!(sink.count("event").await, 2);
    assert_eq!(sink.count("monarch.unit").await, 1);
}

/// Guards promise 7: a move that is given up after its seal is scrubbed too, and keeps no unit.
#[tokio::test]
async fn a_sealed_unit_that_is_given_up_is_scrubbed() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    for cell in [&source, &sink] {
        cell.run(&fill(1, 2, 2)).await;
    }
    let graph = graph();
    let spine = spine(&source.session().await, &graph, 1).await;
    let mut to = sink.session().await;
    let doomed = doomed(&to, &graph, 1, &spine).await;
    let unit = unit(1);
    sink::ensure_schema(&mut to).await.unwrap();
    let patience = std::time::Duration::from_secs(30);
    sink::take_over(&mut to, &unit, Epoch(2), patience)
        .await
        .unwrap();
    let tx = to.transaction().await.unwrap();
    sink::seal(&tx, &unit, Epoch(2), &Default::default())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    evict::scrub(&mut to, &unit, Epoch(3), &doomed, &permit(), &mut |_, _| {})
        .await
        .unwrap();
    assert_eq!(sink.count("event").await, 0);
    assert_eq!(sink.count("monarch.unit").await, 0);
}
