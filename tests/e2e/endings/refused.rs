//! What is refused before anything changes, by name.

use anyhow::Result;
use monarch_demo::observe::total;
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::{Value, json};

/// A start that is refused: the workflow fails, saying each of `words`, and no cell was touched.
async fn is_refused(scene: &Scene<'_>, words: &[&str]) -> Result<Value> {
    let _worker = scene.operator.worker()?;
    scene.start(json!({})).await?;
    let result = scene.result("org-move-1").await?;
    says(&result, words);
    assert_eq!(
        scene.operator.phase(1).await?,
        None,
        "a move was registered"
    );
    assert_nothing_left(&scene.fleet).await?;
    Ok(result)
}

fn says(result: &Value, words: &[&str]) {
    let text = result.to_string();
    assert_ne!(result["status"], "COMPLETED", "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not said: {text}");
    }
}

/// Promise 6: one live move in the whole fleet. Another organization is refused by the ledger, the
/// same one too, under whatever workflow id; the live move is named and not disturbed.
#[tokio::test]
async fn a_second_move_is_refused_and_the_live_one_named() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let live = scene
        .operator
        .ledger("select id::text from monarch_ledger.move")
        .await?;
    let live = live.unwrap_or_default();
    // Temporal answers with the run that is there, and begins none.
    scene.start_as("org-move-1", r#"{"org_id": 1}"#).await?;
    let count = ["workflow", "count", "--query", "WorkflowId = 'org-move-1'"];
    let runs = scene.operator.temporal(count).await?.success()?.output;
    assert!(runs.contains("Total: 1\n"), "{runs}");
    for (workflow, input) in [
        ("org-move-2", r#"{"org_id": 2}"#),
        ("again", r#"{"org_id": 1}"#),
    ] {
        scene.start_as(workflow, input).await?.success()?;
        says(&scene.result(workflow).await?, &["live-move", &live]);
    }
    let again = scene
        .operator
        .monarch(["move", "start", "--org", "2"])
        .await?;
    let told = again.text();
    if again.code == 0 {
        says(&scene.result("org-move-2").await?, &["live-move", &live]);
    } else {
        assert!(
            told.contains(&live) || told.contains("move of organization 1"),
            "{told}"
        );
    }
    scene.cut_over().await?;
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        org_on(&scene.fleet.source).await?
    );
    Ok(())
}

/// A source and a sink that are one database, under two names, would have their rows evicted.
#[tokio::test]
async fn one_database_under_two_names_is_refused() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let place = scene.fleet.source.place_of("metrics")?;
    let yaml = scene.fleet.fleet_yaml(true);
    let (cells, ledger) = yaml.split_once("ledger:").unwrap();
    let (source, _) = cells.split_once("  us2:").unwrap();
    let aliased = place.dsn.replace("host=127.0.0.1", "host=localhost");
    let sink = format!(
        "  us2:\n    databases:\n      - primary_dsn: {aliased}\n        stores: [metrics]\n      \
         - primary_dsn: {}\n        stores: [default, events]\n",
        scene.fleet.sink.places[0].dsn
    );
    scene
        .fleet
        .write_fleet_file(&format!("{source}{sink}ledger:{ledger}"))?;
    let before = org_on(&scene.fleet.source).await?;
    is_refused(&scene, &["preflight-refused", "same database", "metrics"]).await?;
    assert_eq!(org_on(&scene.fleet.source).await?, before);
    Ok(())
}

/// A policy that hides rows from our role would lose them silently.
#[tokio::test]
async fn row_level_security_that_binds_our_role_is_refused() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let place = scene.fleet.source.place_of("metrics")?;
    let role = format!("mover_of_{}", place.database);
    scene
        .source("metrics")
        .await?
        .batch_execute(&format!(
            "create role {role} login replication password 'harness-secret';
             grant pg_read_all_data to {role};
             grant create on database {} to {role};
             alter table quota enable row level security;",
            place.database
        ))
        .await?;
    let ours = place.dsn.replace("user=postgres", &format!("user={role}"));
    let yaml = scene.fleet.fleet_yaml(true).replace(&place.dsn, &ours);
    scene.fleet.write_fleet_file(&yaml)?;
    is_refused(
        &scene,
        &["preflight-refused", "quota", "row-level security"],
    )
    .await?;
    Ok(())
}

/// The role and the schema of the source allow it, but two tenants claim one key on the sink.
#[tokio::test]
async fn a_key_that_another_tenant_has_on_the_sink_is_refused() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    scene
        .sink()
        .await?
        .batch_execute("insert into team (id, organization_id, name) overriding system value values (1, 3, 'ours')")
        .await?;
    is_refused(&scene, &["preflight-refused", "team"]).await?;
    Ok(())
}

