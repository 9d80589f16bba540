//! The statements that write rows on the sink, each bound by key and by scope.
//!
//! Values travel as the text that the source printed and are cast on the sink by the column's full
//! type (`$1::text::numeric(10,2)`), so no form of ours stands between the two. A row that is not
//! the organization's never fits the condition, whatever its key.

use std::error::Error as StdError;

use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::change::Value;
use super::tables::{Column, Table, TableIndex, Tables};
use crate::sql::quote_ident;

/// A statement's shape. Two changes of one shape share a prepared statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// The table.
    pub(super) table: TableIndex,
    /// What is done.
    pub(super) verb: Verb,
    /// Whether ids are given that are the organization's though no row on the sink says so.
    pub(super) with_kin: bool,
}

/// What a statement does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// Inserts a whole row, or overwrites the organization's row of that key.
    Upsert,
    /// Sets columns of the organization's row of a key.
    Update {
        /// Which columns came, in the table's order.
        set: Vec<bool>,
    },
    /// Deletes the organization's row of a key.
    Delete,
}

impl Verb {
    /// The value that it gives a column, by the column's place; none if it leaves it as it is.
    pub(super) fn param<'a>(&self, params: &'a [Param], column: usize) -> Option<&'a Param> {
        match self {
            Verb::Upsert => params.get(column),
            Verb::Update { set } if set.get(column) == Some(&true) => {
                params.get(set[..column].iter().filter(|set| **set).count())
            }
            Verb::Update { .. } | Verb::Delete => None,
        }
    }
}

/// A value for a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Param {
    /// Null.
    Null,
    /// A value's text.
    Text(Bytes),
    /// Several ids.
    Ids(Vec<String>),
    /// Values of many rows, as the server reads an array of texts.
    Array(Bytes),
}

impl From<&Value> for Param {
    fn from(value: &Value) -> Self {
        match value {
            Value::Text(text) => Param::Text(text.clone()),
            Value::Null | Value::Unchanged => Param::Null,
        }
    }
}

impl Param {
    /// The values of one column of many rows.
    pub(super) fn array(rows: &[&[Param]], column: usize) -> Self {
        let values = || rows.iter().filter_map(|row| row.get(column));
        let is_null = |param: &Param| matches!(param, Param::Null);
        let mut array = BytesMut::with_capacity(20 + values().map(Param::bytes).sum::<usize>());
        let dimensions = 1;
        let lower_bound = 1;
        let length = i32::try_from(values().count()).unwrap_or(i32::MAX);
        array.put_i32(dimensions);
        array.put_i32(i32::from(values().any(is_null)));
        array.put_u32(Type::TEXT.oid());
        array.put_i32(length);
        array.put_i32(lower_bound);
        for value in values() {
            match value {
                Param::Text(text) => {
                    array.put_i32(i32::try_from(text.len()).unwrap_or(i32::MAX));
                    array.extend_from_slice(text);
                }
                _ => array.put_i32(-1),
            }
        }
        Param::Array(array.freeze())
    }

    /// Bytes that it takes in a message, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Param::Null => 4,
            Param::Text(text) | Param::Array(text) => 4 + text.len(),
            Param::Ids(ids) => ids.iter().map(|id| 8 + id.len()).sum(),
        }
    }
}

impl ToSql for Param {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Param::Null => Ok(IsNull::Yes),
            Param::Text(text) | Param::Array(text) => {
                out.extend_from_slice(text);
                Ok(IsNull::No)
            }
            Param::Ids(ids) => ids.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TEXT || *ty == Type::TEXT_ARRAY
    }

    to_sql_checked!();
}

impl Shape {
    /// The statement's text. Its parameters are, in order: the values (all of them, or those set),
    /// then the old key, then the kin.
    pub(super) fn sql(&self, table: &Table) -> String {
        let mut next = Placeholder(0);
        match &self.verb {
            Verb::Upsert => self.upsert(table, &mut next),
            Verb::Update { set } => self.update(table, set, &mut next),
            Verb::Delete => {
                let key = key_is(table, &mut next);
                let scope = self.scope(table, &mut next);
                format!(
                    "delete from {} as t where {key} and {scope}",
                    table.sql_name
                )
            }
        }
    }

    fn upsert(&self, table: &Table, next: &mut Placeholder) -> String {
        let names = list(table.columns.iter().map(|column| quote_ident(&column.name)));
        let values = list(table.columns.iter().map(|column| next.cast(column)));
        let key = list(
            table
                .key
                .iter()
                .map(|&at| quote_ident(&table.columns[at].name)),
        );
        let scope = self.scope(table, next);
        let sets = overwritten(table);
        let sql_name = &table.sql_name;
        let overwrite = if sets.is_empty() {
            "nothing".to_owned()
        } else {
            format!("update set {sets} where {scope}")
        };
        format!(
            "insert into {sql_name} as t ({names}) overriding system value values ({values}) \
             on conflict ({key}) do {overwrite}"
        )
    }

    fn update(&self, table: &Table, set: &[bool], next: &mut Placeholder) -> String {
        let sets = list(
            set_columns(table, set)
                .map(|column| format!("{} = {}", quote_ident(&column.name), next.cast(column))),
        );
        let key = key_is(table, next);
        let scope = self.scope(table, next);
        format!(
            "update {} as t set {sets} where {key} and {scope}",
            table.sql_name
        )
    }

