//! The demo itself: one move through the fleet in miniature, shown to a person, and judged.
//!
//! What it prints at the end is counted and digested in the databases by [`observe`], not reported
//! by Monarch.

mod report;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Program, Temporal};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::observe::{Whose, by_store, census, leftovers};
use crate::{
    Cell, ControlDatabase, Fleet, Hosts, Operator, Organization, Traffic, known_in, number_on,
    populate, tables, told_by,
};
use report::{Bystander, Moved, Report, Routing, Stores};

/// Issues of each organization; it has about eight times as many other rows.
const ISSUES: u32 = 2_000;
/// Between two transactions of one writer.
const PACE: Duration = Duration::from_millis(10);
/// Changes that every store must have streamed before we cut over.
const CHANGES: u32 = 300;
/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(120);

const EVIL_CORP: Organization = Organization::EVIL_CORP;
const OTHER: Organization = Organization::OTHER;
const AT_HOME: Organization = Organization::AT_HOME;

/// How the demo is to be shown.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `monarch`.
    pub monarch: PathBuf,
    /// Leave everything running at the end, until Ctrl-C.
    pub keep: bool,
}

/// The servers of the demo.
struct Servers {
    main: Cluster,
    side: Cluster,
    far: Cluster,
    temporal: Temporal,
}

/// Says what happens, and when.
struct Stage<'o> {
    out: &'o mut (dyn Write + Send),
    began: Instant,
}

impl Stage<'_> {
    fn say(&mut self, text: &str) -> Result<()> {
        let seconds = self.began.elapsed().as_secs_f32();
        writeln!(self.out, "{seconds:6.1} s  {text}").context("print")
    }

    fn show(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}").context("print")
    }
}

/// Shows a move from start to end, and prints what is in the databases. Returns whether all of it
/// is as it must be.
///
/// # Errors
///
/// When a step fails: a server does not start, a command is refused, a phase does not come.
pub async fn show(options: &Options, out: &mut (dyn Write + Send)) -> Result<bool> {
    let mut stage = Stage {
        out,
        began: Instant::now(),
    };
    stage.say("starting three Postgres clusters and Temporal")?;
    let servers = Servers::start().await?;
    let folder = TempDir::with_prefix("monarch-demo-").context("make a folder")?;
    let fleet = settle(&servers, &folder).await?;
    stage.say(&format!(
        "cell {} has three databases on two clusters, cell {} one; {}, {} and {} live there",
        fleet.source.name, fleet.sink.name, EVIL_CORP.slug, OTHER.slug, AT_HOME.slug
    ))?;
    let monarch = options.monarch.clone();
    let operator = Operator::new(&fleet, &servers.temporal, "default".to_owned(), monarch).await?;
    operator.make_ledger().await?;
    operator.make_control().await?;
    stage.say("the control database says where each lives, and tells the cells by its outbox")?;
    let worker = operator.worker()?;

    let shown = perform(&mut stage, &fleet, &operator, &worker).await;
    if options.keep {
        if let Err(error) = &shown {
            stage.show(&format!("\nit failed: {error:#}"))?;
        }
        keep(&mut stage, &servers, &fleet, &operator).await?;
    }
    shown
}

impl Servers {
    async fn start() -> Result<Self> {
        let cluster = || Cluster::start(ClusterOptions::new(PgVersion::V15));
        let (main, side, far, temporal) =
            tokio::try_join!(cluster(), cluster(), cluster(), Temporal::start())?;
        Ok(Self {
            main,
            side,
            far,
            temporal,
        })
    }
}

/// Makes the databases and gives everybody rows.
async fn settle(servers: &Servers, folder: &TempDir) -> Result<Fleet> {
    let hosts = Hosts {
        main: &servers.main,
        standby: None,
        side: &servers.side,
        sink: &servers.far,
        ledger: &servers.far,
    };
    let mut fleet = Fleet::make(&hosts, folder.path()).await?;
    fleet.use_control_database(&servers.far).await?;
    for organization in [EVIL_CORP, OTHER] {
        populate(&fleet.source, &organization, ISSUES).await?;
        fleet.settle(organization.id, &fleet.source.name).await?;
    }
    number_on(&fleet.source).await?;
    populate(&fleet.sink, &AT_HOME, ISSUES).await?;
    fleet.settle(AT_HOME.id, &fleet.sink.name).await?;
    Ok(fleet)
}

async fn rows(cell: &Cell, organization: &Organization) -> Result<Stores> {
    let found = census(cell, &tables(organization), Whose::Theirs).await?;
    Ok(by_store(&found))
}

