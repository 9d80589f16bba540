//! Writes of rows that are held back to share statements, and the order in which they may.
//!
//! A statement for each row costs more than the row. So writes are gathered, and those of one shape
//! (one table, one verb, the same columns) become one statement over arrays ([`super::many`]). Which
//! of them were sent in between is then forgotten, so a write may only join an earlier statement if
//! nobody can tell:
//!
//! * behind an earlier write of its own key. An insert or an update may also be taken into the row
//!   that is gathered already, which then is written once, as it is in the end. What another tenant
//!   may hold, a unique value, must be the same before: else nobody would hear that it was taken;
//! * behind the write of the parent that it hangs on, since a row's scope is read from its parents
//!   on the sink. What becomes of parents beyond new ones and changes in place is never gathered;
//! * in a table with more unique indexes than its key, behind what else was gathered of that table:
//!   a value may have been given up by one row for another;
//! * where the sink's foreign keys act, behind all that was gathered: a cascade would meet rows that
//!   came later.
//!
//! Whatever these rules overlook is either without a trace or refused by the sink, and what is
//! refused is written again row by row ([`super::flush`]). One thing is given up: a value that only a
//! CHECK of the sink refuses is not met if the same sink transaction replaces it.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::Missing;
use super::many::Many;
use super::statement::{Param, Verb};
use super::suited::Suited;
use super::tables::{Table, TableIndex, Tie};
use crate::sink::LastChange;

/// What a value takes beside its bytes, about.
const VALUE_BYTES: usize = 40;

/// What writes one row.
pub(super) struct Write {
    /// The table.
    pub(super) table: TableIndex,
    /// What is done.
    pub(super) verb: Verb,
    /// The statement's parameters but for kin.
    pub(super) params: Vec<Param>,
    /// What it means if it finds no row.
    pub(super) missing: Missing,
    /// The key by which it finds the row.
    pub(super) own: Vec<Bytes>,
    /// The key that the row has afterwards, if it has one.
    pub(super) key: Option<Vec<Bytes>>,
    /// What it hangs on afterwards, as far as the log says.
    pub(super) tie: Option<Bytes>,
    /// Whether the log has it as an INSERT, so that no row of its key is to be expected.
    pub(super) fresh: bool,
    /// The source transaction.
    pub(super) at: LastChange,
}

impl Write {
    /// Bytes that it holds, about.
    pub(super) fn bytes(&self) -> usize {
        let values = self.params.iter().map(|param| param.bytes() + VALUE_BYTES);
        values.sum()
    }

    /// Whether it leaves the key as it is.
    pub(super) fn keeps_key(&self) -> bool {
        let changed = |key: &Vec<Bytes>| *key != self.own;
        !(matches!(self.verb, Verb::Update { .. }) && self.key.as_ref().is_none_or(changed))
    }

    /// Moves its values out of the frame that they came in, which may be far longer than they are.
    fn leave_frame(&mut self) {
        let mut held = BytesMut::with_capacity(self.parts().map(|part| part.len()).sum());
        for part in self.parts() {
            held.extend_from_slice(part);
        }
        let mut held = held.freeze();
        for part in self.parts() {
            *part = held.split_to(part.len());
        }
    }

    fn parts(&mut self) -> impl Iterator<Item = &mut Bytes> {
        let params = self.params.iter_mut().filter_map(|param| match param {
            Param::Text(text) => Some(text),
            Param::Null | Param::Ids(_) | Param::Array(_) => None,
        });
        let keys = self.own.iter_mut().chain(self.key.iter_mut().flatten());
        params.chain(keys).chain(&mut self.tie)
    }

    fn many(&self) -> Many {
        Many {
            table: self.table,
            verb: self.verb.clone(),
            fresh: self.fresh,
            tells: self.missing == Missing::Fine,
        }
    }
}

/// Rows that share a statement.
pub(super) struct Batch {
    /// The statement.
    pub(super) many: Many,
    /// Its rows.
    pub(super) rows: Vec<Row>,
}

/// A row of a batch.
pub(super) struct Row {
    /// The write that brought it.
    first: usize,
    /// Its values, if they are not those of that write.
    taken_in: Option<Vec<Param>>,
    /// How many writes it stands for.
    pub(super) writes: u64,
    /// The source transaction of the last of them.
    pub(super) at: LastChange,
}

/// Writes that were not sent yet.
#[derive(Default)]
pub(super) struct Together {
    /// In the order of the log.
    writes: Vec<Write>,
    bytes: usize,
    batches: Vec<Batch>,
    /// The last batch of each shape.
    shapes: HashMap<Many, usize>,
    /// Where a row was written last: the batch, and its place in it.
    rows: HashMap<(TableIndex, Bytes), (usize, usize)>,
    /// The last batch of each table.
    tables: HashMap<TableIndex, usize>,
}

/// Where a write goes.
enum Place {
    /// Into a row that is there.
    TakenIn(usize, usize),
    /// Behind the rows of a batch.
    Joins(usize),
    /// Into a new batch.
    Begins,
}

