//! A move from start to finalize, on the page alone.

use anyhow::{Result, ensure};
use monarch_tests::{Scene, Stage, assert_nothing_left};
use serde_json::json;

use crate::visitor::{DESK, Visitor};

/// An operator who has nothing but the page brings an organization to another cell.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_started_watched_and_finalized_on_the_page() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    let visitor = Visitor::of(&scene, DESK, false).await?;
    visitor.everybody_can_read_it().await?;

    visitor.press("a[href='/start']").await?;
    visitor.until("h1", "Start a move").await?;
    visitor.everybody_can_read_it().await?;
    visitor.fill("input[name=org]", "1").await?;
    visitor.press("input[name=eviction][value=now]").await?;
    visitor.press("main button").await?;
    visitor.until("h1", "The plan for organization 1").await?;
    visitor.until("pre", "store default").await?;
    visitor.everybody_can_read_it().await?;
    visitor.picture("plan").await?;
    visitor.press("main form button").await?;

    visitor.until("h1", "Organization 1").await?;
    visitor.run("window.stays = true").await?;
    visitor
        .until("#summary", "Ready for the cut-over3 of 3")
        .await?;
    ensure!(
        visitor.look("window.stays").await? == json!(true),
        "the page was loaded anew"
    );
    visitor.everybody_can_read_it().await?;
    visitor.picture("streaming").await?;

    // Who reloads in the middle sees the same.
    visitor.reload().await?;
    visitor
        .until("#summary", "Ready for the cut-over3 of 3")
        .await?;

    visitor.press("#ask-cut-over").await?;
    visitor.until("h1", "Cut over?").await?;
    visitor.everybody_can_read_it().await?;
    visitor.press("main form button").await?;
    visitor.until(".notice", "cut over").await?;
    visitor.until("#phase", "finalized").await?;
    visitor
        .until("#phase li[aria-current]", "finalized")
        .await?;
    visitor.until("#phase", "Write pause").await?;
    visitor.everybody_can_read_it().await?;
    visitor.picture("finalized").await?;
    ensure!(worker.is_alive(), "the worker ended");
    visitor.leave().await?;
    assert_nothing_left(&scene.fleet).await
}
