//! Stores that are shared out among workers.

use anyhow::{Context as _, Result};
use monarch_demo::Organization;
use monarch_demo::observe::total;
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

/// Waits until `monarch move status` says `words`, or no longer says them.
async fn until_status(scene: &Scene<'_>, words: &str, said: bool) -> Result<String> {
    let look = async {
        loop {
            let status = ["move", "status", "--org", "1"];
            let text = scene.operator.monarch(status).await?.success()?.output;
            if text.contains(words) == said {
                return anyhow::Ok(text);
            }
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, look).await;
    waited.with_context(|| format!("{words:?} said: never {said}"))?
}

/// Two workers have half of the stores each. While the second is not there, the queues that nobody
/// serves are named to whoever asks; then the fleet moves as with one.
#[tokio::test]
async fn workers_that_share_out_the_stores_move_a_fleet() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let one = scene
        .operator
        .worker_of(["--queue", "monarch", "--store", "default"])?;
    scene.start(json!({})).await?;
    let missing = "no worker serves queue monarch-us2-events";
    let status = until_status(&scene, missing, true).await?;
    assert!(status.contains("monarch-us1-metrics"), "{status}");
    assert!(!status.contains("queue monarch-us2-default"), "{status}");
    let first = "(select status = 'streaming' from monarch_ledger.move_unit
                   where store = 'default')";
    scene.operator.until(first, &one, PATIENCE).await?;

    let stores = ["--store", "events", "--store", "metrics"];
    let two = scene.operator.worker_of(stores)?;
    scene.operator.until_streaming(1, &two, PATIENCE).await?;
    until_status(&scene, "no worker serves", false).await?;
    scene.cut_over().await?;
    traffic.stop().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    scene.update("evict", "{}").await?;
    scene.until("finalized", &one).await?;
    assert_eq!(scene.result("org-move-1").await?["status"], "COMPLETED");
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    let log = two.output()?;
    assert!(log.contains("\"store\":\"metrics\""), "{log}");
    assert!(!log.contains("\"store\":\"default\""), "{log}");
    assert_nothing_left(&scene.fleet).await
}
