//! How far a walk over objects is, for heartbeats and for people.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Over how long the present speed is taken.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts that a mover raises while it works. Bytes count as they are read, so that a large object
/// is seen to move.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    objects: AtomicU64,
    bytes_read: AtomicU64,
    missing: AtomicU64,
    troubled: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    objects: u64,
    bytes: u64,
    rates: Option<(f64, f64)>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Objects proved to be on the sink.
    pub objects: u64,
    /// Bytes read, of objects under way and of second tries too.
    pub bytes_read: u64,
    /// Keys without an object on the source.
    pub missing: u64,
    /// Keys that a person has to look at.
    pub troubled: u64,
    /// Since the beginning, in milliseconds.
    pub elapsed_ms: u64,
    /// Of the last seconds.
    pub objects_per_second: f64,
    /// Of the last seconds.
    pub bytes_per_second: f64,
}

impl Snapshot {
    /// How many seconds so many more objects will take at the present speed; none while nothing
    /// moves.
    pub fn seconds_for(&self, objects: u64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        (self.objects_per_second > 0.0).then(|| objects as f64 / self.objects_per_second)
    }
}

impl Default for Progress {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            objects: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            troubled: AtomicU64::new(0),
            window: Mutex::new(Window {
                since: now,
                objects: 0,
                bytes: 0,
                rates: None,
            }),
        }
    }
}

impl Progress {
    pub(crate) fn read_bytes(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn copied(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn missing(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn troubled(&self) {
        self.troubled.fetch_add(1, Ordering::Relaxed);
    }

    /// How far it is now.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(Instant::now())
    }

    fn snapshot_at(&self, now: Instant) -> Snapshot {
        let objects = self.objects.load(Ordering::Relaxed);
        let bytes_read = self.bytes_read.load(Ordering::Relaxed);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = (now - window.since).as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "a speed")]
        let present = (
            (objects - window.objects) as f64 / seconds,
            (bytes_read - window.bytes) as f64 / seconds,
        );
        let rates = window.rates.unwrap_or(present);
        if now - window.since >= WINDOW {
            *window = Window {
                since: now,
                objects,
                bytes: bytes_read,
                rates: Some(present),
            };
        }
        Snapshot {
            objects,
            bytes_read,
            missing: self.missing.load(Ordering::Relaxed),
            troubled: self.troubled.load(Ordering::Relaxed),
            elapsed_ms: u64::try_from((now - self.begun).as_millis()).unwrap_or(u64::MAX),
            objects_per_second: rates.0,
            bytes_per_second: rates.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards the estimate: it follows the last seconds, not the whole past.
    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let progress = Progress::default();
        let begun = progress.begun;
        (0..100).for_each(|_| progress.copied());
        let moving = progress.snapshot_at(begun + WINDOW);
        assert!((moving.objects_per_second - 10.0).abs() < 0.01);
        progress.snapshot_at(begun + WINDOW * 2);
        let stalled = progress.snapshot_at(begun + WINDOW * 2);
        assert!(stalled.objects_per_second < 0.01, "{stalled:?}");
        assert_eq!((stalled.objects, stalled.seconds_for(5)), (100, None));
    }
}
