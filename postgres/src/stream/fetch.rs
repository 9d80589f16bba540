//! What is to be read from the source because the log does not hold it, and the statements that
//! read it.
//!
//! Rows are asked for by key and by scope, parents before what hangs on them, and every value as
//! the text that its type prints, which is what the log would have held.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::Reason;
use super::error::StreamError;
use super::tables::{Table, TableIndex, Tables};

/// The most keys of rows and parents that are held to be fetched together.
const WANTED_MAX: usize = 200_000;

/// What reads a table's rows on the source.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The columns, in the order in which the log has them, from the alias `t`.
    pub(super) columns: String,
    /// A condition that holds for the organization's rows, under the alias `t`.
    pub(super) condition: String,
    /// The column that ties a row to the organization.
    pub(super) tie: Comparison,
    /// The columns of the key.
    pub(super) key: Vec<Comparison>,
}

/// How a column of the source is compared with a text.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The column, quoted.
    pub(super) column: String,
    /// The operator.
    pub(super) equals: String,
    /// What the text is cast to.
    pub(super) type_name: String,
    /// What makes a column of another collation comparable with it, put after that.
    pub(super) collate: String,
}

impl Comparison {
    /// Whether it is one of the texts of an array.
    fn is_any_of(&self, array: &str) -> String {
        let Self {
            column,
            equals,
            type_name,
            ..
        } = self;
        format!("t.{column} {equals} any({array}::text[]::{type_name}[])")
    }

    /// Whether it is that text.
    fn is(&self, text: &str) -> String {
        let Self {
            column,
            equals,
            type_name,
            ..
        } = self;
        format!("t.{column} {equals} {text}::{type_name}")
    }

    /// Whether it is one of what another statement selects.
    fn is_among(&self, select: &str) -> String {
        format!("t.{} {} any({select})", self.column, self.equals)
    }
}

/// A statement that reads rows of a table, each parameter an array of texts.
pub(super) struct Query {
    /// The table.
    pub(super) table: TableIndex,
    /// The statement.
    pub(super) sql: String,
    /// Its parameters.
    pub(super) params: Vec<Vec<String>>,
}

/// The rows and subtrees that are to be fetched.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Parents that entered, with all that hangs on them.
    subtrees: BTreeMap<TableIndex, BTreeSet<String>>,
    /// Rows that entered, by their keys.
    rows: BTreeMap<TableIndex, BTreeSet<Vec<Bytes>>>,
    total: usize,
}

impl Wanted {
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// A parent, and all that hangs on it.
    pub(super) fn subtree(&mut self, tables: &Tables, parent: TableIndex, id: String) -> Held {
        self.total += usize::from(self.subtrees.entry(parent).or_default().insert(id));
        self.within_bounds(&tables.all[parent])
    }

    /// A row.
    pub(super) fn row(&mut self, tables: &Tables, table: TableIndex, key: Vec<Bytes>) -> Held {
        // The bytes of a frame are not kept for a key of it.
        let key = key
            .iter()
            .map(|part| Bytes::copy_from_slice(part))
            .collect();
        self.total += usize::from(self.rows.entry(table).or_default().insert(key));
        self.within_bounds(&tables.all[table])
    }

    fn within_bounds(&self, table: &Table) -> Held {
        if self.total > WANTED_MAX {
            return Err(table.finding(Reason::FetchTooLarge));
        }
        Ok(())
    }

    /// The parents whose subtrees are wanted.
    pub(super) fn parents(&self) -> BTreeMap<TableIndex, BTreeSet<String>> {
        self.subtrees.clone()
    }

    /// What reads it all, parents before what hangs on them.
    pub(super) fn queries(&self, tables: &Tables) -> Vec<Query> {
        let mut queries = Vec::new();
        for (&parent, ids) in &self.subtrees {
            let ids: Vec<String> = ids.iter().cloned().collect();
            for (table, sql) in subtree(tables, parent) {
                let params = vec![ids.clone()];
                queries.push(Query { table, sql, params });
            }
        }
        for (&table, keys) in &self.rows {
            let reading = &tables.all[table].reading;
            let column = |at: usize| {
                let parts = keys.iter().map(|key| String::from_utf8_lossy(&key[at]));
                parts.map(std::borrow::Cow::into_owned).collect()
            };
            queries.push(Query {
                table,
                sql: by_key(&tables.all[table]),
                params: (0..reading.key.len()).map(column).collect(),
            });
        }
        // Tables stand parents first.
        queries.sort_by_key(|query| query.table);
        queries
    }
}

type Held = Result<(), StreamError>;

