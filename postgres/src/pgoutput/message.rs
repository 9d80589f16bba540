//! The messages.

use monarch_model::Lsn;

use super::reader::{DecodeError, Reader};
use super::tuple::Tuple;
use crate::PgTime;

/// One message, as views into its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction begins; what follows up to its commit belongs to it.
    Begin {
        /// Where its commit record begins.
        final_lsn: Lsn,
        /// The source's clock at its commit.
        commit_time: PgTime,
        /// Its id.
        xid: u32,
    },
    /// The transaction's commit.
    Commit {
        /// Where the commit record begins.
        lsn: Lsn,
        /// Where it ends: what an applied transaction is acknowledged as.
        end_lsn: Lsn,
        /// The source's clock at the commit.
        time: PgTime,
    },
    /// The transaction came to the source by replication.
    Origin {
        /// Its commit where it came from.
        lsn: Lsn,
        /// The origin's name.
        name: &'a str,
    },
    /// What a relation looks like, before its first change and after each of its own changes.
    Relation {
        /// Its oid, by which changes name it.
        id: u32,
        /// Its schema.
        schema: &'a str,
        /// Its name.
        name: &'a str,
        /// What an update or delete tells of the old row.
        replica_identity: ReplicaIdentity,
        /// The columns in the order of the values.
        columns: Columns<'a>,
    },
    /// The name of a type that is not built in.
    Type {
        /// Its oid.
        id: u32,
        /// Its schema.
        schema: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A row was inserted, updated or deleted.
    Change(Change<'a>),
    /// Tables were truncated.
    Truncate {
        /// Whether tables that reference them were too.
        cascade: bool,
        /// Whether their sequences were set back.
        restart_identity: bool,
        /// The relations' oids.
        relations: RelationIds<'a>,
    },
    /// A message of `pg_logical_emit_message`.
    Message {
        /// Whether it belongs to the transaction, or stands for itself.
        transactional: bool,
        /// Where it is in the log.
        lsn: Lsn,
        /// Its prefix.
        prefix: &'a str,
        /// Its content.
        content: Content<'a>,
    },
    /// A part of a large transaction begins, whose outcome is not known yet.
    StreamStart {
        /// The transaction's id.
        xid: u32,
        /// Whether it is the transaction's first part.
        first: bool,
    },
    /// The part ends.
    StreamStop,
    /// A streamed transaction's commit.
    StreamCommit {
        /// The transaction's id.
        xid: u32,
        /// Where the commit record begins.
        lsn: Lsn,
        /// Where it ends.
        end_lsn: Lsn,
        /// The source's clock at the commit.
        time: PgTime,
    },
    /// A streamed transaction, or one of its subtransactions, came to nothing.
    StreamAbort {
        /// The transaction's id.
        xid: u32,
        /// The subtransaction's; the transaction's own if it is the whole of it.
        subxid: u32,
    },
}

/// The content of an emitted message; it is not printed, for it may be anybody's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Content<'a>(pub &'a [u8]);

impl std::fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What happened to one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It was inserted.
    Insert {
        /// The relation's oid.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// It was updated.
    Update {
        /// The relation's oid.
        relation: u32,
        /// The old row, as far as the replica identity tells; none if its key did not change.
        old: Option<OldTuple<'a>>,
        /// The new row; values out of line that did not change are missing.
        new: Tuple<'a>,
    },
    /// It was deleted.
    Delete {
        /// The relation's oid.
        relation: u32,
        /// The old row, as far as the replica identity tells.
        old: OldTuple<'a>,
    },
}

/// A row as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// The columns of the replica identity; the others are NULL whatever they were.
    Key(Tuple<'a>),
    /// All of it, by `REPLICA IDENTITY FULL`.
    Full(Tuple<'a>),
}

/// What an update or delete tells of the old row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key.
    Default,
    /// Nothing.
    Nothing,
    /// Everything.
    Full,
    /// The columns of an index.
    Index,
}

/// Whether a column belongs to the replica identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// It does.
    Part,
    /// It does not.
    No,
}

/// A column of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Whether it belongs to the replica identity.
    pub key: Key,
    /// Its name.
    pub name: &'a str,
    /// Its type's oid.
    pub type_oid: u32,
    /// Its type's modifier, -1 for none.
    pub type_modifier: i32,
}

/// The columns of a relation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Columns<'a> {
    count: u16,
    /// Checked: `count` columns and nothing else.
    bytes: &'a [u8],
}

/// The oids of relations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelationIds<'a> {
    /// Checked: four bytes each.
    bytes: &'a [u8],
}

/// Reads one message. Between [`Message::StreamStart`] and [`Message::StreamStop`], `streamed`, a
/// message also tells the id of the transaction or subtransaction that it belongs to; it is the
/// second of the pair.
///
/// # Errors
///
/// When it is not a message of protocol 1 or 2, to the byte.
pub fn decode(message: &[u8], streamed: bool) -> Result<(Message<'_>, Option<u32>), DecodeError> {
    let mut reader = Reader::new(message);
    let kind = reader.u8()?;
    let has_xid = streamed && matches!(kind, b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M');
    let xid = if has_xid { Some(reader.u32()?) } else { None };
    let decoded = match kind {
        b'B' => Message::Begin {
            final_lsn: reader.lsn()?,
            commit_time: reader.time()?,
            xid: reader.u32()?,
        },
        b'C' => commit(&mut reader)?,
        b'O' => Message::Origin {
            lsn: reader.lsn()?,
            name: reader.name()?,
        },
        b'R' => relation(&mut reader)?,
        b'Y' => Message::Type {
            id: reader.u32()?,
            schema: schema(reader.name()?),
            name: reader.name()?,
        },
        b'I' => insert(&mut reader)?,
        b'U' => update(&mut reader)?,
        b'D' => delete(&mut reader)?,
        b'T' => truncate(&mut reader)?,
        b'M' => emitted(&mut reader)?,
        b'S' => Message::StreamStart {
            xid: reader.u32()?,
            first: reader.u8()? != 0,
        },
        b'E' => Message::StreamStop,
        b'c' => stream_commit(&mut reader)?,
        b'A' => Message::StreamAbort {
            xid: reader.u32()?,
            subxid: reader.u32()?,
        },
        _ => return Err(Reader::new(message).error("a message of a kind that was not asked for")),
    };
    reader.end()?;
    Ok((decoded, xid))
}

/// `pg_catalog` is sent as an empty name.
fn schema(name: &str) -> &str {
    if name.is_empty() { "pg_catalog" } else { name }
}

fn no_flags(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    let unknown = reader.error("flags that are not known");
    match reader.u8()? {
        0 => Ok(()),
        _ => Err(unknown),
    }
}

fn commit<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    no_flags(reader)?;
    Ok(Message::Commit {
        lsn: reader.lsn()?,
        end_lsn: reader.lsn()?,
        time: reader.time()?,
    })
}

