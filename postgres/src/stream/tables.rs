//! The tables of a store as the stream sees them: columns in the order in which pgoutput sends
//! them, and what ties each row to the organization.
//!
//! Built once at the start from the catalogs of both sides. A table is an index from then on.

use std::collections::{BTreeMap, HashMap};

use monarch_config::{Graph, Scope as Edge, Table as Configured};
use monarch_model::{StoreName, TableName};
use tokio_postgres::Client;

use super::error::{Finding, StreamError};
use super::fetch::{Comparison, Reading};
use super::{IdSet, Job, KeyKind, Reason, Telling};
use crate::catalog::{self, Catalog, Generated, Identity, Relation, ReplicaIdentity};
use crate::keys::key_columns;
use crate::scope::{Scope, Term};
use crate::spine::Spine;
use crate::sql::{qualified, quote_ident};

/// Where a table stands in [`Tables::all`].
pub(super) type TableIndex = usize;

/// The tables of one store, parents first.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Each table.
    pub(super) all: Vec<Table>,
    by_oid: HashMap<u32, TableIndex>,
    /// Partitions: the table that they are of, and what the log says of their old rows. Their
    /// changes come under the table's own object id, but each is announced too.
    leaves: HashMap<u32, (TableIndex, char)>,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    /// Its name.
    pub(super) name: TableName,
    /// Its name in SQL.
    pub(super) sql_name: String,
    /// What it is to the graph.
    pub(super) kind: Kind,
    /// The organization's ids of a table of the spine; else empty.
    pub(super) spine: IdSet,
    /// Its columns, in the order in which the source sends them.
    pub(super) columns: Vec<Column>,
    /// The columns of its key.
    pub(super) key: Vec<usize>,
    /// What ties a row to the organization.
    pub(super) tie: Tie,
    /// Whether the source enforces that edge as a foreign key.
    pub(super) tie_enforced: bool,
    /// The columns that hold keys of objects that move, each with its blob store.
    pub(super) blobs: Vec<(usize, StoreName)>,
    /// The tables that it scopes.
    pub(super) children: Vec<Child>,
    /// How many dynamic parents stand above it.
    pub(super) depth: usize,
    /// A condition that holds for the organization's rows, under the alias `t`; written so that
    /// it costs one index look-up per parent for one row.
    pub(super) condition: String,
    /// The kind of the key of a table that scopes others.
    pub(super) key_kind: KeyKind,
    /// The type that its scope column is compared as.
    pub(super) tie_type: String,
    /// What the log tells of its old rows.
    pub(super) telling: Telling,
    /// What reads its rows on the source.
    pub(super) reading: Reading,
    identity: char,
    source_types: Vec<SourceType>,
}

/// A type of the source, and its modifier: a column that was merely widened keeps the type, and its
/// values would be cut short on the sink.
type SourceType = (u32, i32);

/// What a table is to the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The root or a static table.
    Spine,
    /// It scopes others; whether each edge onto it is an enforced foreign key of the source.
    Parent { enforced: bool },
    /// It scopes no other.
    Leaf,
}

/// A column.
#[derive(Debug)]
pub(super) struct Column {
    /// Its name.
    pub(super) name: String,
    /// Its type on the sink, in full.
    pub(super) sink_type: String,
    /// The operator by which two values of it are one key.
    pub(super) equals: String,
    /// What makes a column of another collation comparable with it on the sink, put after that.
    pub(super) collate: String,
    /// Whether it is of the key.
    pub(super) in_key: bool,
    /// Whether the source's log has its old value in every update and delete.
    pub(super) in_identity: bool,
    /// Whether the sink numbers it and takes a given value only on insert.
    pub(super) identity_always: bool,
}

/// What ties a row to the organization.
#[derive(Debug)]
pub(super) enum Tie {
    /// The column holds one of ids that do not change.
    Fixed {
        /// The column.
        column: usize,
        /// The ids.
        ids: IdSet,
    },
    /// The column holds the key of a row of another table of the store.
    Within {
        /// The column.
        column: usize,
        /// The table.
        parent: TableIndex,
    },
}

