//! A move that nobody drives any more in the middle of its flip.

use anyhow::{Context as _, Result};
use monarch_demo::observe::{leftovers, total};
use monarch_harness::Program;
use monarch_tests::{Held, Neighbours, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

const SWEEP_NOW: [&str; 3] = ["sweep", "--closed-for", "0"];

const ADOPT: [&str; 4] = ["move", "adopt", "--org", "1"];

/// Streams, asks for the cut-over, and loses workflow and worker once the flip is `held`.
async fn forsaken_in_the_flip(scene: &Scene<'_>, worker: &Program, held: &Held) -> Result<()> {
    // Nobody waits for an answer: whoever would give it is killed.
    tokio::select! {
        answered = scene.cut_over() => {
            answered.map(|answer| panic!("it was answered: {answer}"))
        }
        reached = held.reached() => reached,
    }?;
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("flipping"));
    let terminate = ["workflow", "terminate", "--workflow-id", "org-move-1"];
    scene.operator.temporal(terminate).await?.success()?;
    worker.kill_9().await
}

/// Promise 9 where the flip has not happened: the organization could write nowhere, for ever. It
/// writes on the source again, and the flip that comes late changes nothing.
#[tokio::test]
async fn a_flip_that_has_not_happened_is_taken_back_by_the_sweep() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let held = Held::before(&scene, "flip")?;
    forsaken_in_the_flip(&scene, &worker, &held).await?;
    assert!(!scene.fleet.control.may_write(1, "us1")?);

    scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("failed"));
    assert!(scene.fleet.control.may_write(1, "us1")?);
    let left = leftovers(&scene.fleet.source).await?;
    assert!(left.is_empty(), "{left:?}");

    held.let_go()?;
    held.gone().await?;
    assert!(scene.fleet.control.may_write(1, "us1")?, "it flipped late");

    let worker = scene.operator.worker()?;
    scene.operator.monarch(ADOPT).await?.success()?;
    scene.abort("clean up").await?;
    scene.until("aborted", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.sink).await?), 0);
    neighbours.assert_untouched(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Promises 8 and 9 where it has happened, and nobody heard of it: the organization lives on the
/// sink. Nothing is taken back; the logs are read to their heads, and another workflow ends the move.
#[tokio::test]
async fn a_flip_that_has_happened_is_not_taken_back_by_the_sweep() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let held = Held::after(&scene, "flip")?;
    forsaken_in_the_flip(&scene, &worker, &held).await?;
    let at_barrier = org_on(&scene.fleet.sink).await?;

    let swept = scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert!(
        swept.output.contains("nothing is taken back"),
        "{}",
        swept.text()
    );
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("flipping"));
    assert!(scene.fleet.control.may_write(1, "us2")?);
    let left = leftovers(&scene.fleet.source).await?;
    assert!(left.is_empty(), "{left:?}");
    held.let_go()?;

    let worker = scene.operator.worker()?;
    scene.operator.monarch(ADOPT).await?.success()?;
    scene.until("cut_over", &worker).await?;
    scene
        .update("evict", "{}")
        .await
        .context("ask for the eviction")?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    neighbours.assert_untouched(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}