fn stream_commit<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let xid = reader.u32()?;
    no_flags(reader)?;
    Ok(Message::StreamCommit {
        xid,
        lsn: reader.lsn()?,
        end_lsn: reader.lsn()?,
        time: reader.time()?,
    })
}

fn relation<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let id = reader.u32()?;
    let schema = schema(reader.name()?);
    let name = reader.name()?;
    let unknown = reader.error("a replica identity that is not known");
    let replica_identity = match reader.u8()? {
        b'd' => ReplicaIdentity::Default,
        b'n' => ReplicaIdentity::Nothing,
        b'f' => ReplicaIdentity::Full,
        b'i' => ReplicaIdentity::Index,
        _ => return Err(unknown),
    };
    let count = reader.u16()?;
    let start = reader.rest();
    for _ in 0..count {
        column(reader)?;
    }
    let length = start.len() - reader.rest().len();
    Ok(Message::Relation {
        id,
        schema,
        name,
        replica_identity,
        columns: Columns {
            count,
            bytes: &start[..length],
        },
    })
}

fn column<'a>(reader: &mut Reader<'a>) -> Result<RelationColumn<'a>, DecodeError> {
    let unknown = reader.error("column flags that are not known");
    let key = match reader.u8()? {
        0 => Key::No,
        1 => Key::Part,
        _ => return Err(unknown),
    };
    Ok(RelationColumn {
        key,
        name: reader.name()?,
        type_oid: reader.u32()?,
        type_modifier: reader.i32()?,
    })
}

fn insert<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let relation = reader.u32()?;
    let new = new_tuple(reader)?;
    Ok(Message::Change(Change::Insert { relation, new }))
}

fn update<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let relation = reader.u32()?;
    let old = match reader.rest().first() {
        Some(b'N') => None,
        _ => Some(old_tuple(reader)?),
    };
    let new = new_tuple(reader)?;
    Ok(Message::Change(Change::Update { relation, old, new }))
}

fn delete<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let relation = reader.u32()?;
    let old = old_tuple(reader)?;
    Ok(Message::Change(Change::Delete { relation, old }))
}

fn new_tuple<'a>(reader: &mut Reader<'a>) -> Result<Tuple<'a>, DecodeError> {
    let missing = reader.error("the new row is missing");
    match reader.u8()? {
        b'N' => Tuple::read(reader),
        _ => Err(missing),
    }
}

fn old_tuple<'a>(reader: &mut Reader<'a>) -> Result<OldTuple<'a>, DecodeError> {
    let missing = reader.error("the old row is missing");
    match reader.u8()? {
        b'K' => Tuple::read(reader).map(OldTuple::Key),
        b'O' => Tuple::read(reader).map(OldTuple::Full),
        _ => Err(missing),
    }
}

fn truncate<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let count = reader.u32()?;
    let unknown = reader.error("flags that are not known");
    let flags = reader.u8()?;
    if flags > 3 {
        return Err(unknown);
    }
    let length = usize::try_from(u64::from(count) * 4).unwrap_or(usize::MAX);
    Ok(Message::Truncate {
        cascade: flags & 1 != 0,
        restart_identity: flags & 2 != 0,
        relations: RelationIds {
            bytes: reader.bytes(length)?,
        },
    })
}

fn emitted<'a>(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
    let unknown = reader.error("flags that are not known");
    let flags = reader.u8()?;
    if flags > 1 {
        return Err(unknown);
    }
    Ok(Message::Message {
        transactional: flags == 1,
        lsn: reader.lsn()?,
        prefix: reader.name()?,
        content: Content(reader.sized()?),
    })
}

impl<'a> Change<'a> {
    /// The oid of the relation that the row belongs to.
    pub fn relation(&self) -> u32 {
        match self {
            Change::Insert { relation, .. }
            | Change::Update { relation, .. }
            | Change::Delete { relation, .. } => *relation,
        }
    }
}

impl<'a> OldTuple<'a> {
    /// Its values, of which those outside the replica identity mean nothing for a
    /// [key](OldTuple::Key).
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => *tuple,
        }
    }
}

impl<'a> Columns<'a> {
    /// How many columns there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns in order.
    pub fn iter(&self) -> impl Iterator<Item = RelationColumn<'a>> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        // They were looked at when the message was read: this does not fail.
        (0..self.count).map_while(move |_| column(&mut reader).ok())
    }
}

impl std::fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> RelationIds<'a> {
    /// The oids in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let (chunks, _) = self.bytes.as_chunks::<4>();
        chunks.iter().map(|chunk| u32::from_be_bytes(*chunk))
    }
}

impl std::fmt::Debug for RelationIds<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