/// A table scoped by another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    /// The table.
    pub(super) table: TableIndex,
    /// Its column that holds the parent's key.
    pub(super) column: usize,
}

impl Tie {
    /// The column that ties the row.
    pub(super) fn column(&self) -> usize {
        match self {
            Tie::Fixed { column, .. } | Tie::Within { column, .. } => *column,
        }
    }
}

impl Table {
    /// The one column of the key of a table that scopes others.
    pub(super) fn key_column(&self) -> &Column {
        &self.columns[self.key[0]]
    }

    /// Whether it scopes others and its ids may change.
    pub(super) fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }

    /// The columns beside the key that the sink numbers itself, and takes for new rows only.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        let columns = self.columns.iter().enumerate();
        columns
            .filter(|(_, column)| column.identity_always && !column.in_key)
            .map(|(at, _)| at)
    }

    pub(super) fn finding(&self, reason: Reason) -> StreamError {
        Finding::new(&self.name, reason).into()
    }

    /// A table for the tests of what is done with its writes: columns of one type, the first the key.
    #[cfg(test)]
    pub(super) fn of_columns(name: &str, columns: &[&str], kind: Kind, tie: Tie) -> Self {
        let column = |(at, name): (usize, &&str)| Column {
            name: (*name).to_owned(),
            sink_type: "bigint".to_owned(),
            equals: "=".to_owned(),
            collate: String::new(),
            in_key: at == 0,
            in_identity: at == 0,
            identity_always: false,
        };
        Self {
            name: TableName::new("public", name).unwrap_or_else(|error| panic!("{error}")),
            sql_name: name.to_owned(),
            kind,
            spine: IdSet::new(KeyKind::Text),
            columns: columns.iter().enumerate().map(column).collect(),
            key: vec![0],
            tie,
            tie_enforced: true,
            blobs: Vec::new(),
            children: Vec::new(),
            depth: 0,
            condition: String::new(),
            key_kind: KeyKind::Text,
            tie_type: "bigint".to_owned(),
            telling: Telling::KeyAlone,
            reading: Reading::default(),
            identity: 'd',
            source_types: Vec::new(),
        }
    }

    fn check(&self, announced: &Announced<'_>) -> Result<(), StreamError> {
        if announced.identity != self.identity {
            return Err(self.changed("its replica identity"));
        }
        let mut announced = announced.columns.iter();
        for (column, source_type) in self.columns.iter().zip(&self.source_types) {
            match announced.next() {
                Some((name, of)) if *name == column.name && of == source_type => {}
                _ => return Err(self.changed(format!("column {}", column.name))),
            }
        }
        match announced.next() {
            Some((name, _)) => Err(self.changed(format!("column {name}"))),
            None => Ok(()),
        }
    }

    /// A partition may have its columns in an order of its own.
    fn check_leaf(&self, announced: &Announced<'_>, identity: char) -> Result<(), StreamError> {
        let leaf = announced.name;
        if announced.identity != identity {
            return Err(self.changed(format!("the replica identity of {leaf}")));
        }
        let mut columns = self.columns.iter().zip(&self.source_types);
        let lacks = |(column, source_type): &(&Column, &SourceType)| {
            !announced
                .columns
                .contains(&(column.name.as_str(), **source_type))
        };
        match columns.find(lacks) {
            Some((column, _)) => Err(self.changed(format!("column {} of {leaf}", column.name))),
            None if announced.columns.len() != self.columns.len() => {
                Err(self.changed(format!("the columns of {leaf}")))
            }
            None => Ok(()),
        }
    }

    fn changed(&self, detail: impl Into<String>) -> StreamError {
        Finding::with(&self.name, Reason::SchemaChanged, detail).into()
    }
}

