//! Puts the frames of a replication stream together into whole source transactions.
//!
//! Only what marks a transaction's bounds is read here; changes are kept as they came. What the
//! source announces of a table is compared at once: nothing of a changed table is ever applied.
//!
//! A large transaction is sent in parts before its outcome is known, and parts of several may
//! alternate; each is kept by its id until it commits or comes to nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use monarch_model::Lsn;

use super::error::StreamError;
use super::event::{Bound, read_bound};
use super::spool::{Recorder, Recording, Spool};
use super::tables::{TableIndex, Tables};
use crate::PgTime;

/// What is held in memory of each transaction that is sent in parts, in bytes: many may be open.
const PART_MEMORY_BYTES: usize = 256 * 1024;

/// A source transaction that is whole.
#[derive(Debug)]
pub(super) struct SourceTransaction {
    /// Its id on the source, at the top level.
    pub(super) xid: u32,
    /// Where it ends in the source's log.
    pub(super) end: Lsn,
    /// When it committed, by the source's clock.
    pub(super) committed_at: PgTime,
    /// Its frames.
    pub(super) recording: Recording,
    /// The tables that it changes.
    pub(super) touched: BTreeSet<TableIndex>,
}

/// Whole transactions out of frames.
pub(super) struct Assembler {
    tables: Arc<Tables>,
    spool: Spool,
    /// What ends at or before it was applied and is passed over.
    position: Lsn,
    /// The transaction that is being sent as a whole.
    whole: Option<Open>,
    /// The transactions that are sent in parts, by id.
    in_parts: HashMap<u32, Open>,
    /// Whose part is being sent.
    part_of: Option<u32>,
}

struct Open {
    xid: u32,
    recorder: Recorder,
    touched: BTreeSet<TableIndex>,
}

impl Open {
    fn finish(self, end: Lsn, committed_at: PgTime) -> Result<SourceTransaction, StreamError> {
        Ok(SourceTransaction {
            xid: self.xid,
            end,
            committed_at,
            recording: self.recorder.finish()?,
            touched: self.touched,
        })
    }
}

impl Assembler {
    /// Transactions that end after `position`.
    pub(super) fn new(tables: Arc<Tables>, spool: Spool, position: Lsn) -> Self {
        Self {
            tables,
            spool,
            position,
            whole: None,
            in_parts: HashMap::new(),
            part_of: None,
        }
    }

    /// Whether the last frame was inside a transaction or a part of one.
    pub(super) fn is_inside(&self) -> bool {
        self.whole.is_some() || self.part_of.is_some()
    }

    /// Takes a message of the plugin; the transaction, if it is now whole.
    pub(super) fn push(&mut self, data: &Bytes) -> Result<Option<SourceTransaction>, StreamError> {
        match read_bound(data, self.part_of.is_some(), &self.tables)? {
            Bound::Begin { xid } => self.whole = Some(open(xid, &self.spool)),
            Bound::Commit { end, committed_at } => {
                let open = self
                    .whole
                    .take()
                    .ok_or_else(|| odd("a commit of no transaction"))?;
                return self.commit(open, end, committed_at);
            }
            Bound::PartBegins { xid } => self.begin_part(xid),
            Bound::PartEnds => self.part_of = None,
            Bound::StreamedCommit {
                xid,
                end,
                committed_at,
            } => {
                let open = self.in_parts.remove(&xid);
                let open = open.ok_or_else(|| odd("a commit of no transaction"))?;
                return self.commit(open, end, committed_at);
            }
            Bound::Abort { xid, subxid } => self.abort(xid, subxid),
            Bound::Inside { table } => {
                let open = self.inside()?;
                open.touched.extend(table);
                open.recorder.push(data)?;
            }
            Bound::Other => {}
        }
        Ok(None)
    }

