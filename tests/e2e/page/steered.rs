//! What one sees at three in the morning, and does.

use anyhow::{Result, ensure};
use monarch_tests::{Scene, Stage, assert_nothing_left};
use serde_json::json;

use crate::visitor::{PHONE, Visitor};

/// On a phone, in the dark: the worker dies, the page says so by itself, and the move is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_mover_turns_red_and_the_move_is_aborted_from_the_page() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let visitor = Visitor::of(&scene, PHONE, true).await?;
    let dark = "matchMedia('(prefers-color-scheme: dark)').matches";
    ensure!(
        visitor.look(dark).await? == json!(true),
        "the reader does not want it dark"
    );
    visitor.press("#moves th a").await?;
    visitor.until("article .badge", "streaming").await?;
    visitor.it_fits().await?;
    visitor.everybody_can_read_it().await?;
    visitor.picture("phone").await?;

    // What has the focus keeps it while the page goes on under it.
    visitor
        .run("document.getElementById('ask-abort').focus()")
        .await?;
    worker.kill_9().await?;
    visitor
        .until("article.ill .badge.bad", "mover dead")
        .await?;
    visitor
        .until("#attention", "Movers that are not heard of")
        .await?;
    ensure!(
        visitor.look("document.activeElement.id").await? == json!("ask-abort"),
        "the focus was lost"
    );
    visitor.everybody_can_read_it().await?;
    visitor.it_fits().await?;
    visitor.picture("dead-mover").await?;

    visitor.press("#ask-abort").await?;
    visitor.until("h1", "Abort?").await?;
    visitor
        .fill(
            "textarea[name=reason]",
            "the worker is gone <b>for good</b>",
        )
        .await?;
    visitor.everybody_can_read_it().await?;
    visitor.press("main form button").await?;
    visitor.until(".notice", "asked to give up").await?;
    let successor = scene.operator.worker()?;
    visitor.until("#phase li[aria-current]", "aborted").await?;
    visitor
        .until("#attention", "the worker is gone <b>for good</b>")
        .await?;
    visitor.everybody_can_read_it().await?;
    visitor.picture("aborted").await?;
    ensure!(successor.is_alive(), "the worker ended");
    visitor.leave().await?;
    assert_nothing_left(&scene.fleet).await
}
