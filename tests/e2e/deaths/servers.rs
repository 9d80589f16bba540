//! Servers are killed; the move goes on by itself when they are back.

use anyhow::Result;
use monarch_demo::Hosts;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Temporal};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

/// Promise 4 for the parts that are not ours: source, sink, ledger and Temporal are killed one
/// after the other, each time with changes on their way.
#[tokio::test]
async fn a_move_goes_on_when_a_killed_server_is_back() -> Result<()> {
    let start = || Cluster::start(ClusterOptions::new(PgVersion::V15));
    let (source, sink, ledger) = tokio::try_join!(start(), start(), start())?;
    let temporal = Temporal::start().await?;
    let stage = Stage {
        hosts: Hosts {
            main: &source,
            standby: None,
            side: &source,
            sink: &sink,
            ledger: &ledger,
        },
        temporal: &temporal,
    };
    let mut scene = Scene::set(stage).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    for (round, cluster) in [&source, &sink, &ledger].into_iter().enumerate() {
        change(&scene, round).await?;
        cluster.kill_9().await?;
        cluster.restart().await?;
        scene.operator.reconnect(&scene.fleet).await?;
        is_carried_over(&scene, &worker).await?;
    }
    temporal.kill_9().await?;
    change(&scene, 3).await?;
    temporal.restart().await?;
    is_carried_over(&scene, &worker).await?;
    scene.cut_over().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Every row of a few tables changes.
async fn change(scene: &Scene<'_>, round: usize) -> Result<()> {
    let changes = [
        (
            "default",
            format!("update app.setting set value = '{round}' where organization_id = 1"),
        ),
        (
            "events",
            format!("update event_group set times_seen = {round} where project_id < 20"),
        ),
        (
            "metrics",
            format!("update quota set used = {round} where organization_id = 1"),
        ),
    ];
    for (store, sql) in changes {
        scene.source(store).await?.batch_execute(&sql).await?;
    }
    Ok(())
}

/// Waits until the sink has what the source has.
async fn is_carried_over(scene: &Scene<'_>, worker: &monarch_harness::Program) -> Result<()> {
    let source = org_on(&scene.fleet.source).await?;
    let waiting = async {
        while org_on(&scene.fleet.sink).await? != source {
            assert!(worker.is_alive(), "the worker ended");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| {
        anyhow::anyhow!(
            "the changes never arrived:\n{}",
            worker.output().unwrap_or_default()
        )
    })?
}