    fn begin_part(&mut self, xid: u32) {
        self.part_of = Some(xid);
        if !self.in_parts.contains_key(&xid) {
            let spool = Spool {
                memory_bytes: self.spool.memory_bytes.min(PART_MEMORY_BYTES),
                ..self.spool.clone()
            };
            let mut open = open(xid, &spool);
            open.recorder.in_parts();
            self.in_parts.insert(xid, open);
        }
    }

    fn abort(&mut self, xid: u32, subxid: u32) {
        if xid == subxid {
            self.in_parts.remove(&xid);
        } else if let Some(open) = self.in_parts.get_mut(&xid) {
            open.recorder.abort(subxid);
        }
    }

    fn inside(&mut self) -> Result<&mut Open, StreamError> {
        let open = match self.part_of {
            Some(xid) => self.in_parts.get_mut(&xid),
            None => self.whole.as_mut(),
        };
        open.ok_or_else(|| odd("a change outside of a transaction"))
    }

    fn commit(
        &self,
        open: Open,
        end: Lsn,
        committed_at: PgTime,
    ) -> Result<Option<SourceTransaction>, StreamError> {
        if end <= self.position {
            return Ok(None);
        }
        open.finish(end, committed_at).map(Some)
    }
}

fn open(xid: u32, spool: &Spool) -> Open {
    Open {
        xid,
        recorder: Recorder::new(spool),
        touched: BTreeSet::new(),
    }
}

fn odd(what: &str) -> StreamError {
    StreamError::Protocol {
        what: what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;

    fn message(kind: u8, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u8(kind);
        fill(&mut bytes);
        bytes.freeze()
    }

    fn begin() -> Bytes {
        message(b'B', |b| b.put_bytes(0, 8 + 8 + 4))
    }

    fn commit(end: u64) -> Bytes {
        message(b'C', |b| {
            b.put_u8(0);
            b.put_u64(end - 1);
            b.put_u64(end);
            b.put_i64(0);
        })
    }

    fn part(xid: u32) -> Bytes {
        message(b'S', |b| {
            b.put_u32(xid);
            b.put_u8(1);
        })
    }

    fn part_ends() -> Bytes {
        message(b'E', |_| {})
    }

    fn streamed_commit(xid: u32, end: u64) -> Bytes {
        message(b'c', |b| {
            b.put_u32(xid);
            b.put_u8(0);
            b.put_u64(end - 1);
            b.put_u64(end);
            b.put_i64(0);
        })
    }

    fn abort(xid: u32, subxid: u32) -> Bytes {
        message(b'A', |b| {
            b.put_u32(xid);
            b.put_u32(subxid);
        })
    }

    /// The positions at which transactions come out whole.
    fn whole(position: u64, messages: &[Bytes]) -> Vec<u64> {
        let spool = Spool::new(std::env::temp_dir());
        let mut assembler = Assembler::new(Arc::default(), spool, Lsn(position));
        let mut ends = Vec::new();
        for message in messages {
            ends.extend(assembler.push(message).unwrap().map(|whole| whole.end.0));
        }
        assert!(!assembler.is_inside());
        ends
    }

    /// Guards promise 3: what a source delivers again after a crash is not applied again.
    #[test]
    fn what_was_applied_is_passed_over() {
        let messages = [
            begin(),
            commit(10),
            begin(),
            commit(20),
            begin(),
            commit(30),
        ];
        assert_eq!(whole(20, &messages), [30]);
        let messages = [part(7), part_ends(), streamed_commit(7, 20)];
        assert_eq!(whole(20, &messages), [0; 0]);
    }

    /// Parts of several transactions alternate; each comes out at its own commit, or not at all.
    #[test]
    fn transactions_in_parts_come_out_at_their_commits() {
        let messages = [
            part(7),
            part_ends(),
            part(8),
            part_ends(),
            begin(),
            commit(10),
            part(7),
            part_ends(),
            part(9),
            part_ends(),
            abort(8, 8),
            abort(9, 12),
            streamed_commit(9, 20),
            streamed_commit(7, 30),
        ];
        assert_eq!(whole(0, &messages), [10, 20, 30]);
    }
}
