//! Moves whose routing stands in a control database, and reaches the cells by an outbox.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use monarch_demo::observe::total;
use monarch_demo::{ControlDatabase, Known, Organization, known_in, told_by};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

const EVIL_CORP: Organization = Organization::EVIL_CORP;
const OTHER: Organization = Organization::OTHER;

/// A message that the organization wrote on the source, for control.
const CELL_MESSAGE: &str = "
    insert into sentry_regionoutbox
        (shard_scope, shard_identifier, category, object_identifier) values (0, 1, 3, 7)";

fn control<'s>(scene: &'s Scene<'_>) -> Result<&'s ControlDatabase> {
    let control = scene.fleet.control_database.as_ref();
    control.context("the scene has no control database")
}

/// Fails unless every database of both cells has been told the same.
async fn assert_both_cells_know(scene: &Scene<'_>, cell: &str, fenced: bool) -> Result<()> {
    for side in [&scene.fleet.source, &scene.fleet.sink] {
        for (database, known) in known_in(side, EVIL_CORP.id).await? {
            let known = known.with_context(|| format!("{database} was told nothing"))?;
            ensure!(
                known.cell == cell && known.fenced == fenced,
                "{database} knows {known:?}"
            );
        }
    }
    Ok(())
}

async fn until(what: &str, holds: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let look = async {
        while !holds().await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let looked = tokio::time::timeout(PATIENCE, look).await;
    looked.with_context(|| format!("waited in vain until {what}"))?
}

/// Asks for a cut-over, again while the units are not ready, until it is refused for this reason.
async fn until_refused(scene: &Scene<'_>, reason: &str) -> Result<()> {
    until(reason, async || {
        let answer = scene.update("cut_over", "{}").await?;
        ensure!(answer["phase"] == "active", "it was not refused: {answer}");
        Ok(answer["refusals"].to_string().contains(reason))
    })
    .await
}

/// Section 9 of the design: fence and flip reach both cells, control's queued message follows the
/// organization, the sink tells control of its rows, and eviction tells nobody anything.
#[tokio::test]
async fn the_routing_reaches_both_cells_and_what_is_queued_follows() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let (fleet, control) = (&scene.fleet, control(&scene)?);
    let neighbours = Neighbours::of(fleet).await?;
    control.write(EVIL_CORP.id, "us1").await?;
    control.write(OTHER.id, "us1").await?;
    let evil = scene.traffic(&EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({"cut_over": "auto"})).await?;
    scene.until("cut_over", &worker).await?;
    evil.stop().await.context("evil-corp's writers")?;
    assert_eq!(control.cell_of(EVIL_CORP.id).await?, "us2");
    assert_both_cells_know(&scene, "us2", false).await?;
    assert_eq!(org_on(&fleet.sink).await?, org_on(&fleet.source).await?);
    neighbours.assert_untouched_on_sink(fleet).await?;

    // Control's messages: that about the organization has followed it, the neighbour's has not.
    assert_eq!(
        control.waiting(EVIL_CORP.id).await?,
        [("us2".into(), 1)].into()
    );
    assert_eq!(control.waiting(OTHER.id).await?, [("us1".into(), 1)].into());
    control.write(EVIL_CORP.id, "us2").await?;

    let closed = "(select bool_and(status = 'slot_dropped') from monarch_ledger.move_unit)";
    scene.operator.until(closed, &worker, PATIENCE).await?;
    let rows = org_on(&fleet.sink).await?;
    let told = ["organization", "project", "team"].map(|table| rows["default"][table].count);
    let told: i64 = told.into_iter().sum();
    until("the sink has told of its rows", async || {
        Ok(told_by(&fleet.sink, EVIL_CORP.id).await? == told)
    })
    .await?;

    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(total(&org_on(&fleet.source).await?), 0);
    assert_eq!(told_by(&fleet.source, EVIL_CORP.id).await?, 0);
    assert_eq!(told_by(&fleet.sink, EVIL_CORP.id).await?, told);
    assert_nothing_left(fleet).await
}

/// The rate of a backfill counts what waits already, after the flip too: an outbox that nobody drains
/// is not filled further.
#[tokio::test]
async fn a_full_outbox_is_waited_for_after_the_flip() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let sink = scene.sink().await?;
    let fill = "
        insert into sentry_regionoutbox
            (shard_scope, shard_identifier, category, object_identifier)
        select 0, 77, 3, n from generate_series(1, 10000) n";
    sink.batch_execute(fill).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    scene.cut_over().await?;
    // The slots are not held for it.
    let dropped = "(select bool_and(status = 'slot_dropped') from monarch_ledger.move_unit)";
    scene.operator.until(dropped, &worker, PATIENCE).await?;
    until("it waits for room", async || {
        let waits = "select count(*) > 0 from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid()
             and query like '%sentry_regionoutbox limit $1%'";
        Ok(sink.query_one(waits, &[]).await?.get(0))
    })
    .await?;
    assert_eq!(told_by(&scene.fleet.sink, EVIL_CORP.id).await?, 0);
    sink.batch_execute("delete from sentry_regionoutbox")
        .await?;
    until("the sink has told of its rows", async || {
        Ok(told_by(&scene.fleet.sink, EVIL_CORP.id).await? > 0)
    })
    .await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// What the organization wrote to its outbox moves with nobody: it is a blocker by name. The fence
