//! The ids of one parent's rows that are the organization's though no row on the sink says so yet, and
//! the rows that were written to hang on them.
//!
//! A statement for a row that hangs on such an id must be told the id: the sink alone would take the row
//! for another tenant's. While they are few, all of them go along with every statement. Of many only the
//! one goes along that the row at hand hangs on, for which the rows are remembered; so what a
//! transaction costs grows with its rows, and not with their square. Both are bounded: a transaction
//! that brings more rows before more parents than that fails the move by name.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use super::tables::TableIndex;

/// The most ids that all go along with every statement.
pub(super) const IDS_MAX: usize = 256;
/// The most rows that are remembered.
pub(super) const ROWS_MAX: usize = 200_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Early {
    ids: BTreeSet<String>,
    rows: Rows,
}

/// What each row hangs on.
#[derive(Debug)]
enum Rows {
    Remembered(HashMap<(TableIndex, Key), String>),
    /// They were too many.
    Forgotten,
}

impl Default for Rows {
    fn default() -> Self {
        Rows::Remembered(HashMap::new())
    }
}

/// A row's key without the frame that it came in.
type Key = Vec<Box<[u8]>>;

fn owned(key: &[Bytes]) -> Key {
    key.iter().map(|part| Box::from(&**part)).collect()
}

impl Early {
    /// Whether the id is one of them.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// An id. Rows that hang on it are told of as they are written.
    pub(super) fn note(&mut self, id: String) {
        self.ids.insert(id);
    }

    /// The row of this key in a child's table hangs on the id.
    pub(super) fn note_row(&mut self, table: TableIndex, key: &[Bytes], id: String) {
        self.ids.insert(id.clone());
        if let Rows::Remembered(rows) = &mut self.rows {
            rows.insert((table, owned(key)), id);
            if rows.len() > ROWS_MAX {
                self.rows = Rows::Forgotten;
            }
        }
    }

    /// The parent's row came to the sink.
    pub(super) fn came(&mut self, id: &str) {
        self.ids.remove(id);
    }

    /// Whether what goes along with a statement can still be told.
    pub(super) fn is_within_bounds(&self) -> bool {
        self.ids.len() <= IDS_MAX || matches!(self.rows, Rows::Remembered(_))
    }

    /// What goes along with a statement for the row that a child's table has under this key.
    pub(super) fn kin(&self, table: TableIndex, key: &[Bytes]) -> Vec<String> {
        match &self.rows {
            Rows::Remembered(rows) if self.ids.len() > IDS_MAX => {
                let id = rows.get(&(table, owned(key)));
                let early = id.filter(|id| self.ids.contains(*id));
                early.cloned().into_iter().collect()
            }
            _ => self.ids.iter().cloned().collect(),
        }
    }

    /// Each of them has its row on the sink.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Vec<Bytes> {
        vec![Bytes::from(number.to_string())]
    }

    /// Guards the cost of a transaction: however many parents are late, a statement carries few ids, and
    /// among them the one that its row hangs on.
    #[test]
    fn a_statement_carries_few_ids_however_many_parents_are_late() {
        let mut early = Early::default();
        for row in 0..10_000 {
            early.note_row(3, &key(row), format!("p{}", row / 2));
            let kin = early.kin(3, &key(row));
            assert!(kin.contains(&format!("p{}", row / 2)), "{row}");
            assert!(kin.len() <= IDS_MAX);
        }
        assert_eq!(early.kin(3, &key(4)), ["p2"]);
        // Another table's row of that key, and a row that was there before.
        assert_eq!(early.kin(4, &key(4)), [""; 0]);
        assert_eq!(early.kin(3, &key(20_000)), [""; 0]);
        // It hangs on another now; the other's row comes.
        early.note_row(3, &key(4), "p7".to_owned());
        assert_eq!(early.kin(3, &key(4)), ["p7"]);
        early.came("p7");
        assert_eq!(early.kin(3, &key(4)), [""; 0]);
        assert!(early.is_within_bounds());
    }

    /// Guards the memory promise: rows beyond the bound are forgotten, which is fine as long as the ids
    /// are few, and a fault as soon as they are not.
    #[test]
    fn what_cannot_be_remembered_is_noticed() {
        let mut early = Early::default();
        for row in 0..=ROWS_MAX {
            early.note_row(3, &key(row), format!("p{}", row % IDS_MAX));
        }
        assert!(matches!(early.rows, Rows::Forgotten));
        assert!(early.is_within_bounds());
        assert_eq!(early.kin(3, &key(1)).len(), IDS_MAX);
        early.note("one more".to_owned());
        assert!(!early.is_within_bounds());
        early.clear();
        assert!(early.is_within_bounds() && early.is_empty());
    }
}
