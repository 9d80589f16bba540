//! Whether each table is there on both sides, in shapes that rows can travel between.

use std::collections::BTreeSet;

use monarch_config::{Graph, Scope, Table};

use super::finding::{Finding, Place};
use super::open::Open;
use crate::catalog::{
    Column, Generated, Identity, Relation, RelationKind, ReplicaIdentity, UniqueIndex,
};
use crate::sql::{column_list, qualified, quote_ident, quote_literal};

/// Looks at every table that moves on the databases that could be reached.
pub(super) fn check(graph: &Graph, source: &[Open<'_>], sink: &[Open<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for store in graph.stores() {
        let from = source.iter().find(|open| open.holds(&store.name));
        let to = sink.iter().find(|open| open.holds(&store.name));
        for table in graph.walk(&store.name) {
            let theirs = from.and_then(|open| open.catalog.relation(&table.name));
            let ours = to.and_then(|open| open.catalog.relation(&table.name));
            let place = |open: &Open<'_>| open.place.table(&table.store, &table.name);
            for (open, relation) in [(from, theirs), (to, ours)] {
                let Some(open) = open else { continue };
                match relation {
                    Some(relation) => {
                        findings.extend(one_side(table, relation, &place(open)));
                        findings.extend(scoping(graph, table, open, relation));
                    }
                    None => findings.push(missing(&place(open))),
                }
            }
            if let (Some(from), Some(theirs)) = (from, theirs) {
                findings.extend(source_only(table, theirs, &place(from)));
                if from.catalog.refuses_published(theirs) {
                    findings.push(generated_identity(theirs, &place(from)));
                }
            }
            if let (Some(theirs), Some(to), Some(ours)) = (theirs, to, ours) {
                findings.extend(columns(theirs, ours, &place(to)));
                findings.extend(types(theirs, ours, &place(to)));
                findings.extend(numbered(table, theirs, ours, &place(to)));
            }
        }
    }
    findings
}

fn missing(place: &Place) -> Finding {
    Finding::refuse(
        "table-missing",
        place.clone(),
        "the database has no such table",
        "Its rows cannot be moved",
    )
    .mend("create it as the other cell has it, or correct the manifest")
}

/// What must hold on either side.
fn one_side(table: &Table, relation: &Relation, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    if relation.kind == RelationKind::Other {
        findings.push(Finding::refuse(
            "not-a-table",
            place.clone(),
            "it is a view, a foreign table or the like",
            "Only tables have a log of changes",
        ));
        return findings;
    }
    findings.extend(inheriting(relation, place));
    findings.extend(wanted_columns(table, relation, place));
    findings.extend(key(table, relation, place));
    let leaf_binds = relation
        .leaves
        .iter()
        .any(|leaf| leaf.row_security.binds_us);
    if relation.row_security.binds_us || leaf_binds {
        let finding = Finding::refuse(
            "row-security-binds",
            place.clone(),
            "row-level security binds our role",
            "Policies hide rows from it: they would not be moved, or not be deleted",
        );
        findings.push(finding.mend("alter role … bypassrls, for the role that Monarch uses"));
    }
    findings
}

/// A table that merely inherits has changes under its own name, and keys of its own.
fn inheriting(relation: &Relation, place: &Place) -> Option<Finding> {
    let leaf = relation.leaves.iter().find(|leaf| !leaf.is_partition)?;
    let finding = Finding::refuse(
        "inheriting-table",
        place.clone(),
        format!("{} inherits from it", leaf.table),
        "Its rows seem to be this table's, and neither its changes nor its keys are",
    );
    Some(finding.mend(format!(
        "alter table {} no inherit {}",
        qualified(&leaf.table),
        qualified(&relation.table)
    )))
}

