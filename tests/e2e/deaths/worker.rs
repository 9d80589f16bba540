//! The worker is killed where it stands; another one goes on.

use anyhow::Result;
use monarch_demo::Organization;
use monarch_harness::Program;
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

/// Cuts over, compares, evicts.
async fn ends_right(scene: &Scene<'_>, worker: &Program, neighbours: &Neighbours) -> Result<()> {
    scene.cut_over().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    assert_nothing_left(&scene.fleet).await
}

/// Promises 2, 4 and 7: what a dead copy left behind is scrubbed, its slot dropped, and the store
/// copied again from one snapshot.
#[tokio::test]
async fn a_worker_killed_during_the_snapshot_is_replaced() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let killed = scene.operator.worker()?;
    let blocker = scene.sink().await?;
    blocker
        .batch_execute("begin; lock table comment, event, sample in share mode")
        .await?;
    scene.start(json!({})).await?;
    let copying = "(select bool_and(status = 'copying') from monarch_ledger.move_unit)";
    scene.operator.until(copying, &killed, PATIENCE).await?;
    killed.kill_9().await?;
    blocker.batch_execute("rollback").await?;
    let worker = scene.operator.worker()?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    let epochs = scene
        .operator
        .ledger("select min(epoch)::text from monarch_ledger.move_unit")
        .await?;
    assert_ne!(epochs.as_deref(), Some("1"), "nothing was copied again");
    ends_right(&scene, &worker, &neighbours).await?;
    traffic.stop().await?;
    Ok(())
}

/// Promises 3 and 4: the position is in the sink's own transaction, so each change is applied once,
/// however often the stream dies.
#[tokio::test]
async fn a_worker_killed_during_the_stream_is_replaced() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let mut worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    for round in 1..=2 {
        let applied = format!(
            "(select min(transactions_applied) >= {} from monarch_ledger.move_unit)",
            20 * round
        );
        scene.operator.until(&applied, &worker, PATIENCE).await?;
        worker.kill_9().await?;
        worker = scene.operator.worker()?;
        let again = format!(
            "(select bool_and(epoch > {round} and status = 'streaming'
                     and heartbeat_at > now() - interval '2 s') from monarch_ledger.move_unit)"
        );
        scene.operator.until(&again, &worker, PATIENCE).await?;
    }
    ends_right(&scene, &worker, &neighbours).await?;
    traffic.stop().await?;
    Ok(())
}

/// Promise 4 at the end: a worker that dies while the source is evicted leaves work that another
/// one can finish.
#[tokio::test]
async fn a_worker_killed_during_the_eviction_is_replaced() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let killed = scene.operator.worker()?;
    scene.stream(&killed, json!({})).await?;
    scene.cut_over().await?;
    let at_barrier = org_on(&scene.fleet.sink).await?;
    // Holds the eviction in the middle: somebody reads a table for long.
    let reader = scene.source("default").await?;
    reader
        .batch_execute("begin; lock table team in share mode")
        .await?;
    scene.update("evict", "{}").await?;
    scene.until("evicting", &killed).await?;
    killed.kill_9().await?;
    reader.batch_execute("rollback").await?;
    let worker = scene.operator.worker()?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Promise 7 with a mover that is dead when the move is given up: Temporal tries nothing again that
/// was cancelled, so its silence comes back as a failure. It is the abort's end, not a finding: the
/// move is aborted for the operator's reason.
#[tokio::test]
async fn a_mover_that_died_before_an_abort_is_no_finding() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let steering = scene.operator.worker_of(["--queue", "monarch"])?;
    let cells = ["--cell", "us1", "--cell", "us2"];
    let movers = scene.operator.worker_of(cells)?;
    scene.stream(&steering, json!({})).await?;
    movers.kill_9().await?;
    scene.abort("enough of it").await?;
    let heard = "(select count(*) = 1 from monarch_ledger.move_event where kind = 'begin_abort')";
    scene.operator.until(heard, &steering, PATIENCE).await?;
    let _movers = scene.operator.worker_of(cells)?;
    scene.until("aborted", &steering).await?;
    let told = "select concat_ws(' ', reason_code, reason) from monarch_ledger.move";
    let told = scene.operator.ledger(told).await?;
    assert_eq!(told.as_deref(), Some("aborted enough of it"));
    let failed = "select kind from monarch_ledger.move_event where kind = 'fail'";
    assert_eq!(scene.operator.ledger(failed).await?, None);
    assert_eq!(scene.result("org-move-1").await?["status"], "COMPLETED");
    assert_nothing_left(&scene.fleet).await
}
