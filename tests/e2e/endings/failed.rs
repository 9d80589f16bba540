//! Moves that fail by a finding, and moves that nobody drives any more.

use anyhow::{Context as _, Result, ensure};
use monarch_demo::observe::{leftovers, total};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, shared};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

/// Ends what nobody drives without leaving anybody the time to adopt it.
const SWEEP_NOW: [&str; 3] = ["sweep", "--closed-for", "0"];

const TERMINATE: [&str; 4] = ["workflow", "terminate", "--workflow-id", "org-move-1"];

const ADOPT: [&str; 4] = ["move", "adopt", "--org", "1"];

/// Streams, runs `sql` on a store's source, and waits until the move has failed with a reason that
/// has `name` in it and its slots are gone; then the abort scrubs the sink.
async fn fails_by_name(store: &str, sql: &str, name: &str) -> Result<()> {
    fails_after("", store, sql, name).await
}

/// The same after `before` on that source, which the copy brings along.
async fn fails_after(before: &str, store: &str, sql: &str, name: &str) -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let source = scene.source(store).await?;
    source
        .batch_execute(before)
        .await
        .context("prepare the source")?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    source
        .batch_execute(sql)
        .await
        .context("disturb the move")?;
    scene.until("failed", &worker).await?;
    let reason = scene
        .operator
        .ledger("select reason_code || ': ' || reason from monarch_ledger.move")
        .await?
        .unwrap_or_default();
    assert!(reason.contains(name), "{reason}");
    no_log_is_held(&scene, &worker).await?;
    scene.abort("clean up").await?;
    scene.until("aborted", &worker).await?;
    let result = scene.result("org-move-1").await?;
    assert!(result.to_string().contains(name), "{result}");
    assert_eq!(
        total(&org_on(&scene.fleet.sink).await?),
        0,
        "rows stayed on the sink"
    );
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}

/// A failed move holds no slot while it waits for somebody to scrub.
pub(super) async fn no_log_is_held(scene: &Scene<'_>, worker: &Program) -> Result<()> {
    let dropped = "(select bool_and(status = 'slot_dropped') from monarch_ledger.move_unit)";
    scene.operator.until(dropped, worker, PATIENCE).await?;
    let left = leftovers(&scene.fleet.source).await?;
    let held = |line: &&String| line.contains("slot ") || line.contains("publication ");
    assert_eq!(left.iter().find(held), None, "{left:?}");
    Ok(())
}

/// The static spine is what the whole move is scoped by: a new project fails it.
#[tokio::test]
async fn a_new_static_row_fails_the_move_by_name() -> Result<()> {
    let sql = "insert into project (organization_id, slug) values (1, 'new')";
    fails_by_name("default", sql, "static-spine-changed").await
}

/// What the move is scoped by may not go either, nor change its organization; nobody hangs on it here.
#[tokio::test]
async fn a_static_row_that_goes_or_changes_its_organization_fails_the_move_by_name() -> Result<()> {
    let before = "insert into project (id, organization_id, slug) values (19, 1, 'bare')";
    for sql in [
        "delete from project where id = 19",
        "update project set organization_id = 2 where id = 19",
        "update project set id = 18 where id = 19",
    ] {
        fails_after(before, "default", sql, "static-spine-changed").await?;
    }
    // Another's that comes over.
    let before = "insert into project (id, organization_id, slug) values (29, 2, 'bare')";
    let sql = "update project set organization_id = 1 where id = 29";
    fails_after(before, "default", sql, "static-spine-changed").await
}

/// A TRUNCATE cannot be told apart by tenant, so it fails the move, whoever had rows there. The log
/// tells of it and the table's new file does too; whichever is met first names the table.
#[tokio::test]
async fn a_truncate_fails_the_move_by_name() -> Result<()> {
    fails_by_name("events", "truncate event_tag", "event_tag").await
}

/// A changed column is found before a wrong row lands, also if the table sees no change.
#[tokio::test]
async fn a_changed_schema_fails_the_move_by_name() -> Result<()> {
    let sql = "alter table quota add column extra integer default 7";
    fails_by_name("metrics", sql, "schema-changed").await
}

