//! What must not change while a unit streams, so small that it can be compared often.
//!
//! The log's relation messages are an early signal only: a truncated leaf, a column added with a
//! default or a retyped one may say nothing until the table's next change.

use std::collections::BTreeMap;

use monarch_model::TableName;
use serde::{Deserialize, Serialize};

use crate::digest::TextDigest;

use super::{Catalog, Relation, ReplicaIdentity};

/// Columns, types, modifiers, replica identities, edges, inheritance and files of a store's tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint {
    tables: BTreeMap<TableName, String>,
}

impl Fingerprint {
    pub(super) fn of(catalog: &Catalog) -> Self {
        let there = catalog
            .relations()
            .map(|relation| (relation.table.clone(), describe(relation)));
        let missing = catalog
            .missing()
            .iter()
            .map(|table| (table.clone(), "missing\n".to_owned()));
        Self {
            tables: there.chain(missing).collect(),
        }
    }

    /// SHA-256 in hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut digest = TextDigest::default();
        for (table, text) in &self.tables {
            digest.add(table.as_str());
            digest.add(text);
        }
        digest.finish()
    }

    /// SHA-256 of what is said of each table, in hexadecimal digits.
    pub fn digests(&self) -> BTreeMap<TableName, String> {
        let digest = |text: &String| {
            let mut digest = TextDigest::default();
            digest.add(text);
            digest.finish()
        };
        self.tables
            .iter()
            .map(|(table, text)| (table.clone(), digest(text)))
            .collect()
    }

    /// What is said of one table, a fact a line.
    pub fn table(&self, table: &TableName) -> Option<&str> {
        self.tables.get(table).map(String::as_str)
    }

    /// The lines that only one of the two has: `-` before, `+` after. Empty if nothing changed.
    pub fn changes(before: &Self, after: &Self) -> Vec<(TableName, String)> {
        let mut changes = Vec::new();
        for table in before.tables.keys().chain(after.tables.keys()) {
            let lines = |of: &'_ Self| -> Vec<String> {
                let text = of.table(table).unwrap_or_default();
                text.lines().map(str::to_owned).collect()
            };
            let (old, mut new) = (lines(before), lines(after));
            // A note of an earlier version says nothing of edges.
            if !old.is_empty() && !old.iter().any(|line| line.starts_with(EDGE)) {
                new.retain(|line| !line.starts_with(EDGE));
            }
            let gone = old.iter().filter(|line| !new.contains(line));
            let come = new.iter().filter(|line| !old.contains(line));
            let lines = gone
                .map(|line| format!("- {line}"))
                .chain(come.map(|line| format!("+ {line}")));
            changes.extend(lines.map(|line| (table.clone(), line)));
        }
        changes.sort();
        changes.dedup();
        changes
    }
}

/// What the fact of a table's edge begins with.
const EDGE: &str = "edge ";

fn describe(relation: &Relation) -> String {
    let mut lines = vec![
        format!("kind {:?}, unlogged {}", relation.kind, relation.unlogged),
        format!(
            "identity {}",
            identity(&relation.replica_identity, &relation.primary_key)
        ),
        format!("file {}", relation.file_node),
    ];
    lines.extend(relation.columns.iter().map(|column| {
        format!(
            "column {} {}: {}, collation {}, not null {}, generated {:?}, identity {:?}",
            column.position,
            column.name,
            column.type_name,
            column.collation_oid,
            column.not_null,
            column.generated,
            column.identity,
        )
    }));
    lines.extend(relation.edge.iter().map(|edge| {
        let held = if edge.enforced { "held" } else { "not held" };
        format!(
            "{EDGE}{} to {}, {held} by a foreign key",
            edge.column, edge.parent
        )
    }));
    lines.extend(relation.types.iter().map(|of| {
        format!(
            "type {}: {} [{}]",
            of.name,
            of.made_of,
            of.labels.join(", ")
        )
    }));
    lines.extend(relation.leaves.iter().map(|leaf| {
        format!(
            "leaf {} (oid {}) {}, identity {}, file {}",
            leaf.table,
            leaf.oid,
            leaf.bound,
            identity(&leaf.replica_identity, &leaf.primary_key),
            leaf.file_node,
        )
    }));
    lines.join("\n") + "\n"
}

fn identity(identity: &ReplicaIdentity, primary_key: &[String]) -> String {
    match identity {
        ReplicaIdentity::Default => format!("default({})", primary_key.join(", ")),
        ReplicaIdentity::Full => "full".to_owned(),
        ReplicaIdentity::Index { columns } => format!("index({})", columns.join(", ")),
        ReplicaIdentity::Nothing => "nothing".to_owned(),
    }
}
