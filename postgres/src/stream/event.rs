//! Reads what the stream has to know out of pgoutput's messages.

use bytes::Bytes;
use monarch_model::Lsn;

use super::change::{Change, Value};
use super::error::StreamError;
use super::spool::Recording;
use super::tables::{Announced, Table, TableIndex, Tables};
use crate::PgTime;
use crate::drain::BARRIER_PREFIX;
use crate::pgoutput::{self, Change as Decoded, Message, ReplicaIdentity, Tuple};

/// What stands inside a transaction.
pub(super) enum Event {
    /// A change of a row.
    Change(Change),
    /// Tables were truncated.
    Truncate(Vec<TableIndex>),
    /// A mark of Monarch's.
    Message { content: Bytes },
    /// Nothing that matters.
    Other,
}

/// What a message is to the transaction that it belongs to.
pub(super) enum Bound {
    /// A transaction begins, and is sent as a whole.
    Begin { xid: u32 },
    /// It committed.
    Commit { end: Lsn, committed_at: PgTime },
    /// A part of a large transaction begins, whose outcome is not known.
    PartBegins { xid: u32 },
    /// The part ends.
    PartEnds,
    /// The large transaction committed.
    StreamedCommit {
        xid: u32,
        end: Lsn,
        committed_at: PgTime,
    },
    /// A large transaction, or a subtransaction of it, came to nothing.
    Abort { xid: u32, subxid: u32 },
    /// It belongs to the transaction, and changes this table, if one.
    Inside { table: Option<TableIndex> },
    /// Nothing that must be kept.
    Other,
}

/// Reads the bounds of transactions. What is announced of a table is compared with what it was.
/// `in_part` says whether it stands inside a part of a large transaction.
pub(super) fn read_bound(
    data: &[u8],
    in_part: bool,
    tables: &Tables,
) -> Result<Bound, StreamError> {
    Ok(match decode(data, in_part)?.0 {
        Message::Begin { xid, .. } => Bound::Begin { xid },
        Message::Commit { end_lsn, time, .. } => Bound::Commit {
            end: end_lsn,
            committed_at: time,
        },
        Message::StreamStart { xid, .. } => Bound::PartBegins { xid },
        Message::StreamStop => Bound::PartEnds,
        Message::StreamCommit {
            xid, end_lsn, time, ..
        } => Bound::StreamedCommit {
            xid,
            end: end_lsn,
            committed_at: time,
        },
        Message::StreamAbort { xid, subxid } => Bound::Abort { xid, subxid },
        Message::Relation {
            id,
            schema,
            name,
            replica_identity,
            columns,
        } => {
            let columns = columns.iter();
            let announced = Announced {
                id,
                schema,
                name,
                identity: letter(replica_identity),
                columns: columns
                    .map(|column| (column.name, (column.type_oid, column.type_modifier)))
                    .collect(),
            };
            tables.check(&announced)?;
            Bound::Other
        }
        Message::Change(change) => Bound::Inside {
            table: Some(known(tables, change.relation())?),
        },
        Message::Truncate { .. } => Bound::Inside { table: None },
        Message::Message {
            transactional: true,
            prefix: BARRIER_PREFIX,
            ..
        } => Bound::Inside { table: None },
        Message::Message { .. } | Message::Type { .. } | Message::Origin { .. } => Bound::Other,
    })
}

/// Reads a kept frame of `recording`. What a subtransaction did that came to nothing is nothing.
pub(super) fn read_event(
    frame: Bytes,
    recording: &Recording,
    tables: &Tables,
) -> Result<Event, StreamError> {
    let (message, xid) = decode(&frame, recording.is_streamed())?;
    if xid.is_some_and(|xid| recording.is_aborted(xid)) {
        return Ok(Event::Other);
    }
    Ok(match message {
        Message::Change(change) => {
            let index = known(tables, change.relation())?;
            Event::Change(read_row(&frame, &change, index, &tables.all[index])?)
        }
        Message::Truncate { relations, .. } => {
            let truncated: Vec<TableIndex> = relations
                .iter()
                .filter_map(|oid| tables.by_oid(oid))
                .collect();
            Event::Truncate(truncated)
        }
        Message::Message { content, .. } => Event::Message {
            content: frame.slice_ref(content.0),
        },
        _ => Event::Other,
    })
}

/// Reads a kept frame, if it changes a table that is `wanted`.
pub(super) fn read_change(
    frame: Bytes,
    recording: &Recording,
    tables: &Tables,
    wanted: &dyn Fn(TableIndex) -> bool,
) -> Result<Option<Change>, StreamError> {
    let (message, xid) = decode(&frame, recording.is_streamed())?;
    let Message::Change(change) = message else {
        return Ok(None);
    };
    let index = known(tables, change.relation())?;
    if !wanted(index) || xid.is_some_and(|xid| recording.is_aborted(xid)) {
        return Ok(None);
    }
    read_row(&frame, &change, index, &tables.all[index]).map(Some)
}

fn decode(data: &[u8], streamed: bool) -> Result<(Message<'_>, Option<u32>), StreamError> {
    pgoutput::decode(data, streamed).map_err(|error| StreamError::Protocol {
        what: error.to_string(),
    })
}

fn known(tables: &Tables, oid: u32) -> Result<TableIndex, StreamError> {
    tables.by_oid(oid).ok_or_else(|| StreamError::Protocol {
        what: format!("a change of a table that does not move, oid {oid}"),
    })
}

fn read_row(
    frame: &Bytes,
    change: &Decoded<'_>,
    index: TableIndex,
    table: &Table,
) -> Result<Change, StreamError> {
    let (old, new, is_insert) = match change {
        Decoded::Insert { new, .. } => (None, Some(*new), true),
        Decoded::Update { old, new, .. } => (old.map(|old| old.tuple()), Some(*new), false),
        Decoded::Delete { old, .. } => (Some(old.tuple()), None, false),
    };
    let values =
        |tuple: Option<Tuple<'_>>| tuple.map(|tuple| read_values(frame, tuple)).transpose();
    let mut change = Change {
        table: index,
        old: values(old)?,
        new: values(new)?,
        is_insert,
    };
    if !change.fits(table) {
        return Err(StreamError::Protocol {
            what: format!("a row of {} with another number of values", table.name),
        });
    }
    change.complete(table);
    Ok(change)
}

fn read_values(frame: &Bytes, tuple: Tuple<'_>) -> Result<Vec<Value>, StreamError> {
    let value = |value| match value {
        pgoutput::Value::Null => Ok(Value::Null),
        pgoutput::Value::Unchanged => Ok(Value::Unchanged),
        pgoutput::Value::Text(text) => Ok(Value::Text(frame.slice_ref(text))),
        pgoutput::Value::Binary(_) => Err(StreamError::Protocol {
            what: "a value in binary form, which was not asked for".to_owned(),
        }),
    };
    tuple.values().map(value).collect()
}

fn letter(identity: ReplicaIdentity) -> char {
    match identity {
        ReplicaIdentity::Default => 'd',
        ReplicaIdentity::Nothing => 'n',
        ReplicaIdentity::Full => 'f',
        ReplicaIdentity::Index => 'i',
    }
}
