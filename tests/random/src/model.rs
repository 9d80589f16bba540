//! What the generator knows of the source's rows: enough to roll changes that the source accepts, and
//! to say which changes a move may fail of, and under which name.
//!
//! It knows nothing of how a mover decides. A row is the organization's if the walk up its scope
//! columns ends at the organization's own row; that is all.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{Role, Schema};

/// A row's key, as numbers.
pub type Key = Vec<u32>;

/// What is known of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its scope column; none if it is null, or the table is the root.
    pub tie: Option<u32>,
    /// Its label.
    pub label: u32,
    /// Whether its body is stored out of line.
    pub large: bool,
    /// What its other columns are made from.
    pub version: u32,
}

/// What is to become of a row's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// It is null.
    Null,
    /// A short text.
    Short,
    /// A text that is stored out of line.
    Large,
}

/// A change of one row's columns.
#[derive(Debug, Clone, Default)]
pub struct Set {
    /// Its key; the scope column in it included.
    pub key: Option<Key>,
    /// Its scope column.
    pub tie: Option<Option<u32>>,
    /// Its label.
    pub label: Option<u32>,
    /// Its body.
    pub body: Option<Body>,
    /// Its other columns.
    pub version: Option<u32>,
}

/// What a statement does.
#[derive(Debug, Clone)]
pub enum Op {
    /// Inserts rows.
    Insert {
        /// The table.
        table: usize,
        /// The rows.
        rows: Vec<(Key, Row)>,
    },
    /// Changes a row.
    Update {
        /// The table.
        table: usize,
        /// The row.
        key: Key,
        /// How.
        set: Set,
    },
    /// Exchanges the labels of two rows.
    Swap {
        /// The table.
        table: usize,
        /// The rows.
        keys: [Key; 2],
        /// Their labels.
        labels: [u32; 2],
    },
    /// Changes a column of each row of each tenant.
    UpdateAll {
        /// The table.
        table: usize,
        /// What it is made from.
        version: u32,
    },
    /// Deletes a row.
    Delete {
        /// The table.
        table: usize,
        /// The row.
        key: Key,
    },
    /// Empties a table.
    Truncate {
        /// The table.
        table: usize,
    },
    /// Changes that are rolled back to a savepoint.
    Undone(Vec<Op>),
}

/// Why a move may fail, in the words of the stream.
pub type Causes = BTreeSet<&'static str>;

/// The rows of the source.
#[derive(Debug, Clone)]
pub struct State {
    /// Each table's rows.
    pub tables: Vec<BTreeMap<Key, Row>>,
    /// The organization's key.
    org: u32,
}

impl State {
    /// No rows yet.
    #[must_use]
    pub fn new(schema: &Schema, org: u32) -> Self {
        Self {
            tables: vec![BTreeMap::new(); schema.tables.len()],
            org,
        }
    }

    /// Whether a row of `table` is the organization's.
    #[must_use]
    pub fn is_ours(&self, schema: &Schema, table: usize, key: &[u32], tie: Option<u32>) -> bool {
        let Some(edge) = &schema.tables[table].edge else {
            return key == [self.org];
        };
        let Some(parent) = tie else {
            return false;
        };
        let key = vec![parent];
        match self.tables[edge.parent].get(&key) {
            Some(row) => self.is_ours(schema, edge.parent, &key, row.tie),
            None => false,
        }
    }

    /// Each row of the organization, by table.
    #[must_use]
    pub fn ours(&self, schema: &Schema) -> Vec<BTreeSet<Key>> {
        let of = |(at, rows): (usize, &BTreeMap<Key, Row>)| {
            let ours = rows
                .iter()
                .filter(|(key, row)| self.is_ours(schema, at, key, row.tie));
            ours.map(|(key, _)| key.clone()).collect()
        };
        self.tables.iter().enumerate().map(of).collect()
    }

    /// What a transaction that commits does, and of what a move may fail.
    pub fn commit(&mut self, schema: &Schema, ops: &[Op]) -> Causes {
        let mut causes = Causes::new();
        for op in ops {
            causes.extend(self.apply(schema, op));
        }
        causes
    }

