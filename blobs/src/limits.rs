//! How much is done at once, and how fast.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How much a mover does at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Objects at once, at least one.
    pub objects: usize,
    /// Bytes in memory at once, of all objects together; what a single object needs is used
    /// nevertheless, one object at a time.
    pub bytes_in_flight: u64,
    /// Bytes a second, read from the source; none: as fast as it goes.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Keys in a page of the ledger.
    pub page: u32,
    /// How often an object is tried in one pass.
    pub attempts: u32,
    /// The longest wait before the second try; it doubles with each.
    pub first_backoff: Duration,
    /// The longest wait before any try.
    pub longest_backoff: Duration,
    /// Whether a service may be asked to copy by itself.
    pub service_copy: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            objects: 32,
            bytes_in_flight: 256 << 20,
            bytes_per_second: None,
            page: 500,
            attempts: 6,
            first_backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(30),
            service_copy: true,
        }
    }
}

impl Limits {
    /// A random wait before the next try, after `failed` ones: anything up to a bound that doubles.
    /// Many that failed together do not come back together.
    pub(crate) fn backoff(&self, failed: u32) -> Duration {
        let doubled = self
            .first_backoff
            .saturating_mul(2_u32.saturating_pow(failed.saturating_sub(1)));
        doubled
            .min(self.longest_backoff)
            .mul_f64(rand::random_range(0.1..=1.0))
    }
}

/// The parts that an object is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Bytes in a part.
    pub(crate) bytes: u64,
    /// Parts at once.
    pub(crate) at_once: u64,
}

impl Parts {
    /// A store takes at most 10,000 parts, so those of a very large object are larger.
    const MOST: u64 = 9_000;
    const USUAL: u64 = 8 << 20;
    const AT_ONCE: u64 = 3;

    /// For an object of `size` bytes; none if it is written as a whole.
    pub(crate) fn of(size: u64) -> Option<Self> {
        (size > Self::USUAL).then(|| Self {
            bytes: Self::USUAL.max(size.div_ceil(Self::MOST).next_multiple_of(1 << 20)),
            at_once: Self::AT_ONCE,
        })
    }

    /// What an object of `size` bytes holds in memory while it is copied.
    pub(crate) fn memory(size: u64) -> u64 {
        // One more than are under way: the one that is being filled.
        Self::of(size).map_or(size, |parts| parts.bytes * (parts.at_once + 1))
    }
}

/// The memory that copies share.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    total_kib: u32,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let total_kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX / 8).max(1);
        Self {
            free: Arc::new(Semaphore::new(total_kib as usize)),
            total_kib,
        }
    }

    /// Waits until there is room for so many bytes, or for as many as there are in all.
    pub(crate) async fn take(&self, bytes: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        Arc::clone(&self.free)
            .acquire_many_owned(kib.clamp(1, self.total_kib))
            .await
            .unwrap_or_else(|_| unreachable!("the semaphore is never closed"))
    }
}

/// A bound on bytes a second. Whoever takes bytes pays for them before the next may have any.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: Option<NonZeroU64>,
    next: Mutex<Option<Instant>>,
}

impl Rate {
    pub(crate) fn new(per_second: Option<NonZeroU64>) -> Self {
        Self {
            per_second,
            next: Mutex::new(None),
        }
    }

    pub(crate) async fn take(&self, bytes: usize) {
        if let Some(mine) = self.reserve(bytes, Instant::now()) {
            tokio::time::sleep_until(mine).await;
        }
    }

    /// From when on so many bytes may be had; none: at once.
    fn reserve(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let per_second = self.per_second?;
        #[expect(clippy::cast_precision_loss, reason = "a time, not a count")]
        let cost = Duration::from_secs_f64(bytes as f64 / per_second.get() as f64);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = next.unwrap_or(now).max(now);
        *next = Some(mine + cost);
        Some(mine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards memory: the largest object there can be needs fewer parts than stores take.
    #[test]
    fn parts_grow_with_the_object() {
        assert_eq!(Parts::of(8 << 20), None);
        assert_eq!(Parts::of((8 << 20) + 1).unwrap().bytes, 8 << 20);
        let largest = 5_u64 << 40;
        let parts = Parts::of(largest).unwrap();
        assert!(largest.div_ceil(parts.bytes) <= 10_000, "{parts:?}");
        assert_eq!(Parts::memory(50 << 30), 32 << 20);
    }

    /// Guards the cells: bytes go no faster than they may, whoever asks.
    #[test]
    fn a_rate_holds_for_all_together() {
        let rate = Rate::new(NonZeroU64::new(1_000));
        let begun = Instant::now();
        for second in 0..10 {
            let mine = rate.reserve(1_000, begun).unwrap();
            assert_eq!((mine - begun).as_secs(), second);
        }
        // What was not used is not saved up.
        let later = begun + Duration::from_secs(60);
        assert_eq!(rate.reserve(1, later), Some(later));
        assert_eq!(Rate::new(None).reserve(1, later), None);
    }

    /// Guards progress: an object that needs more than there is gets all there is.
    #[tokio::test]
    async fn memory_is_never_asked_for_in_vain() {
        let memory = Memory::new(1 << 20);
        drop(memory.take(1 << 40).await);
        let all = memory.take(2 << 20).await;
        let waits = tokio::time::timeout(Duration::from_millis(20), memory.take(1));
        assert!(waits.await.is_err());
        drop(all);
    }

    #[test]
    fn a_wait_is_random_and_bounded() {
        let limits = Limits::default();
        let waits: Vec<_> = (1..40).map(|failed| limits.backoff(failed)).collect();
        assert!(waits.iter().all(|wait| *wait <= limits.longest_backoff));
        assert!(waits[0] <= limits.first_backoff);
        assert!(waits[30] != waits[31]);
    }
}
