//! Looks at every database and bucket of the move before anything is changed.

use futures::future::join;
use monarch_blobs::preflight::{BlobJob, check as check_bucket, check_sharing};
use monarch_blobs::{Bucket, CellReferences, Environment, Rows};
use monarch_config::{BlobPlace, Config, Eviction, Store, StoreKind, Table};
use monarch_ledger::{LedgerError, Move};
use monarch_model::{CellName, OrgId, StoreName, chain};
use monarch_postgres::catalog;
use monarch_postgres::preflight::{self, Finding, Job, Limits, Place, Report, Severity};
use monarch_postgres::scope::Scope;
use monarch_postgres::sql::{qualified, quote_ident};
use monarch_postgres::{Doing, Session, SessionPurpose};
use monarch_workflows::contract::{PreflightInput, PreflightOutput};

use crate::control;
use crate::failure::Fault;
use crate::register;
use crate::routing;
use crate::vitals::Vitals;
use crate::world::{World, options};

/// At how many keys of a column it is looked whether others name them too.
const SAMPLE: i64 = 200;

/// What the sessions that look call themselves.
const APPLICATION: &str = "monarch preflight";

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: PreflightInput,
) -> Result<PreflightOutput, Fault> {
    let (from, to) = cells(world, &input)?;
    // Before the cells are looked at: the rows of a move that is under way would be taken for ones
    // that were left behind.
    if let Some(live) = world.ledger.live_move().await? {
        return Err(register::refused_by(live.id, &live.org, live.phase));
    }
    let job = Job {
        graph: &world.config.graph,
        fleet: &world.config.fleet,
        from: &from,
        to: &to,
        org: &input.org,
        accept_disagreeing_edges: &input.accept_disagreeing_edges,
        limits: Limits::default(),
    };
    let look = Box::pin(async { Ok(check(world, &job).await) });
    let report = vitals
        .during("every database and bucket of both cells", look)
        .await?;
    Ok(PreflightOutput {
        from,
        to,
        can_fence: world.config.fleet.control.is_some(),
        refusals: told(&report, Severity::Refuse),
        warnings: u32::try_from(told(&report, Severity::Warn).len()).unwrap_or(u32::MAX),
    })
}

/// Looks at every database and bucket of both cells, at the ledger and at the control plane, and
/// returns every finding. `job` is about the cells of the world's fleet.
pub async fn check(world: &World, job: &Job<'_>) -> Report {
    let config = &world.config;
    let Job { from, to, org, .. } = *job;
    // Asked first: what a move that ends meanwhile leaves behind must not be taken for its doing.
    let ledger = look_at_ledger(world).await;
    let objects = async {
        let mut findings = Vec::new();
        for store in config.graph.moving_blobs().filter(|_| from != to) {
            findings.extend(look_at_buckets(config, store, from, to).await);
            if deletes(store) {
                findings.extend(look_at_sharing(config, store, from, org).await);
            }
        }
        findings
    };
    let (mut report, objects) = join(Box::pin(preflight::check(job)), objects).await;
    report.add(objects);
    report.add(routing::preflight(config, from, to, org).await);
    if let Some(control) = config.fleet.control.as_ref().filter(|_| from != to) {
        report.add(control::preflight(control, from, to, org).await);
    }
    match ledger {
        Ok(None) => {}
        Ok(Some(live)) => {
            report
                .findings
                .retain(|found| !is_doing_of(&live, org, found));
            report.add(vec![live_move(&live, org)]);
        }
        Err(finding) => report.add(finding.into_iter().collect()),
    }
    report
}

/// The live move; or why the ledger cannot take one, unless the other checks tell that.
async fn look_at_ledger(world: &World) -> Result<Option<Move>, Option<Finding>> {
    let looked = async {
        world.ledger.schema_version().await?;
        world.ledger.live_move().await
    };
    let error = match looked.await {
        Ok(live) => return Ok(live),
        Err(error) => error,
    };
    let (code, mend) = match error {
        LedgerError::Unreachable(_) => return Err(None),
        _ if error.is_transient() => return Err(None),
        LedgerError::NotInitialised => ("ledger-not-initialised", "monarch ledger init"),
        LedgerError::SchemaTooOld { .. } => ("ledger-version", "monarch ledger init"),
        LedgerError::SchemaTooNew { .. } => ("ledger-version", "use the newer program"),
        LedgerError::Forbidden { .. } => (
            "ledger-privilege",
            "monarch ledger init --grants-for ROLE, by the owner of the ledger's schema",
        ),
        _ => ("ledger-unusable", "see the ledger's database"),
    };
    let place = Place {
        database: Some("ledger".to_owned()),
        ..Place::default()
    };
    let why = "A move is registered there before it changes anything";
    Err(Some(
        Finding::refuse(code, place, chain(&error), why).mend(mend),
    ))
}

fn live_move(live: &Move, org: &OrgId) -> Finding {
    let whose = if live.org == *org {
        "What it holds in both cells is no finding"
    } else {
        "One move is live at a time"
    };
    Finding::refuse(
        "live-move",
        Place::default(),
        format!(
            "organization {} is being moved from {} to {}: move {} is {}",
            live.org, live.source_cell, live.sink_cell, live.id, live.phase
        ),
        whose,
    )
    .mend(format!(
        "monarch move status --org {}: it says where the move stands and what may be asked of it",
        live.org
    ))
}

/// Findings of servers that any move brings about while it lives: it holds slots and walsenders.
const OF_ANY_MOVE: [&str; 2] = ["no-free-slot", "no-free-walsender"];