/// What the source announces of a table before its first change.
pub(super) struct Announced<'a> {
    /// Its object id.
    pub(super) id: u32,
    /// Its schema.
    pub(super) schema: &'a str,
    /// Its name.
    pub(super) name: &'a str,
    /// Its replica identity as the catalog writes it.
    pub(super) identity: char,
    /// Names of its columns, with their types.
    pub(super) columns: Vec<(&'a str, SourceType)>,
}

impl Tables {
    /// Reads the store's tables from both sides.
    pub(super) async fn load(
        source: &Client,
        sink: &Client,
        job: &Job,
    ) -> Result<Self, StreamError> {
        let (graph, spine, unit) = (&*job.graph, &*job.spine, &job.unit);
        let configured = graph.walk(&unit.store);
        let source_catalog = catalog::load(source, &configured).await?;
        let sink_catalog = catalog::load(sink, &configured).await?;
        let builder = Builder {
            graph,
            spine,
            scope: Scope::new(graph, &unit.store, &unit.org, spine, &sink_catalog)?,
            source_scope: Scope::new(graph, &unit.store, &unit.org, spine, &source_catalog)?,
            index: configured
                .iter()
                .enumerate()
                .map(|(index, table)| (table.name.clone(), index))
                .collect(),
            source: &source_catalog,
            sink: &sink_catalog,
        };
        let mut all: Vec<Table> = Vec::with_capacity(configured.len());
        let mut by_oid = HashMap::new();
        let mut leaves = HashMap::new();
        for (index, table) in configured.iter().enumerate() {
            let built = builder.table(table, &all)?;
            if let Some(relation) = source_catalog.relation(&table.name) {
                by_oid.insert(relation.oid, index);
                leaves.extend(
                    relation
                        .leaves
                        .iter()
                        .map(|leaf| (leaf.oid, (index, identity_letter(&leaf.replica_identity)))),
                );
            }
            all.push(built);
        }
        Ok(Self {
            all,
            by_oid,
            leaves,
        })
    }

    /// Compares what the source announces of a table with what it was at the start.
    pub(super) fn check(&self, announced: &Announced<'_>) -> Result<(), StreamError> {
        let name = TableName::new(announced.schema, announced.name);
        let name = name.map_err(|error| StreamError::Protocol {
            what: error.to_string(),
        })?;
        if let Some(index) = self.by_oid(announced.id) {
            let table = &self.all[index];
            if table.name != name {
                return Err(table.changed("its name"));
            }
            return table.check(announced);
        }
        match self.leaves.get(&announced.id) {
            Some(&(index, identity)) => self.all[index].check_leaf(announced, identity),
            None => {
                let detail = "it was not there at the start: made anew, or attached";
                Err(Finding::with(&name, Reason::SchemaChanged, detail).into())
            }
        }
    }

    /// The table of that object id on the source.
    pub(super) fn by_oid(&self, oid: u32) -> Option<TableIndex> {
        self.by_oid.get(&oid).copied()
    }

    /// Whether children of some parent may come before it.
    pub(super) fn has_loose_edges(&self) -> bool {
        self.all
            .iter()
            .any(|table| table.kind == Kind::Parent { enforced: false })
    }