/// Whose a row is whose edges disagree is for the owner of the data to say, by the table's name; and
/// then it moves by the chosen edge.
#[tokio::test]
async fn rows_whose_edges_disagree_move_when_their_table_is_accepted_by_name() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let manifest = std::fs::read_to_string(scene.fleet.manifest_file())?;
    let manifest = manifest.replace(
        "  comment:\n",
        "  remark:\n    store: default\n    primary_key: [id]\n    refs:\n      \
         project_id: {parent: project}\n      team_id: {parent: team}\n  comment:\n",
    );
    scene.fleet.write_manifest(&manifest)?;
    let table = "create table remark (id bigint primary key, project_id bigint, team_id integer)";
    let source = scene.source("default").await?;
    source.batch_execute(table).await?;
    scene.sink().await?.batch_execute(table).await?;
    let foreign = "insert into remark select 1, 11, id from team where organization_id = 2 limit 1";
    source.batch_execute(foreign).await?;
    is_refused(&scene, &["preflight-refused", "edges-disagree", "remark"]).await?;

    let looked = [
        "preflight",
        "--org",
        "1",
        "--accept-disagreeing-edges",
        "remark",
    ];
    scene.operator.monarch(looked).await?.success()?;
    let worker = scene.operator.worker()?;
    let accepted = json!({"accept_disagreeing_edges": ["remark"]});
    scene.stream(&worker, accepted).await?;
    scene.cut_over().await?;
    let moved = "select count(*) from remark where id = 1";
    let moved: i64 = scene.sink().await?.query_one(moved, &[]).await?.get(0);
    assert_eq!(moved, 1);
    Ok(())
}

/// Bad start input must not loop: the workflow fails at once, and says what was expected.
#[tokio::test]
async fn a_start_input_that_does_not_decode_fails_the_workflow() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let _worker = scene.operator.worker()?;
    let inputs = [
        ("unknown-key", r#"{"org_id": 1, "form": "us1"}"#, "form"),
        ("no-org", "{}", "org_id"),
        ("wrong-type", r#"[1]"#, "expected"),
        (
            "no-such-org",
            r#"{"org_id": 4711}"#,
            "organization-not-found",
        ),
        ("not-an-integer", r#"{"org_id": "evil"}"#, "no bigint"),
        ("no-such-cell", r#"{"org_id": 1, "from": "us9"}"#, "us9"),
    ];
    for (workflow, input, word) in inputs {
        scene.start_as(workflow, input).await?.success()?;
        says(&scene.result(workflow).await?, &["FAILED", word]);
    }
    assert_eq!(scene.operator.phase(1).await?, None);
    Ok(())
}

/// A cut-over is refused before any transition, with every reason, while a store is copied still.
#[tokio::test]
async fn a_cut_over_of_units_that_are_not_ready_is_refused_with_every_reason() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    let blocker = scene.sink().await?;
    blocker
        .batch_execute("begin; lock table comment, sample in share mode")
        .await?;
    scene.start(json!({})).await?;
    let ready = "(select count(*) filter (where status = 'copying') = 2
                     and bool_or(status = 'streaming') from monarch_ledger.move_unit)";
    scene.operator.until(ready, &worker, PATIENCE).await?;
    let answer = scene.update("cut_over", "{}").await?;
    assert_eq!(answer["phase"], "active");
    let refusals = answer["refusals"].to_string();
    for word in ["default", "metrics", "copying"] {
        assert!(refusals.contains(word), "{word}: {refusals}");
    }
    let drained = "select kind from monarch_ledger.move_event where kind = 'begin_drain'";
    assert_eq!(scene.operator.ledger(drained).await?, None, "it was fenced");
    blocker.batch_execute("rollback").await?;
    scene.operator.until_streaming(1, &worker, PATIENCE).await?;
    scene.cut_over().await?;
    Ok(())
}

/// Without a control plane the operator's word is needed, and stands.
#[tokio::test]
async fn without_a_control_plane_the_operators_word_stands() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    scene
        .fleet
        .write_fleet_file(&scene.fleet.fleet_yaml(false))?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let refused = scene.update("cut_over", "{}").await?;
    assert_eq!(refused["phase"], "active", "{refused}");
    assert!(
        refused["refusals"].to_string().contains("writes-stopped"),
        "{refused}"
    );
    let mut answer = refused;
    while answer["phase"] != "cut_over" {
        answer = scene
            .update("cut_over", r#"{"writes_stopped": true}"#)
            .await?;
    }
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    assert_nothing_left(&scene.fleet).await
}
