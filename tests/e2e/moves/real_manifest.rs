//! A manifest of the size and the shape of a real one, with a schema made from it, moved whole.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use monarch_config::{Graph, Scope, Table, manifest_from_str};
use monarch_demo::observe::{Whose, census, total};
use monarch_demo::{Cell, Fleet, ScopedTable};
use monarch_tests::{PATIENCE, Scene, Stage, assert_nothing_left};
use serde_json::json;
use tempfile::TempDir;

/// Rows of each organization in each table, the root apart.
const ROWS: i64 = 4;

/// The manifest of a real deployment, which may lie beside the repository; else one of its size:
/// 183 tables, most of them in one store and tied to projects, in chains of up to four.
fn manifest() -> String {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/real/manifest.yaml");
    fs::read_to_string(beside).unwrap_or_else(|_| {
        let mut text = "root: organization\nstores:\n  default: {type: postgres}\n  \
                        crons: {type: postgres}\n  metrics: {type: postgres}\nrelationships:\n  \
                        organization: {store: default, primary_key: [id]}\n  \
                        project: {store: default, primary_key: [id], static: true, \
                        refs: {organization_id: {parent: organization}}}\n"
            .to_owned();
        for n in 0..181 {
            let (store, parent) = match n {
                0..3 => ("crons", "project".to_owned()),
                3..6 => ("metrics", "organization".to_owned()),
                6..60 => ("default", "project".to_owned()),
                60..120 => ("default", format!("table_{}", n - 54)),
                120..170 => ("default", format!("table_{}", n - 60)),
                _ => ("default", "organization".to_owned()),
            };
            let _ = writeln!(
                text,
                "  table_{n}: {{store: {store}, primary_key: [id], refs: {{parent_id: {{parent: {parent}}}, \
                 other_id: {{parent: project}}}}}}",
            );
        }
        text
    })
}

/// An id of an organization's row: every table numbers its rows alike.
fn id(organization: i64, n: i64) -> i64 {
    organization * 1_000 + n
}

fn key(table: &Table) -> &str {
    &table.primary_key[0]
}

fn sql_name(table: &Table) -> String {
    format!("\"{}\".\"{}\"", table.name.schema(), table.name.relation())
}

/// A table of the manifest: its key, its edges, its blobs, and something to change. Edges inside
/// one database that scope a row are foreign keys.
fn create(graph: &Graph, table: &Table) -> String {
    let mut columns: Vec<String> = table
        .primary_key
        .iter()
        .map(|c| format!("\"{c}\" bigint"))
        .collect();
    for edge in table
        .edges
        .iter()
        .filter(|edge| !table.primary_key.contains(&edge.column))
    {
        let scopes = table.scope.column() == Some(&*edge.column);
        let parent = graph
            .table(&edge.parent)
            .filter(|parent| scopes && parent.store == table.store);
        let references = parent.map(|parent| format!(" references {}", sql_name(parent)));
        columns.push(format!(
            "\"{}\" bigint{}",
            edge.column,
            references.unwrap_or_default()
        ));
    }
    columns.extend(
        table
            .blobs
            .iter()
            .map(|blob| format!("\"{}\" text", blob.column)),
    );
    columns.push("\"a note\" text".to_owned());
    let key = table
        .primary_key
        .iter()
        .map(|c| format!("\"{c}\""))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "create table {} ({}, primary key ({key}));\n",
        sql_name(table),
        columns.join(", ")
    )
}

/// The `n`th row of an organization.
fn insert(graph: &Graph, table: &Table, organization: i64, n: i64) -> String {
    let parent = |table: &monarch_config::Table| match graph.parent(table) {
        Some(parent) if parent.scope == Scope::Root => organization,
        _ => id(organization, n % ROWS),
    };
    let (columns, values) = match table.scope.column() {
        None if table.scope == Scope::Root => (String::new(), organization.to_string()),
        None => (String::new(), id(organization, n).to_string()),
        Some(column) => (
            format!(", \"{column}\""),
            format!("{}, {}", id(organization, n), parent(table)),
        ),
    };
    format!(
        "insert into {} (\"{}\"{columns}, \"a note\") values ({values}, 'first');\n",
        sql_name(table),
        key(table)
    )
}

fn scoped(graph: &Graph) -> Vec<ScopedTable> {
    let condition = |table: &Table| match table.scope {
        Scope::Root => format!("\"{}\" = 1", key(table)),
        _ => format!("\"{}\" between {} and {}", key(table), id(1, 0), id(1, 999)),
    };
    let moved = graph.stores().flat_map(|store| graph.walk(&store.name));
    moved
        .map(|table| ScopedTable {
            store: table.store.to_string(),
            name: sql_name(table),
            predicate: condition(table),
        })
        .collect()
}

/// The tables of a store, parents first, whether they move or not.
fn in_order<'g>(graph: &'g Graph, store: &monarch_config::Store) -> Vec<&'g Table> {
    let mut tables = graph.walk(&store.name);
    let unmoved = graph.tables().filter(|table| table.store == store.name);
    for table in unmoved {
        if !tables.iter().any(|known| known.name == table.name) {
            tables.push(table);
        }
    }
    tables
}

