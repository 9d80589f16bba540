//! What no log tells, at the last moment at which it can be noticed.

use anyhow::{Context as _, Result};
use monarch_harness::Program;
use monarch_tests::{Neighbours, PATIENCE, Scene, Servers, assert_nothing_left};
use serde_json::json;

/// The newest move's.
const OF_MOVE: &str =
    "move_id = (select id from monarch_ledger.move order by created_at desc limit 1)";

/// Cuts over, and once the store `events` has applied its barrier, runs `sql` on its source: the drain
/// still waits for a transaction of another store then. The move fails, saying each of `words`.
async fn fails_behind_its_barrier(
    scene: &Scene<'_>,
    worker: &Program,
    sql: &str,
    words: &[&str],
) -> Result<()> {
    scene
        .stream(worker, json!({"max_pause_seconds": 100}))
        .await?;
    let (source, writer) = (
        scene.source("events").await?,
        scene.source("metrics").await?,
    );
    let late = async {
        writer
            .batch_execute("begin; update quota set used = used where organization_id = 2")
            .await?;
        let barrier = format!(
            "exists (select from monarch_ledger.move_event
                      where kind = 'barrier' and store = 'events' and {OF_MOVE})"
        );
        scene.operator.until(&barrier, worker, PATIENCE).await?;
        let drained = format!(
            "select kind from monarch_ledger.move_event
              where kind = 'barrier' and store = 'metrics' and {OF_MOVE}"
        );
        assert_eq!(scene.operator.ledger(&drained).await?, None);
        source
            .batch_execute(sql)
            .await
            .context("change the table")?;
        writer.batch_execute("rollback").await?;
        anyhow::Ok(())
    };
    let (cut, changed) = tokio::join!(scene.cut_over(), late);
    changed?;
    assert!(cut.is_err(), "it cut over: {cut:?}");
    scene.until("failed", worker).await?;
    let reason = format!(
        "select reason_code || ': ' || reason from monarch_ledger.move where {}",
        OF_MOVE.replace("move_id", "id")
    );
    let reason = scene.operator.ledger(&reason).await?.unwrap_or_default();
    for word in words {
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let lifted = format!(
        "exists (select from monarch_ledger.move_event where kind = 'fence_lifted' and {OF_MOVE})"
    );
    scene.operator.until(&lifted, worker, PATIENCE).await?;
    assert!(scene.fleet.control.may_write(1, "us1")?, "it stays fenced");
    scene.abort("clean up").await?;
    scene.until("aborted", worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Guards promise 1: a leaf that is attached, detached or truncated behind the barrier, of which no log
/// says anything and behind which nothing changes, is noticed before anything is sealed.
#[tokio::test]
async fn a_leaf_that_changes_behind_the_barrier_fails_the_move_by_name() -> Result<()> {
    let servers = Servers::start().await?;
    let scene = Scene::set(servers.stage().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    let source = scene.source("events").await?;
    source
        .batch_execute("create table event_later (like event including all)")
        .await?;
    for (sql, words, undo) in [
        (
            "alter table event attach partition event_later
               for values from ('2028-01-01') to ('2029-01-01')",
            ["schema-changed", "+ leaf event_later"],
            "alter table event detach partition event_later",
        ),
        (
            "alter table event detach partition event_autumn",
            ["schema-changed", "- leaf event_autumn"],
            "alter table event attach partition event_autumn
               for values from ('2026-07-01') to ('2027-01-01')",
        ),
        (
            "truncate event_autumn",
            ["schema-changed", "leaf event_autumn"],
            "",
        ),
    ] {
        fails_behind_its_barrier(&scene, &worker, sql, &words).await?;
        source
            .batch_execute(undo)
            .await
            .context("undo the change")?;
    }
    neighbours.assert_untouched_on_sink(&scene.fleet).await
}
