//! Objects in buckets move with the rows that name them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use monarch_demo::{Organization, attach};
use monarch_harness::Program;
use monarch_tests::{Neighbours, PATIENCE, Scene, Stage, assert_nothing_left, org_on};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The keys of evil-corp's comments.
const KEYS: &str = r#"
select c.attachment from comment c join "Issue" i on i.id = c.issue_id
  join project p on p.id = i.project_id
 where p.organization_id = $1 and c.attachment <> ''"#;

/// Rows stream, and every object that they name is on the sink.
const READY: &str =
    "(select bool_and(status = case when of_objects then 'copied' else 'streaming' end)
                        from monarch_ledger.move_unit)";

/// The folders that are the cells' buckets.
struct Buckets {
    folder: TempDir,
}

impl Buckets {
    fn source(&self) -> PathBuf {
        self.folder.path().join("us1")
    }

    fn sink(&self) -> PathBuf {
        self.folder.path().join("us2")
    }

    fn put(&self, cell: &Path, key: &str, text: &str) -> Result<()> {
        let path = cell.join(key);
        fs::create_dir_all(path.parent().context("a key in a folder")?)?;
        fs::write(path, text).with_context(|| format!("write {key}"))
    }
}

/// The keys that a bucket has, but for what a killed worker left half written.
fn keys_in(bucket: &Path) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for entry in fs::read_dir(bucket.join("o"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.contains('#') {
            keys.insert(format!("o/{name}"));
        }
    }
    Ok(keys)
}

/// A scene of so many rows whose comments name objects, and the keys of all of them, others' too.
/// `place` says where a cell keeps them, as the fleet has it.
pub(crate) async fn attached(
    rows: u32,
    policy: &str,
    place: impl Fn(&str) -> String,
) -> Result<(Scene<'static>, Vec<String>)> {
    let scene = Scene::of_size(Stage::shared().await, rows).await?;
    let keys = attach(&scene.fleet, policy, place).await?;
    Ok((scene, keys))
}

/// The same with folders as buckets, the source's with every object.
async fn set(policy: &str) -> Result<(Scene<'static>, Buckets)> {
    let buckets = Buckets {
        folder: TempDir::new()?,
    };
    for cell in [buckets.source(), buckets.sink()] {
        fs::create_dir_all(cell.join("o"))?;
    }
    let place = |cell: &str| format!("file_path: {}", buckets.folder.path().join(cell).display());
    let (scene, keys) = attached(200, policy, place).await?;
    for key in &keys {
        buckets.put(&buckets.source(), key, &format!("the object {key}"))?;
    }
    Ok((scene, buckets))
}

pub(crate) async fn named_by(scene: &Scene<'_>, organization: i64) -> Result<BTreeSet<String>> {
    let rows = scene
        .source("default")
        .await?
        .query(KEYS, &[&organization])
        .await?;
    let keys: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    ensure!(keys.len() > 20, "too few objects: {}", keys.len());
    Ok(keys)
}

pub(crate) async fn until_ready(scene: &Scene<'_>, worker: &Program) -> Result<()> {
    scene.operator.until(READY, worker, PATIENCE).await
}

/// Some comment of evil-corp's.
const A_COMMENT: &str = r#"(select c.id from comment c join "Issue" i on i.id = c.issue_id
  join project p on p.id = i.project_id where p.organization_id = 1 order by c.id limit 1)"#;

/// A plan says which objects move, and what becomes of them.
async fn assert_planned(scene: &Scene<'_>) -> Result<()> {
    let plan = ["plan", "--org", "1", "--output", "json"];
    let planned = scene.operator.monarch(plan).await?.success()?.output;
    let planned: Value = serde_json::from_str(&planned)?;
    let planned = &planned["objects"][0];
    ensure!(
        planned["named_by"][0]["column"] == "attachment" && planned["eviction"] == "delete",
        "the objects are not planned: {planned}"
    );
    Ok(())
}

/// The key without an object is listed, with what is wrong.
async fn assert_listed(scene: &Scene<'_>, key: &str) -> Result<()> {
    let list = ["blobs", "list", "--org", "1"];
    let listed = scene.operator.monarch(list).await?.success()?.output;
    ensure!(
        listed.contains(key) && listed.contains("missing"),
        "the missing object is not listed: {listed}"
    );
    Ok(())
}

