//! How many rows and bytes an organization has in a table, without reading all of it.
//!
//! The planner tells, where a table has statistics. Where it was never analyzed, the planner takes
//! one row in two hundred for a match and every text for 32 bytes: a table that is the
//! organization's alone counts for next to nothing. There some of its blocks are read instead, no
//! more than a second or so of work however large it is.

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::catalog::{Relation, RelationKind};
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Result};

/// How many blocks of a table are read at most; of a larger one that share.
const BLOCKS: i64 = 2_000;

/// How long that may take: the rows of a table may be tied to the organization by tables that are
/// large, too.
const TIMEOUT: &str = "10s";

/// What the organization has in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Its rows.
    pub rows: u64,
    /// Their bytes, as they are stored, without indexes.
    pub bytes: u64,
    /// Where both come from.
    pub basis: Basis,
}

/// Where an estimate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The table's statistics; or it has no block at all.
    Statistics,
    /// It was never analyzed, and some of its blocks were read.
    Sample,
    /// It was never analyzed, and to read some of its blocks took too long.
    Guess,
}

/// Estimates the rows that `predicate` selects of a table that it knows as `t`.
///
/// # Errors
///
/// When the server refuses.
pub async fn of_table<C: GenericClient + Sync>(
    client: &C,
    relation: &Relation,
    predicate: &str,
) -> Result<Estimate> {
    let blocks = match look(client, relation).await? {
        Look::Analyzed => return planned(client, relation, predicate).await,
        Look::NeverAnalyzed { blocks: 0 } => {
            return Ok(Estimate {
                rows: 0,
                bytes: 0,
                basis: Basis::Statistics,
            });
        }
        Look::NeverAnalyzed { blocks } => blocks,
    };
    if let Some((rows, bytes)) = sampled(client, relation, predicate, blocks).await? {
        return Ok(Estimate {
            rows,
            bytes,
            basis: Basis::Sample,
        });
    }
    Ok(Estimate {
        basis: Basis::Guess,
        ..planned(client, relation, predicate).await?
    })
}

/// What is known of a table before it is asked for rows.
enum Look {
    Analyzed,
    NeverAnalyzed { blocks: i64 },
}

/// Looks at the tables that hold the rows. That rows are counted is not enough: an index that is
/// built counts them, and says nothing of what is in them.
async fn look<C: GenericClient + Sync>(client: &C, relation: &Relation) -> Result<Look> {
    let doing = || format!("look whether {} was analyzed", relation.table);
    let leaves = relation.leaves.iter();
    let oids: Vec<u32> = std::iter::once((relation.oid, relation.kind))
        .chain(leaves.map(|leaf| (leaf.oid, leaf.kind)))
        .filter(|(_, kind)| *kind != RelationKind::Partitioned)
        .map(|(oid, _)| oid)
        .collect();
    let row = client
        .query_one(
            "select coalesce(sum(of.blocks), 0)::int8,
                    coalesce(bool_and(of.blocks = 0 or exists (
                        select from pg_catalog.pg_stats s
                         where s.schemaname = of.nspname and s.tablename = of.relname)), true)
               from (select n.nspname, c.relname,
                            pg_catalog.pg_relation_size(c.oid)
                              / pg_catalog.current_setting('block_size')::int8 as blocks
                       from pg_catalog.pg_class c
                       join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                      where c.oid = any ($1)) of",
            &[&oids],
        )
        .await
        .doing(doing())?;
    let blocks: i64 = row.try_get(0).doing(doing())?;
    let is_analyzed: bool = row.try_get(1).doing(doing())?;
    Ok(match is_analyzed && blocks > 0 {
        true => Look::Analyzed,
        false => Look::NeverAnalyzed { blocks },
    })
}

/// What the planner expects.
async fn planned<C: GenericClient + Sync>(
    client: &C,
    relation: &Relation,
    predicate: &str,
) -> Result<Estimate> {
    let doing = || format!("ask the planner for the rows of {}", relation.table);
    let sql = format!(
        "explain (format json) select * from {} as t where {predicate}",
        qualified(&relation.table)
    );
    let row = client.query_one(&sql, &[]).await.doing(doing())?;
    let plan: Value = row.try_get(0).doing(doing())?;
    let number = |at: &str| plan.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let rows = number("/0/Plan/Plan Rows");
    Ok(Estimate {
        rows,
        bytes: rows.saturating_mul(number("/0/Plan/Plan Width")),
        basis: Basis::Statistics,
    })
}

/// Rows and bytes by a share of the table's blocks; none if that took too long.
async fn sampled<C: GenericClient + Sync>(
    client: &C,
    relation: &Relation,
    predicate: &str,
    blocks: i64,
) -> Result<Option<(u64, u64)>> {
    let doing = || format!("read some of the rows of {}", relation.table);
    // Of a value out of line this is what is stored of it, and it is not fetched for that.
    let columns = relation.columns.iter();
    let sizes = columns.map(|column| {
        let name = quote_ident(&column.name);
        format!("coalesce(pg_catalog.pg_column_size(t.{name}), 0)")
    });
    let sizes: Vec<String> = std::iter::once("0".to_owned()).chain(sizes).collect();
    let scale = format!("greatest(1, {blocks} / {BLOCKS}.0)");
    let sql = format!(
        "select round(count(*) * {scale})::int8, round(coalesce(sum({}), 0) * {scale})::int8
           from {} as t tablesample system (least(100, 100.0 * {BLOCKS} / {blocks})) repeatable (0)
          where {predicate}",
        sizes.join(" + "),
        qualified(&relation.table)
    );
    let within = format!("set statement_timeout = '{TIMEOUT}'");
    client.batch_execute(&within).await.doing(doing())?;
    let read = client.query_one(&sql, &[]).await;
    client
        .batch_execute("set statement_timeout = 0")
        .await
        .doing(doing())?;
    let row = match read {
        Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => return Ok(None),
        read => read.doing(doing())?,
    };
    let number = |at: usize| -> Result<u64> {
        let number: i64 = row.try_get(at).doing(doing())?;
        Ok(number.unsigned_abs())
    };
    Ok(Some((number(0)?, number(1)?)))
}
