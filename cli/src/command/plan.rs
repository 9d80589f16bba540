//! `monarch plan`
//!
//! A move's decisions without the move: made by the same code, from the same databases, and then
//! printed.

mod objects;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use clap::Args;
use monarch_activities::World;
use monarch_config::{Config, Database, Graph, Scope as Edge, Table};
use monarch_model::{CellName, MoveId, OrgId, StoreName, chain};
use monarch_postgres::catalog::Relation;
use monarch_postgres::estimate::{self, Basis, Estimate};
use monarch_postgres::preflight::{Finding, Report};
use monarch_postgres::publication::{self, Publication};
use monarch_postgres::scope::Scope;
use monarch_postgres::spine::{self, Spine};
use monarch_postgres::sql::quote_ident;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, Unit, catalog};
use monarch_view::units_of_measure::{bytes, count};
use serde::Serialize;

use self::objects::{Naming, ObjectPlan};
use super::preflight;
use crate::args::{Accepted, Organization, Route};
use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::findings;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    #[command(flatten)]
    route: Route,
    #[command(flatten)]
    accepted: Accepted,
}

/// What a move would do.
#[derive(Serialize)]
struct Plan {
    org: OrgId,
    from: CellName,
    to: CellName,
    /// In the order of the manifest.
    stores: Vec<StorePlan>,
    /// The blob stores that move.
    objects: Vec<ObjectPlan>,
    /// Why the stores could not be planned.
    not_planned: Option<String>,
    /// Tables without a scope edge.
    not_moved: Vec<String>,
    refused: bool,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct StorePlan {
    store: StoreName,
    source: String,
    sink: String,
    /// Parents first.
    tables: Vec<TablePlan>,
    /// Their names carry the id of the move, which is drawn when one starts.
    publications: Vec<String>,
}

#[derive(Serialize)]
struct TablePlan {
    table: String,
    /// What ties a row to the organization.
    scope: String,
    rows_estimated: u64,
    bytes_estimated: u64,
    estimated_by: Basis,
    /// Which inserts the source sends.
    inserts: String,
    /// Which updates and deletes the source sends.
    mutations: String,
    /// The columns that name objects.
    #[serde(skip)]
    objects: Vec<Naming>,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let world = context.world()?;
    let (plan, report) = make(&world, arguments).await?;
    console::show(context.output(), &plan, |plan| {
        let options = preflight::options(&arguments.route, &arguments.accepted, context);
        text(plan, &preflight::text(&report, &plan.org, &options))
    })?;
    Ok(preflight::exit(&report))
}

/// The same for a page: the plan as text, and whether its findings forbid the move.
pub(crate) async fn for_page(
    world: &World,
    org: OrgId,
    route: Route,
) -> Result<(String, bool), Failure> {
    let arguments = Arguments {
        organization: Organization { org },
        route,
        accepted: Accepted {
            disagreeing_edges: Vec::new(),
        },
    };
    let (plan, report) = make(world, &arguments).await?;
    Ok((text(&plan, &findings::text(&report)), report.refuses()))
}

async fn make(world: &World, arguments: &Arguments) -> Result<(Plan, Report), Failure> {
    let config = &world.config;
    let (from, to) = arguments.route.within(&config.fleet)?;
    let org = arguments.organization.org.clone();
    let report = preflight::check(world, &from, &to, &org, &arguments.accepted).await;
    let (stores, not_planned) = match Box::pin(stores(config, &from, &to, &org)).await {
        Ok(stores) => (stores, None),
        // The findings say more about it than this error.
        Err(failure) if report.refuses() => (Vec::new(), Some(failure.what().to_owned())),
        Err(failure) => return Err(failure),
    };
    let unmoved = config.graph.unmoved();
    let plan = Plan {
        objects: objects::plan(config, &from, &to, &stores),
        org,
        from,
        to,
        stores,
        not_planned,
        not_moved: unmoved.iter().map(ToString::to_string).collect(),
        refused: report.refuses(),
        findings: report.findings.clone(),
    };
    Ok((plan, report))
}

/// Plans every store that moves.
async fn stores(
    config: &Config,
    from: &CellName,
    to: &CellName,
    org: &OrgId,
) -> Result<Vec<StorePlan>, Failure> {
    let graph = &config.graph;
    let mut sessions = BTreeMap::new();
    for store in graph.stores().filter(|store| store.has_unit()) {
        let database = place(config, from, &store.name)?;
        sessions.insert(&store.name, connect(database).await?);
    }
    let clients = sessions
        .iter()
        .map(|(&store, session)| (store.clone(), &**session))
        .collect();
    let spine = spine::read(&clients, graph, org)
        .await
        .map_err(|error| Failure::failed(chain(&error)))?;
    let mut stores = Vec::new();
    for store in graph.stores() {
        let Some(session) = sessions.get(&store.name) else {
            continue;
        };
        let unit = Unit {
            move_id: MoveId(uuid::Uuid::nil()),
            org: org.clone(),
            store: store.name.clone(),
        };
        let (tables, publications) = plan_store(session, graph, &unit, &spine).await?;
        stores.push(StorePlan {
            store: store.name.clone(),
            source: format!("{from} {}", place(config, from, &store.name)?.name),
            sink: format!("{to} {}", place(config, to, &store.name)?.name),
            tables,
            publications,
        });
    }
    Ok(stores)
}

fn place<'a>(
    config: &'a Config,
    cell: &CellName,
    store: &StoreName,
) -> Result<&'a Database, Failure> {
    let found = config.fleet.cell(cell);
    found
        .and_then(|cell| cell.database_of(store))
        .ok_or_else(|| Failure::usage(format!("cell {cell} has no place for store {store}")))
}

