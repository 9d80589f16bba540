//! How much memory this process has, and had at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(10);

/// Looks again and again until it is asked.
pub(crate) struct Watch {
    before: u64,
    most: Arc<AtomicU64>,
    _looking: AbortOnDropHandle<()>,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        let before = resident();
        let most = Arc::new(AtomicU64::new(before));
        let seen = Arc::clone(&most);
        let looking = tokio::spawn(async move {
            loop {
                seen.fetch_max(resident(), Ordering::Relaxed);
                tokio::time::sleep(EVERY).await;
            }
        });
        Self {
            before,
            most,
            _looking: AbortOnDropHandle::new(looking),
        }
    }

    /// The most that there was above what there was at first, in bytes.
    pub(crate) fn grew(&self) -> u64 {
        self.most.load(Ordering::Relaxed) - self.before
    }
}

/// Resident memory, in bytes; 0 where the kernel does not tell.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}
