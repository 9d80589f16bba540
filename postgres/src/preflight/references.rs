//! Foreign keys of the sink that lead out of the graph: whether what the organization's rows
//! reference is there.
//!
//! The mover writes with foreign keys switched off where its role may, so that nothing but this
//! look would notice a reference to a row that the sink does not have.

use std::collections::BTreeSet;

use monarch_config::Table;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::finding::{Finding, Place};
use super::open::Open;
use crate::catalog::Relation;
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Result};

/// A foreign key onto a table that does not move.
struct Reference {
    name: String,
    columns: Vec<String>,
    parent: String,
    parent_columns: Vec<String>,
}

const REFERENCES: &str = "
select c.conname::text,
       array(select a.attname::text from unnest(c.conkey) with ordinality as k(number, place)
               join pg_catalog.pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number
              order by k.place),
       format('%I.%I', n.nspname, p.relname),
       array(select a.attname::text from unnest(c.confkey) with ordinality as k(number, place)
               join pg_catalog.pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.number
              order by k.place)
  from pg_catalog.pg_constraint c
  join pg_catalog.pg_class p on p.oid = c.confrelid
  join pg_catalog.pg_namespace n on n.oid = p.relnamespace
 where c.contype = 'f' and c.conparentid = 0 and c.conrelid = $1 and c.confrelid <> all($2)
   and has_table_privilege(p.oid, 'select')
 order by 1";

/// Looks at `table`, whose rows of the organization on the source fit `predicate`; at most `limit`
/// different values are looked for.
pub(super) async fn check(
    table: &Table,
    (from, to): (&Open<'_>, &Open<'_>),
    predicate: &str,
    limit: u64,
) -> Result<Vec<Finding>> {
    let doing = || format!("look for what {} references on the sink", table.name);
    let (Some(theirs), Some(ours)) = (
        from.catalog.relation(&table.name),
        to.catalog.relation(&table.name),
    ) else {
        return Ok(Vec::new());
    };
    let moved: Vec<u32> = to.catalog.relations().map(|moved| moved.oid).collect();
    let rows = to.primary.query(REFERENCES, &[&ours.oid, &moved]).await;
    let mut findings = Vec::new();
    for row in rows.doing(doing())? {
        let reference = reference(&row).doing(doing())?;
        let known = |column: &String| theirs.column(column).is_some();
        if !reference.columns.iter().all(known) {
            continue;
        }
        let values = values_sql(table, &reference, predicate, limit);
        let rows = from.decoder().query(&values, &[]).await.doing(doing())?;
        if rows.is_empty() {
            continue;
        }
        let missing = missing_sql(&reference, ours);
        let missing = count(to, &missing, reference.columns.len(), &rows)
            .await
            .doing(doing())?;
        if missing > 0 {
            let place = to.place.table(&table.store, &table.name);
            findings.push(unsatisfied(&reference, missing, place));
        }
    }
    Ok(findings)
}

fn reference(row: &Row) -> std::result::Result<Reference, tokio_postgres::Error> {
    Ok(Reference {
        name: row.try_get(0)?,
        columns: row.try_get(1)?,
        parent: row.try_get(2)?,
        parent_columns: row.try_get(3)?,
    })
}

/// A null references nothing.
fn values_sql(table: &Table, reference: &Reference, predicate: &str, limit: u64) -> String {
    let columns: BTreeSet<&String> = reference.columns.iter().collect();
    let given: Vec<String> = columns
        .into_iter()
        .map(|column| format!("t.{} is not null", quote_ident(column)))
        .collect();
    let texts: Vec<String> = reference
        .columns
        .iter()
        .map(|column| format!("t.{}::text", quote_ident(column)))
        .collect();
    format!(
        "select distinct {} from {} as t where {predicate} and {} limit {limit}",
        texts.join(", "),
        qualified(&table.name),
        given.join(" and ")
    )
}

fn missing_sql(reference: &Reference, ours: &Relation) -> String {
    let pairs = reference.columns.iter().zip(&reference.parent_columns);
    let same: Vec<String> = pairs
        .enumerate()
        .map(|(at, (column, parent_column))| {
            let (equals, key_type) = ours
                .column(column)
                .map_or(("=", "text"), |column| (&column.equals, &column.key_type));
            let parent_column = quote_ident(parent_column);
            format!("p.{parent_column} {equals} k.k{}::{key_type}", at + 1)
        })
        .collect();
    let numbered = |prefix: &str, suffix: &str| -> String {
        let names: Vec<String> = (1..=reference.columns.len())
            .map(|n| format!("{prefix}{n}{suffix}"))
            .collect();
        names.join(", ")
    };
    format!(
        "select count(*) from unnest({}) as k({}) where not exists (select from {} as p where {})",
        numbered("$", "::text[]"),
        numbered("k", ""),
        reference.parent,
        same.join(" and ")
    )
}

async fn count(
    to: &Open<'_>,
    sql: &str,
    width: usize,
    rows: &[Row],
) -> std::result::Result<i64, tokio_postgres::Error> {
    let mut values: Vec<Vec<String>> = vec![Vec::with_capacity(rows.len()); width];
    for row in rows {
        for (at, column) in values.iter_mut().enumerate() {
            column.push(row.try_get(at)?);
        }
    }
    let params: Vec<&(dyn ToSql + Sync)> = values.iter().map(|column| column as _).collect();
    to.primary.query_one(sql, &params).await?.try_get(0)
}

fn unsatisfied(reference: &Reference, missing: i64, place: Place) -> Finding {
    let finding = Finding::refuse(
        "reference-unsatisfied",
        place,
        format!(
            "{missing} rows of {} that the organization references ({}) are not on the sink",
            reference.parent, reference.name
        ),
        "The organization's rows would reference what is not there",
    );
    finding.mend(format!(
        "bring the rows of {} to the sink, or drop the constraint {} there",
        reference.parent,
        quote_ident(&reference.name)
    ))
}
