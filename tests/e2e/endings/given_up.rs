//! An operator gives a move up, in every phase before the flip.

use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_demo::Organization;
use monarch_demo::observe::total;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, shared};
use monarch_tests::{Neighbours, PATIENCE, Scene, Servers, Stage, assert_nothing_left, org_on};
use serde_json::json;
use tokio_postgres::Client;

/// What must be so after a move was given up, whenever that was: the organization writes on the
/// source, the sink has nothing of it, and no trace is left.
async fn is_undone(scene: &Scene<'_>, neighbours: &Neighbours) -> Result<()> {
    let fleet = &scene.fleet;
    assert_eq!(fleet.control.cell_of(1)?, "us1");
    assert!(fleet.control.may_write(1, "us1")?, "the fence is still up");
    assert_eq!(
        total(&org_on(&fleet.sink).await?),
        0,
        "rows stayed on the sink"
    );
    neighbours.assert_untouched_on_sink(fleet).await?;
    assert_nothing_left(fleet).await
}

/// Waits until a move is `aborted` and its workflow has ended well.
async fn until_aborted(scene: &Scene<'_>, worker: &Program) -> Result<()> {
    scene.until("aborted", worker).await?;
    let result = scene.result("org-move-1").await?;
    assert_eq!(result["result"]["phase"], "aborted", "{result}");
    Ok(())
}

/// A session that lets nobody write to a table of the sink.
async fn writes_blocked(scene: &Scene<'_>, table: &str) -> Result<Client> {
    let session = scene.sink().await?;
    session
        .batch_execute(&format!("begin; lock table {table} in share mode"))
        .await
        .context("lock a table of the sink")?;
    Ok(session)
}

/// Promises 7 and 9 before anything began: the abort is there before the preflight.
#[tokio::test]
async fn an_abort_before_preflight_leaves_no_move() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    scene.start(json!({})).await?;
    scene.abort("never mind").await?;
    let _worker = scene.operator.worker()?;
    let result = scene.result("org-move-1").await?;
    assert!(result.to_string().contains("never mind"), "{result}");
    assert_eq!(scene.operator.phase(1).await?, None);
    is_undone(&scene, &neighbours).await
}

/// Promises 7 and 9 during the copy: one store is held in the middle of it, the others stream.
/// No late commit of the copy lands.
#[tokio::test]
async fn an_abort_during_the_copy_leaves_nothing() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    let blocker = writes_blocked(&scene, "comment").await?;
    scene.start(json!({})).await?;
    let copying =
        "(select status = 'copying' from monarch_ledger.move_unit where store = 'default')";
    scene.operator.until(copying, &worker, PATIENCE).await?;
    scene.abort("too slow").await?;
    // The scrub waits for this lock, the copy must not.
    let aborting = "(select phase in ('aborting', 'aborted') from monarch_ledger.move)";
    scene.operator.until(aborting, &worker, PATIENCE).await?;
    blocker.batch_execute("rollback").await?;
    until_aborted(&scene, &worker).await?;
    traffic.stop().await?;
    is_undone(&scene, &neighbours).await
}

/// Promise 7 while a slot is being made: that waits for a transaction that was open before, and goes
/// on waiting for it on the server whoever hung up. A mover that is told to stop ends it, so that no
/// slot comes of it that nobody looks after.
#[tokio::test]
async fn a_pause_while_a_slot_is_made_leaves_nobody_making_it() -> Result<()> {
    let main = Cluster::start(ClusterOptions::new(PgVersion::V15)).await?;
    let shared = shared::cluster(PgVersion::V15).await;
    let scene = Scene::set(Stage::on(&main, None, shared, shared).await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    let source = scene.source("events").await?;
    let old = scene.source("events").await?;
    old.batch_execute("begin; select pg_current_xact_id()")
        .await?;
    scene.start(json!({})).await?;
    let makers = async || -> Result<i64> {
        let waiting = "select count(*) from pg_stat_activity
                        where backend_type = 'walsender' and wait_event = 'transactionid'";
        Ok(source.query_one(waiting, &[]).await?.get(0))
    };
    let begun = async {
        while makers().await? == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, begun)
        .await
        .context("no slot is being made")??;
    scene.update("pause", "null").await?;
    let held = "(select count(distinct store) = 3 from monarch_ledger.move_event
                  where kind = 'held')";
    scene.operator.until(held, &worker, PATIENCE).await?;
    assert_eq!(makers().await?, 0, "somebody makes a slot still");
    old.batch_execute("commit").await?;
    scene.abort("not today").await?;
    until_aborted(&scene, &worker).await?;
    let slots = source
        .query("select slot_name::text from pg_replication_slots", &[])
        .await?;
    assert!(slots.is_empty(), "{slots:?}");
    is_undone(&scene, &neighbours).await
}

