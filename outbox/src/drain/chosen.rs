//! The messages that a visit delivers next.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::index::{Keys, Way};

/// A message as it was chosen.
pub(super) struct Chosen {
    pub(super) category: i32,
    pub(super) object: i64,
    /// Every id that was seen, ascending; the last one is the message's.
    pub(super) ids: Vec<i64>,
    pub(super) payload: Option<String>,
    pub(super) date_added: Timestamp,
    pub(super) scheduled_for: Timestamp,
    pub(super) queued_secs: f64,
}

/// The groups of the first rows of a shard, by their lowest id; of each all ids that can be seen now,
/// which alone will be deleted, and the newest message.
///
/// Single rows are looked up one by one (`limit 1`): a join by id may be planned as a walk of the whole
/// primary key while the queue is empty.
pub(super) fn choose(name: &str, keys: &Keys) -> String {
    let (equal, n) = (keys.equal(), keys.next);
    let first_rows = keys.all(Way::Up);
    let (rows, messages, bytes) = (n + 1, n + 2, n + 3);
    format!(
        "with head as materialized (
            select id, category, object_identifier from {name} {first_rows} limit ${rows}::int8
        ), chosen as (
            select category, object_identifier, min(id) as first_id
            from head where id <= ${n}::int8 group by category, object_identifier
            order by first_id limit ${messages}::int8
        ), message as materialized (
            select chosen.first_id, chosen.category, chosen.object_identifier, seen.ids,
                newest.payload, newest.date_added, newest.scheduled_for, oldest.date_added as oldest
            from chosen
            cross join lateral (
                select array_agg(id) as ids from (
                    select id from {name}
                    where {equal} and category = chosen.category
                        and object_identifier = chosen.object_identifier
                    order by id
                ) as seen
            ) as seen
            cross join lateral (
                select payload::text as payload, {date_added} as date_added,
                    {scheduled_for} as scheduled_for
                from {name} where id = seen.ids[cardinality(seen.ids)] limit 1
            ) as newest
            cross join lateral (
                select {date_added} as date_added from {name} where id = seen.ids[1] limit 1
            ) as oldest
        ), measured as (
            select *, sum(octet_length(payload)) over (
                order by first_id rows between unbounded preceding and 1 preceding) as before
            from message
        )
        select category::int4, object_identifier::int8, ids::int8[], payload, date_added,
            scheduled_for,
            greatest(extract(epoch from statement_timestamp() - oldest), 0)::float8 as queued_secs
        from measured
        where coalesce(before, 0) < ${bytes}::int8
        order by first_id",
        date_added = readable("date_added"),
        scheduled_for = readable("scheduled_for"),
    )
}

/// An instant that we can read, whatever others wrote.
fn readable(column: &str) -> String {
    format!("least(greatest({column}, '0001-01-01 00:00:00+00'), '9999-01-01 00:00:00+00')")
}

impl Chosen {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        fn column<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, tokio_postgres::Error> {
            row.try_get(at)
        }
        Ok(Self {
            category: column(row, 0)?,
            object: column(row, 1)?,
            ids: column(row, 2)?,
            payload: column(row, 3)?,
            date_added: column(row, 4)?,
            scheduled_for: column(row, 5)?,
            queued_secs: column(row, 6)?,
        })
    }
}