/// holds control's new messages back meanwhile, and is lifted in both cells.
#[tokio::test]
async fn a_message_that_waits_on_the_source_holds_the_flip_back() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let control = control(&scene)?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 12}))
        .await?;
    let source = scene.source("default").await?;
    source.batch_execute(CELL_MESSAGE).await?;
    let cut = until_refused(&scene, "sentry_regionoutbox");
    let meanwhile = async {
        until("the fence is up", async || {
            let known = known_in(&scene.fleet.source, EVIL_CORP.id).await?;
            let fenced = |known: &Option<Known>| known.as_ref().is_some_and(|known| known.fenced);
            Ok(known.values().all(fenced))
        })
        .await?;
        let refused = control.write(EVIL_CORP.id, "us1").await.err();
        let refused = refused.context("the fence let a message through")?;
        let code = refused.downcast_ref::<tokio_postgres::Error>();
        let code = code.and_then(|error| error.code()).map(|code| code.code());
        assert_eq!(code, Some("55006"), "{refused:#}");
        control.write(OTHER.id, "us1").await
    };
    let (refused, meanwhile) = tokio::join!(cut, meanwhile);
    meanwhile?;
    refused?;
    assert_both_cells_know(&scene, "us1", false).await?;
    control.write(EVIL_CORP.id, "us1").await?;

    source
        .batch_execute("delete from sentry_regionoutbox")
        .await?;
    scene.cut_over().await?;
    assert_both_cells_know(&scene, "us2", false).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// A worker that dies between the flip's commit and its delivery: the next one finds the routing
/// changed, and goes on only when both cells have heard.
#[tokio::test]
async fn a_flip_whose_delivery_was_cut_off_is_delivered() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let control = control(&scene)?;
    let worker = scene.operator.worker()?;
    scene
        .stream(
            &worker,
            json!({"max_pause_seconds": 120, "eviction": "now"}),
        )
        .await?;
    let source = scene.source("default").await?;
    source.batch_execute(CELL_MESSAGE).await?;
    // Refused with exit status 3 while the units are not ready. Nobody waits for the last answer: the
    // worker that would give it is killed.
    let asking = async {
        loop {
            let said = scene
                .operator
                .monarch(["move", "cut-over", "--org", "1"])
                .await?;
            ensure!(said.code == 3, "it was answered: {said:?}");
        }
        #[expect(unreachable_code, reason = "gives the block its type")]
        anyhow::Ok(())
    };
    let killed = async {
        until("the fence is up", async || {
            let known = known_in(&scene.fleet.sink, EVIL_CORP.id).await?;
            Ok(known.values().flatten().any(|known| known.fenced))
        })
        .await?;
        let mut sink = scene.sink().await?;
        let held = sink.transaction().await?;
        held.batch_execute("lock table monarch_routing.organization in share mode")
            .await?;
        source
            .batch_execute("delete from sentry_regionoutbox")
            .await?;
        until("the routing is changed", async || {
            Ok(control.cell_of(EVIL_CORP.id).await? == "us2")
        })
        .await?;
        assert_eq!(scene.operator.phase(1).await?.as_deref(), Some("flipping"));
        worker.kill_9().await?;
        held.rollback().await?;
        anyhow::Ok(())
    };
    tokio::select! {
        killed = killed => killed?,
        answered = asking => answered?,
    }
    let worker = scene.operator.worker()?;
    scene.until("finalized", &worker).await?;
    assert_both_cells_know(&scene, "us2", false).await?;
    assert_nothing_left(&scene.fleet).await
}

/// A cell that cannot be told holds the fence back; it is lifted where the organization writes.
#[tokio::test]
async fn a_cell_that_does_not_take_delivery_stops_the_cut_over() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let worker = scene.operator.worker()?;
    scene
        .stream(&worker, json!({"max_pause_seconds": 5}))
        .await?;
    let sink = scene.sink().await?;
    sink.batch_execute("alter schema monarch_routing rename to elsewhere")
        .await?;
    until_refused(&scene, "the write pause reached its limit").await?;
    for (database, known) in known_in(&scene.fleet.source, EVIL_CORP.id).await? {
        let known = known.with_context(|| format!("{database} was told nothing"))?;
        ensure!(
            !known.fenced && known.cell == "us1",
            "{database}: {known:?}"
        );
    }
    sink.batch_execute("alter schema elsewhere rename to monarch_routing")
        .await?;
    scene.cut_over().await?;
    assert_both_cells_know(&scene, "us2", false).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Preflight names what is missing, and what mends it.
#[tokio::test]
async fn preflight_looks_at_the_control_database() -> Result<()> {
    let scene = Scene::with_control_database(Stage::shared().await).await?;
    let preflight = async || {
        let said = scene.operator.monarch(["preflight", "--org", "1"]).await?;
        anyhow::Ok(said.text())
    };
    ensure!(
        preflight().await?.contains("nothing forbids the move"),
        "{}",
        preflight().await?
    );
    let client = control(&scene)?.connect().await?;
    let sink = scene.sink().await?;
    client
        .batch_execute(
            "update sentry_organizationmapping set region_name = 'us9' where organization_id = 1",
        )
        .await?;
    sink.batch_execute("drop schema monarch_routing cascade; drop table sentry_regionoutbox")
        .await?;
    let said = preflight().await?;
    for code in [
        "control-not-routed",
        "routing-schema-missing",
        "outbox-missing",
    ] {
        ensure!(said.contains(code), "{code} is missing in {said}");
    }
    client
        .batch_execute("drop schema monarch_control cascade")
        .await?;
    let said = preflight().await?;
    ensure!(said.contains("control-schema-missing"), "{said}");
    ensure!(said.contains("mend: monarch control init"), "{said}");
    Ok(())
}
