//! What is proved again before the seal.

use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_tests::{PATIENCE, Scene, Stage, org_on};
use serde_json::json;
use tokio_postgres::Client;

async fn until(session: &Client, condition: &str) -> Result<()> {
    let query = format!("select {condition}");
    let look = async {
        while !session.query_one(&query, &[]).await?.get::<_, bool>(0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let waited = tokio::time::timeout(PATIENCE, look).await;
    waited.with_context(|| format!("it never was so: {condition}"))?
}

/// Promise 1, against a writer that the fence did not stop: what it commits behind the barrier, while
/// both sides are being compared, is proved by another barrier before anything is sealed, in the same
/// write pause.
#[tokio::test]
async fn a_change_behind_the_barrier_is_drained_again_before_the_seal() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 100}))
        .await?;
    let (blocker, watcher) = (scene.sink().await?, scene.sink().await?);
    blocker
        .batch_execute("begin; lock table sample in access exclusive mode")
        .await?;
    let slip = async {
        let source = scene.source("metrics").await?;
        // Both sides are read in snapshots that were taken before: the sink's waits for the lock,
        // the source's is kept until the sink has been read.
        let comparing = "exists (select from pg_stat_activity
            where datname = current_database() and application_name = 'monarch watch' and ";
        let waits = format!("{comparing} wait_event_type = 'Lock' and query ~ 'sample')");
        until(&watcher, &waits).await?;
        let has_read = format!("{comparing} state = 'idle in transaction' and query !~* '^begin')");
        until(&source, &has_read).await?;
        source
            .batch_execute("update quota set used = 4711 where organization_id = 1")
            .await?;
        let applied = "(select bool_and(used = 4711) from quota where organization_id = 1)";
        until(&watcher, applied).await?;
        blocker.batch_execute("rollback").await?;
        anyhow::Ok(())
    };
    let (answer, slipped) = tokio::join!(scene.cut_over(), slip);
    slipped?;
    assert_eq!(answer?["phase"], "cut_over");
    let counted = async |kind: &str| {
        let query = format!(
            "select count(*)::text from monarch_ledger.move_event
              where kind = '{kind}' and coalesce(store, 'metrics') = 'metrics'"
        );
        anyhow::Ok(scene.operator.ledger(&query).await?.unwrap_or_default())
    };
    assert_eq!(counted("begin_drain").await?, "1", "the pause was ended");
    assert_eq!(counted("barrier").await?, "2", "it was not drained again");
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}
