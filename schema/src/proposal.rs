//! Chooses what ties each table to the organization.
//!
//! The choice is a shortest path from the root, by what costs an operator most: first columns that
//! may be null, since a row with a null there is nobody's and stays behind; then parents in another
//! store, since they have to be static; then length, since each step is a look-up for every row;
//! then columns that are known by their name alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::fmt;

use monarch_config::{Faults, near_miss};
use monarch_model::{StoreName, TableName};
use serde::Serialize;

use crate::manifest_text;
use crate::references::{Evidence, Reference, Schema, Unusable};
use crate::tables::Database;

/// A manifest for a schema, and what it leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The table whose one row is the organization.
    pub root: TableName,
    /// A store for each database, in their order.
    pub stores: Vec<StoreName>,
    /// What moves, each table below the one that scopes it.
    pub tables: Vec<ProposedTable>,
    /// What does not move, by store and name, and why.
    pub left: Vec<Left>,
}

/// A proposal as it is handed out: it loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    /// What was chosen, and why.
    pub proposal: Proposal,
    /// The text of `manifest.yaml`, its reasons as comments.
    pub text: String,
}

/// A table that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedTable {
    /// Its name.
    pub name: TableName,
    /// Its store.
    pub store: StoreName,
    /// The columns of its key.
    pub primary_key: Vec<String>,
    /// The stores whose tables it scopes from another store: for their sake it is static.
    pub scopes: Vec<StoreName>,
    /// Whether it is static.
    pub is_static: bool,
    /// Its edges, the chosen one first; none for the root.
    pub edges: Vec<ProposedEdge>,
}

/// An edge to a table that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedEdge {
    /// The column of the child.
    pub column: String,
    /// The table whose key it holds.
    pub parent: TableName,
    /// By what that is known.
    pub evidence: Evidence,
    /// Whether the column may be null.
    pub may_be_null: bool,
    /// False for an edge that would be chosen if it were listed, and must not be: its column may be
    /// null, and that of another edge may not.
    pub listed: bool,
}

/// A table that does not move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its name.
    pub name: TableName,
    /// Its store.
    pub store: StoreName,
    /// The columns of its key, if it has one.
    pub primary_key: Option<Vec<String>>,
    /// Why.
    pub because: Because,
}

/// Why a table does not move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "code")]
pub enum Because {
    /// No index tells its rows apart, though this column, if any, leads to the organization.
    NoKey {
        /// The column.
        column: Option<String>,
    },
    /// A table of the same name is in the manifest already.
    NameTaken {
        /// The store of that one.
        store: StoreName,
    },
    /// It references a table that moves, by several columns: an edge has one.
    Composite {
        /// The foreign key.
        constraint: String,
        /// The table.
        parent: TableName,
    },
    /// It references a table that moves by something else than its key.
    NotTheKey {
        /// The foreign key.
        constraint: String,
        /// The table.
        parent: TableName,
    },
    /// A column's name may mean several tables.
    Ambiguous {
        /// The column.
        column: String,
        /// The tables.
        among: Vec<TableName>,
    },
    /// The tables that it references do not move.
    ParentsStay {
        /// The tables.
        parents: Vec<TableName>,
    },
    /// It references nothing. Tables that move may reference it all the same.
    References {
        /// These.
        referenced_by: Vec<TableName>,
    },
}

/// There is no manifest to propose.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    /// No database has the root.
    #[error("no database has a table {root}{}", meant(.near.as_ref()))]
    NoRoot {
        /// The root.
        root: TableName,
        /// What may have been meant.
        near: Option<String>,
    },
    /// More than one database has it.
    #[error("the root {root} is in several databases: {}", list(.stores))]
    RootInSeveral {
        /// The root.
        root: TableName,
        /// Their stores.
        stores: Vec<StoreName>,
    },
    /// The root cannot be told by one column.
    #[error(
        "the root {root} has no key of one column: a primary key, or a unique index that is whole \
         and immediate over a column that is not null"
    )]
    RootKey {
        /// The root.
        root: TableName,
    },
    /// What was proposed would not load. It is a fault of ours.
    #[error("what was proposed does not load:\n{0}")]
    DoesNotLoad(Faults),
}

fn meant(near: Option<&String>) -> String {
    near.map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}