    /// The tables that scope others and may change their ids, with their place.
    pub(super) fn parents(&self) -> impl Iterator<Item = (TableIndex, &Table)> {
        self.all
            .iter()
            .enumerate()
            .filter(|(_, table)| table.is_parent())
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    spine: &'a Spine,
    /// The scope in the sink's types.
    scope: Scope,
    /// The scope in the source's types.
    source_scope: Scope,
    index: BTreeMap<TableName, TableIndex>,
    source: &'a Catalog,
    sink: &'a Catalog,
}

impl Builder<'_> {
    /// `above` are the tables before it: its parent is among them.
    fn table(&self, table: &Configured, above: &[Table]) -> Result<Table, StreamError> {
        let missing = |side: &str| Finding::with(&table.name, Reason::SchemaChanged, side);
        let source = self
            .source
            .relation(&table.name)
            .ok_or_else(|| missing("it is not on the source"))?;
        let sink = self
            .sink
            .relation(&table.name)
            .ok_or_else(|| missing("it is not on the sink"))?;
        let columns = columns(table, source, sink)?;
        let place = |name: &str| {
            let found = columns.iter().position(|column| column.name == name);
            found.ok_or_else(|| Finding::with(&table.name, Reason::SchemaChanged, name))
        };
        let key: Vec<usize> = table
            .primary_key
            .iter()
            .map(|name| place(name))
            .collect::<Result<_, _>>()?;
        let blobs = key_columns(self.graph, table)
            .map(|(column, store)| Ok((place(column)?, store.clone())))
            .collect::<Result<_, Finding>>()?;
        let term = self.scope.term(&table.name)?;
        let tie = self.tie(term, place(&term.column().name)?);
        let depth = match &tie {
            Tie::Fixed { .. } => 0,
            Tie::Within { parent, .. } => above.get(*parent).map_or(0, |above| above.depth + 1),
        };
        Ok(Table {
            sql_name: qualified(&table.name),
            kind: self.kind(table),
            tie_enforced: self.source.is_held(&table.name),
            spine: self.spine_ids(&table.name),
            key_kind: self.key_kind(table, sink),
            key,
            depth,
            condition: condition(&self.scope, &table.name, "t", 1)?,
            tie_type: term.column().key_type.clone(),
            telling: telling(source, term.column().name.as_str()),
            reading: self.reading(table, source)?,
            blobs,
            children: self.children(table),
            identity: identity_letter(&source.replica_identity),
            source_types: source
                .given_columns()
                .map(|column| (column.type_oid, column.type_modifier))
                .collect(),
            name: table.name.clone(),
            columns,
            tie,
        })
    }

    fn tie(&self, term: &Term, column: usize) -> Tie {
        let kind = KeyKind::of_type(&term.column().key_type);
        let mut ids = IdSet::new(kind);
        match term {
            Term::Equals { id, .. } => {
                ids.insert(id.as_bytes());
            }
            Term::Among { ids: among, .. } => {
                for id in among.iter() {
                    ids.insert(id.as_bytes());
                }
            }
            Term::Within { parent, .. } => {
                let parent = self.index.get(parent).copied().unwrap_or_default();
                return Tie::Within { column, parent };
            }
        }
        Tie::Fixed { column, ids }
    }

    fn spine_ids(&self, table: &TableName) -> IdSet {
        let ids = self.spine.ids(table);
        let mut set = IdSet::new(KeyKind::Text);
        for id in ids.into_iter().flatten() {
            set.insert(id.as_bytes());
        }
        set
    }

    fn key_kind(&self, table: &Configured, sink: &Relation) -> KeyKind {
        let key = table.primary_key.first();
        key.and_then(|key| sink.column(key))
            .map_or(KeyKind::Text, |column| KeyKind::of_type(&column.key_type))
    }

    fn kind(&self, table: &Configured) -> Kind {
        if table.is_static || table.scope == Edge::Root {
            Kind::Spine
        } else if self.graph.has_children(&table.name) {
            let mut children = self.graph.children(&table.name).into_iter();
            let enforced = children.all(|(child, _)| self.source.is_held(&child.name));
            Kind::Parent { enforced }
        } else {
            Kind::Leaf
        }
    }

    /// Those of this store; the children of the spine may live in others and are never taken along.
    fn children(&self, table: &Configured) -> Vec<Child> {
        let children = self.graph.children(&table.name).into_iter();
        children
            .filter_map(|(child, edge)| {
                let relation = self.source.relation(&child.name)?;
                let mut columns = relation.given_columns();
                Some(Child {
                    table: *self.index.get(&child.name)?,
                    column: columns.position(|column| column.name == edge.column)?,
                })
            })
            .collect()
    }

