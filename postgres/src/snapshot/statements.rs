//! The pair of statements that move a table: what the source gives and the sink takes.
//!
//! The format is decided here and nowhere else. It is text: every type has it, and it does not
//! depend on a type's object id or inner layout being the same on both sides.

use std::collections::BTreeSet;

use monarch_model::TableName;

use super::CopyError;
use crate::catalog::{Catalog, Column, Relation};
use crate::scope::{Scope, ScopeError};
use crate::sql::{column_list, qualified, quote_ident};

const FORMAT: &str = "(format text, encoding 'UTF8')";

/// The statements for one table.
pub(super) struct Statements {
    /// The organization's rows.
    pub(super) select: String,
    /// Gives them.
    pub(super) give: String,
    /// Takes them.
    pub(super) take: String,
}

impl Statements {
    /// Columns are named, in the source's order, so their order may differ on the sink; computed
    /// ones are computed anew. Each must be there on the sink; what only the sink has gets its
    /// default.
    pub(super) fn new(
        table: &TableName,
        from: &Catalog,
        to: &Catalog,
        scope: &Scope,
    ) -> Result<Self, CopyError> {
        let source = given(table, from)?;
        let sink: BTreeSet<&str> = given(table, to)?.into_iter().collect();
        let missing: Vec<&str> = source
            .iter()
            .copied()
            .filter(|name| !sink.contains(name))
            .collect();
        if !missing.is_empty() {
            let there: BTreeSet<&str> = source.iter().copied().collect();
            return Err(CopyError::ColumnsDiffer {
                table: table.clone(),
                only_source: owned(missing),
                only_sink: owned(sink.difference(&there).copied()),
            });
        }
        let selected: Vec<String> = source
            .iter()
            .map(|name| format!("t.{}", quote_ident(name)))
            .collect();
        let select = format!(
            "select {} from {} as t where {}",
            selected.join(", "),
            qualified(table),
            scope.predicate(table, "t")?
        );
        Ok(Self {
            give: format!("copy ({select}) to stdout with {FORMAT}"),
            take: format!(
                "copy {} ({}) from stdin with {FORMAT}",
                qualified(table),
                column_list(source)
            ),
            select,
        })
    }
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn given<'a>(table: &TableName, catalog: &'a Catalog) -> Result<Vec<&'a str>, ScopeError> {
    let missing = || ScopeError::MissingTable {
        table: table.clone(),
    };
    let relation: &Relation = catalog.relation(table).ok_or_else(missing)?;
    let name = |column: &'a Column| column.name.as_str();
    Ok(relation.given_columns().map(name).collect())
}
