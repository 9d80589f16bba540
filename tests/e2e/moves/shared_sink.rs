//! Stores that share the sink's database, tied to each other there by foreign keys that the source,
//! whose stores have databases of their own, cannot have.

use anyhow::Result;
use monarch_demo::Organization;
use monarch_demo::observe::total;
use monarch_tests::{Neighbours, Scene, Stage, assert_nothing_left, org_on};
use serde_json::json;

use crate::whole::moves_whole;

const FOREIGN_KEYS: [&str; 4] = [
    "alter table event_group add constraint of_project foreign key (project_id) references project",
    "alter table metric_series add constraint of_project foreign key (project_id)
       references project",
    "alter table alert_rule add constraint of_project foreign key (project_id) references project
       deferrable initially deferred",
    "alter table quota add constraint of_organization foreign key (organization_id)
       references organization",
];

async fn tied(scene: &Scene<'_>) -> Result<()> {
    let sink = scene.sink().await?;
    for key in FOREIGN_KEYS {
        sink.batch_execute(key).await?;
    }
    Ok(())
}

/// Guards promises 1 and 7: each store is copied and streamed by its own mover, whichever is first,
/// and in the end every reference is satisfied.
#[tokio::test]
async fn foreign_keys_between_stores_of_one_sink_do_not_stop_a_move() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    tied(&scene).await?;
    moves_whole(&scene).await?;
    // They were not looked at while rows were written: each is made again over what is there now.
    let sink = scene.sink().await?;
    sink.batch_execute(
        "alter table event_group drop constraint of_project;
         alter table metric_series drop constraint of_project;
         alter table alert_rule drop constraint of_project;
         alter table quota drop constraint of_organization",
    )
    .await?;
    tied(&scene).await
}

/// Guards promise 7: a scrub deletes with foreign keys on, and so in the order that they ask for.
#[tokio::test]
async fn foreign_keys_between_stores_of_one_sink_do_not_stop_a_scrub() -> Result<()> {
    let scene = Scene::set(Stage::shared().await).await?;
    tied(&scene).await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    let traffic = scene.traffic(&Organization::EVIL_CORP).await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;
    traffic.stop().await?;
    scene.abort("no more").await?;
    scene.until("aborted", &worker).await?;
    assert_eq!(total(&org_on(&scene.fleet.sink).await?), 0);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}
