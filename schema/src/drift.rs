//! How a live schema has drifted from its manifest.
//!
//! What matters most is what no move would notice: a table added since, whose rows are the
//! organization's and would stay behind.

use std::fmt;

use monarch_config::Graph;
use monarch_model::{StoreName, TableName};
use serde::Serialize;

use crate::references::{Evidence, Reference, Schema};
use crate::tables::{Database, Table};

/// One difference between a manifest and a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// How bad it is.
    pub severity: Severity,
    /// What differs.
    #[serde(flatten)]
    pub kind: DriftKind,
    /// The store in which it was found.
    pub store: StoreName,
    /// The table.
    pub table: TableName,
}

/// How bad a difference is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// A move would fail, or leave rows of the organization behind.
    Error,
    /// Somebody should look.
    Warning,
    /// Good to know.
    Note,
}

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "code")]
pub enum DriftKind {
    /// The manifest has a table that its database has not.
    TableMissing {
        /// The store whose database has it.
        elsewhere: Option<StoreName>,
    },
    /// The table has no such column.
    ColumnMissing {
        /// The column, of the key or of an edge.
        column: String,
    },
    /// No unique index that is whole and immediate, over columns that are not null, has the columns
    /// of the manifest's key.
    KeyWithoutIndex {
        /// The columns.
        columns: Vec<String>,
    },
    /// The column of an edge and the parent's key have types that cannot be equal.
    TypesDiffer {
        /// The column.
        column: String,
        /// Its type.
        type_name: String,
        /// The parent.
        parent: TableName,
        /// The type of its key.
        key_type: String,
    },
    /// A table that is in no manifest references a table that moves: its rows may be the
    /// organization's.
    NewTable {
        /// The column.
        column: String,
        /// The table that it references.
        parent: TableName,
        /// Whether a foreign key says so, or the column's name alone.
        by_foreign_key: bool,
    },
    /// A table of the manifest that does not move, for want of an edge, references one that does.
    NewEdge {
        /// The column.
        column: String,
        /// The table that it references.
        parent: TableName,
    },
    /// A table that moves has a foreign key that the manifest does not have.
    NewReference {
        /// The column.
        column: String,
        /// The table that it references.
        parent: TableName,
    },
    /// The table is in no manifest, and nothing says that it should be.
    Unrelated,
}

impl Severity {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl DriftKind {
    fn severity(&self) -> Severity {
        match self {
            Self::TableMissing { .. }
            | Self::ColumnMissing { .. }
            | Self::KeyWithoutIndex { .. }
            | Self::TypesDiffer { .. }
            | Self::NewEdge { .. }
            | Self::NewTable {
                by_foreign_key: true,
                ..
            } => Severity::Error,
            Self::NewTable { .. } | Self::NewReference { .. } => Severity::Warning,
            Self::Unrelated => Severity::Note,
        }
    }

