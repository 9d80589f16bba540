//! The statements that write many rows at once, each bound by key and by scope as those for one row
//! are ([`super::statement`]).
//!
//! Values travel as one array of texts for each column and are cast on the sink as single ones are.

use super::statement::{Verb, list, overwritten, set_columns};
use super::tables::{Column, Table, TableIndex};
use crate::sql::quote_ident;

/// A statement for many rows. Two batches of one shape share a prepared statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Many {
    /// The table.
    pub(super) table: TableIndex,
    /// What is done.
    pub(super) verb: Verb,
    /// Whether the rows are new, so that a row of the same key is refused and not overwritten.
    pub(super) fresh: bool,
    /// Whether it returns which of its rows it found, counted from 1: where not all need be there.
    pub(super) tells: bool,
}

impl Many {
    /// The statement's text. Its parameters are those of one row, each as an array.
    pub(super) fn sql(&self, table: &Table) -> String {
        let statement = match &self.verb {
            Verb::Upsert => self.insert(table),
            Verb::Update { set } => self.update(table, set),
            Verb::Delete => self.delete(table),
        };
        if !self.tells {
            return statement;
        }
        format!(
            "with written as ({statement} returning k.n) \
             select pg_catalog.array_agg(n) from written"
        )
    }

    fn insert(&self, table: &Table) -> String {
        let columns = table.columns.len();
        let names = list(table.columns.iter().map(|column| quote_ident(&column.name)));
        let values = list(table.columns.iter().zip(1..).map(value));
        let sql_name = &table.sql_name;
        let rows = self.rows(columns);
        let insert = format!(
            "insert into {sql_name} as t ({names}) overriding system value \
             select {values} from {rows}"
        );
        if self.fresh {
            return insert;
        }
        let key = list(
            table
                .key
                .iter()
                .map(|&at| quote_ident(&table.columns[at].name)),
        );
        let sets = overwritten(table);
        if sets.is_empty() {
            return format!("{insert} on conflict ({key}) do nothing");
        }
        let scope = &table.condition;
        format!("{insert} on conflict ({key}) do update set {sets} where {scope}")
    }

    fn update(&self, table: &Table, set: &[bool]) -> String {
        let columns: Vec<&Column> = set_columns(table, set).collect();
        let sets = list(columns.iter().zip(1..).map(|(column, at)| {
            format!("{} = {}", quote_ident(&column.name), value((column, at)))
        }));
        let key = key_is(table, columns.len());
        let rows = self.rows(columns.len() + table.key.len());
        format!(
            "update {} as t set {sets} from {rows} where {key} and {}",
            table.sql_name, table.condition
        )
    }

    fn delete(&self, table: &Table) -> String {
        let key = key_is(table, 0);
        let rows = self.rows(table.key.len());
        format!(
            "delete from {} as t using {rows} where {key} and {}",
            table.sql_name, table.condition
        )
    }

    /// The rows, with their number where it is told.
    fn rows(&self, columns: usize) -> String {
        let arrays = list((1..=columns).map(|at| format!("${at}::text[]")));
        let names = list((1..=columns).map(|at| format!("v{at}")));
        if self.tells {
            format!("unnest({arrays}) with ordinality as k({names}, n)")
        } else {
            format!("unnest({arrays}) as k({names})")
        }
    }
}

/// A value, the row's `at`th, as its column's type.
fn value((column, at): (&Column, usize)) -> String {
    format!("k.v{at}::{}", column.sink_type)
}

/// The key stands behind `before` other values.
fn key_is(table: &Table, before: usize) -> String {
    let equal = |(&at, place): (&usize, usize)| {
        let column = &table.columns[at];
        let name = quote_ident(&column.name);
        format!("t.{name} {} {}", column.equals, value((column, place)))
    };
    let equal: Vec<String> = table.key.iter().zip(before + 1..).map(equal).collect();
    equal.join(" and ")
}