/// What reads the rows of a parent with the given ids, and all that hangs on them, as far as it is
/// the organization's.
fn subtree(tables: &Tables, parent: TableIndex) -> Vec<(TableIndex, String)> {
    let reading = &tables.all[parent].reading;
    let own: Vec<String> = reading.key.iter().map(|key| key.is_any_of("$1")).collect();
    let own = format!("{} and {}", own.join(" and "), reading.condition);
    let mut selects = Vec::new();
    below(tables, parent, &own, &mut selects);
    selects
}

fn below(
    tables: &Tables,
    index: TableIndex,
    condition: &str,
    selects: &mut Vec<(TableIndex, String)>,
) {
    let table = &tables.all[index];
    let (reading, from) = (&table.reading, &table.sql_name);
    let select = |what: &str| format!("select {what} from {from} as t where {condition}");
    selects.push((index, select(&reading.columns)));
    for child in &table.children {
        let tie = &tables.all[child.table].reading.tie;
        let keys: Vec<String> = reading
            .key
            .iter()
            .map(|key| select(&format!("t.{}{}", key.column, tie.collate)))
            .collect();
        let hangs = tie.is_among(&keys.join(""));
        below(tables, child.table, &hangs, selects);
    }
}

/// What reads the organization's rows of the given keys.
fn by_key(table: &Table) -> String {
    let Reading {
        columns,
        condition,
        key,
        ..
    } = &table.reading;
    let list = |part: &dyn Fn(usize) -> String| {
        let parts: Vec<String> = (1..=key.len()).map(part).collect();
        parts.join(", ")
    };
    let arrays = list(&|at| format!("${at}::text[]"));
    let names = list(&|at| format!("k{at}"));
    let equal: Vec<String> = (1..)
        .zip(key)
        .map(|(at, key)| key.is(&format!("k.k{at}")))
        .collect();
    format!(
        "select {columns} from {} as t join unnest({arrays}) as k({names}) on {} where {condition}",
        table.sql_name,
        equal.join(" and ")
    )
}

/// A condition over `t`: that a row was not written by a transaction at or above the horizon
/// (`$2`), and so was there before it. A row tells the lower 32 bits of its transaction, frozen or
/// not; they are compared with those that were given out since, counted from the horizon around the
/// circle. Once the circle is through they tell nothing, and every row counts as old.
///
/// A row that was frozen one circle ago may have the same bits as a transaction of this move, and is
/// then taken for young: nothing that a query sees tells them apart. It takes a child that waited
/// for its parent for four thousand million transactions, and the share of the circle that the move
/// has seen. It is not lost without a word: the comparison before the flip finds the row missing.
const OLDER_THAN_HORIZON: &str = "
    ((t.xmin::text::bigint - $2::bigint) & 4294967295) >=
      (select case when given_out > 4294967295 then 0 else given_out end
         from (select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
                      - $2::bigint) as since(given_out))";

/// For each table whose edge onto `parent` nothing enforces: what selects those of the parent's ids
/// (`$1`) that a row refers to which was there before the horizon (`$2`).
pub(super) fn came_before(tables: &Tables, parent: TableIndex) -> Vec<String> {
    let children = tables.all[parent].children.iter();
    let loose = children.filter(|child| !tables.all[child.table].tie_enforced);
    loose
        .map(|child| {
            let table = &tables.all[child.table];
            format!(
                "select p.id from unnest($1::text[]) as p(id)
                 where exists (
                   select from {} as t
                   where {} and {OLDER_THAN_HORIZON})",
                table.sql_name,
                table.reading.tie.is("p.id")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use monarch_harness::{PgVersion, shared};

    use super::*;

    /// Guards promise 1 across the wrap of the 32-bit counter: a row that was there before the
    /// horizon counts as old, up to nearly a circle of transactions ago, and beyond a circle all do.
    #[tokio::test]
    async fn a_row_from_before_the_horizon_is_old_across_the_wrap() {
        const CIRCLE: i64 = 1 << 32;
        let client = shared::cluster(PgVersion::V15)
            .await
            .admin("postgres")
            .await
            .unwrap();
        let next = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        let next: i64 = client.query_one(next, &[]).await.unwrap().get(0);
        for (written_ago, horizon_ago, old) in [
            (1_000, 1_000_000, false),
            (2_000_000, 1_000_000, true),
            (CIRCLE / 2 + 5, 1_000_000, true),
            (CIRCLE - 1_000_000, 1_000_000, true),
            (1_000, CIRCLE + 1_000, true),
            (CIRCLE - 5, CIRCLE + 1_000, true),
        ] {
            let sql = format!("select {OLDER_THAN_HORIZON} from (select $1::text as xmin) as t");
            let xmin = (next - written_ago).rem_euclid(CIRCLE).to_string();
            let found = client
                .query_one(&sql, &[&xmin, &(next - horizon_ago)])
                .await;
            let found: bool = found.unwrap().get(0);
            assert_eq!(found, old, "{written_ago} {horizon_ago}");
        }
    }
}
