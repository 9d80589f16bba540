//! What holds between the flip and the end.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use monarch_demo::Organization;
use monarch_demo::observe::total;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, fresh_name, shared};
use monarch_tests::{Held, Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// The application on the sink numbers new rows past the moved ones.
#[tokio::test]
async fn a_default_insert_on_the_sink_meets_no_moved_key() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.cut_over().await?;
    let sink = scene.sink().await?;
    let inserts = [
        "insert into team (organization_id, name) values (1, 'new'), (3, 'new')",
        r#"insert into "Issue" (project_id, "shortId", title) values (11, 1, 'new'), (31, 1, 'new')"#,
        "insert into invitation (email) select 'new' from generate_series(1, 50)",
        "insert into metric_series (project_id, name) values (11, 'new'), (31, 'new')",
        "insert into project (organization_id, slug) values (1, 'new')",
        "insert into organization (slug, name) values ('new', 'new')",
    ];
    for insert in inserts {
        sink.batch_execute(insert)
            .await
            .with_context(|| insert.to_owned())?;
    }
    Ok(())
}

/// Promise 8: what was written on the source after the flip is not evicted; it is listed by table,
/// and the operator's word is needed to go on.
#[tokio::test]
async fn writes_on_the_source_after_the_flip_refuse_eviction() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let held = Held::before(&scene, "flip")?;
    let cut = scene.cut_over();
    let late = async {
        held.reached().await?;
        scene
            .source("default")
            .await?
            .batch_execute(
                "insert into app.setting values (1, 'late', '1'), (1, 'later', '2');
                 update team set name = 'late' where id = (select min(id) from team
                                                           where organization_id = 1)",
            )
            .await
            .context("write late")?;
        held.let_go()
    };
    let (answer, late) = tokio::join!(cut, late);
    late?;
    assert_eq!(answer?["phase"], "cut_over");
    let sink = org_on(&scene.fleet.sink).await?;

    scene.until("cut_over", &worker).await?;
    scene.update("evict", "{}").await?;
    let refused = async |words: &str| {
        let words = format!(
            "exists (select from monarch_ledger.move_unit where late_changes::text ~ '{words}')"
        );
        scene.operator.until(&words, &worker, PATIENCE).await
    };
    refused("app.setting.*: 2").await?;
    refused("team.*: 1").await?;
    let blocked = until_blocked(&scene).await?;
    ensure!(
        blocked.contains("app.setting") && blocked.contains('2'),
        "{blocked}"
    );
    ensure!(blocked.contains("team"), "{blocked}");
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("cut_over"));
    ensure!(
        total(&org_on(&scene.fleet.source).await?) > 100,
        "rows were evicted"
    );
    assert_eq!(
        org_on(&scene.fleet.sink).await?,
        sink,
        "a late write reached the sink"
    );

    scene
        .update("evict", r#"{"accept_late_changes": true}"#)
        .await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    assert_nothing_left(&scene.fleet).await
}

