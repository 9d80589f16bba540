//! A worker that is taken for dead, and is not.

use anyhow::Result;
use monarch_demo::Organization;
use monarch_tests::{Neighbours, PATIENCE, Scene, Servers, assert_nothing_left, org_on};
use serde_json::json;

/// Promise 5: the old worker is halted in the middle of its work, a successor takes every unit
/// over, then the old one wakes and would go on. It cannot write, create or drop anything.
#[tokio::test]
async fn a_worker_that_wakes_after_its_successor_began_cannot_write() -> Result<()> {
    let servers = Servers::start().await?;
    let scene = Scene::set(servers.stage().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let zombie = scene.operator.worker()?;
    scene.stream(&zombie, json!({})).await?;
    let before = epochs(&scene).await?;
    zombie.pause()?;
    let successor = scene.operator.worker()?;
    let taken = format!(
        "(select bool_and(epoch > {before} and status = 'streaming'
                 and heartbeat_at > now() - interval '2 s') from monarch_ledger.move_unit)"
    );
    scene.operator.until(&taken, &successor, PATIENCE).await?;
    zombie.resume()?;
    // It sees that its sessions are gone and asks for work anew: as a worker it may live on, as the
    // mover that it was it may not.
    scene.cut_over().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    traffic.stop().await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &successor).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    assert_nothing_left(&scene.fleet).await
}

/// The same while the rows are copied: of the old copy nothing lands after the new one began.
#[tokio::test]
async fn a_copy_that_wakes_after_its_successor_began_lands_nothing() -> Result<()> {
    let servers = Servers::start().await?;
    let scene = Scene::set(servers.stage().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let zombie = scene.operator.worker()?;
    let blocker = scene.sink().await?;
    blocker
        .batch_execute("begin; lock table comment, event, sample in share mode")
        .await?;
    scene.start(json!({})).await?;
    let copying = "(select bool_and(status = 'copying') from monarch_ledger.move_unit)";
    scene.operator.until(copying, &zombie, PATIENCE).await?;
    let before = epochs(&scene).await?;
    zombie.pause()?;
    let successor = scene.operator.worker()?;
    let taken = format!("(select bool_and(epoch > {before}) from monarch_ledger.move_unit)");
    scene.operator.until(&taken, &successor, PATIENCE).await?;
    zombie.resume()?;
    blocker.batch_execute("rollback").await?;
    scene
        .operator
        .until_streaming(1, &successor, PATIENCE)
        .await?;
    scene.cut_over().await?;
    traffic.stop().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    neighbours.assert_untouched_on_sink(&scene.fleet).await
}

async fn epochs(scene: &Scene<'_>) -> Result<i64> {
    let epoch = "select max(epoch)::text from monarch_ledger.move_unit";
    Ok(scene
        .operator
        .ledger(epoch)
        .await?
        .unwrap_or_default()
        .parse()?)
}
