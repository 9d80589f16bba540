//! Promise 9: a move that would fill the source's disk with log gives itself up first.

use anyhow::{Context as _, Result};
use monarch_demo::observe::total;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, shared};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

use super::failed::no_log_is_held;

/// A source whose slots may keep little. It has servers of its own: others' slots are in danger
/// there.
async fn thrifty() -> Result<Cluster> {
    let options = ClusterOptions::new(PgVersion::V15).setting("max_slot_wal_keep_size = 160MB");
    Cluster::start(options).await
}

/// Writes log that is nobody's: more than the budget, less than what ends the slot itself.
async fn write_log(scene: &Scene<'_>) -> Result<()> {
    scene
        .source("default")
        .await?
        .batch_execute(
            "select count(pg_logical_emit_message(false, 'filler', repeat('x', 1000000)))
               from generate_series(1, 115)",
        )
        .await
        .context("write log")
}

/// Waits until the move has failed by the budget's name, its slots dropped; the abort scrubs.
async fn gives_up(scene: &Scene<'_>, neighbours: &Neighbours, worker: &Program) -> Result<()> {
    scene.until("failed", worker).await?;
    let code = "select reason_code from monarch_ledger.move";
    let code = scene.operator.ledger(code).await?;
    assert_eq!(code.as_deref(), Some("wal-budget"));
    no_log_is_held(scene, worker).await?;
    neighbours.assert_untouched(&scene.fleet).await
}

async fn scrubs(scene: &Scene<'_>, worker: &Program) -> Result<()> {
    scene.abort("clean up").await?;
    scene.until("aborted", worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.sink).await?), 0);
    assert_nothing_left(&scene.fleet).await
}

/// The stream is stuck on the sink behind somebody's lock, so that it reports nothing; the log is
/// watched all the same.
#[tokio::test]
async fn a_stuck_stream_gives_the_move_up_before_its_slot_is_lost() -> Result<()> {
    let (main, shared) = (thrifty().await?, shared::cluster(PgVersion::V15).await);
    let scene = Scene::set(Stage::on(&main, None, shared, shared).await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let blocker = scene.sink().await?;
    blocker
        .batch_execute("begin; lock table team in share mode")
        .await?;
    scene
        .source("default")
        .await?
        .batch_execute("update team set name = name || '!' where organization_id = 1")
        .await?;
    write_log(&scene).await?;
    gives_up(&scene, &neighbours, &worker).await?;
    blocker.batch_execute("rollback").await?;
    scrubs(&scene, &worker).await
}

/// A paused move has nobody who reads its slots: they are looked after all the same.
#[tokio::test]
async fn a_paused_move_gives_itself_up_before_its_slots_are_lost() -> Result<()> {
    let (main, shared) = (thrifty().await?, shared::cluster(PgVersion::V15).await);
    let scene = Scene::set(Stage::on(&main, None, shared, shared).await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.update("pause", "null").await?;
    let held = "(select bool_and(retained_wal_bytes = lag_bytes) from monarch_ledger.move_unit)";
    scene.operator.until(held, &worker, PATIENCE).await?;
    write_log(&scene).await?;
    gives_up(&scene, &neighbours, &worker).await?;
    scrubs(&scene, &worker).await
}