    /// What a statement does, cascades included.
    pub fn apply(&mut self, schema: &Schema, op: &Op) -> Causes {
        let mut causes = Causes::new();
        match op {
            Op::Insert { table, rows } => {
                for (key, row) in rows {
                    self.insert(schema, *table, key, *row, &mut causes);
                }
            }
            Op::Update { table, key, set } => self.update(schema, *table, key, set, &mut causes),
            Op::Swap {
                table,
                keys,
                labels,
            } => {
                for (key, label) in keys.iter().zip(labels.iter().rev()) {
                    if let Some(row) = self.tables[*table].get_mut(key) {
                        row.label = *label;
                    }
                }
            }
            Op::UpdateAll { table, version } => {
                for row in self.tables[*table].values_mut() {
                    row.version = *version;
                }
            }
            Op::Delete { table, key } => self.delete(schema, *table, key, &mut causes),
            Op::Truncate { table } => {
                self.tables[*table].clear();
                causes.insert("truncated");
            }
            Op::Undone(_) => {}
        }
        causes
    }

    fn insert(&mut self, schema: &Schema, table: usize, key: &Key, row: Row, causes: &mut Causes) {
        let ours = self.is_ours(schema, table, key, row.tie);
        let role = schema.tables[table].role;
        if ours && matches!(role, Role::Root | Role::Static) {
            causes.insert("static-spine-changed");
        }
        self.tables[table].insert(key.clone(), row);
    }

    fn update(&mut self, schema: &Schema, table: usize, key: &Key, set: &Set, causes: &mut Causes) {
        let Some(row) = self.tables[table].get(key).copied() else {
            return;
        };
        let new_key = set.key.clone().unwrap_or_else(|| key.clone());
        let new = Row {
            tie: set.tie.unwrap_or(row.tie),
            label: set.label.unwrap_or(row.label),
            large: set.body.map_or(row.large, |body| body == Body::Large),
            version: set.version.unwrap_or(row.version),
        };
        let was = self.is_ours(schema, table, key, row.tie);
        let is = self.is_ours(schema, table, &new_key, new.tie);
        let rekeyed = new_key != *key;
        let of = &schema.tables[table];
        let spine = matches!(of.role, Role::Root | Role::Static);
        if spine && (was || is) && (rekeyed || was != is) {
            causes.insert("static-spine-changed");
        }
        self.tables[table].remove(key);
        self.tables[table].insert(new_key.clone(), new);
        if rekeyed && of.role != Role::Leaf {
            self.follow(schema, table, key[0], new_key[0]);
        }
    }

    /// The children that a foreign key takes along when their parent's key changes.
    fn follow(&mut self, schema: &Schema, parent: usize, old: u32, new: u32) {
        let children: Vec<(usize, Option<usize>, bool)> = schema
            .children(parent)
            .map(|(at, edge)| {
                (
                    at,
                    edge.in_key,
                    edge.foreign_key.is_some_and(|key| key.cascade),
                )
            })
            .collect();
        for (table, in_key, cascades) in children {
            if !cascades {
                continue;
            }
            for (key, row) in self.hanging(table, old) {
                let mut new_key = key.clone();
                if let Some(place) = in_key {
                    new_key[place] = new;
                }
                self.tables[table].remove(&key);
                self.tables[table].insert(
                    new_key,
                    Row {
                        tie: Some(new),
                        ..row
                    },
                );
            }
        }
    }

    fn delete(&mut self, schema: &Schema, table: usize, key: &Key, causes: &mut Causes) {
        let Some(row) = self.tables[table].get(key).copied() else {
            return;
        };
        let role = schema.tables[table].role;
        let ours = self.is_ours(schema, table, key, row.tie);
        if ours && matches!(role, Role::Root | Role::Static) {
            causes.insert("static-spine-changed");
        }
        self.tables[table].remove(key);
        if role == Role::Leaf {
            return;
        }
        let children: Vec<usize> = schema
            .children(table)
            .filter(|(_, edge)| edge.foreign_key.is_some_and(|key| key.cascade))
            .map(|(at, _)| at)
            .collect();
        for child in children {
            for (below, _) in self.hanging(child, key[0]) {
                self.delete(schema, child, &below, causes);
            }
        }
    }

    /// The rows of `table` that name a parent.
    #[must_use]
    pub fn hanging(&self, table: usize, parent: u32) -> Vec<(Key, Row)> {
        let rows = self.tables[table].iter();
        let named = rows.filter(|(_, row)| row.tie == Some(parent));
        named.map(|(key, row)| (key.clone(), *row)).collect()
    }
}
