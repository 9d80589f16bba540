//! The checked graph: which tables move, in which order, and by which edge each is scoped.
//!
//! A [`Graph`] only comes out of [`crate::manifest_from_str`] or [`crate::load`], so whoever
//! holds one need not ask again: every chosen edge leads to the root, a dynamic one stays in its
//! store, and every parent has one key column.

use std::collections::{BTreeMap, HashMap};

use monarch_model::{StoreName, TableName};

/// What the manifest says, checked.
#[derive(Debug, Clone)]
pub struct Graph {
    /// In the order of the manifest.
    tables: Vec<Table>,
    by_name: HashMap<TableName, usize>,
    /// In the order of the manifest.
    stores: Vec<Store>,
    root: usize,
    /// The tables that move, parents first; tables as far from the root in the manifest's order.
    walk: Vec<usize>,
    /// For each table that is a parent: the tables that move and are scoped by it, in walk order.
    children: BTreeMap<usize, Vec<usize>>,
}

/// A logical group of tables, or a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Its name under `stores`.
    pub name: StoreName,
    /// What holds it.
    pub kind: StoreKind,
    /// Whether its tables or objects move.
    pub migrate: bool,
}

/// What holds a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Tables in a Postgres database.
    Postgres,
    /// Objects in a bucket.
    Blob {
        /// What eviction does with the organization's objects.
        eviction: Eviction,
        /// What a key means whose object is not on the source.
        missing: Missing,
    },
}

/// What eviction does with the objects of a blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The organization's objects are deleted, key by key.
    Delete,
    /// Nothing is touched: a key may be shared with another organization.
    Keep,
}

/// What a row's key means for the cut-over when the source has no object of that key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// The move does not cut over while there is such a key.
    #[default]
    Block,
    /// The row arrives without its object, as it stood on the source; the key is reported.
    Accept,
}

/// A table of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// The Postgres store that it lives in.
    pub store: StoreName,
    /// The columns of its key, in the manifest's order; at least one. Exactly one for the root,
    /// a static table, and a table that scopes another.
    pub primary_key: Vec<String>,
    /// Whether its ids in the organization may not change during a move. False for the root,
    /// which is of the spine whether the manifest says so or not.
    pub is_static: bool,
    /// Its edges to parents, in the manifest's order; each column once.
    pub edges: Vec<Edge>,
    /// The edge chosen among them.
    pub scope: Scope,
    /// The columns that hold keys into a blob store, in the manifest's order.
    pub blobs: Vec<BlobRef>,
    /// The number of the outbox category by which the cell tells control of its rows, if it does.
    /// Its key then has one column.
    pub outbox: Option<i32>,
}

/// A column that references a parent's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The column of the child.
    pub column: String,
    /// The table whose key it holds.
    pub parent: TableName,
}

/// A column that holds keys into a blob store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRef {
    /// The column.
    pub column: String,
    /// The blob store.
    pub store: StoreName,
}

/// What ties a row of a table to the organization. A null in the column means that the row is not
/// the organization's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The table is the root: its row is the organization.
    Root,
    /// The column holds the root's key.
    ByRoot {
        /// The column.
        column: String,
    },
    /// The column holds the key of a static table, which may live in another store.
    ByStatic {
        /// The column.
        column: String,
        /// The static table.
        parent: TableName,
    },
    /// The column holds the key of a table of the same store whose ids may change during a move.
    ByDynamic {
        /// The column.
        column: String,
        /// The parent.
        parent: TableName,
    },
    /// No edge leads from the table: it does not move.
    Unscoped,
}

impl Scope {
    /// The column that ties a row to its parent, if the table has one.
    pub fn column(&self) -> Option<&str> {
        match self {
            Scope::ByRoot { column }
            | Scope::ByStatic { column, .. }
            | Scope::ByDynamic { column, .. } => Some(column),
            Scope::Root | Scope::Unscoped => None,
        }
    }
}

impl Store {
    /// Whether it is a Postgres store that moves, and so has a unit in every move.
    pub fn has_unit(&self) -> bool {
        self.migrate && self.kind == StoreKind::Postgres
    }

