//! The sink's server is lost, and the one that takes its place lacks what was acknowledged.

use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby, shared};
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

/// Cuts a standby off from its primary, so that it lacks what is committed from here on.
async fn cut_off(standby: &Standby) -> Result<()> {
    let session = standby.admin("postgres").await?;
    session
        .batch_execute("alter system set primary_conninfo = ''")
        .await?;
    session.batch_execute("select pg_reload_conf()").await?;
    let receives = "select exists (select from pg_stat_wal_receiver)";
    let look = async {
        while session.query_one(receives, &[]).await?.get::<_, bool>(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    let ended = tokio::time::timeout(PATIENCE, look).await;
    ended.context("the standby goes on receiving")?
}

/// Promise 3 over a failover: the slot was told that changes are durable which the new sink does not
/// have, and the source may have forgotten them. The next start notices, the units start over by
/// name, and what was lost is on the sink in the end.
#[tokio::test]
async fn a_sink_that_failed_over_and_lost_commits_is_copied_again() -> Result<()> {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V15)).await?;
    let source = shared::cluster(PgVersion::V15).await;
    let mut scene = Scene::set(Stage::on(source, None, source, &primary).await).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let standby = Standby::of(&primary).await?;
    let place = &mut scene.fleet.sink.places[0];
    let (one, both) = (
        format!("host=127.0.0.1 port={}", primary.port()),
        format!(
            "host=127.0.0.1,127.0.0.1 port={},{} target_session_attrs=read-write",
            primary.port(),
            standby.port()
        ),
    );
    place.dsn = place.dsn.replace(&one, &both);
    scene
        .fleet
        .write_fleet_file(&scene.fleet.fleet_yaml(true))?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    standby.catch_up(&primary).await?;
    cut_off(&standby).await?;

    let lost = scene.source("default").await?;
    let row = lost
        .query_one(
            "with lost as (update app.setting set value = '\"lost\"' where organization_id = 1)
             select 1",
            &[],
        )
        .await;
    row.context("write what is lost")?;
    let head = lost
        .query_one("select pg_current_wal_flush_lsn()::text", &[])
        .await?;
    let acknowledged = format!(
        "(select acknowledged_lsn >= '{}' from monarch_ledger.move_unit where store = 'default')",
        head.get::<_, String>(0)
    );
    scene
        .operator
        .until(&acknowledged, &worker, PATIENCE)
        .await?;
    primary.kill_9().await?;
    let promoted = standby.admin("postgres").await?;
    promoted.execute("select pg_promote()", &[]).await?;

    let by_name = "exists (select from monarch_ledger.move_event
                            where kind = 'error' and store = 'default'
                              and detail::text ~ 'start-over' and detail::text ~ 'went back')";
    scene.operator.until(by_name, &worker, PATIENCE).await?;
    scene.cut_over().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    assert_nothing_left(&scene.fleet).await
}