/// The move, from the first writer to the last count.
async fn perform(
    stage: &mut Stage<'_>,
    fleet: &Fleet,
    operator: &Operator<'_>,
    worker: &Program,
) -> Result<bool> {
    let (source, sink) = (&fleet.source, &fleet.sink);
    let other_at_first = rows(source, &OTHER).await?;
    let on_sink_at_first = [rows(sink, &OTHER).await?, rows(sink, &AT_HOME).await?];
    let evil = Traffic::start(fleet, &EVIL_CORP, PACE).await?;
    let other = Traffic::start(fleet, &OTHER, PACE).await?;
    stage.say("writers insert, update and delete for both organizations, in every store")?;
    stream(stage, operator, worker).await?;
    control(fleet)?.write(EVIL_CORP.id, &source.name).await?;
    stage.say("control has a message about evil-corp that is not delivered yet, for the source")?;
    let cut = cut_over(operator).await?;
    stage.say(&format!("monarch move cut-over --org 1: {}", cut.trim()))?;
    let routing = routing(fleet).await?;
    stage.say(&routing.said())?;

    let written = evil.stop().await?;
    let at_barrier = rows(source, &EVIL_CORP).await?;
    let arrived = rows(sink, &EVIL_CORP).await?;
    // The neighbour's writers stop too, so that its rows can be compared around the eviction.
    let written_by_other = other.stop().await?;
    let other_before = rows(source, &OTHER).await?;
    evict(stage, operator, worker).await?;

    let [other_on_sink, at_home] = on_sink_at_first;
    let report = Report {
        moved: Moved {
            at_barrier,
            on_sink: arrived,
            left: rows(source, &EVIL_CORP).await?,
            streamed: streamed(operator).await?,
        },
        bystanders: [
            Bystander::new(OTHER, source, other_before, rows(source, &OTHER).await?),
            Bystander::new(OTHER, sink, other_on_sink, rows(sink, &OTHER).await?),
            Bystander::new(AT_HOME, sink, at_home, rows(sink, &AT_HOME).await?),
        ],
        other_at_first,
        written,
        written_by_other,
        write_pause: write_pause(operator).await?,
        routing,
        told: told_by(sink, EVIL_CORP.id).await?,
        told_by_source: told_by(source, EVIL_CORP.id).await?,
        left_behind: left_behind(fleet).await?,
    };
    stage.show(&report.text())?;
    Ok(report.holds())
}

fn control(fleet: &Fleet) -> Result<&ControlDatabase> {
    let control = fleet.control_database.as_ref();
    control.context("the demo has a control database")
}

/// What control says of evil-corp, and what the cells have heard.
async fn routing(fleet: &Fleet) -> Result<Routing> {
    let control = control(fleet)?;
    let mut known = Vec::new();
    for cell in [&fleet.source, &fleet.sink] {
        let heard = known_in(cell, EVIL_CORP.id).await?;
        known.push((cell.name.clone(), heard.into_values().collect()));
    }
    Ok(Routing {
        sink: fleet.sink.name.clone(),
        control: control.cell_of(EVIL_CORP.id).await?,
        known,
        queued: control.waiting(EVIL_CORP.id).await?,
    })
}

/// Starts the move and waits until every store has streamed its share of changes.
async fn stream(stage: &mut Stage<'_>, operator: &Operator<'_>, worker: &Program) -> Result<()> {
    told(operator, &["move", "start", "--org", "1"]).await?;
    stage.say("monarch move start --org 1")?;
    let streaming = operator.until_streaming(EVIL_CORP.id, worker, PATIENCE);
    while_watched(stage, operator, streaming).await?;
    let enough =
        format!("(select min(changes_applied) >= {CHANGES} from monarch_ledger.move_unit)");
    while_watched(stage, operator, operator.until(&enough, worker, PATIENCE)).await
}

async fn evict(stage: &mut Stage<'_>, operator: &Operator<'_>, worker: &Program) -> Result<()> {
    told(operator, &["move", "evict", "--org", "1"]).await?;
    stage.say("monarch move evict --org 1")?;
    operator
        .until_phase(EVIL_CORP.id, "finalized", worker, PATIENCE)
        .await?;
    stage.say("the move is finalized")
}

/// Runs a command that must succeed, and returns what it printed.
async fn told(operator: &Operator<'_>, words: &[&str]) -> Result<String> {
    let said = operator.monarch(words).await?.success();
    Ok(said
        .with_context(|| format!("monarch {}", words.join(" ")))?
        .output)
}