fn list<T: fmt::Display>(names: &[T]) -> String {
    const NAMED: usize = 5;
    let mut told: Vec<String> = names.iter().take(NAMED).map(T::to_string).collect();
    if names.len() > NAMED {
        told.push(format!("and {} more", names.len() - NAMED));
    }
    told.join(", ")
}

impl Because {
    /// Whether something in the table points at the organization all the same.
    pub fn may_be_the_organizations(&self) -> bool {
        match self {
            Self::NoKey { column } => column.is_some(),
            Self::Composite { .. } | Self::NotTheKey { .. } | Self::Ambiguous { .. } => true,
            Self::NameTaken { .. } | Self::ParentsStay { .. } | Self::References { .. } => false,
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey { column: None } => write!(f, "no unique index tells its rows apart"),
            Self::NoKey {
                column: Some(column),
            } => write!(
                f,
                "it is the organization's by {column}, and no unique index tells its rows apart: \
                 give it a primary key, or its rows stay behind"
            ),
            Self::NameTaken { store } => {
                write!(
                    f,
                    "the table of that name in store {store} is the one in the manifest"
                )
            }
            Self::Composite { constraint, parent } => write!(
                f,
                "foreign key {constraint} to {parent} has several columns, and an edge has one"
            ),
            Self::NotTheKey { constraint, parent } => write!(
                f,
                "foreign key {constraint} does not reference the key by which rows of {parent} are \
                 told apart"
            ),
            Self::Ambiguous { column, among } => {
                write!(f, "{column} may mean any of {}", list(among))
            }
            Self::ParentsStay { parents } => {
                write!(f, "what it references does not move: {}", list(parents))
            }
            Self::References { referenced_by } if referenced_by.is_empty() => {
                write!(f, "it references nothing that moves")
            }
            Self::References { referenced_by } => write!(
                f,
                "it references nothing that moves, and is referenced by {}: the other cell needs \
                 the same rows",
                list(referenced_by)
            ),
        }
    }
}

/// Proposes a manifest for `databases`, whose organizations are the rows of `root`. The tables of a
/// database are put into its first store.
///
/// # Errors
/// When there is no such root.
pub fn propose(databases: &[Database], root: &TableName) -> Result<Proposed, ProposalError> {
    let schema = Schema::of(databases, |_, _| None);
    let root = find_root(&schema, root)?;
    let mut choice = Choice::new(&schema, root);
    choice.settle();
    choice.fix_spine();
    choice.prefer_spine();
    let proposal = choice.proposal(databases);
    let text = manifest_text::write(&proposal);
    monarch_config::manifest_from_str("the proposal", &text).map_err(ProposalError::DoesNotLoad)?;
    Ok(Proposed { proposal, text })
}

fn find_root(schema: &Schema<'_>, root: &TableName) -> Result<usize, ProposalError> {
    let all = 0..schema.tables.len();
    let found: Vec<usize> = all.clone().filter(|&at| schema.name(at) == root).collect();
    let root = root.clone();
    match *found {
        [] => {
            let near = near_miss(root.as_str(), all.map(|at| schema.name(at).as_str()));
            Err(ProposalError::NoRoot { root, near })
        }
        [at] if schema.keys[at].is_some_and(|key| key.len() == 1) => Ok(at),
        [_] => Err(ProposalError::RootKey { root }),
        _ => {
            let stores = found.iter().map(|&at| schema.store(at).clone()).collect();
            Err(ProposalError::RootInSeveral { root, stores })
        }
    }
}

/// What a path from the root costs, the worst first: columns that may be null, parents in another
/// store that are not the root, edges, columns known by name.
type Cost = [u32; 4];

/// What is chosen for each table.
struct Choice<'s, 'a> {
    schema: &'s Schema<'a>,
    root: usize,
    references: Vec<Vec<Reference>>,
    unusable: Vec<Vec<Unusable>>,
    /// Of each table that leads to the root: the chosen of its references; none for the root.
    chosen: HashMap<usize, Option<usize>>,
    /// The table that has a name in the manifest.
    named: HashMap<&'a TableName, usize>,
    /// The root and the static tables.
    spine: HashSet<usize>,
}