/// The columns by which rows are told to be the organization's: the key of a table that scopes
/// others, and the edge that was chosen. They are compared in the log, in memory and in SQL, which
/// must agree on what is equal.
fn scoping(graph: &Graph, table: &Table, open: &Open<'_>, relation: &Relation) -> Vec<Finding> {
    let scopes_others =
        table.is_static || table.scope == Scope::Root || graph.has_children(&table.name);
    let key = table.primary_key.first().filter(|_| scopes_others);
    let chosen = table.scope_edge();
    let place = open.place.table(&table.store, &table.name);
    let mut findings = Vec::new();
    let edge = chosen.map(|edge| &edge.column);
    for name in key.into_iter().chain(edge).collect::<BTreeSet<_>>() {
        if let Some(column) = relation.column(name) {
            findings.extend(spelling(relation, column, &place.column(name)));
        }
    }
    let parent_key = chosen.and_then(|edge| {
        let parent = graph.table(&edge.parent)?;
        let key = parent.primary_key.first()?;
        Some((edge, open.catalog.relation(&parent.name)?.column(key)?))
    });
    if let Some((edge, key)) = parent_key
        && let Some(column) = relation.column(&edge.column)
        && column.key_type != key.key_type
    {
        let finding = Finding::refuse(
            "edge-type-differs",
            place.column(&edge.column),
            format!(
                "it is {}, and the key of {} is {}",
                column.type_name, edge.parent, key.type_name
            ),
            "Whose rows they are cannot be told by comparing the two",
        );
        findings.push(finding.mend(retype(relation, column, &key.type_name)));
    }
    findings
}

/// Types of which equal values are always written alike.
const ONE_SPELLING: [&str; 3] = ["pg_catalog.int8", "pg_catalog.uuid", "pg_catalog.text"];

fn spelling(relation: &Relation, column: &Column, place: &Place) -> Option<Finding> {
    let known = ONE_SPELLING.contains(&column.key_type.as_str());
    if known && column.is_deterministic {
        return None;
    }
    let (what, to) = if known {
        let what = "its collation takes different texts for equal";
        (what.to_owned(), "text collate \"C\"")
    } else if column.key_type == "pg_catalog.numeric" {
        (format!("it is {}", column.type_name), "bigint")
    } else {
        (format!("it is {}", column.type_name), "text")
    };
    let finding = Finding::refuse(
        "scoping-key-type",
        place.clone(),
        what,
        "One key could be written in two ways, and rows be missed: what scopes rows must be an \
         integer, a uuid or a text",
    );
    Some(finding.mend(retype(relation, column, to)))
}

fn retype(relation: &Relation, column: &Column, to: &str) -> String {
    format!(
        "alter table {} alter column {} type {to}",
        qualified(&relation.table),
        quote_ident(&column.name)
    )
}

/// The manifest's own columns: key, edges and blobs.
fn wanted_columns(table: &Table, relation: &Relation, place: &Place) -> Vec<Finding> {
    let edges = table.edges.iter().map(|edge| &edge.column);
    let blobs = table.blobs.iter().map(|blob| &blob.column);
    let wanted: BTreeSet<&String> = table.primary_key.iter().chain(edges).chain(blobs).collect();
    let key = table.primary_key.iter().map(String::as_str);
    let computed = key
        .chain(table.scope.column())
        .filter_map(|name| relation.column(name))
        .filter(|column| column.generated != Generated::No)
        .map(|column| {
            Finding::refuse(
                "key-generated",
                place.column(&column.name),
                "it is generated, and of the manifest's key or scope",
                "The log has no generated values: it would not say which row was changed",
            )
            .mend(format!(
                "alter table {} alter column {} drop expression",
                qualified(&relation.table),
                quote_ident(&column.name)
            ))
        });
    let missing = wanted
        .into_iter()
        .filter(|column| relation.column(column).is_none())
        .map(|column| {
            Finding::refuse(
                "column-missing",
                place.column(column),
                "the manifest names a column that the table does not have",
                "The organization's rows cannot be told",
            )
            .mend("correct the manifest, or add the column")
        });
    missing.chain(computed).collect()
}

