//! Transaction ids of the source: which a snapshot sees, and which the log has already brought.
//!
//! A snapshot and the log do not agree at every instant. A transaction stands in the log, and may
//! be decoded and sent, a moment before it becomes visible to others; where it waits for a
//! synchronous standby, the moment is long. So whoever reads rows of a known position must know
//! that the snapshot sees all that the log has brought up to there. Both speak of transactions by
//! the id of the top level: the log with 32 bits, a snapshot with 64.

use std::ops::Range;

use roaring::RoaringTreemap;

/// How many delivered ids are remembered. One that is older and still not visible would have been
/// overtaken by millions of others, which then must be visible before it.
const DELIVERED_MAX: u64 = 1 << 22;

/// A 32-bit id with the upper half of the counter, which stands near `near`.
fn widen(xid: u32, near: u64) -> u64 {
    #[allow(clippy::cast_possible_truncation)] // the lower half is meant
    let distance = xid.wrapping_sub(near as u32).cast_signed();
    near.wrapping_add_signed(i64::from(distance))
}

/// Which transactions a statement sees, as `pg_current_snapshot()` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The ids of the transactions that were under way or not begun lie in here, or above.
    window: Range<u64>,
    /// Those in the window that were under way.
    under_way: Vec<u64>,
}

impl Snapshot {
    /// Reads `xmin:xmax:id,id,…`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let least = parts.next()?.parse().ok()?;
        let next = parts.next()?.parse().ok()?;
        let under_way = parts.next()?.split(',').filter(|id| !id.is_empty());
        Some(Self {
            window: least..next,
            under_way: under_way.map(str::parse).collect::<Result<_, _>>().ok()?,
        })
    }

    /// The first id that had not been given out.
    pub(super) fn next(&self) -> u64 {
        self.window.end
    }

    /// Whether it sees what a committed transaction did.
    pub(super) fn sees(&self, xid: u32) -> bool {
        let xid = widen(xid, self.window.end);
        xid < self.window.start || (xid < self.window.end && !self.under_way.contains(&xid))
    }
}

/// The transactions that the log has brought to this mover.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    newest: Option<u64>,
    ids: RoaringTreemap,
}

impl Delivered {
    /// The log brought one.
    pub(super) fn insert(&mut self, xid: u32) {
        // Room below, so that older ones are not before the beginning of the count.
        let near = self.newest.unwrap_or((1 << 32) + u64::from(xid));
        let xid = widen(xid, near);
        self.newest = Some(near.max(xid));
        self.ids.insert(xid);
        self.keep_newest(DELIVERED_MAX);
    }

    /// Forgets old ones where there are more than `max`.
    fn keep_newest(&mut self, max: u64) {
        if self.ids.len() > max {
            let newest = self.newest.unwrap_or_default();
            self.ids.remove_range(..newest.saturating_sub(max / 2));
        }
    }

    /// Those of them that the snapshot does not see yet.
    pub(super) fn unseen_by(&self, snapshot: &Snapshot) -> Vec<u32> {
        let Some(newest) = self.newest else {
            return Vec::new();
        };
        #[allow(clippy::cast_possible_truncation)] // the lower half is meant
        let low = |id: u64| id as u32;
        let here = |id: u64| widen(low(id), newest);
        let under_way = snapshot.under_way.iter().map(|&id| here(id));
        let mut unseen: Vec<u32> = under_way
            .filter(|&id| self.ids.contains(id))
            .map(low)
            .collect();
        let next = here(snapshot.next());
        let above = self.ids.iter().rev().take_while(|&id| id >= next);
        unseen.extend(above.map(low));
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).unwrap()
    }

    #[test]
    fn a_snapshot_sees_what_had_ended() {
        let seen = snapshot("100:105:100,103");
        for (xid, sees) in [
            (99, true),
            (100, false),
            (101, true),
            (103, false),
            (104, true),
        ] {
            assert_eq!(seen.sees(xid), sees, "{xid}");
        }
        assert!(!seen.sees(105) && !seen.sees(4000));
        assert!(snapshot("7:7:").sees(6));
        assert_eq!(Snapshot::parse("7:7"), None);
        assert_eq!(Snapshot::parse("7:x:"), None);
    }

    /// Guards the wrap of the 32-bit counter.
    #[test]
    fn ids_are_compared_across_the_wrap() {
        let next: u64 = (5 << 32) + 10;
        let seen = snapshot(&format!("{}:{next}:{}", next - 20, next - 15));
        assert!(seen.sees(u32::MAX - 20) && seen.sees(9) && seen.sees(u32::MAX - 1));
        assert!(!seen.sees(10) && !seen.sees(u32::MAX - 4));
        let mut delivered = Delivered::default();
        delivered.insert(u32::MAX - 4);
        delivered.insert(3);
        assert_eq!(delivered.unseen_by(&seen), [u32::MAX - 4]);
    }

    /// Guards promise 1: a snapshot that lags behind the log is not read from, whether the
    /// transaction was under way in it or is younger than all that it knows.
    #[test]
    fn what_the_log_brought_and_a_snapshot_lacks_is_told() {
        let mut delivered = Delivered::default();
        assert!(delivered.unseen_by(&snapshot("1:1:")).is_empty());
        for xid in [90, 101, 103, 107] {
            delivered.insert(xid);
        }
        assert_eq!(
            delivered.unseen_by(&snapshot("100:105:102,103")),
            [103, 107]
        );
        assert!(delivered.unseen_by(&snapshot("108:108:")).is_empty());
        assert!(delivered.unseen_by(&snapshot("102:110:102,108")).is_empty());
    }

    /// Guards the memory promise.
    #[test]
    fn only_so_many_ids_are_remembered() {
        let mut delivered = Delivered::default();
        for xid in 0..1000 {
            delivered.insert(xid);
            delivered.keep_newest(100);
            assert!(delivered.ids.len() <= 100);
        }
        assert!(delivered.unseen_by(&snapshot("1000:1000:")).is_empty());
        assert_eq!(delivered.unseen_by(&snapshot("998:1000:998")), [998]);
    }
}
