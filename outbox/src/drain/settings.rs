//! The limits of a drain.

use std::time::Duration;

/// How much a drain does at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainSettings {
    /// Messages of a shard that one transaction delivers and deletes, at most.
    pub batch_messages: u32,
    /// Once a batch has taken this long, what was delivered is deleted before the next message: a
    /// crash repeats about this much work and the message under way.
    pub batch_time: Duration,
    /// Bytes of payload that a batch brings into memory; a single larger one is brought alone.
    pub batch_bytes: u32,
    /// Rows that one statement deletes, at most.
    pub delete_rows: usize,
    /// How long a receiver may take for one message.
    pub receiver_timeout: Duration,
    /// How long a process that is frozen or cut off while a receiver works keeps its shard: then the
    /// server ends its session. Twice the receiver's time at least.
    pub idle_timeout: Duration,
    /// How long a flush at commit waits for a lock.
    pub lock_timeout: Duration,
    /// How long a scheduled drain stays in one shard before others have their turn.
    pub visit_time: Duration,
    /// How long a scheduled drain goes by what it read of the switches: a shard that is switched off
    /// is left alone after this and the visit under way.
    pub switches_for: Duration,
    /// Whether a scheduled drain prepares its statements, which a shard of few messages costs many
    /// times less with. Off for a connection through a pooler that hands out a server for each
    /// transaction.
    pub prepare: bool,
}

impl DrainSettings {
    /// How long the server lets a transaction idle, whatever the role's own limit.
    pub(super) fn idle_ms(&self) -> u32 {
        let limit = self
            .idle_timeout
            .max(self.receiver_timeout.saturating_mul(2));
        u32::try_from(limit.as_millis()).map_or(MOST_MS, |ms| ms.clamp(1, MOST_MS))
    }
}

/// The longest timeout that the server takes.
const MOST_MS: u32 = i32::MAX as u32;

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            batch_messages: 500,
            batch_time: Duration::from_millis(50),
            batch_bytes: 4 << 20,
            delete_rows: 1_000,
            receiver_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(600),
            lock_timeout: Duration::from_secs(10),
            visit_time: Duration::from_secs(60),
            switches_for: Duration::from_secs(5),
            prepare: true,
        }
    }
}