    /// What to do about it; nothing about a note.
    pub fn to_do(&self) -> String {
        match self {
            Self::TableMissing { elsewhere: None } => {
                "take it out of the manifest, or make it in the database".to_owned()
            }
            Self::TableMissing {
                elsewhere: Some(store),
            } => format!("name store {store} in the manifest"),
            Self::ColumnMissing { .. } => "name the column that took its place".to_owned(),
            Self::KeyWithoutIndex { columns } => format!(
                "create a unique index over ({}), its columns not null, or name another key",
                columns.join(", ")
            ),
            Self::TypesDiffer { .. } => "name the column that holds the parent's key".to_owned(),
            Self::NewTable {
                column,
                parent,
                by_foreign_key: true,
            }
            | Self::NewEdge { column, parent } => {
                format!("add it to the manifest with refs `{column}: {{parent: {parent}}}`")
            }
            Self::NewTable { column, parent, .. } => format!(
                "add it to the manifest with refs `{column}: {{parent: {parent}}}`; if its rows are \
                 not the organization's, list it without refs"
            ),
            Self::NewReference { column, parent } => {
                format!("add `{column}: {{parent: {parent}}}` to its refs, below the chosen edge")
            }
            Self::Unrelated => String::new(),
        }
    }
}

impl fmt::Display for DriftKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableMissing { elsewhere: None } => write!(f, "the database has no such table"),
            Self::TableMissing {
                elsewhere: Some(store),
            } => write!(f, "the table is in the database of store {store}"),
            Self::ColumnMissing { column } => write!(f, "there is no column {column}"),
            Self::KeyWithoutIndex { columns } => {
                write!(
                    f,
                    "no unique index tells rows apart by ({})",
                    columns.join(", ")
                )
            }
            Self::TypesDiffer {
                column,
                type_name,
                parent,
                key_type,
            } => write!(
                f,
                "{column} is {type_name}, and the key of {parent} is {key_type}"
            ),
            Self::NewTable {
                column,
                parent,
                by_foreign_key: true,
            } => write!(
                f,
                "not in the manifest, and {column} references {parent}, which moves"
            ),
            Self::NewTable { column, parent, .. } => write!(
                f,
                "not in the manifest, and {column} is named like a key of {parent}, which moves"
            ),
            Self::NewEdge { column, parent } => {
                write!(
                    f,
                    "listed without an edge, and {column} references {parent}, which moves"
                )
            }
            Self::NewReference { column, parent } => {
                write!(f, "{column} references {parent}, and is not among its refs")
            }
            Self::Unrelated => write!(f, "not in the manifest"),
        }
    }
}

/// Everything in which `databases` differ from `graph`, the worst first, then by store and table. A
/// store is looked at if a database of its name is among them.
pub fn drift(graph: &Graph, databases: &[Database]) -> Vec<Drift> {
    let schema = Schema::of(databases, |database, table| {
        let store = &graph.table(&table.name)?.store;
        database.stores.contains(store).then_some(store)
    });
    let mut found: Vec<Drift> = listed(graph, databases, &schema)
        .chain(unlisted(graph, &schema))
        .collect();
    found.sort_by(|one, other| {
        let order = |drift: &Drift| (drift.severity, drift.store.clone(), drift.table.clone());
        order(one).cmp(&order(other))
    });
    found
}

fn found(kind: DriftKind, store: &StoreName, table: &TableName) -> Drift {
    Drift {
        severity: kind.severity(),
        kind,
        store: store.clone(),
        table: table.clone(),
    }
}

/// What is wrong with the tables of the manifest.
fn listed<'a>(
    graph: &'a Graph,
    databases: &'a [Database],
    schema: &'a Schema<'a>,
) -> impl Iterator<Item = Drift> + 'a {
    let place = |store: &StoreName| databases.iter().position(|one| one.stores.contains(store));
    let tables = graph
        .tables()
        .filter_map(move |table| Some((place(&table.store)?, table)));
    tables.flat_map(move |(database, table)| {
        let kinds = match schema.find(database, &table.name) {
            Some(at) => of_table(graph, table, schema, at),
            None => {
                let elsewhere = (0..schema.tables.len())
                    .find(|&at| *schema.name(at) == table.name)
                    .map(|at| schema.store(at).clone());
                vec![DriftKind::TableMissing { elsewhere }]
            }
        };
        let drift = |kind| found(kind, &table.store, &table.name);
        kinds.into_iter().map(drift)
    })
}

fn of_table(
    graph: &Graph,
    listed: &monarch_config::Table,
    schema: &Schema<'_>,
    at: usize,
) -> Vec<DriftKind> {
    let live = schema.tables[at].table;
    let mut kinds = missing_columns(listed, live);
    if kinds.is_empty() {
        let same = |key: &&Vec<String>| {
            key.len() == listed.primary_key.len()
                && key.iter().all(|column| listed.primary_key.contains(column))
        };
        if !live.keys.iter().any(|key| same(&key)) {
            let columns = listed.primary_key.clone();
            kinds.push(DriftKind::KeyWithoutIndex { columns });
        }
        kinds.extend(types(graph, listed, schema, live));
    }
    kinds.extend(references(graph, listed, schema, at));
    kinds
}

