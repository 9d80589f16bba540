//! Makes the workflow histories that the replay test reads: real moves on real servers, one that is
//! finished, one that is aborted, one that fails, one with objects. To be run when `workflows/` changes on purpose:
//!
//! ```sh
//! make histories
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_demo::{Fleet, Hosts, Operator, Organization, attach, populate};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, Temporal};

/// How long a phase is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

const FINISHED: Organization = Organization::EVIL_CORP;
const ENDED: Organization = Organization::OTHER;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(monarch), Some(into)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("give the program `monarch` and the folder that the histories go to");
    };
    let cluster = || Cluster::start(ClusterOptions::new(PgVersion::V15));
    let (main, side, far) = tokio::try_join!(cluster(), cluster(), cluster())?;
    let temporal = Temporal::start().await?;
    let hosts = Hosts {
        main: &main,
        standby: None,
        side: &side,
        sink: &far,
        ledger: &far,
    };
    let folder = tempfile::tempdir().context("make a folder")?;
    let fleet = Fleet::make(&hosts, folder.path()).await?;
    for organization in [FINISHED, ENDED] {
        populate(&fleet.source, &organization, 20).await?;
        fleet.control.settle(organization.id, &fleet.source.name)?;
    }
    let operator = Operator::new(&fleet, &temporal, "default".to_owned(), monarch).await?;
    operator.make_ledger().await?;
    let worker = operator.worker()?;
    start(&operator, &worker, FINISHED.id).await?;
    finish(&operator, &worker, FINISHED.id, &into.join("finished.json")).await?;
    abort(&operator, &worker, &into).await?;
    fail(&fleet, &operator, &worker, &into).await?;
    drop(worker);
    move_objects(&fleet, &operator, &into).await
}

/// Lets a move cut over, and waits until it is finalized.
async fn finish(
    operator: &Operator<'_>,
    worker: &Program,
    organization: i64,
    file: &Path,
) -> Result<()> {
    for step in ["cut-over", "evict"] {
        let organization = organization.to_string();
        told(operator, &["move", step, "--org", &organization]).await?;
    }
    operator
        .until_phase(organization, "finalized", worker, PATIENCE)
        .await?;
    save(operator, organization, file).await
}

/// A move of rows that name objects, which are deleted from the source at the end.
async fn move_objects(fleet: &Fleet, operator: &Operator<'_>, into: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let bucket = |cell: &str| folder.path().join(cell);
    let place = |cell: &str| format!("file_path: {}", bucket(cell).display());
    for cell in [&fleet.source, &fleet.sink] {
        fs::create_dir_all(bucket(&cell.name).join("o")).context("make a bucket")?;
    }
    for key in attach(fleet, "eviction: delete", place).await? {
        fs::write(bucket(&fleet.source.name).join(&key), &key).context("write an object")?;
    }
    let worker = operator.worker()?;
    told(operator, &["move", "start", "--org", &ENDED.id.to_string()]).await?;
    let ready = "(select count(*) > 0 and bool_and(case when of_objects then u.status = 'copied'
                           else u.status = 'streaming' and u.lag_bytes is not null end)
                    from monarch_ledger.move_unit u join monarch_ledger.move m on m.id = u.move_id
                   where m.phase = 'active')";
    operator.until(ready, &worker, PATIENCE).await?;
    finish(operator, &worker, ENDED.id, &into.join("with_objects.json")).await
}

/// A move that is given up while it streams.
async fn abort(operator: &Operator<'_>, worker: &Program, into: &Path) -> Result<()> {
    start(operator, worker, ENDED.id).await?;
    give_up(operator, worker).await?;
    save(operator, ENDED.id, &into.join("aborted.json")).await
}

/// A move whose static spine changes, and that is then given up.
async fn fail(fleet: &Fleet, operator: &Operator<'_>, worker: &Program, into: &Path) -> Result<()> {
    start(operator, worker, ENDED.id).await?;
    let source = fleet.source.place_of("default")?.connect().await?;
    let project = ENDED.sql(
        "insert into project (id, organization_id, slug, settings)
         select max(id) + 1, {org}, 'late', '{}' from project",
    );
    source
        .batch_execute(&project)
        .await
        .context("add a project")?;
    operator
        .until_phase(ENDED.id, "failed", worker, PATIENCE)
        .await?;
    give_up(operator, worker).await?;
    save(operator, ENDED.id, &into.join("failed.json")).await
}

async fn start(operator: &Operator<'_>, worker: &Program, organization: i64) -> Result<()> {
    told(
        operator,
        &["move", "start", "--org", &organization.to_string()],
    )
    .await?;
    operator
        .until_streaming(organization, worker, PATIENCE)
        .await?;
    let reported = "(select bool_and(lag_bytes is not null) from monarch_ledger.move_unit
                     where status = 'streaming')";
    operator.until(reported, worker, PATIENCE).await
}

async fn give_up(operator: &Operator<'_>, worker: &Program) -> Result<()> {
    let organization = ENDED.id.to_string();
    told(
        operator,
        &[
            "move",
            "abort",
            "--org",
            &organization,
            "--reason",
            "an example",
        ],
    )
    .await?;
    operator
        .until_phase(ENDED.id, "aborted", worker, PATIENCE)
        .await
}

/// Saves the newest run's history once the workflow has ended.
async fn save(operator: &Operator<'_>, organization: i64, file: &Path) -> Result<()> {
    let id = format!("org-move-{organization}");
    operator
        .temporal(["workflow", "result", "--workflow-id", &id])
        .await?;
    let file = file.display().to_string();
    told(
        operator,
        &[
            "histories",
            "save",
            "--org",
            &organization.to_string(),
            &file,
        ],
    )
    .await
}

async fn told(operator: &Operator<'_>, arguments: &[&str]) -> Result<()> {
    let said = operator.monarch(arguments).await?;
    said.success()
        .with_context(|| format!("monarch {}", arguments.join(" ")))
        .map(drop)
}