    /// The condition that the row is the organization's.
    fn scope(&self, table: &Table, next: &mut Placeholder) -> String {
        let condition = &table.condition;
        if !self.with_kin {
            return condition.clone();
        }
        let column = quote_ident(&table.columns[table.tie.column()].name);
        format!(
            "({condition} or t.{column} = any({}::text[]::{}[]))",
            next.next(),
            table.tie_type
        )
    }
}

/// Selects the organization's row of a key.
pub(super) fn exists_sql(table: &Table) -> String {
    let key = key_is(table, &mut Placeholder(0));
    format!(
        "select from {} as t where {key} and {}",
        table.sql_name, table.condition
    )
}

/// Selects a row of a given key whose numbers are not the given ones. Its parameters are an array for
/// each column of the key, then one for each number.
pub(super) fn renumbered_sql(table: &Table) -> String {
    let key = table.key.len();
    let total = key + table.numbers().count();
    let given = |at: usize, column: &Column| format!("g.c{at}::{}", column.sink_type);
    let same = (1..).zip(&table.key).map(|(at, &column)| {
        let column = &table.columns[column];
        let (name, equals) = (quote_ident(&column.name), &column.equals);
        format!("t.{name} {equals} {}", given(at, column))
    });
    let differs = (key + 1..).zip(table.numbers()).map(|(at, column)| {
        let column = &table.columns[column];
        format!("t.{} <> {}", quote_ident(&column.name), given(at, column))
    });
    format!(
        "select from {} as t join unnest({}) as g({}) on {} where {} limit 1",
        table.sql_name,
        list((1..=total).map(|at| format!("${at}::text[]"))),
        list((1..=total).map(|at| format!("c{at}"))),
        same.collect::<Vec<_>>().join(" and "),
        differs.collect::<Vec<_>>().join(" or ")
    )
}

/// Selects a row of a parent with one of the given ids that is another tenant's.
pub(super) fn others_sql(table: &Table) -> String {
    let key = table.key_column();
    format!(
        "select from {} as t where t.{} {} any($1::text[]::{}[]) and ({}) is not true limit 1",
        table.sql_name,
        quote_ident(&key.name),
        key.equals,
        key.sink_type,
        table.condition
    )
}

/// The columns whose values an update sets.
pub(super) fn set_columns<'a>(
    table: &'a Table,
    set: &'a [bool],
) -> impl Iterator<Item = &'a Column> {
    let columns = table.columns.iter().zip(set);
    columns.filter(|(_, set)| **set).map(|(column, _)| column)
}

/// What overwriting a row sets: all but the key, which is the same, and what the sink numbers.
/// A table that is all key needs something to set, or no row would be found to be ours.
pub(super) fn overwritten(table: &Table) -> String {
    let set = |column: &Column| {
        let name = quote_ident(&column.name);
        format!("{name} = excluded.{name}")
    };
    let free = || {
        table
            .columns
            .iter()
            .filter(|column| !column.identity_always)
    };
    let sets = list(free().filter(|column| !column.in_key).map(set));
    if sets.is_empty() {
        free().next().map(set).unwrap_or_default()
    } else {
        sets
    }
}

fn key_is(table: &Table, next: &mut Placeholder) -> String {
    let equal = |&at: &usize| {
        let column = &table.columns[at];
        let name = quote_ident(&column.name);
        format!("t.{name} {} {}", column.equals, next.cast(column))
    };
    let equal: Vec<String> = table.key.iter().map(equal).collect();
    equal.join(" and ")
}

pub(super) fn list(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Numbers parameters.
struct Placeholder(usize);

impl Placeholder {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("${}", self.0)
    }

    fn cast(&mut self, column: &Column) -> String {
        format!("{}::text::{}", self.next(), column.sink_type)
    }
}

/// A statement that deletes what hangs on parents that have left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SubtreeDelete {
    /// The table whose rows it deletes.
    pub(super) table: TableIndex,
    /// Its text. It takes the parents' ids, and returns the keys of what it deletes if the table
    /// is a parent itself.
    pub(super) sql: String,
}

/// What deletes all that hangs on rows of `parent`, the farthest first.
pub(super) fn subtree_deletes(tables: &Tables, parent: TableIndex) -> Vec<SubtreeDelete> {
    let mut deletes = Vec::new();
    below(tables, parent, None, &mut deletes);
    deletes
}

/// `selected` is what selects the rows of `parent` that go; without it their keys are the parameter.
fn below(
    tables: &Tables,
    parent: TableIndex,
    selected: Option<&str>,
    deletes: &mut Vec<SubtreeDelete>,
) {
    let key = |table: &Table| quote_ident(&table.key_column().name);
    for child in &tables.all[parent].children {
        let table = &tables.all[child.table];
        let edge = &table.columns[child.column];
        let column = quote_ident(&edge.name);
        let goes = match selected {
            // The two columns may be of different collations.
            Some(selected) => format!(
                "t.{column} in (select t.{}{} {selected})",
                key(&tables.all[parent]),
                edge.collate
            ),
            None => format!("t.{column} = any($1::text[]::{}[])", table.tie_type),
        };
        let selected = format!("from {} as t where {goes}", table.sql_name);
        let mut sql = format!("delete {selected}");
        if table.is_parent() {
            below(tables, child.table, Some(&selected), deletes);
            sql.push_str(&format!(
                " returning pg_catalog.format('%s', t.{})",
                key(table)
            ));
        }
        deletes.push(SubtreeDelete {
            table: child.table,
            sql,
        });
    }
}