/// Promise 4 for the one step that only the control plane can undo: it has flipped and died before it
/// could say so, and would refuse to flip again. The routing is read back and followed.
#[tokio::test]
async fn a_flip_whose_answer_is_lost_is_read_back_and_followed() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let lost = Held::without_answer(&scene, "flip")?;
    let answer = scene.cut_over().await?;
    lost.reached().await?;
    assert_eq!(answer["refusals"], json!([]), "{answer}");
    assert_eq!(scene.fleet.control.cell_of(1)?, "us2");
    let refused = "select kind from monarch_ledger.move_event where kind = 'flip_refused'";
    assert_eq!(scene.operator.ledger(refused).await?, None);
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// An abort that comes while the routing is flipped changes nothing: whoever asked for the cut-over
/// is told what became of it, not that the move is being given up.
#[tokio::test]
async fn an_abort_during_the_flip_does_not_hide_that_it_flipped() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let held = Held::before(&scene, "flip")?;
    let cut = scene.cut_over();
    let meanwhile = async {
        held.reached().await?;
        scene.abort("too late").await?;
        let status = scene
            .until_status(|status| status["abort_reason"] == "too late")
            .await?;
        held.let_go()?;
        anyhow::Ok(status)
    };
    let (answer, meanwhile) = tokio::join!(cut, meanwhile);
    assert_eq!(meanwhile?["phase"], "flipping");
    let answer = answer?;
    assert_eq!(answer["phase"], "cut_over", "{answer}");
    assert_eq!(answer["refusals"], json!([]), "{answer}");
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// The last gap: a row that is written after the slot was read to its head and dropped is in no
/// slot any more. Its version is newer than the snapshot that eviction deletes by.
#[tokio::test]
async fn a_row_written_after_the_tail_was_read_stops_the_eviction() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.cut_over().await?;
    let closed = "(select bool_and(tail_snapshot is not null) from monarch_ledger.move_unit)";
    scene.operator.until(closed, &worker, PATIENCE).await?;
    scene
        .source("events")
        .await?
        .batch_execute("update event_group set times_seen = -1 where project_id = 12")
        .await?;
    let kept_at_first = org_on(&scene.fleet.source).await?;
    scene.update("evict", "{}").await?;
    let blocked = until_blocked(&scene).await?;
    ensure!(blocked.contains("event_group"), "{blocked}");
    let kept = org_on(&scene.fleet.source).await?;
    ensure!(
        kept["events"]["event_group"].count > 0,
        "the newer rows were evicted"
    );
    neighbours.assert_untouched(&scene.fleet).await?;

    // The operator's word is for what is there when it is given.
    scene
        .update("evict", r#"{"accept_late_changes": true}"#)
        .await?;
    until_journal(&scene, "late_changes", &worker).await?;
    ensure!(until_blocked(&scene).await?.contains("event_group"));
    let before = org_on(&scene.fleet.sink).await?;
    scene
        .update("evict", r#"{"accept_newer_rows": true}"#)
        .await?;
    scene.until("finalized", &worker).await?;
    until_journal(&scene, "newer_rows,events", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    assert_eq!(org_on(&scene.fleet.sink).await?, before);
    neighbours.assert_untouched(&scene.fleet).await?;
    let counted = "select sum(n.value::bigint)::text from monarch_ledger.move_unit,
                          jsonb_each_text(rows_evicted) n";
    let counted = scene.operator.ledger(counted).await?.unwrap_or_default();
    assert_eq!(counted, total(&kept_at_first).to_string());
    assert_nothing_left(&scene.fleet).await
}

/// Waits until the operator's word is in the journal, at this path.
async fn until_journal(scene: &Scene<'_>, path: &str, worker: &Program) -> Result<()> {
    let noted = format!(
        "exists (select from monarch_ledger.move_event where kind = 'eviction_accepted'
                  and coalesce(detail #>> '{{{path}}}', 'false') <> 'false')"
    );
    scene.operator.until(&noted, worker, PATIENCE).await
}

/// Promise 8 where a log is lost behind the barrier: what was in it is not known, so nothing is
/// deleted without the operator's word; and that word is not taken while other logs are still being
/// read, since it would count for what nobody has seen yet.
#[tokio::test]
async fn a_log_that_is_lost_after_the_flip_needs_the_operators_word() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let steering = scene.operator.worker_of(["--queue", "monarch"])?;
    let movers = scene
        .operator
        .worker_of(["--cell", "us1", "--cell", "us2"])?;
    scene.stream(&movers, json!({})).await?;
    let held = Held::before(&scene, "flip")?;
    let cut = scene.cut_over();
    let meanwhile = async {
        held.reached().await?;
        // Nobody reads the logs to their heads yet.
        movers.kill_9().await?;
        let events = scene.source("events").await?;
        drop_slot(&events).await?;
        held.let_go()
    };
    let (answer, meanwhile) = tokio::join!(cut, meanwhile);
    meanwhile?;
    assert_eq!(answer?["phase"], "cut_over");
    let word = r#"{"accept_late_changes": true}"#;
    let early = scene.update("evict", word).await;
    let told = format!("{:#}", early.expect_err("a word before the logs are read"));
    ensure!(told.contains("being read to their heads"), "{told}");

    let movers = scene
        .operator
        .worker_of(["--cell", "us1", "--cell", "us2"])?;
    let closed = "(select bool_and(status = 'slot_dropped') from monarch_ledger.move_unit)";
    scene.operator.until(closed, &movers, PATIENCE).await?;
    let rows = total(&org_on(&scene.fleet.source).await?);
    scene.update("evict", "{}").await?;
    let refused = async {
        while !until_blocked(&scene)
            .await?
            .contains("could not be read to its head")
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .context("the eviction is not refused")??;
    assert_eq!(total(&org_on(&scene.fleet.source).await?), rows);
    scene.update("evict", word).await?;
    scene.until("finalized", &steering).await?;
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    assert_nothing_left(&scene.fleet).await
}

/// Drops the move's slot in a database, once its reader is gone.
async fn drop_slot(source: &Client) -> Result<()> {
    let drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
                 where database = current_database()";
    let dropped = async {
        while source.batch_execute(drop).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dropped)
        .await
        .context("the slot stays in use")
}

/// Promise 8: a slot of the organization that lives on the source, from whatever move, may hold what
/// nobody has read. It is named, and nothing is deleted while it is there.
#[tokio::test]
async fn a_slot_of_an_older_move_stops_the_eviction() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.cut_over().await?;
    let closed = "(select bool_and(status = 'slot_dropped') from monarch_ledger.move_unit)";
    scene.operator.until(closed, &worker, PATIENCE).await?;
    let rows = total(&org_on(&scene.fleet.source).await?);
    let source = scene.source("events").await?;
    let slot = fresh_name("monarch_org_1_events");
    source
        .execute(
            "select pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&slot],
        )
        .await?;
    scene.update("evict", "{}").await?;
    let blocked = until_blocked(&scene).await?;
    let dropped = source
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await;
    ensure!(blocked.contains(&slot), "{blocked}");
    assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("cut_over"));
    assert_eq!(total(&org_on(&scene.fleet.source).await?), rows);
    dropped?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Promise 5, after the seal: the source is killed while the flip is under way and delivers again
/// what it had delivered before; the organization has lived on, on the sink, and keeps what it wrote.
#[tokio::test]
async fn what_is_delivered_again_after_the_flip_changes_nothing_on_the_sink() -> Result<()> {
    let main = Cluster::start(ClusterOptions::new(PgVersion::V15)).await?;
    let shared = shared::cluster(PgVersion::V15).await;
    let scene = Scene::set(Stage::on(&main, None, shared, shared).await).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    let held = Held::before(&scene, "flip")?;
    let cut = scene.cut_over();
    let meanwhile = async {
        held.reached().await?;
        main.kill_9().await?;
        main.restart().await?;
        // The organization's life on the sink has begun.
        scene
            .sink()
            .await?
            .batch_execute(
                r#"update "Issue" set title = 'lives on' where project_id = any ('{11,12,13}');
                   update app.setting set value = '"lives on"' where organization_id = 1;
                   delete from comment where issue_id in (
                       select id from "Issue" where project_id = any ('{11,12,13}'));
                   update event set size_bytes = 0"#,
            )
            .await
            .context("write on the sink")?;
        let lives_on = org_on(&scene.fleet.sink).await?;
        held.let_go()?;
        anyhow::Ok(lives_on)
    };
    let (answer, lives_on) = tokio::join!(cut, meanwhile);
    let lives_on = lives_on?;
    assert_eq!(answer?["phase"], "cut_over");
    // The writers of the killed cluster met an error, as they must.
    drop(traffic);
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, lives_on);
    assert_eq!(total(&org_on(&scene.fleet.source).await?), 0);
    assert_nothing_left(&scene.fleet).await
}

/// What the workflow says keeps it from going on, once it says something.
async fn until_blocked(scene: &Scene<'_>) -> Result<String> {
    let says_why = |status: &Value| {
        let reasons = status["blocked_by"].as_array();
        reasons.is_some_and(|reasons| !reasons.is_empty())
    };
    let status = scene.until_status(says_why).await?;
    Ok(status["blocked_by"].to_string())
}