impl Together {
    /// Writes held.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Bytes held, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The batches, in the order in which they are to be sent.
    pub(super) fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// The writes, in the order of the log.
    pub(super) fn into_writes(self) -> Vec<Write> {
        self.writes
    }

    /// The parameters of a batch: one array for each of a row's.
    pub(super) fn params(&self, batch: &Batch) -> Vec<Param> {
        let rows: Vec<&[Param]> = batch.rows.iter().map(|row| self.values(row)).collect();
        let columns = rows.first().map_or(0, |row| row.len());
        (0..columns).map(|at| Param::array(&rows, at)).collect()
    }

    fn values<'a>(&'a self, row: &'a Row) -> &'a [Param] {
        let own = &self.writes[row.first].params;
        row.taken_in.as_deref().unwrap_or(own)
    }

    /// Takes a write, which must be one that may be gathered.
    pub(super) fn gather(&mut self, mut write: Write, table: &Table, suited: &Suited) {
        write.leave_frame();
        let own = (write.table, joined(&write.own));
        let index = self.writes.len();
        self.bytes += write.bytes();
        let place = match self.place(&write, &own, table, suited) {
            Place::TakenIn(at, row) => {
                let writes = &self.writes;
                self.batches[at].take_in(row, &write, writes);
                (at, row)
            }
            Place::Joins(at) => (at, self.batches[at].push(index, &write)),
            Place::Begins => {
                let at = self.batches.len();
                let many = write.many();
                self.shapes.insert(many.clone(), at);
                let rows = Vec::new();
                self.batches.push(Batch { many, rows });
                (at, self.batches[at].push(index, &write))
            }
        };
        self.rows.insert(own, place);
        self.tables.insert(write.table, place.0);
        self.writes.push(write);
    }

    fn place(
        &self,
        write: &Write,
        own: &(TableIndex, Bytes),
        table: &Table,
        suited: &Suited,
    ) -> Place {
        let mut least = 0;
        if suited.in_order {
            least = self.batches.len().saturating_sub(1);
        }
        if suited.apart.is_some() {
            least = self
                .tables
                .get(&write.table)
                .map_or(least, |&at| least.max(at));
        }
        if let (Tie::Within { parent, .. }, Some(id)) = (&table.tie, &write.tie)
            && let Some((at, _)) = self.rows.get(&(*parent, id.clone()))
        {
            least = least.max(at + 1);
        }
        if let Some(&(at, row)) = self.rows.get(own) {
            let batch = &self.batches[at];
            let may_be = at >= least && !suited.in_order && batch.takes_in(write, table);
            if may_be && self.stays_apart(batch, row, write, suited) {
                return Place::TakenIn(at, row);
            }
            least = least.max(at + 1);
        }
        match self.shapes.get(&write.many()) {
            Some(&at) if at >= least => Place::Joins(at),
            _ => Place::Begins,
        }
    }

    /// Whether a row keeps what holds it apart from others when it takes a write in.
    fn stays_apart(&self, batch: &Batch, row: usize, write: &Write, suited: &Suited) -> bool {
        let values = self.values(&batch.rows[row]);
        suited.apart.iter().flatten().all(|&column| {
            let next = write.verb.param(&write.params, column);
            next.is_none_or(|next| batch.many.verb.param(values, column) == Some(next))
        })
    }
}

impl Batch {
    fn push(&mut self, first: usize, write: &Write) -> usize {
        self.rows.push(Row {
            first,
            taken_in: None,
            writes: 1,
            at: write.at,
        });
        self.rows.len() - 1
    }

    /// Whether a write of a row that is here comes to the same as other values of it.
    fn takes_in(&self, write: &Write, table: &Table) -> bool {
        match (&self.many.verb, &write.verb) {
            // A number that the sink gives out is set by an insert alone.
            (Verb::Upsert, Verb::Upsert) => {
                !table.columns.iter().any(|column| column.identity_always)
            }
            (Verb::Upsert, Verb::Update { .. }) => true,
            (Verb::Update { set }, Verb::Update { set: next }) => {
                set == next && self.many.tells == (write.missing == Missing::Fine)
            }
            _ => false,
        }
    }

    fn take_in(&mut self, row: usize, write: &Write, writes: &[Write]) {
        let row = &mut self.rows[row];
        row.writes += 1;
        row.at = write.at;
        match (&self.many.verb, &write.verb) {
            (Verb::Upsert, Verb::Update { set }) => {
                let own = || writes[row.first].params.clone();
                let values = row.taken_in.get_or_insert_with(own);
                let places = values.iter_mut().zip(set).filter(|(_, set)| **set);
                for ((place, _), value) in places.zip(&write.params) {
                    place.clone_from(value);
                }
            }
            _ => row.taken_in = Some(write.params.clone()),
        }
    }
}

/// A key in one piece. Two keys of a table are equal if these are.
fn joined(key: &[Bytes]) -> Bytes {
    if let [one] = key {
        return one.clone();
    }
    let mut joined = BytesMut::new();
    for part in key {
        joined.put_u64(part.len() as u64);
        joined.extend_from_slice(part);
    }
    joined.freeze()
}

#[cfg(test)]
mod tests;
