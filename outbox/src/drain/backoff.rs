//! When a shard is tried again: its head says so. A visit puts the head off before it calls a receiver,
//! and every head after it as it comes.

use tokio_postgres::Row;

use super::index::{Keys, Way};

/// Twice the last delay, at least two seconds (the last counts as one at least), at most an hour.
/// Others may have written an instant that is not finite; it says nothing of a delay.
pub(super) const NEXT_DELAY: &str = "case when isfinite(scheduled_for) and isfinite(scheduled_from) \
     then least(2 * greatest(scheduled_for - scheduled_from, interval '1 second'), \
                interval '1 hour') \
     else interval '2 seconds' end";

/// A schedule further away than the longest delay was written by a clock that was wrong.
pub(super) const DUE: &str = "(scheduled_for <= statement_timestamp() \
                              or scheduled_for > statement_timestamp() + interval '1 hour')";

/// The row that `head` names. By its place, because an index in which the id stands last looks as good
/// as the primary key while the queue is empty, and the plan of that moment is kept: it would walk the
/// whole index. By its id as well, because places repeat where a table has partitions. A head that
/// another changes meanwhile has moved on, and is met by the next tour.
const IS_HEAD: &str = "ctid = (select ctid from head) and id = (select id from head)";

/// Whether a shard was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Taken {
    /// It was; if it fails it waits for so many seconds.
    Had { delay_secs: f64 },
    /// Another drain has its lock.
    Busy,
    /// It is on backoff, or empty.
    NotDue,
}

impl Taken {
    /// Reads what [`take`] returned.
    pub(super) fn read(rows: &[Row]) -> Self {
        match rows.first().map(|row| (row.get(0), row.get(1))) {
            Some((true, Some(delay_secs))) => Self::Had { delay_secs },
            Some((false, _)) => Self::Busy,
            Some((true, None)) | None => Self::NotDue,
        }
    }
}

/// Takes a shard that is due: puts its head on backoff. Parameters: the shard, the number of its lock.
///
/// The lock is asked for before the head is looked at: the condition does not depend on a row, so it is
/// met first and once.
pub(super) fn take(name: &str, keys: &Keys) -> String {
    let head = place_of_head(name, keys);
    let head = head.replacen(" where ", " where (select locked from lock) and ", 1);
    format!(
        "with lock as materialized (
            select pg_try_advisory_xact_lock(${n}::int8) as locked
        ), head as materialized (
            {head} for update nowait
        ), taken as (
            update {name} set scheduled_from = statement_timestamp(),
                scheduled_for = statement_timestamp() + {NEXT_DELAY}
            where {IS_HEAD} and {DUE}
            returning extract(epoch from scheduled_for - scheduled_from)::float8 as delay_secs
        )
        select locked, (select delay_secs from taken) from lock",
        n = keys.next
    )
}

/// Puts a shard's head on backoff; a row if there is one. Parameters: the shard, the delay in seconds.
pub(super) fn put_off_head(name: &str, keys: &Keys) -> String {
    format!(
        "with head as materialized ({}), put_off as ({} where {IS_HEAD}) select from head",
        place_of_head(name, keys),
        put_off(name, keys),
    )
}

/// Puts a shard on backoff. Parameters: the shard, the delay in seconds, how many rows.
pub(super) fn put_off_shard(name: &str, keys: &Keys) -> String {
    format!(
        "{} where id = any(array(select id from {name} {} limit ${}::int8))",
        put_off(name, keys),
        keys.all(Way::Up),
        keys.next + 1
    )
}

/// Undoes the head's backoff. Parameters: the shard.
pub(super) fn make_due(name: &str, keys: &Keys) -> String {
    format!(
        "with head as materialized ({})
         update {name} set scheduled_for = '2016-08-01 00:00:00+00' where {IS_HEAD}",
        place_of_head(name, keys)
    )
}

fn put_off(name: &str, keys: &Keys) -> String {
    format!(
        "update {name} set scheduled_from = statement_timestamp(), \
         scheduled_for = statement_timestamp() + make_interval(secs => ${}::float8)",
        keys.next
    )
}

/// The id of a shard's head.
pub(super) fn head(name: &str, keys: &Keys) -> String {
    format!("select id from {name} {} limit 1", keys.all(Way::Up))
}

/// Where a shard's head is, for [`IS_HEAD`].
fn place_of_head(name: &str, keys: &Keys) -> String {
    format!("select ctid, id from {name} {} limit 1", keys.all(Way::Up))
}