    /// Whether it is a blob store.
    pub fn is_blob(&self) -> bool {
        matches!(self.kind, StoreKind::Blob { .. })
    }
}

impl Table {
    /// The edge that scopes the table; none for the root and for a table that does not move.
    pub fn scope_edge(&self) -> Option<&Edge> {
        let column = self.scope.column()?;
        self.edges.iter().find(|edge| edge.column == column)
    }
}

impl Graph {
    /// `walk` holds the indexes of the tables that move, parents first.
    pub(crate) fn new(
        tables: Vec<Table>,
        stores: Vec<Store>,
        root: usize,
        walk: Vec<usize>,
    ) -> Self {
        let by_name: HashMap<TableName, usize> = tables
            .iter()
            .enumerate()
            .map(|(index, table)| (table.name.clone(), index))
            .collect();
        let mut children: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &index in &walk {
            let parent = tables[index].scope_edge().map(|edge| &edge.parent);
            if let Some(&parent) = parent.and_then(|parent| by_name.get(parent)) {
                children.entry(parent).or_default().push(index);
            }
        }
        Self {
            tables,
            by_name,
            stores,
            root,
            walk,
            children,
        }
    }

    /// The table whose one row is the organization.
    pub fn root(&self) -> &Table {
        &self.tables[self.root]
    }

    /// The table of that name.
    pub fn table(&self, name: &TableName) -> Option<&Table> {
        self.by_name.get(name).map(|&index| &self.tables[index])
    }

    /// Every table, moved or not, in the order of the manifest.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    /// Every store, in the order of the manifest.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.stores.iter()
    }

    /// The store of that name.
    pub fn store(&self, name: &StoreName) -> Option<&Store> {
        self.stores.iter().find(|store| store.name == *name)
    }

    /// The blob stores whose objects move, in the order of the manifest.
    pub fn moving_blobs(&self) -> impl Iterator<Item = &Store> {
        self.stores()
            .filter(|store| store.is_blob() && store.migrate)
    }

    /// The tables of `store` that move, parents first, always in the same order. Empty for a
    /// store that is not migrated, not Postgres, or not there.
    pub fn walk(&self, store: &StoreName) -> Vec<&Table> {
        self.moving()
            .filter(|table| table.store == *store)
            .collect()
    }

    /// The root and the static tables, of all stores, parents first: the root comes first.
    pub fn spine(&self) -> Vec<&Table> {
        self.moving()
            .filter(|table| table.is_static || table.scope == Scope::Root)
            .collect()
    }

    /// The tables that move and are scoped by `parent`, each with the edge that does so, in walk
    /// order. Those of a root or static parent may live in other stores.
    pub fn children(&self, parent: &TableName) -> Vec<(&Table, &Edge)> {
        self.child_indexes(parent)
            .iter()
            .map(|&index| &self.tables[index])
            .filter_map(|table| Some((table, table.scope_edge()?)))
            .collect()
    }

    /// Whether any table that moves is scoped by `parent`.
    pub fn has_children(&self, parent: &TableName) -> bool {
        !self.child_indexes(parent).is_empty()
    }

    /// The table that scopes `table`; none for the root and for a table that does not move.
    pub fn parent(&self, table: &Table) -> Option<&Table> {
        self.table(&table.scope_edge()?.parent)
    }

    /// Whether rows of `table` move: it has a scope, and its store is migrated.
    pub fn moves(&self, table: &Table) -> bool {
        table.scope != Scope::Unscoped
            && self.store(&table.store).is_some_and(|store| store.migrate)
    }

    /// The tables without any scope edge, in the order of the manifest: they do not move, and
    /// nobody may believe that they do.
    pub fn unmoved(&self) -> Vec<&TableName> {
        self.tables
            .iter()
            .filter(|table| table.scope == Scope::Unscoped)
            .map(|table| &table.name)
            .collect()
    }

    fn moving(&self) -> impl Iterator<Item = &Table> {
        self.walk.iter().map(|&index| &self.tables[index])
    }

    fn child_indexes(&self, parent: &TableName) -> &[usize] {
        self.by_name
            .get(parent)
            .and_then(|index| self.children.get(index))
            .map_or(&[], Vec::as_slice)
    }
}