/// The manifest's key must tell rows apart, at every moment and without exception.
fn key(table: &Table, relation: &Relation, place: &Place) -> Option<Finding> {
    let wanted: BTreeSet<&String> = table.primary_key.iter().collect();
    let fits = |index: &&UniqueIndex| {
        index.columns.iter().collect::<BTreeSet<_>>() == wanted
            && index.columns.len() == wanted.len()
    };
    let is_strict = |index: &UniqueIndex| {
        !index.partial && !index.on_expression && !index.deferrable && index.valid
    };
    // Told as such; no key can be made of it.
    if wanted
        .iter()
        .any(|column| relation.column(column).is_none())
    {
        return None;
    }
    let nullable: Vec<&String> = table
        .primary_key
        .iter()
        .filter(|column| {
            relation
                .column(column)
                .is_some_and(|column| !column.not_null)
        })
        .collect();
    let fitting: Vec<&UniqueIndex> = relation.unique_indexes.iter().filter(fits).collect();
    if nullable.is_empty() && fitting.iter().any(|index| is_strict(index)) {
        return None;
    }
    let what = if let Some(column) = nullable.first() {
        format!("column {column} of the manifest's key may be null")
    } else if let Some(index) = fitting.first() {
        let flaw = if index.deferrable {
            "deferrable"
        } else if index.partial {
            "partial"
        } else {
            "not valid"
        };
        format!(
            "the unique index {} on the manifest's key is {flaw}",
            index.name
        )
    } else {
        "no unique index is on the manifest's key".to_owned()
    };
    let finding = Finding::refuse(
        "key-not-unique",
        place.clone(),
        what,
        "Changes are written by key: one key must be one row",
    );
    Some(finding.mend(format!(
        "alter table {} add primary key ({})",
        qualified(&table.name),
        column_list(&table.primary_key)
    )))
}

/// What must hold where changes are decoded.
fn source_only(table: &Table, relation: &Relation, place: &Place) -> Vec<Finding> {
    let mut findings = identity(table, relation, place);
    if relation.unlogged {
        let finding = Finding::refuse(
            "unlogged",
            place.clone(),
            "the table or one of its partitions is unlogged",
            "Its changes are not in the log and would be lost",
        );
        let mend = format!("alter table {} set logged", qualified(&table.name));
        findings.push(finding.mend(mend));
    }
    for column in &relation.columns {
        if column.generated != Generated::No {
            findings.push(Finding::info(
                "generated-column",
                place.column(&column.name),
                "the column is generated",
                "It is not copied: the sink computes it again, by its own expression",
            ));
        }
    }
    findings
}

/// The server itself refuses the owner's writes then.
fn generated_identity(relation: &Relation, place: &Place) -> Finding {
    let finding = Finding::refuse(
        "replica-identity-generated",
        place.clone(),
        "a generated column is of the replica identity, of the table or of a partition",
        "Once published, its updates and deletes would fail, in production: Postgres 18 asks that \
         all of an identity is published, and generated columns are not",
    );
    finding.mend(format!(
        "alter table {} replica identity default, or using index on a unique index of the key",
        qualified(&relation.table)
    ))
}

/// Of each relation that holds rows: what the log says of a row that is changed or deleted.
fn identity(table: &Table, relation: &Relation, place: &Place) -> Vec<Finding> {
    let own = (relation.kind == RelationKind::Ordinary).then_some((
        &relation.table,
        &relation.replica_identity,
        &relation.primary_key,
    ));
    let leaves = relation
        .leaves
        .iter()
        .filter(|leaf| leaf.kind == RelationKind::Ordinary)
        .map(|leaf| (&leaf.table, &leaf.replica_identity, &leaf.primary_key));
    let mut findings = Vec::new();
    for (name, identity, primary_key) in own.into_iter().chain(leaves) {
        let columns = match identity {
            ReplicaIdentity::Full => continue,
            ReplicaIdentity::Nothing => &Vec::new(),
            ReplicaIdentity::Default => primary_key,
            ReplicaIdentity::Index { columns } => columns,
        };
        let lacks = table
            .primary_key
            .iter()
            .find(|column| relation.column(column).is_some() && !columns.contains(column));
        let finding = match (columns.is_empty(), lacks) {
            (true, _) => Finding::refuse(
                "replica-identity-missing",
                place.clone(),
                format!("{name} has no replica identity"),
                "Once published, its updates and deletes would fail, in production",
            ),
            (false, Some(column)) => Finding::refuse(
                "replica-identity-lacks-key",
                place.column(column),
                format!("the replica identity of {name} lacks a column of the manifest's key"),
                "The log would not say which row was changed or deleted",
            ),
            (false, None) => continue,
        };
        findings.push(finding.mend(format!(
            "alter table {} replica identity full, or using index on a unique index of the key",
            qualified(name)
        )));
    }
    findings
}

