//! Which rows of a store are the organization's, as SQL.
//!
//! The text runs in the store's own database and needs nothing from another: static parents are
//! told by the ids that the move recorded, dynamic ones by a semi-join down the chain. So the same
//! predicate selects the organization on the source, on a half-copied sink, and in a row filter,
//! and no list of ids ever travels but the recorded one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use monarch_config::{Graph, Scope as Edge, Table};
use monarch_model::{OrgId, StoreName, TableName};

use crate::catalog::{Catalog, Column};
use crate::spine::Spine;
use crate::sql::{array_literal, qualified, quote_ident, quote_literal};

/// The scope of every moved table of one store.
#[derive(Debug, Clone)]
pub struct Scope {
    terms: BTreeMap<TableName, Term>,
}

/// What ties a row of a table to the organization.
#[derive(Clone)]
pub enum Term {
    /// The column holds the organization's key: the root's own key, or an edge to the root.
    Equals {
        /// The column.
        column: Column,
        /// The organization's key.
        id: String,
    },
    /// The column holds one of the recorded ids of a static table.
    Among {
        /// The column.
        column: Column,
        /// The static table's ids in the organization.
        ids: Arc<BTreeSet<String>>,
    },
    /// The column holds the key of a row of the organization in another table of the store.
    Within {
        /// The column.
        column: Column,
        /// The parent.
        parent: TableName,
        /// The parent's key column.
        parent_key: String,
    },
}

impl std::fmt::Debug for Term {
    /// Ids are row values: they are counted, not printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Term::Equals { column, .. } => write!(f, "{} = the organization", column.name),
            Term::Among { column, ids } => write!(f, "{} among {} ids", column.name, ids.len()),
            Term::Within { column, parent, .. } => write!(f, "{} within {parent}", column.name),
        }
    }
}

/// The scope of a store cannot be put into SQL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The database lacks a table of the store.
    #[error("scope {table}: the database has no such table")]
    MissingTable {
        /// The table.
        table: TableName,
    },
    /// The database lacks a column that scopes a table, or a parent's key.
    #[error("scope {table}: it has no column {column}")]
    MissingColumn {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
    },
    /// The ids of a static table that scopes another were not recorded.
    #[error("scope by {table}: the ids of this static table are not in the recorded spine")]
    NotInSpine {
        /// The static table.
        table: TableName,
    },
    /// The table does not move with this store.
    #[error("scope {table}: it does not move with this store")]
    NotInStore {
        /// The table.
        table: TableName,
    },
}

impl Scope {
    /// The scope of the tables of `store` that move. `catalog` is what a database of the store
    /// says of them; it gives the types that ids are cast to.
    pub fn new(
        graph: &Graph,
        store: &StoreName,
        org: &OrgId,
        spine: &Spine,
        catalog: &Catalog,
    ) -> Result<Self, ScopeError> {
        Self::of(&graph.walk(store), graph, org, spine, catalog)
    }

    /// The scope of some tables of one store. The dynamic parents of each must be among them.
    pub(crate) fn of(
        tables: &[&Table],
        graph: &Graph,
        org: &OrgId,
        spine: &Spine,
        catalog: &Catalog,
    ) -> Result<Self, ScopeError> {
        let mut builder = Builder {
            graph,
            org: spine.ids(&graph.root().name).and_then(|ids| ids.first()),
            given: org,
            spine,
            catalog,
            statics: BTreeMap::new(),
        };
        let mut terms = BTreeMap::new();
        for table in tables {
            terms.insert(table.name.clone(), builder.term(table)?);
        }
        Ok(Self { terms })
    }

    /// What ties a row of `table` to the organization.
    pub fn term(&self, table: &TableName) -> Result<&Term, ScopeError> {
        self.terms.get(table).ok_or_else(|| ScopeError::NotInStore {
            table: table.clone(),
        })
    }

    /// A condition that holds for the organization's rows of `table`, and for no other row, where
    /// `alias` is what the statement calls the table.
    pub fn predicate(&self, table: &TableName, alias: &str) -> Result<String, ScopeError> {
        self.condition(table, &quote_ident(alias), 1)
    }

