//! How many writes are gathered before they are sent.
//!
//! More rows in a statement cost less each, but what the sink refuses is written again row by row.
//! So the number falls steeply when a batch was refused and grows back with each that was not.

use std::collections::BTreeSet;

use super::Batching;
use super::tables::TableIndex;

/// The most writes that are gathered.
const WRITES_MAX: usize = 8192;
/// The fewest that a refusal leaves.
const WRITES_LEAST: usize = 16;
/// The bytes after which no more are gathered.
const BYTES_MAX: usize = 2 * 1024 * 1024;
/// A write of so many bytes is sent by itself: its values would be held several times.
const LARGE_BYTES: usize = 256 * 1024;
/// The fewest writes that are worth the statements around them.
const TOGETHER_LEAST: usize = 8;
/// Rows that must share a statement, on average, for it to pay.
const ROWS_PER_STATEMENT: usize = 2;
/// The most writes that random sizes come to.
const RANDOM_MAX: u64 = 40;

/// How many writes are gathered now.
#[derive(Debug)]
pub(super) struct Pace {
    batching: Batching,
    most: usize,
    /// Tables of which a new row met one that was there.
    met: BTreeSet<TableIndex>,
}

impl Pace {
    pub(super) fn new(batching: Batching) -> Self {
        let mut pace = Self {
            batching,
            most: WRITES_MAX,
            met: BTreeSet::new(),
        };
        pace.roll();
        pace
    }

    /// Whether a write of so many bytes is gathered.
    pub(super) fn gathers(&self, bytes: usize) -> bool {
        self.batching != Batching::Off && bytes < LARGE_BYTES
    }

    /// Whether so many are enough.
    pub(super) fn is_reached(&self, writes: usize, bytes: usize) -> bool {
        writes >= self.most || bytes >= BYTES_MAX
    }

    /// Whether so many writes that came to so many statements are sent together.
    pub(super) fn pays(&self, writes: usize, statements: usize) -> bool {
        let least = TOGETHER_LEAST.max(ROWS_PER_STATEMENT * statements);
        matches!(self.batching, Batching::Random(_)) || writes >= least
    }

    /// Whether a row of the table that the log has as new is expected to be new on the sink.
    pub(super) fn expects_new(&self, table: TableIndex) -> bool {
        !self.met.contains(&table)
    }

    /// A new row of the table met one that was there.
    pub(super) fn meets(&mut self, table: TableIndex) {
        self.met.insert(table);
    }

    /// The sink took what was sent together.
    pub(super) fn taken(&mut self) {
        self.most = (self.most * 2).min(WRITES_MAX);
        self.roll();
    }

    /// The sink refused it.
    pub(super) fn refused(&mut self) {
        self.most = (self.most / 16).max(WRITES_LEAST);
        self.roll();
    }

    /// SplitMix64, where sizes are random.
    fn roll(&mut self) {
        let Batching::Random(state) = &mut self.batching else {
            return;
        };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        self.most = usize::try_from(1 + z % RANDOM_MAX).unwrap_or(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards the cost of a constraint that is met again and again: little is written twice then,
    /// and the pace comes back when it is over.
    #[test]
    fn a_refusal_slows_down_and_what_is_taken_speeds_up() {
        let mut pace = Pace::new(Batching::AsPays);
        assert!(!pace.is_reached(WRITES_MAX - 1, 0));
        for _ in 0..9 {
            pace.refused();
        }
        assert!(pace.is_reached(WRITES_LEAST, 0));
        for _ in 0..9 {
            pace.taken();
        }
        assert!(!pace.is_reached(WRITES_MAX - 1, 0));
        assert!(pace.is_reached(1, BYTES_MAX));
    }
}
