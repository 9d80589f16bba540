//! The columns that hold keys of other tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use monarch_model::{StoreName, TableName};

use crate::names::{ColumnName, Likeness, ParentName};
use crate::tables::{Column, Database, ForeignKey, Table};

/// A table in its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// Which of the databases: a foreign key stays in it.
    pub(crate) database: usize,
    pub(crate) store: &'a StoreName,
    pub(crate) table: &'a Table,
}

/// By what a column is known to hold keys of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The foreign key of this name.
    ForeignKey(String),
    /// Its name alone: nothing in the database says so.
    Name,
}

/// A column that holds the key of another table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) column: String,
    /// Which of the schema's tables.
    pub(crate) parent: usize,
    pub(crate) may_be_null: bool,
    pub(crate) evidence: Evidence,
}

/// What looks like a reference and cannot be an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// A foreign key of several columns.
    Composite { constraint: String, parent: usize },
    /// A foreign key to other columns than the key by which the parent's rows are told apart.
    NotTheKey { constraint: String, parent: usize },
    /// A column whose name may mean any of these tables.
    Ambiguous { column: String, among: Vec<usize> },
}

/// All tables of all databases.
pub(crate) struct Schema<'a> {
    pub(crate) tables: Vec<Placed<'a>>,
    by_name: HashMap<(usize, &'a TableName), usize>,
    /// Of each table: the key that a manifest names; none if no row can be told from another.
    pub(crate) keys: Vec<Option<&'a [String]>>,
    /// Of each table that can be a parent: how columns may name it.
    names: Vec<Option<ParentName>>,
    /// Names by which foreign keys of several tables mean the same parent.
    customary: BTreeMap<&'a str, usize>,
}

impl<'a> Schema<'a> {
    /// The tables of `databases`, each in the store that `store_of` names, or in the first of its
    /// database.
    pub(crate) fn of(
        databases: &'a [Database],
        store_of: impl Fn(&'a Database, &'a Table) -> Option<&'a StoreName>,
    ) -> Self {
        let mut tables = Vec::new();
        for (at, database) in databases.iter().enumerate() {
            for table in &database.tables {
                if let Some(store) = store_of(database, table).or(database.stores.first()) {
                    tables.push(Placed {
                        database: at,
                        store,
                        table,
                    });
                }
            }
        }
        let by_name: HashMap<_, _> = tables
            .iter()
            .enumerate()
            .map(|(at, placed)| ((placed.database, &placed.table.name), at))
            .collect();
        let mut schema = Self {
            tables,
            by_name,
            keys: Vec::new(),
            names: Vec::new(),
            customary: BTreeMap::new(),
        };
        schema.keys = schema.choose_keys();
        let name = |at| {
            let table = schema.name(at).relation();
            Some(ParentName::new(table, schema.key_column(at)?))
        };
        schema.names = (0..schema.tables.len()).map(name).collect();
        schema.customary = schema.find_customary();
        schema
    }