fn missing_columns(listed: &monarch_config::Table, live: &Table) -> Vec<DriftKind> {
    let edges = listed.edges.iter().map(|edge| &edge.column);
    let blobs = listed.blobs.iter().map(|blob| &blob.column);
    let mut missing: Vec<String> = (listed.primary_key.iter().chain(edges).chain(blobs))
        .filter(|column| live.column(column).is_none())
        .cloned()
        .collect();
    missing.dedup();
    let kind = |column| DriftKind::ColumnMissing { column };
    missing.into_iter().map(kind).collect()
}

/// Edges whose two sides cannot hold the same value.
fn types(
    graph: &Graph,
    listed: &monarch_config::Table,
    schema: &Schema<'_>,
    live: &Table,
) -> Vec<DriftKind> {
    let differs = |edge: &monarch_config::Edge| {
        let parent = graph.table(&edge.parent)?;
        let above = schema.place_of(parent)?;
        let key_type = schema.tables[above].table.type_of(&parent.primary_key)?;
        let type_name = &live.column(&edge.column)?.type_name;
        (type_name != key_type).then(|| DriftKind::TypesDiffer {
            column: edge.column.clone(),
            type_name: type_name.clone(),
            parent: edge.parent.clone(),
            key_type: key_type.to_owned(),
        })
    };
    listed.edges.iter().filter_map(differs).collect()
}

/// What a table of the manifest references without the manifest saying so.
fn references(
    graph: &Graph,
    listed: &monarch_config::Table,
    schema: &Schema<'_>,
    at: usize,
) -> Vec<DriftKind> {
    let told = |column: &str| listed.edges.iter().any(|edge| edge.column == column);
    let unscoped = !graph.moves(listed) && listed.edges.is_empty();
    let is_root = *graph.root() == *listed;
    let (references, _) = schema.references(at);
    let kind = |reference: &Reference| {
        let parent = moving(graph, schema, reference)?;
        let column = reference.column.clone();
        let by_foreign_key = reference.evidence != Evidence::Name;
        if is_root || !by_foreign_key || reference.parent == at || told(&column) {
            return None;
        }
        Some(match unscoped {
            true => DriftKind::NewEdge { column, parent },
            false => DriftKind::NewReference { column, parent },
        })
    };
    references.iter().filter_map(kind).collect()
}

/// The tables that no manifest has.
fn unlisted<'a>(graph: &'a Graph, schema: &'a Schema<'a>) -> impl Iterator<Item = Drift> + 'a {
    let of_manifest = |at: usize| {
        let table = graph.table(schema.name(at));
        table.and_then(|table| schema.place_of(table)) == Some(at)
    };
    let all = 0..schema.tables.len();
    all.filter(move |&at| !of_manifest(at)).map(move |at| {
        let (references, _) = schema.references(at);
        let kind = |reference: &Reference| {
            Some(DriftKind::NewTable {
                column: reference.column.clone(),
                parent: moving(graph, schema, reference)?,
                by_foreign_key: reference.evidence != Evidence::Name,
            })
        };
        // One that a foreign key vouches for is told before one that is known by its name.
        let new = references.iter().filter_map(kind);
        let new = new.min_by_key(DriftKind::severity);
        let kind = new.unwrap_or(DriftKind::Unrelated);
        found(kind, schema.store(at), schema.name(at))
    })
}

/// The table that a reference leads to, if it moves.
fn moving(graph: &Graph, schema: &Schema<'_>, reference: &Reference) -> Option<TableName> {
    let parent = graph.table(schema.name(reference.parent))?;
    let is_it = schema.place_of(parent) == Some(reference.parent);
    (is_it && graph.moves(parent)).then(|| parent.name.clone())
}