/// Runs what `text` makes of each table, in one transaction a store.
async fn in_each(graph: &Graph, cell: &Cell, text: impl Fn(&Table) -> String) -> Result<()> {
    for store in graph.stores().filter(|store| !store.is_blob()) {
        let sql: String = in_order(graph, store).into_iter().map(&text).collect();
        let client = cell.place_of(store.name.as_str())?.connect().await?;
        client
            .batch_execute(&sql)
            .await
            .with_context(|| format!("work on {} of {}", store.name, cell.name))?;
    }
    Ok(())
}

/// Three databases on the source, one on the sink, and a folder for each bucket.
async fn set(stage: &Stage<'_>, graph: &Graph, text: &str, folder: &Path) -> Result<Fleet> {
    let mut fleet = Fleet::without_schema(&stage.hosts, folder).await?;
    let stores: Vec<String> = graph
        .stores()
        .filter(|store| !store.is_blob())
        .map(|store| store.name.to_string())
        .collect();
    for (n, place) in fleet.source.places.iter_mut().enumerate() {
        let here = stores.iter().enumerate().filter(|(at, _)| at % 3 == n);
        place.stores = here.map(|(_, store)| store.clone()).collect();
    }
    fleet.sink.places[0].stores = stores;
    let blobs: String = graph
        .stores()
        .filter(|store| store.is_blob())
        .map(|store| {
            format!(
                "      {}: {{file_path: {}}}\n",
                store.name,
                folder.display()
            )
        })
        .collect();
    let mut yaml = fleet.fleet_yaml(true);
    if !blobs.is_empty() {
        yaml = yaml.replace(
            "    databases:\n",
            &format!("    blobs:\n{blobs}    databases:\n"),
        );
    }
    fleet.write_fleet_file(&yaml)?;
    fleet.write_manifest(text)?;
    Ok(fleet)
}

/// Promise 1 at the width of a real schema: one move publishes, copies, streams, verifies and
/// evicts every table of it.
#[tokio::test]
async fn a_real_manifest_moves_whole() -> Result<()> {
    let text = manifest();
    let graph =
        manifest_from_str("manifest.yaml", &text).map_err(|faults| anyhow::anyhow!("{faults}"))?;
    let stage = Stage::shared().await;
    let folder = TempDir::new()?;
    let fleet = set(&stage, &graph, &text, folder.path()).await?;
    for cell in [&fleet.source, &fleet.sink] {
        in_each(&graph, cell, |table| create(&graph, table)).await?;
    }
    for organization in [1, 2] {
        let count = |table: &Table| if table.scope == Scope::Root { 1 } else { ROWS };
        in_each(&graph, &fleet.source, |table| {
            (0..count(table))
                .map(|n| insert(&graph, table, organization, n))
                .collect()
        })
        .await?;
    }
    let tables = scoped(&graph);
    ensure!(tables.len() > 170, "only {} tables move", tables.len());
    let scene = Scene::around(stage.temporal, fleet, folder).await?;
    scene.operator.make_ledger().await?;
    let worker = scene.operator.worker()?;
    scene.stream(&worker, json!({})).await?;

    let (source, sink) = (&scene.fleet.source, &scene.fleet.sink);
    in_each(&graph, source, |table| change(&graph, table)).await?;
    let others = census(source, &tables, Whose::Others).await?;
    scene.cut_over().await?;
    let at_barrier = census(source, &tables, Whose::Theirs).await?;
    assert_eq!(census(sink, &tables, Whose::Theirs).await?, at_barrier);
    assert_eq!(
        total(&census(sink, &tables, Whose::Others).await?),
        0,
        "foreign rows"
    );

    scene.update("evict", "{}").await?;
    scene
        .operator
        .until_phase(1, "finalized", &worker, 2 * PATIENCE)
        .await?;
    assert_eq!(total(&census(source, &tables, Whose::Theirs).await?), 0);
    assert_eq!(census(source, &tables, Whose::Others).await?, others);
    assert_eq!(census(sink, &tables, Whose::Theirs).await?, at_barrier);
    assert_nothing_left(&scene.fleet).await
}

/// Changes to both organizations while they stream: an update of every row, a new row in every
/// table that is not static, and a deleted one where nothing refers to it.
fn change(graph: &Graph, table: &Table) -> String {
    let mut sql = format!("update {} set \"a note\" = 'second';\n", sql_name(table));
    if table.scope != Scope::Root && !table.is_static {
        for organization in [1, 2] {
            sql += &insert(graph, table, organization, ROWS);
        }
        if !graph.has_children(&table.name) {
            let _ = writeln!(
                sql,
                "delete from {} where \"{}\" in ({}, {});",
                sql_name(table),
                key(table),
                id(1, ROWS - 1),
                id(2, ROWS - 1)
            );
        }
    }
    sql
}