    pub(crate) fn name(&self, at: usize) -> &'a TableName {
        &self.tables[at].table.name
    }

    pub(crate) fn store(&self, at: usize) -> &'a StoreName {
        self.tables[at].store
    }

    pub(crate) fn find(&self, database: usize, name: &'a TableName) -> Option<usize> {
        self.by_name.get(&(database, name)).copied()
    }

    /// Where a table of a manifest is, if it is in a database that holds its store.
    pub(crate) fn place_of(&self, table: &monarch_config::Table) -> Option<usize> {
        (0..self.tables.len())
            .find(|&at| *self.name(at) == table.name && *self.store(at) == table.store)
    }

    /// The only column of the key of a table that can be a parent.
    fn key_column(&self, at: usize) -> Option<&'a str> {
        match self.keys[at]? {
            [column] => Some(column),
            _ => None,
        }
    }

    /// The primary key; where that has several columns, the one column that foreign keys reference
    /// in its place, because a parent needs a key of one.
    fn choose_keys(&self) -> Vec<Option<&'a [String]>> {
        let mut referenced: HashMap<usize, BTreeSet<&[String]>> = HashMap::new();
        for placed in &self.tables {
            for key in &placed.table.foreign_keys {
                if let Some(parent) = self.find(placed.database, &key.parent) {
                    let columns = key.parent_columns.as_slice();
                    referenced.entry(parent).or_default().insert(columns);
                }
            }
        }
        let choose = |(at, placed): (usize, &Placed<'a>)| {
            let keys = &placed.table.keys;
            let first = keys.first()?;
            let single = |key: &&Vec<String>| {
                key.len() == 1
                    && referenced
                        .get(&at)
                        .is_some_and(|columns| columns.contains(key.as_slice()))
            };
            let chosen = match first.len() {
                1 => first,
                _ => keys.iter().find(single).unwrap_or(first),
            };
            Some(chosen.as_slice())
        };
        self.tables.iter().enumerate().map(choose).collect()
    }

    fn find_customary(&self) -> BTreeMap<&'a str, usize> {
        const AGREE: usize = 2;
        let mut meant: BTreeMap<&str, BTreeMap<usize, usize>> = BTreeMap::new();
        for placed in &self.tables {
            for key in &placed.table.foreign_keys {
                if let ([column], Some(parent)) =
                    (&*key.columns, self.find(placed.database, &key.parent))
                {
                    let times = meant.entry(column).or_default().entry(parent);
                    *times.or_default() += 1;
                }
            }
        }
        let one = |(column, parents): (&'a str, BTreeMap<usize, usize>)| {
            let (&parent, &times) = parents.first_key_value()?;
            (parents.len() == 1 && times >= AGREE).then_some((column, parent))
        };
        meant.into_iter().filter_map(one).collect()
    }

    /// The references of a table, by its columns' order, and what looks like one.
    pub(crate) fn references(&self, at: usize) -> (Vec<Reference>, Vec<Unusable>) {
        let Placed {
            database, table, ..
        } = self.tables[at];
        let (mut references, mut unusable) = (Vec::new(), Vec::new());
        for key in &table.foreign_keys {
            if let Some(parent) = self.find(database, &key.parent) {
                match self.by_foreign_key(table, key, parent) {
                    Ok(reference) => references.push(reference),
                    Err(reason) => unusable.push(reason),
                }
            }
        }
        for column in &table.columns {
            let constrained = |key: &ForeignKey| key.columns == [column.name.clone()];
            if table.foreign_keys.iter().any(constrained) {
                continue;
            }
            match *self.by_name(at, column) {
                [] => {}
                [parent] => references.push(Reference {
                    column: column.name.clone(),
                    parent,
                    may_be_null: !column.not_null,
                    evidence: Evidence::Name,
                }),
                ref among => unusable.push(Unusable::Ambiguous {
                    column: column.name.clone(),
                    among: among.to_vec(),
                }),
            }
        }
        let place = |name: &str| table.columns.iter().position(|column| column.name == name);
        references.sort_by_key(|reference| place(&reference.column));
        references.dedup_by(|second, first| second.column == first.column);
        (references, unusable)
    }

    fn by_foreign_key(
        &self,
        table: &Table,
        key: &ForeignKey,
        parent: usize,
    ) -> Result<Reference, Unusable> {
        let constraint = key.name.clone();
        let [column] = &*key.columns else {
            return Err(Unusable::Composite { constraint, parent });
        };
        if self.keys[parent] != Some(&*key.parent_columns) {
            return Err(Unusable::NotTheKey { constraint, parent });
        }
        Ok(Reference {
            column: column.clone(),
            parent,
            may_be_null: !table.column(column).is_some_and(|column| column.not_null),
            evidence: Evidence::ForeignKey(constraint),
        })
    }

    /// The tables that a column of this name and type most surely means: of the same store before
    /// others. What tells the table's own rows apart means another only by that one's full name.
    fn by_name(&self, at: usize, column: &Column) -> Box<[usize]> {
        let own = &self.tables[at].table.keys;
        let is_own = own.iter().any(|key| *key == [column.name.clone()]);
        let name = ColumnName::new(&column.name);
        let customary = self.customary.get(&*column.name).copied();
        let mut found: BTreeMap<(bool, Likeness), Vec<usize>> = BTreeMap::new();
        for (parent, placed) in self.tables.iter().enumerate() {
            let (Some(key), Some(parent_name)) = (self.keys[parent], &self.names[parent]) else {
                continue;
            };
            if parent == at || placed.table.type_of(key) != Some(&column.type_name) {
                continue;
            }
            let like = match customary == Some(parent) {
                true => Some(Likeness::Same),
                false => name.means(parent_name),
            };
            if let Some(like) = like.filter(|like| !is_own || *like == Likeness::Same) {
                let elsewhere = placed.store != self.store(at);
                found.entry((elsewhere, like)).or_default().push(parent);
            }
        }
        let surest = found.into_values().next();
        surest.unwrap_or_default().into_boxed_slice()
    }
}