/// Promise 7, when nobody ends a move: the workflow is terminated and the worker gone. The sweep
/// drops slots, publications and fence and fails the move; a new workflow scrubs what it left.
#[tokio::test]
async fn a_terminated_move_is_swept() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.operator.temporal(TERMINATE).await?.success()?;
    worker.kill_9().await?;
    let left = leftovers(&scene.fleet.source).await?;
    assert!(
        left.iter().any(|line| line.contains("slot ")),
        "nothing to sweep: {left:?}"
    );

    let swept = scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert!(swept.output.contains("organization 1"), "{}", swept.text());
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("failed"));
    let left = leftovers(&scene.fleet.source).await?;
    assert!(left.is_empty(), "{left:?}");
    assert!(scene.fleet.control.may_write(1, "us1")?);
    let again = scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert!(
        !again.output.contains("organization 1"),
        "swept twice: {}",
        again.text()
    );

    let worker = scene.operator.worker()?;
    scene.operator.monarch(ADOPT).await?.success()?;
    scene.abort("clean up").await?;
    scene.until("aborted", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.sink).await?), 0);
    neighbours.assert_untouched(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Promises 1 and 9 over an upgrade: a sweep between the end of a move's workflow and its adoption
/// leaves the move as it is and says so, and the new workflow goes on with the same slots.
#[tokio::test]
async fn a_move_that_is_about_to_be_adopted_is_not_swept() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let before = slots(&scene).await?;
    scene.operator.temporal(TERMINATE).await?.success()?;
    let swept = scene.operator.monarch(["sweep"]).await?.success()?;
    assert!(swept.output.contains("left alone"), "{}", swept.text());
    assert_eq!(slots(&scene).await?, before);
    scene.operator.monarch(ADOPT).await?.success()?;
    // However little time it leaves: somebody is there to take the move up.
    let swept = scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert!(!swept.output.contains("organization 1"), "{}", swept.text());
    scene
        .until_status(|status| status["phase"] == "active")
        .await?;
    scene.cut_over().await?;
    let failed = "select kind from monarch_ledger.move_event where kind = 'fail'";
    assert_eq!(scene.operator.ledger(failed).await?, None);
    Ok(())
}

/// Promise 9 over `temporal workflow reset`: the ledger knows the run that was reset, which has
/// ended; the one that came of it drives the move, which is not swept.
#[tokio::test]
async fn a_move_whose_workflow_was_reset_is_not_swept() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let before = slots(&scene).await?;
    let reset = [
        "workflow",
        "reset",
        "--workflow-id",
        "org-move-1",
        "--type",
        "LastWorkflowTask",
        "--reason",
        "a test",
    ];
    scene.operator.temporal(reset).await?.success()?;
    let swept = scene.operator.monarch(SWEEP_NOW).await?.success()?;
    assert!(!swept.output.contains("organization 1"), "{}", swept.text());
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("active"));
    assert_eq!(slots(&scene).await?, before);
    scene
        .until_status(|status| status["phase"] == "active")
        .await?;
    scene.cut_over().await?;
    Ok(())
}

/// The slots on the source.
async fn slots(scene: &Scene<'_>) -> Result<Vec<String>> {
    let mut left = leftovers(&scene.fleet.source).await?;
    left.retain(|line| line.contains("slot "));
    ensure!(!left.is_empty(), "no slot");
    Ok(left)
}

/// Promise 7, when a cell cannot be reached: the sweep says by its exit status that something is
/// left, and the next one ends it.
#[tokio::test]
async fn a_sweep_that_cannot_end_a_move_fails() -> Result<()> {
    let main = Cluster::start(ClusterOptions::new(PgVersion::V15)).await?;
    let shared = shared::cluster(PgVersion::V15).await;
    let scene = Scene::set(Stage::on(&main, None, shared, shared).await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.operator.temporal(TERMINATE).await?.success()?;
    worker.kill_9().await?;
    main.kill_9().await?;
    let swept = scene.operator.monarch(SWEEP_NOW).await?;
    assert_eq!(swept.code, 1, "{}", swept.text());
    assert!(
        swept.output.contains("could not be ended"),
        "{}",
        swept.text()
    );
    main.restart().await?;
    scene.operator.monarch(SWEEP_NOW).await?.success()?;
    let left = leftovers(&scene.fleet.source).await?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Promise 6: a move has one workflow. While it runs no other takes the move over, whoever asks.
#[tokio::test]
async fn a_move_that_is_driven_is_not_adopted() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let of = async |column: &str| {
        let query = format!("select {column}::text from monarch_ledger.move");
        anyhow::Ok(scene.operator.ledger(&query).await?.unwrap_or_default())
    };
    let input = json!({"org_id": 1, "adopt": of("id").await?}).to_string();
    scene.start_as("usurper", &input).await?.success()?;
    let result = scene.result("usurper").await?.to_string();
    for word in ["FAILED", "still-driven", "org-move-1"] {
        assert!(result.contains(word), "{word}: {result}");
    }
    assert_eq!(of("workflow_id").await?, "org-move-1");
    scene.cut_over().await?;
    Ok(())
}
