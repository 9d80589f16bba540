//! Both sides are compared while a move streams under traffic.

use anyhow::{Context as _, Result, ensure};
use monarch_demo::Organization;
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::{Value, json};

/// A row that nobody writes to.
const SPOIL: &str = "update organization set name = name || '!' where id = 1";
const MEND: &str = "update organization set name = rtrim(name, '!') where id = 1";

/// Asks for a comparison as an operator does; what the ledger then knows of each store.
async fn verify(scene: &Scene<'_>, stores: &[&str]) -> Result<Value> {
    let words = ["move", "verify", "--output", "json"];
    let said = scene.operator.monarch(words.iter().chain(stores)).await?;
    let ended: Value = serde_json::from_str(&said.output)
        .with_context(|| format!("read the answer: {}", said.text()))?;
    let equal = outcomes(&ended).iter().all(|outcome| outcome == "equal");
    ensure!(
        (said.code == 0) == equal,
        "exit code {}: {ended}",
        said.code
    );
    Ok(ended)
}

fn outcomes(ended: &Value) -> Vec<String> {
    let all = ended.as_array().into_iter().flatten();
    all.filter_map(|one| one["outcome"].as_str().map(str::to_owned))
        .collect()
}

/// Guards what an operator is told before a cut-over: under traffic all stores are equal; a row
/// that is wrong on the sink is found and named, the cut-over is refused for it before anybody is
/// fenced, and allowed again once a later comparison finds both sides equal.
#[tokio::test]
async fn a_difference_is_found_under_traffic_and_holds_up_the_cut_over() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;

    let equal = verify(&scene, &["--store", "default", "--store", "events"]).await?;
    assert_eq!(outcomes(&equal), ["equal", "equal"]);
    let rows = equal[0]["detail"]["source"]["rows"].as_u64();
    ensure!(rows > Some(0), "nothing was compared: {equal}");

    scene.sink().await?.batch_execute(SPOIL).await?;
    let all = verify(&scene, &[]).await?;
    assert_eq!(outcomes(&all), ["differs", "equal", "equal"]);
    assert_eq!(
        all[0]["detail"]["differences"].as_array().map(Vec::len),
        Some(1)
    );
    let refused = scene.update("cut_over", "{}").await?;
    let told = refused["refusals"].to_string();
    ensure!(told.contains("both sides differ"), "{refused}");

    scene.sink().await?.batch_execute(MEND).await?;
    let again = verify(&scene, &["--store", "default"]).await?;
    assert_eq!(outcomes(&again), ["equal"]);
    scene.update("pause", "null").await?;
    let held = "exists (select from monarch_ledger.move_event
                         where kind = 'held' and store = 'events')";
    scene.operator.until(held, &worker, PATIENCE).await?;
    let paused = verify(&scene, &["--store", "events"]).await?;
    assert_eq!(outcomes(&paused), ["unanswered"]);
    ensure!(paused.to_string().contains("paused"), "{paused}");
    scene.update("resume", "null").await?;
    scene.cut_over().await?;
    traffic.stop().await?;
    let late = scene.operator.monarch(["move", "verify"]).await?;
    ensure!(late.code == 3, "{late:?}");
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// On the sink, under a group of the organization.
const STRAY: &str = "insert into event_tag (group_id, key, value)
    select id, 'stray', 'x' from event_group where project_id = 11 order by id limit 1";

/// Guards promise 1 against whoever writes on the sink under the organization's rows: a comparison names
/// the table, the one behind the barrier at the latest, and then nothing is sealed and the organization
/// writes on the source again.
#[tokio::test]
async fn a_stray_row_on_the_sink_is_named_at_the_latest_behind_the_barrier() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let sink = scene.sink().await?;
    sink.batch_execute(STRAY).await?;
    let seen = verify(&scene, &["--store", "events"]).await?;
    assert_eq!(outcomes(&seen), ["differs"]);
    ensure!(seen.to_string().contains("event_tag"), "{seen}");
    sink.batch_execute("delete from event_tag where key = 'stray'")
        .await?;
    let seen = verify(&scene, &["--store", "events"]).await?;
    assert_eq!(outcomes(&seen), ["equal"]);

    sink.batch_execute(STRAY).await?;
    let named = async {
        loop {
            // Until then units may not be ready.
            let answer = scene.update("cut_over", "{}").await?;
            ensure!(answer["phase"] == "active", "it cut over: {answer}");
            let told = answer.to_string();
            if told.contains("event_tag") {
                return Ok(told);
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, named).await??;
    ensure!(told.contains("that the source does not have"), "{told}");
    ensure!(
        scene.fleet.control.may_write(1, "us1")?,
        "the organization stays fenced"
    );
    sink.batch_execute("delete from event_tag where key = 'stray'")
        .await?;
    let seen = verify(&scene, &["--store", "events"]).await?;
    assert_eq!(outcomes(&seen), ["equal"]);
    scene.cut_over().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}