/// Promises 1, 7 and 8 for objects: those that the organization's rows name arrive, those that came
/// while it streamed too; the source loses these and no others; and a key without an object holds
/// the cut-over back as long as a row names it.
#[tokio::test]
async fn objects_move_with_the_rows_that_name_them() -> Result<()> {
    let (scene, buckets) = set("eviction: delete").await?;
    let neighbours = Neighbours::of(&scene.fleet).await?;
    assert_planned(&scene).await?;
    // Traffic deletes the rows that name them, and never an object.
    let theirs = named_by(&scene, 2).await?;
    let traffic = scene.traffic(&Organization::OTHER).await?;
    let worker = scene.operator.worker()?;
    scene.start(json!({})).await?;
    until_ready(&scene, &worker).await?;

    buckets.put(&buckets.source(), "o/new one", "came while it streamed")?;
    let source = scene.source("default").await?;
    let name = async |key: &str| {
        let sql = format!("update comment set attachment = '{key}' where id = {A_COMMENT}");
        source.batch_execute(&sql).await
    };
    name("o/not there").await?;
    let missing = "(select count(*) = 1 from monarch_ledger.blob_key where missing_at is not null)";
    scene.operator.until(missing, &worker, PATIENCE).await?;
    assert_listed(&scene, "o/not there").await?;
    let answer = scene.update("cut_over", "{}").await?;
    let refused = answer["refusals"].to_string();
    ensure!(
        answer["phase"] == "active" && refused.contains("1 of comment missing"),
        "it was not refused for the missing object: {answer}"
    );
    ensure!(!refused.contains("not there"), "a key is told: {refused}");
    name("o/new one").await?;

    let read_again = async || {
        scene
            .operator
            .monarch(["blobs", "verify", "--org", "1"])
            .await
    };
    ensure!(read_again().await?.success()?.output.contains("files"));
    let one = keys_in(&buckets.sink())?.pop_first().context("an object")?;
    let right = fs::read_to_string(buckets.sink().join(&one))?;
    fs::write(buckets.sink().join(&one), "spoilt")?;
    let said = read_again().await?;
    ensure!(
        said.code == 1 && said.output.contains(&one),
        "a spoilt object was not found: {}",
        said.text()
    );
    fs::write(buckets.sink().join(&one), right)?;

    scene.cut_over().await?;
    traffic.stop().await?;
    let at_barrier = org_on(&scene.fleet.source).await?;
    assert_eq!(org_on(&scene.fleet.sink).await?, at_barrier);
    let ours = named_by(&scene, 1).await?;
    ensure!(ours.contains("o/new one"));
    let arrived = keys_in(&buckets.sink())?;
    ensure!(arrived.is_superset(&ours), "objects were lost");
    ensure!(arrived.is_disjoint(&theirs), "others' objects were copied");
    let text = fs::read_to_string(buckets.sink().join("o/new one"))?;
    assert_eq!(text, "came while it streamed");

    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    let left = keys_in(&buckets.source())?;
    ensure!(left.is_superset(&theirs), "others' objects were deleted");
    ensure!(left.is_disjoint(&ours), "objects stayed on the source");
    assert_eq!(keys_in(&buckets.sink())?, arrived);
    neighbours.assert_untouched_on_sink(&scene.fleet).await?;
    assert_nothing_left(&scene.fleet).await
}

/// Promises 4, 5 and 7 for objects: a worker that is killed while it copies is replaced, and what a
/// move has put on the sink is taken back when it is given up; what was there before stays.
#[tokio::test]
async fn an_abort_takes_back_what_a_killed_worker_put_there_too() -> Result<()> {
    let (scene, buckets) = set("eviction: keep").await?;
    let ours = named_by(&scene, 1).await?;
    let first = ours.first().context("a key")?;
    // The same object, put there by somebody else.
    buckets.put(&buckets.sink(), first, &format!("the object {first}"))?;
    buckets.put(&buckets.sink(), "o/at home", "another tenant's")?;
    let at_first = keys_in(&buckets.sink())?;
    let source_at_first = keys_in(&buckets.source())?;

    let killed = scene.operator.worker()?;
    scene.start(json!({})).await?;
    let begun = "(select count(copied_at) > 0 from monarch_ledger.blob_key)";
    scene.operator.until(begun, &killed, PATIENCE).await?;
    killed.kill_9().await?;
    let worker = scene.operator.worker()?;
    until_ready(&scene, &worker).await?;
    ensure!(
        keys_in(&buckets.sink())?.is_superset(&ours),
        "objects were lost"
    );

    scene.abort("enough of it").await?;
    scene.until("aborted", &worker).await?;
    assert_eq!(keys_in(&buckets.sink())?, at_first);
    assert_eq!(keys_in(&buckets.source())?, source_at_first);
    assert_nothing_left(&scene.fleet).await
}