/// Promises 7 and 9 while paused: nothing else happens in such a move that could wake it, the abort
/// alone must.
#[tokio::test]
async fn an_abort_while_paused_leaves_nothing() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.update("pause", "null").await?;
    scene.abort("not today").await?;
    until_aborted(&scene, &worker).await?;
    is_undone(&scene, &neighbours).await
}

/// Promises 7 and 9 while streaming. A second abort, and one after the end, change nothing; the
/// organization can be moved again.
#[tokio::test]
async fn an_abort_while_streaming_leaves_nothing_and_a_second_one_too() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.abort("first").await?;
    scene.abort("second").await?;
    until_aborted(&scene, &worker).await?;
    let reason = scene
        .operator
        .ledger("select reason from monarch_ledger.move")
        .await?;
    assert_eq!(reason.as_deref(), Some("first"));
    assert!(
        scene.abort("third").await.is_err(),
        "an ended workflow took a signal"
    );
    is_undone(&scene, &neighbours).await?;

    scene.stream(&worker, json!({})).await?;
    scene.cut_over().await?;
    traffic.stop().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}

/// Promise 9 in the drain: a writer is in the way, the operator does not wait. The organization
/// writes on the source again.
#[tokio::test]
async fn an_abort_while_draining_gives_the_organization_back() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 100}))
        .await?;
    let writer = scene.source("metrics").await?;
    writer
        .batch_execute("begin; update quota set used = -7 where organization_id = 1")
        .await?;
    let cut = scene.cut_over();
    let abort = async {
        scene.until("draining", &worker).await?;
        while !scene.fleet.control.is_fenced(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        scene.abort("not now").await
    };
    let (cut, abort) = tokio::join!(cut, abort);
    abort?;
    assert!(cut.is_err(), "it cut over: {cut:?}");
    until_aborted(&scene, &worker).await?;
    writer.batch_execute("commit").await?;
    is_undone(&scene, &neighbours).await
}

/// `temporal workflow cancel` gives a move up as an abort does, and the workflow ends cancelled.
#[tokio::test]
async fn a_cancelled_workflow_leaves_nothing() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let cancel = ["workflow", "cancel", "--workflow-id", "org-move-1"];
    scene.operator.temporal(cancel).await?.success()?;
    scene.until("aborted", &worker).await?;
    let result = scene.result("org-move-1").await?;
    assert_eq!(result["status"], "CANCELED", "{result}");
    is_undone(&scene, &neighbours).await
}

/// Promise 9: a drain that cannot succeed within the longest pause is undone by the move itself,
/// which names the blocker and goes on streaming; the next try succeeds.
#[tokio::test]
async fn a_pause_that_grows_too_long_is_ended_and_the_organization_writes_again() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 8}))
        .await?;
    let writer = scene.source("metrics").await?;
    writer
        .batch_execute(
            "set application_name = 'the one in the way';
             begin; update quota set \"limit\" = 7 where organization_id = 2",
        )
        .await?;
    let mut refusals;
    loop {
        let answer = scene.update("cut_over", "{}").await?;
        assert_eq!(answer["phase"], "active", "{answer}");
        refusals = answer["refusals"].to_string();
        if refusals.contains("write pause") {
            break;
        }
    }
    assert!(refusals.contains("the one in the way"), "{refusals}");
    assert!(
        scene.fleet.control.may_write(1, "us1")?,
        "the fence is still up"
    );
    writer.batch_execute("commit").await?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    scene.cut_over().await?;
    traffic.stop().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}

/// Promise 9: where the longest pause is over while both sides are compared, that is what the caller
/// is told.
#[tokio::test]
async fn a_pause_that_ends_over_the_comparison_says_so() -> Result<()> {
    let servers = Servers::start().await?;
    let scene = Scene::set(servers.stage().await).await?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 8}))
        .await?;
    let blocker = scene.sink().await?;
    blocker
        .batch_execute("begin; lock table comment in access exclusive mode")
        .await?;
    let mut refusals;
    loop {
        let answer = scene.update("cut_over", "{}").await?;
        assert_eq!(answer["phase"], "active", "{answer}");
        refusals = answer["refusals"].to_string();
        if refusals.contains("write pause") {
            break;
        }
    }
    assert!(
        refusals.contains("both sides are being compared"),
        "{refusals}"
    );
    blocker.batch_execute("rollback").await?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    scene.cut_over().await?;
    Ok(())
}
