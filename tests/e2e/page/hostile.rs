//! Names that would be more than names, and a fleet as large as they come.

use anyhow::{Context as _, Result, ensure};
use monarch_tests::{Scene, Stage};
use serde_json::json;

use crate::visitor::{PHONE, Visitor};

/// Moves that have ended, put into the ledger as they might stand there.
async fn remember(scene: &Scene<'_>, org: &str, stores: u32) -> Result<String> {
    let insert = format!(
        "with m as (
           insert into monarch_ledger.move
                  (id, org_id, source_cell, sink_cell, phase, token, workflow_id, run_id, options,
                   spine_tables, spine_digest, reason_code, reason, ended_at)
           values (gen_random_uuid(), $q${org}$q$, 'us1', 'us2', 'aborted', gen_random_uuid(),
                   $q${org}$q$, 'run', '{{}}', '{{}}', '', 'why', $q${org}$q$, now())
           returning id),
         u as (
           insert into monarch_ledger.move_unit
                  (move_id, store, slot_prefix, status, tables_done, tables_total)
           select id, 'store ' || n || $q$ {org}$q$, '', 'evicted', 10, 10
             from m, generate_series(1, {stores}) n)
         select id::text from m"
    );
    scene
        .operator
        .ledger(&insert)
        .await?
        .context("no id came back")
}

/// No name of an organization or a store runs, breaks or widens the page.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_name_and_a_large_fleet_are_shown_and_do_nothing() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let hostile = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\u{202e}abc";
    let id = remember(&scene, hostile, 3).await?;
    let visitor = Visitor::of(&scene, PHONE, false).await?;
    for path in [
        "/".to_owned(),
        format!("/moves/{id}"),
        format!("/moves/{id}/stores/1"),
    ] {
        visitor.open(&path).await?;
        visitor
            .until("bdi", "<script>window.ran = 1</script>")
            .await?;
        ensure!(
            visitor.look("window.ran === undefined").await? == json!(true),
            "{path}: it ran"
        );
        visitor.it_fits().await?;
        visitor.everybody_can_read_it().await?;
    }
    visitor.picture("hostile").await?;

    let large = remember(&scene, "2", 200).await?;
    visitor.open(&format!("/moves/{large}")).await?;
    visitor.until("#summary", "2000 of 2000").await?;
    let cards = visitor
        .look("document.querySelectorAll('article').length")
        .await?;
    ensure!(cards == json!(200), "{cards} cards");
    visitor.it_fits().await?;
    visitor.picture("large").await?;
    visitor.leave().await
}
