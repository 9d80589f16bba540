//! How much memory a worker takes, as the kernel counts it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use monarch_harness::Program;
use monarch_tests::{PATIENCE, Scene, Stage, org_on};
use serde_json::json;

/// Rows of one transaction, and bytes of each: some 130 MB.
const ROWS: u32 = 80_000;
const ROW_BYTES: u32 = 1_600;

/// How far the worker may grow over it, in KiB. A stream's own bounds (operations.md) make up half of
/// that, and what the allocator keeps the rest; the transaction is twice as large.
const GROWTH_KIB: u64 = 64 * 1024;

/// A figure of the process's status, in KiB.
fn status(worker: &Program, name: &str) -> Result<u64> {
    let pid = worker.pid().context("the worker ended")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with(name));
    let figure = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(figure.context("no such figure")?.parse()?)
}

/// Has the kernel forget how much the process once took.
fn forget_peak(worker: &Program) -> Result<()> {
    let pid = worker.pid().context("the worker ended")?;
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("reset the peak")
}

/// Guards the memory promise where it counts: one transaction that changes a great many rows passes
/// through a worker that does not grow with it, whosever rows they are.
#[tokio::test]
async fn a_worker_does_not_grow_with_a_transaction() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let source = scene.source("events").await?;
    for project in [11, 21] {
        let fill = format!(
            "insert into event (received, group_id, payload, size_bytes)
             select '2025-05-05', g.id, repeat(md5(n::text), {ROW_BYTES} / 32), {project}
               from (select id from event_group where project_id = {project} limit 1) g,
                    generate_series(1, {ROWS}) n"
        );
        let filled = source.execute(&fill, &[]).await?;
        ensure!(filled == u64::from(ROWS), "{filled} rows");
    }
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    for (project, changes) in [(11, ROWS), (21, 0)] {
        let applied = "select changes_applied::text from monarch_ledger.move_unit
                        where store = 'events'";
        let before: u64 = scene
            .operator
            .ledger(applied)
            .await?
            .context("no unit")?
            .parse()?;
        let took = status(&worker, "VmRSS")?;
        forget_peak(&worker)?;
        let update =
            format!("update event set payload = payload || '!' where size_bytes = {project}");
        source.batch_execute(&update).await?;
        let head = source
            .query_one("select pg_current_wal_insert_lsn()::text", &[])
            .await?;
        let head: String = head.get(0);
        let arrived = format!(
            "(select applied_lsn >= '{head}'::pg_lsn and changes_applied >= {}
                from monarch_ledger.move_unit where store = 'events')",
            before + u64::from(changes)
        );
        scene.operator.until(&arrived, &worker, PATIENCE).await?;
        let peak = status(&worker, "VmHWM")?;
        eprintln!("project {project}: {took} KiB before, {peak} KiB at most");
        ensure!(
            peak < took + GROWTH_KIB,
            "project {project}: {took} KiB before, {peak} KiB at most"
        );
    }
    scene.cut_over().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}
