//! How a shard's rows are met in the order of their ids, whatever the table's statistics say: a queue
//! is empty when it is analyzed, and has ten million rows an hour later.
//!
//! Ranges are written as comparisons of rows that begin with the shard, which the index by shard and id
//! serves, and the primary key cannot.

use tokio_postgres::types::{ToSql, Type};

use crate::message::Shard;
use crate::silo::{Silo, Target};
use crate::table::Table;

/// A parameter and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A shard as it stands in statements: its columns, and its parameters.
pub(super) struct Keys {
    /// `"region_name", shard_scope, shard_identifier`
    pub(super) columns: Vec<String>,
    /// `$1::text`, `$2::int4`, `$3::int8`
    pub(super) values: Vec<String>,
    /// The number of the first parameter behind them.
    pub(super) next: usize,
}

/// Which way an index is walked.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Up,
    Down,
}

impl Keys {
    pub(super) fn new<S: Silo>(table: &Table<S>) -> Self {
        let types = if S::TARGETED {
            &["text", "int4", "int8"][..]
        } else {
            &["int4", "int8"]
        };
        let values = types.iter().enumerate();
        let values: Vec<String> = values
            .map(|(at, kind)| format!("${}::{kind}", at + 1))
            .collect();
        Self {
            columns: table.shard_columns(),
            next: values.len() + 1,
            values,
        }
    }

    /// The rows of the shard in the order of their ids.
    pub(super) fn all(&self, way: Way) -> String {
        in_order(&self.columns, &self.values, way)
    }

    /// `shard_scope = $1::int4 and …`
    pub(super) fn equal(&self) -> String {
        equal(&self.columns, &self.values)
    }
}

fn equal(columns: &[String], values: &[String]) -> String {
    let pairs = columns.iter().zip(values);
    let pairs: Vec<String> = pairs
        .map(|(column, value)| format!("{column} = {value}"))
        .collect();
    pairs.join(" and ")
}

/// The rows of a shard in the order of their ids, so written that an index by shard and id alone can
/// serve it, and stops at the shard's end.
///
/// Were every column compared for equality, the order would be that of the id alone, and the primary
/// key's scan of all shards would look cheap. Were the end of the range a comparison of rows, the
/// scan would not stop there: the server takes only the first column of such a comparison for an end.
pub(super) fn in_order(columns: &[String], values: &[String], way: Way) -> String {
    let (Some((column, before)), Some((value, values))) =
        (columns.split_last(), values.split_last())
    else {
        return String::new();
    };
    let before = equal(before, values);
    match way {
        Way::Up => format!(
            "where {before} and ({column}, id) >= ({value}, {low}) and {column} <= {value} \
             order by {column}, id",
            low = i64::MIN
        ),
        Way::Down => format!(
            "where {before} and ({column}, id) <= ({value}, {high}) and {column} >= {value} \
             order by {column} desc, id desc",
            high = i64::MAX
        ),
    }
}

impl<S: Silo> Shard<S> {
    /// The shard as the first parameters of a statement, `target` being its cell's name.
    pub(crate) fn parameters<'a>(&'a self, target: &'a Option<&'a str>) -> Vec<Parameter<'a>> {
        let mut parameters: Vec<Parameter<'a>> = Vec::with_capacity(6);
        if S::TARGETED {
            parameters.push((target, Type::TEXT));
        }
        parameters.push((&self.scope, Type::INT4));
        parameters.push((&self.identifier, Type::INT8));
        parameters
    }

    /// Its cell's name, for [`Self::parameters`].
    pub(crate) fn target_name(&self) -> Option<&str> {
        self.target.cell().map(|cell| cell.as_str())
    }
}

/// The highest id of a shard. Parameters: the shard.
pub(crate) fn highest<S: Silo>(table: &Table<S>) -> String {
    let (name, all) = (table.name().sql(), Keys::new(table).all(Way::Down));
    format!("select id::int8 from {name} {all} limit 1")
}
