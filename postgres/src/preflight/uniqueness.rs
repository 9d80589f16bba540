//! What the sink holds unique otherwise than by a list of columns in all rows: unique indexes over
//! expressions, over some rows only, over one partition, with nulls that are equal; and exclusion
//! constraints.
//!
//! Whether the organization's rows would clash with others' is for the index to say: its own
//! expressions, condition and operators are put to the organization's values, on the sink.

use tokio_postgres::Row;

use super::open::Open;
use crate::catalog::Relation;
use crate::sql::quote_ident;
use crate::{Doing, Result};

/// One index of the sink, or the constraint that it serves.
pub(super) struct Uniqueness {
    /// Its name.
    pub(super) name: String,
    /// What it is on, in SQL: the table or a partition of it.
    pub(super) on: String,
    /// What mends a clash by dropping it.
    pub(super) drop: String,
    /// What it compares, in order.
    keys: Vec<Key>,
    /// Which rows it is about, if not all.
    condition: Option<String>,
    /// Which rows of the table the partition takes.
    bound: Option<String>,
    nulls_are_equal: bool,
}

/// What an index compares, in SQL over the bare names of columns.
struct Key {
    expression: String,
    operator: String,
    collate: String,
}

/// Copies of a partitioned table's index on its partitions say nothing of their own. An index that is not
/// valid holds new rows unique all the same, once it is ready.
const SPECIAL: &str = "
select c.relname::text, format('%I.%I', n.nspname, t.relname),
       case when x.oid is null then format('drop index %I.%I', n.nspname, c.relname)
            else format('alter table %I.%I drop constraint %I', n.nspname, t.relname, x.conname) end,
       array(select pg_get_indexdef(c.oid, key, false)
               from generate_series(1, i.indnkeyatts) as key order by key),
       array(select format('operator(%I.%s)', s.nspname, o.oprname)
               from generate_series(1, i.indnkeyatts) as key
               join pg_catalog.pg_opclass oc on oc.oid = i.indclass[key - 1]
               left join pg_catalog.pg_amop am
                 on am.amopfamily = oc.opcfamily and am.amopstrategy = 3
                and am.amoplefttype = oc.opcintype and am.amoprighttype = oc.opcintype
               join pg_catalog.pg_operator o on o.oid = coalesce(x.conexclop[key], am.amopopr)
               join pg_catalog.pg_namespace s on s.oid = o.oprnamespace
              order by key),
       array(select coalesce((select format(' collate %I.%I', s.nspname, l.collname)
                                from pg_catalog.pg_collation l
                                join pg_catalog.pg_namespace s on s.oid = l.collnamespace
                               where l.oid = i.indcollation[key - 1]), '')
               from generate_series(1, i.indnkeyatts) as key order by key),
       pg_get_expr(i.indpred, i.indrelid),
       case when t.relispartition then pg_get_partition_constraintdef(t.oid) end,
       special.nulls_are_equal
  from pg_catalog.pg_index i
  join pg_catalog.pg_class c on c.oid = i.indexrelid
  join pg_catalog.pg_class t on t.oid = i.indrelid
  join pg_catalog.pg_namespace n on n.oid = t.relnamespace
  left join pg_catalog.pg_constraint x
    on x.conindid = c.oid and x.conrelid = t.oid and x.contype in ('p', 'u', 'x')
  cross join lateral (select
    coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false) as nulls_are_equal) as special
 where i.indrelid = any($1) and (i.indisunique or i.indisexclusion)
   and i.indisready and i.indislive and not c.relispartition
   and (i.indpred is not null or i.indexprs is not null or i.indisexclusion
        or special.nulls_are_equal or i.indrelid <> $2)
 order by 1, 2";

/// What there is of it on the sink's table and its partitions.
pub(super) async fn read(to: &Open<'_>, sink: &Relation) -> Result<Vec<Uniqueness>> {
    let doing = || format!("look for what the sink holds unique in {}", sink.table);
    let leaves = sink.leaves.iter().map(|leaf| leaf.oid);
    let oids: Vec<u32> = std::iter::once(sink.oid).chain(leaves).collect();
    let rows = to.primary.query(SPECIAL, &[&oids, &sink.oid]).await;
    let rows = rows.doing(doing())?;
    rows.iter()
        .map(|row| uniqueness(row).doing(doing()))
        .collect()
}