/// Findings of an organization that its own move brings about: its rows and objects are on the sink,
/// its writes are fenced and routed to the sink, and at last it is gone from the source.
const OF_ITS_MOVE: [&str; 5] = [
    "sink-holds-organization",
    "organization-not-found",
    "blob-sharing-unknown",
    "control-fenced",
    "control-not-routed",
];

/// Whether a finding is what the live move itself does. Its advice would harm that move.
fn is_doing_of(live: &Move, org: &OrgId, found: &Finding) -> bool {
    let code = found.code.as_ref();
    OF_ANY_MOVE.contains(&code) || (live.org == *org && OF_ITS_MOVE.contains(&code))
}

async fn look_at_buckets(
    config: &Config,
    store: &Store,
    from: &CellName,
    to: &CellName,
) -> Vec<Finding> {
    let place = |cell| config.fleet.cell(cell)?.blobs.get(&store.name);
    // Without a place in one of them the fleet would not have loaded; without a cell neither.
    let (Some(source), Some(sink)) = (place(from), place(to)) else {
        return Vec::new();
    };
    let environment = Environment::of_process();
    let open = async |place: &BlobPlace| Bucket::open(place, &environment).await;
    let job = BlobJob {
        store,
        from,
        to,
        source: open(source).await,
        sink: open(sink).await,
    };
    check_bucket(&job).await
}

fn deletes(store: &Store) -> bool {
    matches!(
        store.kind,
        StoreKind::Blob {
            eviction: Eviction::Delete,
            ..
        }
    )
}

/// Whether others name what eviction would delete. A database that does not answer is told of by
/// the checks of its rows.
async fn look_at_sharing(
    config: &Config,
    store: &Store,
    from: &CellName,
    org: &OrgId,
) -> Option<Finding> {
    match shared(config, store, from, org).await {
        Ok(finding) => finding,
        Err(fault) => Some(Finding::refuse(
            "blob-sharing-unknown",
            preflight::Place {
                cell: Some(from.clone()),
                store: Some(store.name.clone()),
                ..preflight::Place::default()
            },
            format!(
                "whether others name its keys could not be looked at: {}",
                fault.story()
            ),
            "Eviction would delete objects that other organizations may need",
        )),
    }
}

async fn shared(
    config: &Config,
    store: &Store,
    from: &CellName,
    org: &OrgId,
) -> Result<Option<Finding>, Fault> {
    let spine = register::read_spine(config, from, org).await?;
    let cell = config.fleet.cell(from);
    let mut looks = Vec::new();
    for database in cell.iter().flat_map(|cell| &cell.databases) {
        for rows in &database.stores {
            let tables = monarch_blobs::tables_naming(
                &config.graph,
                std::slice::from_ref(rows),
                &store.name,
            );
            if tables.is_empty() {
                continue;
            }
            let purpose = SessionPurpose::reader(APPLICATION);
            let session = Session::connect(&options(&database.primary)?, &purpose).await?;
            let moving = config.graph.walk(rows);
            let catalog = catalog::load(&*session, &moving).await?;
            let scope = Scope::new(&config.graph, rows, org, &spine, &catalog)?;
            looks.push((session, tables, scope));
        }
    }
    let mut sample = Vec::new();
    for (session, tables, scope) in &looks {
        for table in tables {
            sample.extend(some_keys(session, table, scope, &store.name).await?);
        }
    }
    let others = CellReferences {
        store: &store.name,
        databases: looks
            .iter()
            .map(|(session, tables, scope)| Rows {
                session,
                tables: tables.clone(),
                own: Some(scope),
            })
            .collect(),
    };
    let sample: Vec<&str> = sample.iter().map(String::as_str).collect();
    Ok(check_sharing(store, from, &sample, &others).await?)
}

/// Some keys that the organization's rows of a table name.
async fn some_keys(
    session: &Session,
    table: &Table,
    scope: &Scope,
    store: &StoreName,
) -> Result<Vec<String>, Fault> {
    let Ok(predicate) = scope.predicate(&table.name, "t") else {
        return Ok(Vec::new());
    };
    let doing = "read some keys that rows name";
    let mut keys = Vec::new();
    for blob in table.blobs.iter().filter(|blob| blob.store == *store) {
        let column = quote_ident(&blob.column);
        let query = format!(
            "select t.{column}::text from {} as t
              where t.{column}::text <> '' and ({predicate}) limit $1",
            qualified(&table.name)
        );
        for row in session.query(&query, &[&SAMPLE]).await.doing(doing)? {
            keys.push(row.try_get(0).doing(doing)?);
        }
    }
    Ok(keys)
}

/// The two cells: those that were asked for, else those of the fleet.
fn cells(world: &World, input: &PreflightInput) -> Result<(CellName, CellName), Fault> {
    let fleet = &world.config.fleet;
    let from = input.from.clone().or_else(|| fleet.from.clone());
    let to = input.to.clone().or_else(|| fleet.to.clone());
    let (Some(from), Some(to)) = (from, to) else {
        return Err(Fault::BadInput(
            "which cell the organization leaves and where it goes is not known: give `from` and \
             `to` at the start, or in fleet.yaml"
                .to_owned(),
        ));
    };
    world.cell(&from)?;
    world.cell(&to)?;
    Ok((from, to))
}

fn told(report: &Report, severity: Severity) -> Vec<String> {
    let of = |finding: &&Finding| finding.severity == severity;
    report
        .findings
        .iter()
        .filter(of)
        .map(Finding::to_string)
        .collect()
}
