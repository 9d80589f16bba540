//! From start to `finalized`, while both organizations are written to.

use anyhow::{Context as _, Result, ensure};
use monarch_demo::observe::{by_store, total};
use monarch_demo::{Cell, Organization, observe, tables};
use monarch_harness::{Cluster, ClusterOptions, PASSWORD, PgVersion, Standby, shared};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on, tells};
use serde_json::json;

const EVIL_CORP: Organization = Organization::EVIL_CORP;
const OTHER: Organization = Organization::OTHER;

/// Waits until so many changes were applied in every store, so that snapshot, catch-up and tail
/// all had their part.
async fn until_changes_are_streamed(
    scene: &Scene<'_>,
    worker: &monarch_harness::Program,
) -> Result<()> {
    let streamed = "(select min(changes_applied) >= 50 from monarch_ledger.move_unit)";
    scene.operator.until(streamed, worker, PATIENCE).await
}

/// Moves evil-corp while both organizations are written to, and asks everything there is to ask.
pub(crate) async fn moves_whole(scene: &Scene<'_>) -> Result<()> {
    let fleet = &scene.fleet;
    let neighbours = Neighbours::of(fleet).await?;
    let others_at_first = count_of(&fleet.source, &OTHER).await?;
    let (evil, other) = (
        scene.traffic(&EVIL_CORP).await?,
        scene.traffic(&OTHER).await?,
    );
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    until_changes_are_streamed(scene, &worker).await?;

    let answer = scene.cut_over().await?;
    ensure!(
        answer["write_pause_ms"].is_u64(),
        "no write pause: {answer}"
    );
    assert_eq!(fleet.control.cell_of(1)?, "us2");
    // A mover that is ended by the seal has met no error.
    let errors = "select string_agg(detail::text, ' ') from monarch_ledger.move_event
                   where kind = 'error'";
    assert_eq!(scene.operator.ledger(errors).await?, None);
    evil.stop().await.context("evil-corp's writers")?;
    let at_barrier = org_on(&fleet.source).await?;
    ensure!(total(&at_barrier) > 100, "nothing to move");
    assert_eq!(
        org_on(&fleet.sink).await?,
        at_barrier,
        "the sink has not what the source had"
    );
    neighbours.assert_untouched_on_sink(fleet).await?;

    // The neighbour was written to all the while; none of it was lost or made up.
    let growth: i64 = other.stop().await?.values().map(|tally| tally.growth).sum();
    assert_eq!(
        count_of(&fleet.source, &OTHER).await?,
        others_at_first + growth
    );

    let neighbours = Neighbours::of(fleet).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(scene.result("org-move-1").await?["status"], "COMPLETED");
    assert_eq!(
        total(&org_on(&fleet.source).await?),
        0,
        "rows stayed on the source"
    );
    assert_eq!(
        org_on(&fleet.sink).await?,
        at_barrier,
        "eviction reached the sink"
    );
    neighbours.assert_untouched(fleet).await?;
    assert_nothing_left(fleet).await?;
    assert_no_secret(scene, &worker.output()?).await
}

async fn count_of(cell: &Cell, organization: &Organization) -> Result<i64> {
    let rows = observe::census(cell, &tables(organization), observe::Whose::Theirs).await?;
    Ok(by_store(&rows).values().map(|rows| rows.count).sum())
}

/// Promise 10: neither history, ledger nor log has a password or a row's value.
async fn assert_no_secret(scene: &Scene<'_>, log: &str) -> Result<()> {
    let show = [
        "workflow",
        "show",
        "--workflow-id",
        "org-move-1",
        "--output",
        "json",
    ];
    let history = scene.operator.temporal(show).await?.success()?.output;
    ensure!(
        tells(&history, "consistent_point"),
        "no payloads: {history}"
    );
    let ledger = "select string_agg(t::text, '') from (
        select m::text from monarch_ledger.move m union all
        select u::text from monarch_ledger.move_unit u union all
        select e::text from monarch_ledger.move_event e) t";
    let ledger = scene.operator.ledger(ledger).await?.unwrap_or_default();
    // A password, an address, a title, a fingerprint's beginning.
    for secret in [PASSWORD, "evil-corp.example", "問題", "project-11"] {
        for (place, text) in [("history", &*history), ("ledger", &*ledger), ("log", log)] {
            assert!(!tells(text, secret), "{secret:?} is in the {place}");
        }
    }
    Ok(())
}

/// Promises 1, 2, 3, 7 and 8, on Debian's Postgres: every row arrives, no other is touched,
/// nothing stays behind.
#[tokio::test]
async fn an_organization_moves_whole_while_it_is_written_to() -> Result<()> {
    let scene = Scene::of_size(Stage::shared().await, 400).await?;
    moves_whole(&scene).await
}

/// The same with changes decoded on a standby, and a sink that is older than the source.
#[tokio::test]
async fn a_standby_is_read_and_an_older_sink_is_written() -> Result<()> {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V16)).await?;
    let standby = Standby::of(&primary).await?;
    let side = shared::cluster(PgVersion::V16).await;
    let sink = shared::cluster(PgVersion::V14).await;
    let stage = Stage::on(&primary, Some(&standby), side, sink).await;
    let scene = Scene::set(stage).await?;
    moves_whole(&scene).await
}

/// The operator's own commands take a move from start to end, and each of them says what it did.
#[tokio::test]
async fn the_program_drives_a_move_by_hand() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let monarch = async |words: &str| {
        let said = scene.operator.monarch(words.split(' ')).await?;
        said.success().with_context(|| format!("monarch {words}"))
    };
    monarch("config check").await?;
    let worker = scene.operator.worker()?;
    monarch("move start --org 1").await?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    let status = monarch("move status --org 1 --output json").await?.output;
    let status: serde_json::Value = serde_json::from_str(&status).context("read the status")?;
    ensure!(status.to_string().contains("streaming"), "{status}");
    let at_barrier = org_on(&scene.fleet.source).await?;
    // Refused with exit status 3 until every mover has reported how far it is.
    let cut_over = ["move", "cut-over", "--org", "1"];
    while scene.operator.monarch(cut_over).await?.code == 3 {}
    monarch("move evict --org 1").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    for words in ["move list", "move events --org 1", "move status --org 1"] {
        ensure!(
            !monarch(words).await?.output.is_empty(),
            "monarch {words} says nothing"
        );
    }
    assert_nothing_left(&scene.fleet).await
}

/// A move that was told so cuts over and evicts by itself.
#[tokio::test]
async fn an_automatic_move_needs_nobody() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let before = org_on(&scene.fleet.source).await?;
    let worker = scene.operator.worker()?;
    scene
        .start(json!({"cut_over": "auto", "eviction": "now"}))
        .await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, before);
    neighbours.assert_untouched(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}