fn uniqueness(row: &Row) -> std::result::Result<Uniqueness, tokio_postgres::Error> {
    let expressions: Vec<String> = row.try_get(3)?;
    let operators: Vec<String> = row.try_get(4)?;
    let collations: Vec<String> = row.try_get(5)?;
    let keys = expressions.into_iter().zip(operators).zip(collations);
    Ok(Uniqueness {
        name: row.try_get(0)?,
        on: row.try_get(1)?,
        drop: row.try_get(2)?,
        keys: keys
            .map(|((expression, operator), collate)| Key {
                expression,
                operator,
                collate,
            })
            .collect(),
        condition: row.try_get(6)?,
        bound: row.try_get(7)?,
        nulls_are_equal: row.try_get(8)?,
    })
}

impl Uniqueness {
    /// The columns of the sink that it asks for, as far as their names tell: one more does no harm.
    pub(super) fn columns(&self, sink: &Relation) -> Vec<String> {
        let keys = self.keys.iter().map(|key| &key.expression);
        let texts: Vec<&String> = keys.chain(&self.condition).chain(&self.bound).collect();
        let names = sink.columns.iter().map(|column| &column.name);
        names
            .filter(|name| texts.iter().any(|text| names_it(text, name)))
            .cloned()
            .collect()
    }

    /// Counts the pairs of rows that it would not take together: others' on the sink, and those of which
    /// arrays of texts, its parameters, hold the values of `columns`.
    pub(super) fn search_sql(&self, columns: &[String], sink: &Relation) -> String {
        let list = |part: &dyn Fn(usize) -> String| -> String {
            let parts: Vec<String> = (1..=columns.len()).map(part).collect();
            parts.join(", ")
        };
        let given = list(&|at| {
            let column = sink.column(&columns[at - 1]);
            let (type_name, collate) = column.map_or(("text", String::new()), |column| {
                (&*column.type_name, column.collate())
            });
            let name = quote_ident(&columns[at - 1]);
            format!("g.g{at}::{type_name}{collate} as {name}")
        });
        let arrays = list(&|at| format!("${at}::text[]"));
        let names = list(&|at| format!("g{at}"));
        let rows = format!("(select {given} from unnest({arrays}) as g({names})) as given");
        format!(
            "select count(*) from {} as theirs join {} as ours on {}",
            self.entries(&self.on, &self.condition),
            self.entries(&rows, self.condition.iter().chain(&self.bound)),
            self.clash()
        )
    }

    /// What the index would hold of rows.
    fn entries<'c>(&self, rows: &str, conditions: impl IntoIterator<Item = &'c String>) -> String {
        let keys = (1..).zip(&self.keys);
        let keys: Vec<String> = keys
            .map(|(at, key)| format!("({}) as e{at}", key.expression))
            .collect();
        let conditions: Vec<String> = conditions
            .into_iter()
            .map(|condition| format!("({condition})"))
            .collect();
        let conditions = match conditions.is_empty() {
            true => String::new(),
            false => format!(" where {}", conditions.join(" and ")),
        };
        format!("(select {} from {rows}{conditions})", keys.join(", "))
    }

    fn clash(&self) -> String {
        let keys = (1..).zip(&self.keys);
        let same: Vec<String> = keys
            .map(|(at, key)| {
                let Key {
                    operator, collate, ..
                } = key;
                let same = format!("theirs.e{at} {operator} ours.e{at}{collate}");
                match self.nulls_are_equal {
                    true => format!("({same} or theirs.e{at} is null and ours.e{at} is null)"),
                    false => same,
                }
            })
            .collect();
        same.join(" and ")
    }
}

/// Whether the name stands in an expression as a word.
fn names_it(expression: &str, name: &str) -> bool {
    let name = name.replace('"', "\"\"");
    let of_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    expression.match_indices(&name).any(|(at, _)| {
        let before = expression[..at].chars().next_back();
        let after = expression[at + name.len()..].chars().next();
        !before.is_some_and(of_word) && !after.is_some_and(of_word)
    })
}
