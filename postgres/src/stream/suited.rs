//! Which tables' rows may share statements, and by which rules.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use super::tables::{Table, Tables, Tie};
use crate::{Doing, Error};

/// How rows of a table may be written together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Suited {
    /// Whether they may at all: nothing of the sink's own looks at each write, and two keys are the
    /// same row only if their texts are equal.
    pub(super) together: bool,
    /// The columns that hold rows apart, by their places, if more than the key does: by another
    /// unique index or an exclusion constraint.
    pub(super) apart: Option<Vec<usize>>,
    /// Whether the sink's foreign keys act, so that the log's order of tables must be kept.
    pub(super) in_order: bool,
}

/// Types of keys whose values are equal exactly if their texts are.
const PLAIN_TYPES: &str = "
    case
      when a.atttypid = any(array['int2', 'int4', 'int8']::regtype[]) then 'number'
      when a.atttypid = 'uuid'::regtype then 'uuid'
      when a.atttypid = any(array['text', 'varchar']::regtype[])
           and (select l.collisdeterministic from pg_catalog.pg_collation l
                where l.oid = a.attcollation) then 'text'
    end";

/// What is read of each table, in their order. `$1` are their names, `$2` the triggers that act.
fn sql() -> String {
    format!(
        "select c.relhassubclass and c.relkind = 'r'
             or exists (select from pg_catalog.pg_rewrite r where r.ev_class = any(tree.oids))
             or exists (select from pg_catalog.pg_trigger g
                        where g.tgrelid = any(tree.oids) and not g.tgisinternal
                          and g.tgenabled::text = any($2)) as is_watched,
           apart.indexes, apart.is_computed, apart.names as apart,
           plain.names, plain.kinds
         from unnest($1::text[]) with ordinality as named(name, place)
         join pg_catalog.pg_class c on c.oid = named.name::regclass
         cross join lateral (
           select pg_catalog.array_agg(relid::oid) || c.oid as oids
           from pg_catalog.pg_partition_tree(c.oid)) as tree
         cross join lateral (
           select (select coalesce(max(indexes), 0) from (
                     select count(*) as indexes from pg_catalog.pg_index i
                     where i.indrelid = any(tree.oids) and (i.indisunique or i.indisexclusion)
                     group by i.indrelid) as of_one) as indexes,
                  coalesce(bool_or(i.indexprs is not null or i.indpred is not null), false)
                    as is_computed,
                  array_agg(distinct a.attname::text) as names
           from pg_catalog.pg_index i
           join pg_catalog.pg_attribute a
             on a.attrelid = i.indrelid and a.attnum = any(i.indkey::int2[])
           where i.indrelid = any(tree.oids) and (i.indisunique or i.indisexclusion)) as apart
         cross join lateral (
           select array_agg(a.attname::text) as names, array_agg({PLAIN_TYPES}) as kinds
           from pg_catalog.pg_attribute a
           where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
             and {PLAIN_TYPES} is not null) as plain
         order by named.place"
    )
}

/// What the sink's catalog has of a table.
struct Read {
    is_watched: bool,
    /// Unique indexes and exclusion constraints of it or of one of its partitions.
    indexes: i64,
    /// Whether one of them holds expressions, or some rows only.
    is_computed: bool,
    /// The columns of them all.
    apart: Vec<String>,
    /// The columns of a plain type, with its kind.
    plain: HashMap<String, String>,
}

/// Reads it of each table, in their order. `cascades` says whether the sink's triggers act.
pub(super) async fn load(
    sink: &Client,
    tables: &Tables,
    cascades: bool,
) -> Result<Vec<Suited>, Error> {
    let doing = "read what acts on rows that are written on the sink";
    let all = tables.all.iter();
    let names: Vec<&str> = all.map(|table| table.sql_name.as_str()).collect();
    let fires = if cascades { ["O", "A"] } else { ["R", "A"] };
    let rows = sink.query(&sql(), &[&names, &fires.as_slice()]).await;
    let rows = rows.doing(doing)?;
    let read: Result<Vec<Read>, _> = rows.iter().map(read).collect();
    let read = read.doing(doing)?;
    let suited = |at| suited(tables, at, &read, cascades);
    Ok((0..tables.all.len()).map(suited).collect())
}

fn read(row: &Row) -> Result<Read, tokio_postgres::Error> {
    let names = |column| -> Result<Vec<String>, tokio_postgres::Error> {
        let names: Option<Vec<String>> = row.try_get(column)?;
        Ok(names.unwrap_or_default())
    };
    Ok(Read {
        is_watched: row.try_get("is_watched")?,
        indexes: row.try_get("indexes")?,
        is_computed: row.try_get("is_computed")?,
        apart: names("apart")?,
        plain: names("names")?.into_iter().zip(names("kinds")?).collect(),
    })
}

fn suited(tables: &Tables, index: usize, read: &[Read], cascades: bool) -> Suited {
    let Some(of_table) = read.get(index) else {
        return Suited::default();
    };
    let table = &tables.all[index];
    let kind =
        |table: &Table, at: usize, read: &Read| read.plain.get(&table.columns[at].name).cloned();
    let keys_are_plain = table
        .key
        .iter()
        .all(|&at| kind(table, at, of_table).is_some());
    // The parent's row is found by the text of the value that refers to it.
    let tie_is_plain = match &table.tie {
        Tie::Fixed { .. } => true,
        Tie::Within { column, parent } => {
            let above = &tables.all[*parent];
            let id = read
                .get(*parent)
                .and_then(|read| kind(above, above.key[0], read));
            id.is_some() && id == kind(table, *column, of_table)
        }
    };
    Suited {
        together: !of_table.is_watched && keys_are_plain && tie_is_plain,
        apart: (of_table.indexes > 1).then(|| apart(table, of_table)),
        in_order: cascades,
    }
}

/// All columns, where an index reads more than can be told.
fn apart(table: &Table, read: &Read) -> Vec<usize> {
    let place = |name: &String| table.columns.iter().position(|column| column.name == *name);
    let named: Option<Vec<usize>> = read.apart.iter().map(place).collect();
    named
        .filter(|_| !read.is_computed)
        .unwrap_or_else(|| (0..table.columns.len()).collect())
}