impl<'s, 'a> Choice<'s, 'a> {
    fn new(schema: &'s Schema<'a>, root: usize) -> Self {
        let all = 0..schema.tables.len();
        let (references, unusable) = all.map(|at| schema.references(at)).unzip();
        Self {
            schema,
            root,
            references,
            unusable,
            chosen: HashMap::new(),
            named: HashMap::new(),
            spine: HashSet::from([root]),
        }
    }

    /// The cheapest path for each table, by Dijkstra's algorithm.
    fn settle(&mut self) {
        let mut children: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.schema.tables.len()];
        for (child, references) in self.references.iter().enumerate() {
            for (at, reference) in references.iter().enumerate() {
                children[reference.parent].push((child, at));
            }
        }
        let mut open: BinaryHeap<Reverse<(Cost, usize, Option<usize>)>> = BinaryHeap::new();
        open.push(Reverse(([0; 4], self.root, None)));
        while let Some(Reverse((cost, table, by))) = open.pop() {
            if self.chosen.contains_key(&table) || !self.takes_name(table) {
                continue;
            }
            self.chosen.insert(table, by);
            for &(child, at) in &children[table] {
                if !self.chosen.contains_key(&child) {
                    let cost = self.cost_of(cost, child, at);
                    open.push(Reverse((cost, child, Some(at))));
                }
            }
        }
    }

    /// Whether the table's name is its own in the manifest, which it is from here on if it was free.
    fn takes_name(&mut self, table: usize) -> bool {
        let name = self.schema.name(table);
        *self.named.entry(name).or_insert(table) == table
    }

    fn cost_of(&self, [nulls, crossings, edges, names]: Cost, child: usize, at: usize) -> Cost {
        let reference = &self.references[child][at];
        let parent = reference.parent;
        let crosses = parent != self.root && self.schema.store(parent) != self.schema.store(child);
        [
            nulls + u32::from(reference.may_be_null),
            crossings + u32::from(crosses),
            edges + 1,
            names + u32::from(reference.evidence == Evidence::Name),
        ]
    }

    fn chosen_parent(&self, table: usize) -> Option<usize> {
        let at = (*self.chosen.get(&table)?)?;
        Some(self.references[table][at].parent)
    }

    /// Who scopes a table of another store is static, and so is whoever scopes it.
    fn fix_spine(&mut self) {
        for &table in self.chosen.keys() {
            let Some(parent) = self.chosen_parent(table) else {
                continue;
            };
            if self.schema.store(parent) != self.schema.store(table) {
                let mut at = Some(parent);
                while let Some(fixed) = at.filter(|&fixed| self.spine.insert(fixed)) {
                    at = self.chosen_parent(fixed);
                }
            }
        }
    }

    /// An edge to the spine is chosen wherever it is listed; so where there is one that cannot be
    /// null, it is the choice.
    fn prefer_spine(&mut self) {
        for (&table, chosen) in &mut self.chosen {
            let references = &self.references[table];
            let to_spine = |reference: &Reference| {
                reference.parent != table && self.spine.contains(&reference.parent)
            };
            if let Some(at) = *chosen
                && !to_spine(&references[at])
                && let Some(other) = references
                    .iter()
                    .position(|reference| to_spine(reference) && !reference.may_be_null)
            {
                *chosen = Some(other);
            }
        }
    }

    fn moves(&self, table: usize) -> bool {
        self.chosen.contains_key(&table) && self.schema.keys[table].is_some()
    }

    fn proposal(&self, databases: &[Database]) -> Proposal {
        let left = (0..self.schema.tables.len()).filter(|&table| !self.moves(table));
        Proposal {
            root: self.schema.name(self.root).clone(),
            stores: databases
                .iter()
                .filter_map(|one| one.stores.first().cloned())
                .collect(),
            tables: self.walk().into_iter().map(|at| self.table(at)).collect(),
            left: left.map(|table| self.left(table)).collect(),
        }
    }

    /// The tables that move, each followed by those that it scopes.
    fn walk(&self) -> Vec<usize> {
        let mut below: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for table in (0..self.schema.tables.len()).rev() {
            if self.moves(table)
                && let Some(parent) = self.chosen_parent(table)
            {
                below.entry(parent).or_default().push(table);
            }
        }
        let (mut walk, mut open) = (Vec::new(), vec![self.root]);
        while let Some(table) = open.pop() {
            walk.push(table);
            open.extend(below.remove(&table).unwrap_or_default());
        }
        walk
    }

    fn table(&self, at: usize) -> ProposedTable {
        let scoped = |&child: &usize| self.chosen_parent(child) == Some(at);
        let elsewhere = |&child: &usize| self.schema.store(child) != self.schema.store(at);
        let mut scopes: Vec<StoreName> = match at == self.root {
            true => Vec::new(),
            false => self
                .chosen
                .keys()
                .filter(|child| scoped(child) && elsewhere(child))
                .map(|&child| self.schema.store(child).clone())
                .collect(),
        };
        scopes.sort_unstable();
        scopes.dedup();
        ProposedTable {
            name: self.schema.name(at).clone(),
            store: self.schema.store(at).clone(),
            primary_key: self.schema.keys[at].unwrap_or_default().to_vec(),
            scopes,
            is_static: at != self.root && self.spine.contains(&at),
            edges: self.edges(at),
        }
    }

    fn edges(&self, table: usize) -> Vec<ProposedEdge> {
        let Some(Some(chosen)) = self.chosen.get(&table) else {
            return Vec::new();
        };
        let references = &self.references[table];
        let by_spine = self.spine.contains(&references[*chosen].parent);
        let edge = |reference: &Reference| ProposedEdge {
            column: reference.column.clone(),
            parent: self.schema.name(reference.parent).clone(),
            evidence: reference.evidence.clone(),
            may_be_null: reference.may_be_null,
            listed: by_spine
                || reference.parent == table
                || !self.spine.contains(&reference.parent),
        };
        let others = references
            .iter()
            .enumerate()
            .filter(|(at, reference)| at != chosen && self.moves(reference.parent));
        let first = edge(&references[*chosen]);
        let others = others.map(|(_, reference)| edge(reference));
        std::iter::once(first).chain(others).collect()
    }

    fn left(&self, table: usize) -> Left {
        Left {
            name: self.schema.name(table).clone(),
            store: self.schema.store(table).clone(),
            primary_key: self.schema.keys[table].map(<[String]>::to_vec),
            because: self.because(table),
        }
    }

    fn because(&self, table: usize) -> Because {
        let name = |at: &usize| self.schema.name(*at).clone();
        if let Some(by) = self.chosen.get(&table) {
            let column = by.map(|at| self.references[table][at].column.clone());
            return Because::NoKey { column };
        }
        let name_of = self.named.get(self.schema.name(table));
        if let Some(&other) = name_of.filter(|other| **other != table) {
            let store = self.schema.store(other).clone();
            return Because::NameTaken { store };
        }
        if let Some(unusable) = self.unusable[table].iter().find_map(|it| self.nearly(it)) {
            return unusable;
        }
        let parents: Vec<TableName> = self.references[table]
            .iter()
            .filter(|reference| reference.parent != table)
            .map(|reference| name(&reference.parent))
            .collect();
        if !parents.is_empty() {
            return Because::ParentsStay { parents };
        }
        let references = |at: &usize| {
            let references = &self.references[*at];
            self.moves(*at) && references.iter().any(|one| one.parent == table)
        };
        let all = 0..self.schema.tables.len();
        let referenced_by = all.filter(references).map(|at| name(&at)).collect();
        Because::References { referenced_by }
    }

    /// The reason, if what looks like a reference leads to a table that moves.
    fn nearly(&self, unusable: &Unusable) -> Option<Because> {
        let name = |at: &usize| self.schema.name(*at).clone();
        match unusable {
            Unusable::Composite { constraint, parent } if self.moves(*parent) => {
                Some(Because::Composite {
                    constraint: constraint.clone(),
                    parent: name(parent),
                })
            }
            Unusable::NotTheKey { constraint, parent } if self.moves(*parent) => {
                Some(Because::NotTheKey {
                    constraint: constraint.clone(),
                    parent: name(parent),
                })
            }
            Unusable::Ambiguous { column, among } if among.iter().any(|&at| self.moves(at)) => {
                Some(Because::Ambiguous {
                    column: column.clone(),
                    among: among.iter().map(name).collect(),
                })
            }
            Unusable::Composite { .. }
            | Unusable::NotTheKey { .. }
            | Unusable::Ambiguous { .. } => None,
        }
    }
}