    fn condition(
        &self,
        table: &TableName,
        alias: &str,
        depth: usize,
    ) -> Result<String, ScopeError> {
        let term = self.term(table)?;
        let Term::Within {
            column,
            parent,
            parent_key,
        } = term
        else {
            return Ok(format!("{alias}.{}", term.comparison().unwrap_or_default()));
        };
        let inner = format!("parent_{depth}");
        Ok(format!(
            "{alias}.{} {} any (select {inner}.{}{} from {} as {inner} where {})",
            quote_ident(&column.name),
            column.equals,
            quote_ident(parent_key),
            column.collate(),
            qualified(parent),
            self.condition(parent, &inner, depth + 1)?
        ))
    }
}

impl Term {
    /// The column that is looked at.
    pub fn column(&self) -> &Column {
        match self {
            Term::Equals { column, .. }
            | Term::Among { column, .. }
            | Term::Within { column, .. } => column,
        }
    }

    /// The condition without an alias, for terms that need no other table.
    pub fn comparison(&self) -> Option<String> {
        match self {
            Term::Equals { column, id } => Some(format!(
                "{} {} {}::{}",
                quote_ident(&column.name),
                column.equals,
                quote_literal(id),
                column.key_type
            )),
            Term::Among { column, ids } => Some(format!(
                "{} {} any({}::{}[])",
                quote_ident(&column.name),
                column.equals,
                array_literal(ids.iter()),
                column.key_type
            )),
            Term::Within { .. } => None,
        }
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    /// The organization's key as Postgres prints it, if the spine was read.
    org: Option<&'a String>,
    given: &'a OrgId,
    spine: &'a Spine,
    catalog: &'a Catalog,
    /// One copy of each static table's ids, however many tables they scope.
    statics: BTreeMap<TableName, Arc<BTreeSet<String>>>,
}

impl Builder<'_> {
    fn term(&mut self, table: &Table) -> Result<Term, ScopeError> {
        match &table.scope {
            Edge::Root => self.equals(table, key_of(table)),
            Edge::ByRoot { column } => self.equals(table, column),
            Edge::ByStatic { column, parent } => Ok(Term::Among {
                column: self.column(table, column)?,
                ids: self.static_ids(parent)?,
            }),
            Edge::ByDynamic { column, parent } => self.within(table, column, parent),
            Edge::Unscoped => Err(ScopeError::NotInStore {
                table: table.name.clone(),
            }),
        }
    }

    fn equals(&self, table: &Table, column: &str) -> Result<Term, ScopeError> {
        let id = self.org.map_or(self.given.as_str(), String::as_str);
        Ok(Term::Equals {
            column: self.column(table, column)?,
            id: id.to_owned(),
        })
    }

    fn within(&self, table: &Table, column: &str, parent: &TableName) -> Result<Term, ScopeError> {
        let parent = self
            .graph
            .table(parent)
            .ok_or_else(|| ScopeError::NotInStore {
                table: parent.clone(),
            })?;
        let key = self.column(parent, key_of(parent))?;
        Ok(Term::Within {
            column: self.column(table, column)?,
            parent: parent.name.clone(),
            parent_key: key.name,
        })
    }

    fn static_ids(&mut self, parent: &TableName) -> Result<Arc<BTreeSet<String>>, ScopeError> {
        if let Some(ids) = self.statics.get(parent) {
            return Ok(Arc::clone(ids));
        }
        let ids = self
            .spine
            .ids(parent)
            .ok_or_else(|| ScopeError::NotInSpine {
                table: parent.clone(),
            })?;
        let ids = Arc::new(ids.clone());
        self.statics.insert(parent.clone(), Arc::clone(&ids));
        Ok(ids)
    }

    fn column(&self, table: &Table, column: &str) -> Result<Column, ScopeError> {
        let relation =
            self.catalog
                .relation(&table.name)
                .ok_or_else(|| ScopeError::MissingTable {
                    table: table.name.clone(),
                })?;
        relation
            .column(column)
            .cloned()
            .ok_or_else(|| ScopeError::MissingColumn {
                table: table.name.clone(),
                column: column.to_owned(),
            })
    }
}

/// A checked graph gives one key column to the root and to every parent.
fn key_of(table: &Table) -> &str {
    table.primary_key.first().map_or("", String::as_str)
}