/// What must agree between the sides. The place is the sink's.
fn columns(theirs: &Relation, ours: &Relation, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    for from in &theirs.columns {
        match ours.column(&from.name) {
            Some(to) => findings.extend(column(from, to, &place.column(&from.name))),
            None if from.generated == Generated::No => {
                let finding = Finding::refuse(
                    "column-missing",
                    place.column(&from.name),
                    format!(
                        "the source has this column, {}, and the sink has not",
                        from.type_name
                    ),
                    "Its values would be lost",
                );
                findings.push(finding.mend(format!(
                    "alter table {} add column {} {}",
                    qualified(&ours.table),
                    quote_ident(&from.name),
                    from.type_name
                )));
            }
            None => {}
        }
    }
    let extra = ours
        .columns
        .iter()
        .filter(|to| theirs.column(&to.name).is_none());
    findings.extend(extra.map(|to| only_on_sink(to, &place.column(&to.name))));
    findings
}

fn only_on_sink(column: &Column, place: &Place) -> Finding {
    let what = "the sink has this column, and the source has not";
    if column.not_null && column.identity == Identity::No && !column.has_default {
        let why = "It refuses null and has no default: no row can be written";
        let finding = Finding::refuse("column-only-on-sink", place.clone(), what, why);
        return finding.mend("give it a default on the sink, or add it to the source");
    }
    let why = "Moved rows get its default";
    Finding::info("column-only-on-sink", place.clone(), what, why)
}

fn column(from: &Column, to: &Column, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    if from.type_name != to.type_name {
        let what = format!(
            "it is {} here and {} on the source",
            to.type_name, from.type_name
        );
        let why = "A value might not fit, or come out as another";
        let finding = Finding::refuse("column-type-differs", place.clone(), what, why);
        findings.push(finding.mend("give both the same type and modifier"));
    }
    if (from.generated == Generated::No) != (to.generated == Generated::No) {
        let what = "it is generated on one side only";
        let why = "A generated column takes no values, and one that is not needs them";
        findings.push(Finding::refuse(
            "column-generated-differs",
            place.clone(),
            what,
            why,
        ));
    }
    if to.identity == Identity::Always && from.identity != Identity::Always {
        let what = "the sink always numbers it itself, and the source does not";
        let why = "An update of it on the source could not be carried over";
        let finding = Finding::refuse("column-identity-differs", place.clone(), what, why);
        let table = place.table.as_ref().map(qualified).unwrap_or_default();
        findings.push(finding.mend(format!(
            "alter table {table} alter column {} set generated by default",
            quote_ident(&to.name)
        )));
    }
    findings
}

/// Columns beside the key that both sides number themselves. The place is the sink's.
fn numbered(table: &Table, theirs: &Relation, ours: &Relation, place: &Place) -> Vec<Finding> {
    let always = |column: &&Column| column.identity == Identity::Always;
    let of_ours = ours.columns.iter().filter(always);
    of_ours
        .filter(|to| !table.primary_key.contains(&to.name))
        .filter(|to| theirs.column(&to.name).as_ref().is_some_and(always))
        .map(|to| {
            let finding = Finding::info(
                "column-identity-always",
                place.column(&to.name),
                "it is generated always as identity, and not of the key",
                "The sink takes its number for a new row only: should the source give a row another, \
                 the move fails",
            );
            finding.mend(format!(
                "alter table {} alter column {} set generated by default, for the time of the move",
                qualified(&ours.table),
                quote_ident(&to.name)
            ))
        })
        .collect()
}

/// What the types of columns are made of. The place is the sink's.
fn types(theirs: &Relation, ours: &Relation, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    for from in &theirs.types {
        let Some(to) = ours.types.iter().find(|to| to.name == from.name) else {
            continue;
        };
        let lacking: Vec<&str> = from
            .labels
            .iter()
            .filter(|label| !to.labels.contains(label))
            .map(String::as_str)
            .collect();
        if !lacking.is_empty() {
            let finding = Finding::refuse(
                "enum-label-missing",
                place.clone(),
                format!("the enum {} lacks: {}", from.name, lacking.join(", ")),
                "A row with such a value would stop the move",
            );
            let add: Vec<String> = lacking
                .iter()
                .map(|label| {
                    let label = quote_literal(label);
                    format!("alter type {} add value {label}", from.name)
                })
                .collect();
            findings.push(finding.mend(add.join("; ")));
        }
        if from.made_of != to.made_of {
            let finding = Finding::refuse(
                "type-differs",
                place.clone(),
                format!(
                    "the type {} is ({}) here and ({}) on the source",
                    from.name, to.made_of, from.made_of
                ),
                "A value might not fit, or come out as another",
            );
            findings.push(finding.mend("make the type on the sink as it is on the source"));
        }
    }
    findings
}
