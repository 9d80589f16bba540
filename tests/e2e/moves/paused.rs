//! A move that is paused, and goes on.

use anyhow::{Context as _, Result};
use monarch_demo::Organization;
use monarch_harness::Program;
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::{Value, json};

/// The move's slots in the databases of the source, each with whether somebody reads from it.
async fn slots(scene: &Scene<'_>) -> Result<Vec<(String, bool)>> {
    let mut slots = Vec::new();
    for store in ["default", "events", "metrics"] {
        let found = scene
            .source(store)
            .await?
            .query(
                "select slot_name::text, active from pg_replication_slots
                  where database = current_database()",
                &[],
            )
            .await?;
        slots.extend(found.iter().map(|row| (row.get(0), row.get(1))));
    }
    slots.sort();
    slots.dedup();
    Ok(slots)
}

fn names(slots: &[(String, bool)]) -> Vec<String> {
    slots.iter().map(|(name, _)| name.clone()).collect()
}

async fn until_slots(scene: &Scene<'_>, active: bool) -> Result<Vec<(String, bool)>> {
    let look = async {
        loop {
            let slots = slots(scene).await?;
            if slots.iter().all(|(_, reads)| *reads == active) {
                return anyhow::Ok(slots);
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look)
        .await
        .context("the slots are not as they must be")?
}

/// Refused by the workflow's validator, which says `words`.
async fn is_refused(scene: &Scene<'_>, update: &str, words: &str) -> Result<()> {
    let refused = scene.update(update, "null").await;
    let told = format!("{:#}", refused.expect_err(update));
    assert!(told.contains(words), "{update}: {told}");
    Ok(())
}

async fn until_more_is_applied(scene: &Scene<'_>, worker: &Program) -> Result<()> {
    let applied = scene
        .operator
        .ledger("select sum(changes_applied)::text from monarch_ledger.move_unit")
        .await?
        .unwrap_or_default();
    let more =
        format!("(select sum(changes_applied) > {applied} + 50 from monarch_ledger.move_unit)");
    scene.operator.until(&more, worker, PATIENCE).await
}

/// Promises 1 and 2 over a pause under traffic: the same slots hold what is written meanwhile, and
/// all of it arrives. A paused move cuts over only after it was resumed, and says so before it
/// fences anybody.
#[tokio::test]
async fn a_paused_move_keeps_its_slots_and_loses_nothing() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    until_more_is_applied(&scene, &worker).await?;
    let streamed = until_slots(&scene, true).await?;
    is_refused(&scene, "resume", "the move is not paused").await?;
    let late = scene.update("cut_over", r#"{"valid_until": 1}"#).await?;
    assert_eq!(
        late["refusals"][0], "the request waited longer than its caller: ask again",
        "{late}"
    );

    scene.update("pause", "null").await?;
    is_refused(&scene, "pause", "paused already").await?;
    let held = until_slots(&scene, false).await?;
    assert_eq!(names(&held), names(&streamed), "slots came or went");
    let holding = "(select bool_and(retained_wal_bytes = lag_bytes) from monarch_ledger.move_unit)";
    scene.operator.until(holding, &worker, PATIENCE).await?;
    let answer = scene.update("cut_over", "{}").await?;
    assert_eq!(answer["phase"], "active", "{answer}");
    assert_eq!(answer["refusals"][0], "paused: resume it first", "{answer}");
    let drained = "select kind from monarch_ledger.move_event where kind = 'begin_drain'";
    assert_eq!(scene.operator.ledger(drained).await?, None, "it was fenced");
    let told =
        "select count(distinct store)::text from monarch_ledger.move_event where kind = 'held'";
    assert_eq!(scene.operator.ledger(told).await?.as_deref(), Some("3"));

    scene.update("resume", "null").await?;
    until_more_is_applied(&scene, &worker).await?;
    assert_eq!(names(&slots(&scene).await?), names(&streamed));
    scene.cut_over().await?;
    traffic.stop().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    for update in ["pause", "resume"] {
        is_refused(&scene, update, "a move that is cut_over").await?;
    }
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Terminates the move's workflow and puts another in its place; returns what that one says once the
/// move is active under it.
async fn adopted(scene: &Scene<'_>) -> Result<Value> {
    let terminate = ["workflow", "terminate", "--workflow-id", "org-move-1"];
    scene.operator.temporal(terminate).await?.success()?;
    let adopt = ["move", "adopt", "--org", "1"];
    scene.operator.monarch(adopt).await?.success()?;
    scene
        .until_status(|status| status["phase"] == "active")
        .await
}

/// An operator's pause outlives the workflow: whoever upgrades does not set movers going that somebody
/// has stopped. And it does not come back after a resume.
#[tokio::test]
async fn a_paused_move_that_is_adopted_stays_paused() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let streamed = until_slots(&scene, true).await?;
    scene.update("pause", "null").await?;
    let held = "(select count(distinct store) = 3 from monarch_ledger.move_event
                  where kind = 'held')";
    scene.operator.until(held, &worker, PATIENCE).await?;

    let status = adopted(&scene).await?;
    assert_eq!(status["paused"], true, "{status}");
    let answer = scene.update("cut_over", "{}").await?;
    assert_eq!(answer["refusals"][0], "paused: resume it first", "{answer}");
    let kept = until_slots(&scene, false).await?;
    assert_eq!(names(&kept), names(&streamed), "slots came or went");

    scene.update("resume", "null").await?;
    until_more_is_applied(&scene, &worker).await?;
    until_slots(&scene, true).await?;
    let status = adopted(&scene).await?;
    assert_eq!(status["paused"], false, "{status}");
    scene.cut_over().await?;
    traffic.stop().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    Ok(())
}
