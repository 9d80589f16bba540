//! Changes as the statements that make them.

use crate::model::{Body, Key, Op, Row, Set};
use crate::schema::{Label, Numbered, Schema, Table, quoted};
use crate::value::literal;

/// The statements of a change, separated by semicolons.
#[must_use]
pub fn statements(schema: &Schema, op: &Op) -> String {
    match op {
        Op::Insert { table, rows } => insert(schema, &schema.tables[*table], rows),
        Op::Update { table, key, set } => {
            let table = &schema.tables[*table];
            format!(
                "update {} set {} where {};",
                table.sql_name(),
                assignments(schema, table, set),
                is(table, key)
            )
        }
        Op::Swap {
            table,
            keys,
            labels,
        } => swap(&schema.tables[*table], keys, *labels),
        Op::UpdateAll { table, version } => {
            let table = &schema.tables[*table];
            format!(
                "update {} set {};",
                table.sql_name(),
                versioned(table, *version).join(", ")
            )
        }
        Op::Delete { table, key } => {
            let table = &schema.tables[*table];
            format!("delete from {} where {};", table.sql_name(), is(table, key))
        }
        Op::Truncate { table } => format!("truncate {};", schema.tables[*table].sql_name()),
        Op::Undone(ops) => {
            let undone: String = ops.iter().map(|op| statements(schema, op)).collect();
            format!("savepoint undone; {undone} rollback to undone;")
        }
    }
}

fn insert(schema: &Schema, table: &Table, rows: &[(Key, Row)]) -> String {
    let mut columns: Vec<String> = table.key.iter().map(|(name, _)| quoted(name)).collect();
    columns.extend(["n".to_owned(), "label".to_owned()]);
    columns.extend(free_tie(table));
    columns.extend(table.body.then(|| "body".to_owned()));
    columns.extend((0..table.extras.len()).map(|n| format!("extra_{n}")));
    let values: Vec<String> = rows
        .iter()
        .map(|(key, row)| format!("({})", values(schema, table, key, row).join(", ")))
        .collect();
    let overriding = match table.numbered {
        Numbered::Always => " overriding system value",
        Numbered::ByDefault | Numbered::No => "",
    };
    format!(
        "insert into {} ({}){overriding} values {};",
        table.sql_name(),
        columns.join(", "),
        values.join(", ")
    )
}

fn values(schema: &Schema, table: &Table, key: &Key, row: &Row) -> Vec<String> {
    let mut values = key_values(table, key);
    values.push(row.version.to_string());
    values.push(label(row.label));
    if free_tie(table).is_some() {
        values.push(tie(schema, table, row.tie));
    }
    if table.body {
        let kind = if row.large { Body::Large } else { Body::Short };
        values.push(body(kind, row.version));
    }
    values.extend(extras(table, row.version).map(|(_, value)| value));
    values
}

/// The scope column, if it is not of the key.
fn free_tie(table: &Table) -> Option<String> {
    let edge = table.edge.as_ref().filter(|edge| edge.in_key.is_none())?;
    Some(quoted(&edge.column))
}

fn key_values(table: &Table, key: &Key) -> Vec<String> {
    let columns = table.key.iter().zip(key);
    columns.map(|((_, kind), &n)| kind.literal(n)).collect()
}

fn tie(schema: &Schema, table: &Table, tie: Option<u32>) -> String {
    let parent = table.edge.as_ref().map(|edge| &schema.tables[edge.parent]);
    match (tie, parent) {
        (Some(n), Some(parent)) => parent.key[0].1.literal(n),
        _ => "null".to_owned(),
    }
}

pub(crate) fn label(n: u32) -> String {
    literal(&format!("label '{n}' \\ ß"))
}

/// Text that does not look the same in two versions, and is long enough to be stored out of line.
fn body(body: Body, version: u32) -> String {
    match body {
        Body::Null => "null".to_owned(),
        Body::Short => format!("'short {version}'"),
        Body::Large => format!("repeat('{version:08}-\\.', 320)"),
    }
}

fn extras(table: &Table, version: u32) -> impl Iterator<Item = (String, String)> {
    let of = move |(n, extra): (usize, &&'static crate::value::Extra)| {
        let value = extra.values[(version as usize + n) % extra.values.len()];
        (format!("extra_{n}"), value.to_owned())
    };
    table.extras.iter().enumerate().map(of)
}

fn versioned(table: &Table, version: u32) -> Vec<String> {
    let extras = extras(table, version).map(|(column, value)| format!("{column} = {value}"));
    std::iter::once(format!("n = {version}"))
        .chain(extras)
        .collect()
}

fn assignments(schema: &Schema, table: &Table, set: &Set) -> String {
    let mut sets = Vec::new();
    if let Some(key) = &set.key {
        let columns = table.key.iter().zip(key_values(table, key));
        sets.extend(columns.map(|((name, _), value)| format!("{} = {value}", quoted(name))));
    }
    if let (Some(new), Some(column)) = (set.tie, free_tie(table)) {
        sets.push(format!("{column} = {}", tie(schema, table, new)));
    }
    sets.extend(set.label.map(|n| format!("label = {}", label(n))));
    if table.body
        && let Some(new) = set.body
    {
        sets.push(format!(
            "body = {}",
            body(new, set.version.unwrap_or_default())
        ));
    }
    if let Some(version) = set.version {
        sets.extend(versioned(table, version));
    }
    if sets.is_empty() {
        sets.push("n = n".to_owned());
    }
    sets.join(", ")
}

fn is(table: &Table, key: &Key) -> String {
    let columns = table.key.iter().zip(key_values(table, key));
    let equal: Vec<String> = columns
        .map(|((name, _), value)| format!("{} = {value}", quoted(name)))
        .collect();
    equal.join(" and ")
}

/// In one statement where that is allowed, else by way of a third label.
fn swap(table: &Table, [one, other]: &[Key; 2], [first, second]: [u32; 2]) -> String {
    let (name, one, other) = (table.sql_name(), is(table, one), is(table, other));
    let (first, second) = (label(first), label(second));
    match table.label {
        Label::Deferrable => format!(
            "update {name} set label = case when {one} then {second} else {first} end \
             where ({one}) or ({other});"
        ),
        Label::Free | Label::Unique => format!(
            "update {name} set label = 'on its way' where {one}; \
             update {name} set label = {first} where {other}; \
             update {name} set label = {second} where {one};"
        ),
    }
}