    fn reading(&self, table: &Configured, source: &Relation) -> Result<Reading, StreamError> {
        let column = |column: &catalog::Column| {
            let name = quote_ident(&column.name);
            format!(
                "case when t.{name} is distinct from null then pg_catalog.format('%s', t.{name}) end"
            )
        };
        let columns: Vec<String> = source.given_columns().map(column).collect();
        let comparison = |column: &catalog::Column, type_name: &str| Comparison {
            column: quote_ident(&column.name),
            equals: column.equals.clone(),
            type_name: type_name.to_owned(),
            collate: column.collate(),
        };
        let of_key = |name: &String| {
            let column = source.column(name);
            column
                .map(|column| comparison(column, &column.type_name))
                .ok_or_else(|| Finding::with(&table.name, Reason::SchemaChanged, name).into())
        };
        let tie = self.source_scope.term(&table.name)?.column();
        Ok(Reading {
            columns: columns.join(", "),
            condition: condition(&self.source_scope, &table.name, "t", 1)?,
            tie: comparison(tie, &tie.key_type),
            key: table
                .primary_key
                .iter()
                .map(of_key)
                .collect::<Result<_, StreamError>>()?,
        })
    }
}

/// As [`Scope::predicate`], but correlated: a semi-join inside ON CONFLICT would read the whole
/// parent for one row.
fn condition(
    scope: &Scope,
    table: &TableName,
    alias: &str,
    depth: usize,
) -> Result<String, StreamError> {
    let term = scope.term(table)?;
    let Term::Within {
        column,
        parent,
        parent_key,
    } = term
    else {
        return Ok(format!("{alias}.{}", term.comparison().unwrap_or_default()));
    };
    let inner = format!("p{depth}");
    Ok(format!(
        "exists (select from {} as {inner} where {inner}.{}{} {} {alias}.{} and {})",
        qualified(parent),
        quote_ident(parent_key),
        column.collate(),
        column.equals,
        quote_ident(&column.name),
        condition(scope, parent, &inner, depth + 1)?
    ))
}

fn telling(source: &Relation, scope_column: &str) -> Telling {
    let whole = source
        .given_columns()
        .all(|column| source.identity_covers(&column.name));
    if !source.identity_covers(scope_column) {
        Telling::KeyAlone
    } else if whole {
        Telling::WholeRow
    } else {
        Telling::ScopeColumn
    }
}

/// The columns that the source sends, with what the sink has of them.
fn columns(
    table: &Configured,
    source: &Relation,
    sink: &Relation,
) -> Result<Vec<Column>, StreamError> {
    let column = |given: &catalog::Column| {
        let there = sink
            .column(&given.name)
            .filter(|column| column.generated == Generated::No)
            .ok_or_else(|| {
                let detail = format!("the sink has no column {}", given.name);
                Finding::with(&table.name, Reason::SchemaChanged, detail)
            })?;
        // A cast to a narrower type would cut a value short and say nothing.
        if there.type_name != given.type_name {
            let detail = format!(
                "column {} is {} on the sink and {} on the source",
                given.name, there.type_name, given.type_name
            );
            return Err(Finding::with(&table.name, Reason::SchemaChanged, detail).into());
        }
        Ok(Column {
            name: given.name.clone(),
            sink_type: there.type_name.clone(),
            equals: there.equals.clone(),
            collate: there.collate(),
            in_key: table.primary_key.contains(&given.name),
            in_identity: source.identity_covers(&given.name),
            identity_always: there.identity == Identity::Always,
        })
    };
    source.given_columns().map(column).collect()
}

fn identity_letter(identity: &ReplicaIdentity) -> char {
    match identity {
        ReplicaIdentity::Default => 'd',
        ReplicaIdentity::Full => 'f',
        ReplicaIdentity::Index { .. } => 'i',
        ReplicaIdentity::Nothing => 'n',
    }
}