/// A session that changes nothing.
async fn connect(database: &Database) -> Result<Session, Failure> {
    let options = ConnectOptions::from_dsn(&database.primary)
        .map_err(|error| Failure::usage(format!("{}: {}", database.name, chain(&error))))?;
    let purpose = SessionPurpose::reader("monarch plan");
    Ok(Box::pin(Session::connect(&options, &purpose)).await?)
}

async fn plan_store(
    session: &Session,
    graph: &Graph,
    unit: &Unit,
    spine: &Spine,
) -> Result<(Vec<TablePlan>, Vec<String>), Failure> {
    let failed =
        |error: &dyn Error| Failure::failed(format!("plan store {}: {}", unit.store, chain(error)));
    let walk = graph.walk(&unit.store);
    let catalog = catalog::load(&**session, &walk).await?;
    let scope = Scope::new(graph, &unit.store, &unit.org, spine, &catalog)
        .map_err(|error| failed(&error))?;
    let publications =
        publication::plan(unit, graph, &scope, &catalog).map_err(|error| failed(&error))?;
    let mut tables = Vec::new();
    for of in walk {
        let predicate = scope
            .predicate(&of.name, "t")
            .map_err(|error| failed(&error))?;
        let Some(relation) = catalog.relation(&of.name) else {
            let why = format!("plan store {}: there is no table {}", unit.store, of.name);
            return Err(Failure::failed(why));
        };
        let Estimate { rows, bytes, basis } =
            estimate::of_table(&**session, relation, &predicate).await?;
        let objects = naming(session, graph, (of, relation), &predicate).await?;
        tables.push(TablePlan {
            table: of.name.to_string(),
            scope: tie(of),
            rows_estimated: rows,
            bytes_estimated: bytes,
            estimated_by: basis,
            inserts: choice(&publications.inserts, of),
            mutations: choice(&publications.mutations, of),
            objects,
        });
    }
    let statements = publications.publications().map(Publication::statement);
    Ok((tables, statements.to_vec()))
}

/// Which rows of a table a publication sends.
fn choice(publication: &Publication, of: &Table) -> String {
    let mut members = publication.members.iter();
    let member = members.find(|member| member.table == of.name);
    member.map_or_else(String::new, |member| member.choice.to_string())
}

/// What ties a row to the organization.
fn tie(of: &Table) -> String {
    match &of.scope {
        Edge::Root => "the root".to_owned(),
        Edge::ByRoot { column } => format!("{column} is the organization"),
        Edge::ByStatic { column, parent } => format!("{column} in static {parent}"),
        Edge::ByDynamic { column, parent } => format!("{column} in {parent}"),
        Edge::Unscoped => "nothing".to_owned(),
    }
}

/// The columns of a table that name objects that move, and how many rows do.
async fn naming(
    session: &Session,
    graph: &Graph,
    (of, relation): (&Table, &Relation),
    predicate: &str,
) -> Result<Vec<Naming>, Failure> {
    let moves = |store| graph.store(store).is_some_and(|store| store.migrate);
    let mut naming = Vec::new();
    for blob in of.blobs.iter().filter(|blob| moves(&blob.store)) {
        let names = format!(
            "({predicate}) and t.{} is not null",
            quote_ident(&blob.column)
        );
        let named = estimate::of_table(&**session, relation, &names).await?;
        naming.push(Naming {
            column: blob.column.clone(),
            store: blob.store.clone(),
            rows_estimated: named.rows,
        });
    }
    Ok(naming)
}

fn text(plan: &Plan, findings: &str) -> String {
    let mut text = format!(
        "organization {} from {} to {}\n",
        plain(plan.org.as_str()),
        plan.from,
        plan.to
    );
    for store in &plan.stores {
        let rows = store.tables.iter().map(|of| of.rows_estimated).sum();
        let size = store.tables.iter().map(|of| of.bytes_estimated).sum();
        let _ = writeln!(
            text,
            "\nstore {}: {} to {}, ~{} rows, ~{}\n\n{}\n",
            store.store,
            store.source,
            store.sink,
            count(rows),
            bytes(size),
            table_of(&store.tables)
        );
        text.push_str(&never_analyzed(&store.tables));
        for statement in &store.publications {
            let _ = writeln!(text, "{};", plain(statement));
        }
    }
    for of in &plan.objects {
        let _ = writeln!(text, "\n{}", plain(&objects::text(of)));
    }
    if let Some(why) = &plan.not_planned {
        let _ = writeln!(text, "\nnot planned: {}", plain(why));
    }
    if !plan.not_moved.is_empty() {
        let names = plan.not_moved.join(", ");
        let _ = writeln!(text, "\nno scope edge, so not moved: {names}");
    }
    let _ = write!(text, "\n{findings}");
    text
}

/// Which numbers of a store say less than the others.
fn never_analyzed(tables: &[TablePlan]) -> String {
    let mut text = String::new();
    let told = [
        (Basis::Sample, "never analyzed, so some of it was read"),
        (
            Basis::Guess,
            "never analyzed, and to read some of it took too long: its numbers are a guess",
        ),
    ];
    for (basis, what) in told {
        let by = tables.iter().filter(|of| of.estimated_by == basis);
        let names: Vec<String> = by.map(|of| plain(&of.table)).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}\n", names.join(", "));
        }
    }
    text
}

fn table_of(tables: &[TablePlan]) -> String {
    let mut drawn = table([
        "table",
        "scope",
        "~rows",
        "~bytes",
        "inserts sent",
        "changes sent",
    ]);
    for of in tables {
        drawn.add_row([
            plain(&of.table),
            plain(&of.scope),
            count(of.rows_estimated),
            bytes(of.bytes_estimated),
            of.inserts.clone(),
            of.mutations.clone(),
        ]);
    }
    lines(&drawn)
}
