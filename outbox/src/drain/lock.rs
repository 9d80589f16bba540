//! The lock that a drain holds on a shard while it is at work in it.

use super::backoff::{DUE, NEXT_DELAY};
use super::index::{Keys, Way};
use crate::message::Shard;
use crate::silo::Silo;
use crate::table::Table;

/// Waits for a shard's lock. Parameters: its number.
pub(super) const LOCK: &str = "select pg_advisory_xact_lock($1::int8) is null";

/// Locks the head, which is the lock that drains of another make know; returns the delay of the shard
/// in seconds if it fails now, and whether it is due. Parameters: the shard.
pub(super) fn lock_head(name: &str, keys: &Keys) -> String {
    format!(
        "select extract(epoch from {NEXT_DELAY})::float8, {DUE} from {name} {} limit 1 for update",
        keys.all(Way::Up)
    )
}

impl<S: Silo> Shard<S> {
    /// The advisory lock that one drain of this shard holds at a time. Locking its head alone would
    /// not do: a lower id that commits late is a head that nobody has locked. Two shards may share a
    /// number; then they wait for each other, and no more.
    pub(crate) fn lock(&self, table: &Table<S>) -> i64 {
        let mut hash = Fnv::default();
        hash.write(table.name().name().as_bytes());
        hash.write(self.target_name().unwrap_or_default().as_bytes());
        hash.write(&self.scope.to_be_bytes());
        hash.write(&self.identifier.to_be_bytes());
        i64::from_be_bytes(hash.0.to_be_bytes())
    }
}

/// FNV-1a: processes of any version must agree on a lock's number.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        // The length in front, so that two fields do not run into each other.
        for byte in (bytes.len() as u64).to_be_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
