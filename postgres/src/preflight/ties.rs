//! Rows whose edges do not agree on whose they are.
//!
//! One edge of each table is chosen, and decides. A table may have more, and then a row can be the
//! organization's by the chosen edge and another's by the other, or the other way round: it moves,
//! or stays, against what one of them says. Nobody but the owner of the data can tell which is
//! right, so it is said before the move. Edges to parents in other stores are not looked at: their
//! rows cannot be joined.

use monarch_config::{Edge, Graph, Scope as Chosen, Table};
use monarch_model::TableName;

use super::finding::Finding;
use super::open::Open;
use crate::catalog::Relation;
use crate::scope::Scope;
use crate::spine::Spine;
use crate::sql::{array_literal, qualified, quote_ident};
use crate::{Doing, Result};

/// Up to this many rows a table is read whole where no index leads to the rows of an edge.
const UNINDEXED_ROWS: f32 = 1_000_000.0;

/// What decides which rows of a store are the organization's.
#[derive(Clone, Copy)]
pub(super) struct Ties<'a> {
    pub(super) graph: &'a Graph,
    pub(super) from: &'a Open<'a>,
    pub(super) scope: &'a Scope,
    pub(super) spine: &'a Spine,
    /// The tables whose disagreeing edges were accepted by name.
    pub(super) accepted: &'a [TableName],
}

impl Ties<'_> {
    /// Looks at every edge of `table` that was not chosen.
    pub(super) async fn check(&self, table: &Table) -> Result<Vec<Finding>> {
        let (Some(chosen), Some(relation)) = (
            table.scope.column(),
            self.from.catalog.relation(&table.name),
        ) else {
            return Ok(Vec::new());
        };
        let mut findings = Vec::new();
        for edge in table.edges.iter().filter(|edge| edge.column != chosen) {
            let Some(ours) = self.is_ours(table, edge, relation) else {
                continue;
            };
            let place = self
                .from
                .place
                .table(&table.store, &table.name)
                .column(&edge.column);
            let column = quote_ident(&edge.column);
            let Ok(predicate) = self.scope.predicate(&table.name, "t") else {
                continue;
            };
            let against = format!("{predicate} and t.{column} is not null and not {ours}");
            let rows = self.count(table, &against).await?;
            if rows > 0 {
                let finding = Finding::refuse(
                    "edges-disagree",
                    place.clone(),
                    format!(
                        "{rows} rows are the organization's by {chosen}, and by {} they are not",
                        edge.column
                    ),
                    "They would move, though they may be another organization's",
                );
                let finding = finding.mend(format!(
                    "correct the rows, or accept the table by name: --accept-disagreeing-edges {}",
                    table.name
                ));
                let is_accepted = self.accepted.contains(&table.name);
                findings.push(if is_accepted {
                    finding.accepted()
                } else {
                    finding
                });
            }
            if !self.can_look(edge, relation).await? {
                findings.push(Finding::info(
                    "edge-not-looked-at",
                    place,
                    "no index leads to the rows of this edge, and the table is large",
                    "Rows that only this edge ties to the organization would stay behind unseen",
                ));
                continue;
            }
            let only = format!("t.{} is null and {ours}", quote_ident(chosen));
            let rows = self.count(table, &only).await?;
            if rows > 0 {
                findings.push(Finding::warn(
                    "tied-by-another-edge",
                    place,
                    format!("{rows} rows have no {chosen}, and are the organization's by this"),
                    "They stay behind: a null in the chosen edge means that a row is nobody's",
                ));
            }
        }
        Ok(findings)
    }

    /// A condition over `t`: that an edge names a parent of the organization. None where that
    /// cannot be asked in this database.
    fn is_ours(&self, table: &Table, edge: &Edge, relation: &Relation) -> Option<String> {
        let parent = self.graph.table(&edge.parent)?;
        let column = relation.column(&edge.column)?;
        if let Some(ids) = self.spine.ids(&parent.name) {
            return Some(format!(
                "t.{} {} any({}::{}[])",
                quote_ident(&edge.column),
                column.equals,
                array_literal(ids.iter()),
                column.key_type
            ));
        }
        if parent.store != table.store || parent.scope == Chosen::Unscoped {
            return None;
        }
        Some(format!(
            "exists (select from {} as o where o.{}{} {} t.{} and {})",
            qualified(&parent.name),
            quote_ident(parent.primary_key.first()?),
            column.collate(),
            column.equals,
            quote_ident(&edge.column),
            self.scope.predicate(&parent.name, "o").ok()?
        ))
    }

    async fn count(&self, table: &Table, condition: &str) -> Result<i64> {
        let doing = || format!("look at the edges of {}", table.name);
        let sql = format!(
            "select count(*) from {} as t where {condition}",
            qualified(&table.name)
        );
        let row = self
            .from
            .decoder()
            .query_one(&sql, &[])
            .await
            .doing(doing())?;
        row.try_get(0).doing(doing())
    }

    /// Whether the rows of an edge can be found without reading a large table whole.
    async fn can_look(&self, edge: &Edge, relation: &Relation) -> Result<bool> {
        let doing = "look for an index on an edge";
        if relation.rows_estimate <= UNINDEXED_ROWS {
            return Ok(true);
        }
        let sql = "select exists (
            select from pg_catalog.pg_index i
              join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
             where i.indrelid = $1 and i.indisvalid and i.indpred is null and a.attname = $2::text)";
        let session = self.from.decoder();
        let row = session
            .query_one(sql, &[&relation.oid, &edge.column])
            .await
            .doing(doing)?;
        row.try_get(0).doing(doing)
    }
}
