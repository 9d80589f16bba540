//! The ledger and the Temporal server are killed in each step of the cut-over, not only before it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_demo::Hosts;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Temporal};
use monarch_tests::{Held, Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;
use tokio_postgres::Client;

/// Kills both where they stand, and has both back.
async fn killed(ledger: &Cluster, temporal: &Temporal, scene: &mut Scene<'_>) -> Result<()> {
    ledger.kill_9().await?;
    temporal.kill_9().await?;
    ledger.restart().await?;
    temporal.restart().await?;
    scene.operator.reconnect(&scene.fleet).await
}

/// Waits until a session of the move's on the sink waits for a lock over such a statement.
async fn until_it_waits(watcher: &Client, statement: &str) -> Result<()> {
    let query = format!(
        "select exists (select from pg_stat_activity
                         where datname = current_database() and wait_event_type = 'Lock'
                           and application_name = 'monarch watch' and query ~ '{statement}')"
    );
    let look = async {
        while !watcher.query_one(&query, &[]).await?.get::<_, bool>(0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let waited = tokio::time::timeout(PATIENCE, look).await;
    waited.with_context(|| format!("nothing waits over {statement}"))?
}

/// Promises 4 and 6 in the write pause: in the drain, in the seal and in the flip the ledger and
/// Temporal are lost, and come back. The very attempt that began goes on, and all that was written
/// before the fence is on the sink.
#[tokio::test]
async fn a_cut_over_goes_on_when_ledger_and_temporal_are_back() -> Result<()> {
    let start = || Cluster::start(ClusterOptions::new(PgVersion::V15));
    let (cell, ledger) = tokio::try_join!(start(), start())?;
    let temporal = Temporal::start().await?;
    let hosts = Hosts {
        main: &cell,
        standby: None,
        side: &cell,
        sink: &cell,
        ledger: &ledger,
    };
    let temporal = &temporal;
    let mut scene = Scene::set(Stage { hosts, temporal }).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let fence = Held::before(&scene, "fence")?;
    let flip = Held::before(&scene, "flip")?;
    let worker = scene.operator.worker()?;
    let by_itself = json!({"cut_over": "auto", "max_pause_seconds": 600});
    scene.start(by_itself).await?;
    fence.reached().await?;

    // Every slot is made: from here on transactions may stay open.
    let writer = scene.source("metrics").await?;
    writer
        .batch_execute("begin; update quota set used = 4711 where organization_id = 1")
        .await?;
    fence.let_go()?;
    let waits = |status: &serde_json::Value| status["blocked_by"].to_string().contains("writer");
    scene.until_status(waits).await?;
    killed(&ledger, temporal, &mut scene).await?;

    // Of `sample` the comparison waits for, and of the parent of its rows the seal.
    let (comparing, sealing, watcher) = tokio::try_join!(scene.sink(), scene.sink(), scene.sink())?;
    comparing
        .batch_execute("begin; lock table sample in access exclusive mode")
        .await?;
    writer.batch_execute("commit").await?;
    until_it_waits(&watcher, "sample").await?;
    let hold = sealing.batch_execute("begin; lock table metric_series in access exclusive mode");
    let (held, let_go) = tokio::join!(hold, comparing.batch_execute("rollback"));
    let_go?;
    held?;
    until_it_waits(&watcher, "sealed_membership").await?;
    killed(&ledger, temporal, &mut scene).await?;
    sealing.batch_execute("rollback").await?;

    flip.reached().await?;
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("flipping"));
    killed(&ledger, temporal, &mut scene).await?;
    flip.let_go()?;

    scene.until("cut_over", &worker).await?;
    let drains = "select count(*)::text from monarch_ledger.move_event where kind = 'begin_drain'";
    assert_eq!(scene.operator.ledger(drains).await?.as_deref(), Some("1"));
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}