/// Cuts over, and asks again while a store lags: the writers do not wait for us.
async fn cut_over(operator: &Operator<'_>) -> Result<String> {
    /// The exit code of a command whose time has not come.
    const NOT_READY: i32 = 3;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = operator.monarch(["move", "cut-over", "--org", "1"]).await?;
        if said.code != NOT_READY || Instant::now() > deadline {
            return Ok(said.success().context("monarch move cut-over")?.output);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits, and says each second or so what the units do.
async fn while_watched(
    stage: &mut Stage<'_>,
    operator: &Operator<'_>,
    awaited: impl Future<Output = Result<()>>,
) -> Result<()> {
    const UNITS: &str = "
        select string_agg(format('%s %s (%s rows copied, %s changes applied)', store, status,
                                 rows_copied, changes_applied), ', ' order by store)
        from monarch_ledger.move_unit";
    let mut awaited = std::pin::pin!(awaited);
    let mut last = String::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(2));
    loop {
        tokio::select! {
            done = &mut awaited => return done,
            _ = ticks.tick() => {
                let units = operator.ledger(UNITS).await?.unwrap_or_default();
                if !units.is_empty() && units != last {
                    stage.say(&units)?;
                    last = units;
                }
            }
        }
    }
}

async fn streamed(operator: &Operator<'_>) -> Result<BTreeMap<String, u64>> {
    let query =
        "select json_object_agg(store, changes_applied)::text from monarch_ledger.move_unit";
    let json = operator
        .ledger(query)
        .await?
        .context("the ledger has no units")?;
    serde_json::from_str(&json).context("read the changes that were streamed")
}

async fn write_pause(operator: &Operator<'_>) -> Result<String> {
    let query = "select write_pause_ms || ' ms' from monarch_ledger.move";
    Ok(operator
        .ledger(query)
        .await?
        .unwrap_or_else(|| "unknown".to_owned()))
}

/// A server takes a moment to see that a connection was closed.
async fn left_behind(fleet: &Fleet) -> Result<Vec<String>> {
    const TRIES: u32 = 50;
    let mut left = Vec::new();
    for _ in 0..TRIES {
        left = leftovers(&fleet.source).await?;
        left.extend(leftovers(&fleet.sink).await?);
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(left)
}

/// A line of shell that puts a folder on the search path, however often it is read.
fn on_search_path(folder: &Path) -> String {
    let folder = folder.display();
    format!("case \":$PATH:\" in *\":{folder}:\"*) ;; *) export PATH=\"{folder}:$PATH\" ;; esac\n")
}

/// Says how to look, and waits for Ctrl-C. The neighbour is written to again, so that it can be
/// moved by hand.
async fn keep(
    stage: &mut Stage<'_>,
    servers: &Servers,
    fleet: &Fleet,
    operator: &Operator<'_>,
) -> Result<()> {
    let traffic = Traffic::start(fleet, &OTHER, PACE).await?;
    let environment = fleet.folder().join("environment");
    let lines = operator.environment().iter();
    let mut lines: String = lines
        .map(|(name, value)| format!("export {name}={value}\n"))
        .collect();
    for folder in operator.folders() {
        lines.push_str(&on_search_path(folder));
    }
    fs::write(&environment, lines).context("write the environment")?;
    stage.show(&format!(
        "\nAll is left running, with writers for {other}; they know {source} alone, and fall \
         silent once {other} is routed elsewhere.\nThe clusters are copies of one: they share a \
         system identifier. To look, in another terminal:\n\n  \
         . {}\n  monarch move status --org 1; monarch move events --org 1\n  \
         monarch move start --org 2; monarch move watch --org 2\n\n  \
         Temporal Web UI    {}",
        environment.display(),
        servers.temporal.ui_url(),
        other = OTHER.slug,
        source = fleet.source.name,
    ))?;
    for cell in [&fleet.source, &fleet.sink] {
        for place in &cell.places {
            let stores = place.stores.join(", ");
            stage.show(&format!(
                "  {} {stores:<25} psql '{}'",
                cell.name, place.dsn
            ))?;
        }
    }
    stage.show(&format!(
        "  ledger {:<22} psql '{}'\n  control {:<21} psql '{}'\n\nCtrl-C ends it.",
        "",
        fleet.ledger_dsn,
        "",
        control(fleet)?.dsn()
    ))?;
    let mut terminated = signal(SignalKind::terminate()).context("listen to SIGTERM")?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.context("listen to Ctrl-C")?,
        _ = terminated.recv() => {}
    }
    stage.show("\nstopping…")?;
    match traffic.stop().await {
        Ok(_) => Ok(()),
        Err(error) => bail!("a writer of {} met an error: {error:#}", OTHER.slug),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The environment is read in many terminals, and again after a pause.
    #[test]
    fn reading_the_environment_twice_is_reading_it_once() {
        let line = on_search_path(Path::new("/a b/c"));
        let script = format!("PATH=/usr/bin\n{line}{line}echo \"$PATH\"");
        let said = Command::new("/bin/sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "/a b/c:/usr/bin\n");
    }
}
