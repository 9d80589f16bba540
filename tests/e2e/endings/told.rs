//! What an operator is told by the commands of a move when something is not as it should be: where
//! it stands, what it refuses and what may be asked instead.

use anyhow::{Context as _, Result};
use monarch_demo::Said;
use monarch_harness::Program;
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left};
use serde_json::{Value, json};

/// Runs `monarch move …` for an organization; it ends, and with this status.
async fn told(scene: &Scene<'_>, words: &[&str], code: i32) -> Result<Said> {
    let words = ["move"].iter().chain(words).copied();
    let said = tokio::time::timeout(PATIENCE, scene.operator.monarch(words.clone()))
        .await
        .with_context(|| format!("{:?} does not end", words.clone().collect::<Vec<_>>()))??;
    let words: Vec<&str> = words.collect();
    assert_eq!(said.code, code, "{words:?}: {}", said.text());
    Ok(said)
}

/// The same, refused; the refusal has these words.
async fn refused(scene: &Scene<'_>, words: &[&str], code: i32, tells: &[&str]) -> Result<()> {
    let said = told(scene, words, code).await?;
    for part in tells {
        assert!(
            said.errors.contains(part),
            "{words:?} lacks {part}: {}",
            said.errors
        );
    }
    Ok(())
}

/// Cuts over with the command, trying again while the units are not ready.
async fn cut_over(scene: &Scene<'_>) -> Result<Value> {
    let cut = async {
        loop {
            let words = ["move", "cut-over", "--org", "1", "--output", "json"];
            let said = scene.operator.monarch(words).await?;
            match said.code {
                0 => return Ok(serde_json::from_str(&said.output)?),
                3 if said.output.contains("refusals") => eprintln!("not yet: {}", said.output),
                _ => anyhow::bail!("it did not cut over: {}", said.text()),
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(PATIENCE, cut)
        .await
        .context("it never cut over")?
}

/// A request that nobody serves would act when a worker comes back, long after its operator has
/// gone. And a workflow that was started under another id is steered by the ledger's word.
#[tokio::test]
async fn nothing_is_asked_where_no_worker_answers_and_each_refusal_says_what_may_be() -> Result<()>
{
    let scene = Scene::set(Stage::shared().await).await?;
    let input = json!({"org_id": 1, "heartbeat_seconds": 4}).to_string();
    scene.start_as("a-move-of-mine", &input).await?.success()?;
    let worker = scene.operator.worker()?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    worker.kill_9().await?;

    let silent = ["no worker answers", "nothing was asked", "monarch worker"];
    for command in ["pause", "cut-over"] {
        refused(
            &scene,
            &[command, "--org", "1", "--timeout", "7"],
            4,
            &silent,
        )
        .await?;
    }
    let alone = told(&scene, &["status", "--org", "1"], 0).await?;
    assert!(
        alone.output.contains("no worker answers"),
        "{}",
        alone.output
    );

    let worker = scene.operator.worker()?;
    // Longer than the newcomer's request would have waited for a worker.
    told(&scene, &["pause", "--org", "1"], 0)
        .await
        .context("it was paused before")?;
    refused(
        &scene,
        &["pause", "--org", "1"],
        3,
        &["paused already", "move resume --org 1"],
    )
    .await?;
    told(&scene, &["resume", "--org", "1"], 0).await?;
    refused(
        &scene,
        &["evict", "--org", "1"],
        3,
        &["move cut-over --org 1"],
    )
    .await?;

    let answer = cut_over(&scene).await?;
    assert!(answer["write_pause_ms"].is_u64(), "{answer}");
    for words in [
        &["pause", "--org", "1"][..],
        &["cut-over", "--org", "1"],
        &["abort", "--org", "1", "--reason", "late"],
    ] {
        refused(&scene, words, 3, &["move evict --org 1"]).await?;
    }
    told(&scene, &["evict", "--org", "1"], 0).await?;
    let watched = told(&scene, &["watch", "--org", "1", "--output", "json"], 0).await?;
    let last = watched.output.lines().last().unwrap_or_default();
    let last: Value = serde_json::from_str(last).context("a line is a document")?;
    assert_eq!(last["move"]["phase"], "finalized");
    drop(worker);
    assert_nothing_left(&scene.fleet).await
}

/// Disturbs evil-corp's move so that it fails.
async fn failed(scene: &Scene<'_>) -> Result<Program> {
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let sql = "insert into project (organization_id, slug) values (1, 'new')";
    scene.source("default").await?.batch_execute(sql).await?;
    scene.until("failed", &worker).await?;
    Ok(worker)
}

/// A script that follows a move that has failed must not wait for ever, and its operator is told to
/// give it up by whichever command is tried.
#[tokio::test]
async fn a_failed_move_ends_its_watchers_and_says_what_to_do() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = failed(&scene).await?;
    let watched = told(&scene, &["watch", "--org", "1"], 1).await?;
    let abort = "`monarch move abort --org 1`";
    assert!(watched.output.contains(abort), "{}", watched.output);
    let status = told(&scene, &["status", "--org", "1"], 0).await?;
    let name = "static-spine-changed";
    assert_eq!(status.output.matches(name).count(), 1, "{}", status.output);
    for words in [
        &["resume", "--org", "1"][..],
        &["cut-over", "--org", "1"],
        &["start", "--org", "1"],
    ] {
        refused(&scene, words, 3, &[abort]).await?;
    }

    // Another organization's move dies before it is registered: that is what its status says.
    scene
        .start_as("org-move-2", r#"{"org_id": 2}"#)
        .await?
        .success()?;
    scene.result("org-move-2").await?;
    let status = told(&scene, &["status", "--org", "2"], 0).await?;
    for part in ["not begun", "live-move"] {
        assert!(
            status.output.contains(part),
            "{part} is missing: {}",
            status.output
        );
    }
    told(&scene, &["watch", "--org", "2"], 1).await?;

    told(&scene, &["abort", "--org", "1", "--reason", "clean up"], 0).await?;
    scene.until("aborted", &worker).await?;
    let watched = told(&scene, &["watch", "--org", "1"], 1).await?;
    assert!(watched.output.contains("scrubbed"), "{}", watched.output);
    assert!(!watched.output.contains("evicted"), "{}", watched.output);
    assert_nothing_left(&scene.fleet).await
}
