//! Counts what moves and tells the observer.

use std::time::Duration;

use monarch_model::TableName;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{CopyError, Observer, Progress};

/// How often the observer hears of a copy that waits for a server.
const REPORT_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Watch<'a> {
    observer: &'a mut dyn Observer,
    cancel: &'a CancellationToken,
    tick: Interval,
    progress: Progress,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        observer: &'a mut dyn Observer,
        cancel: &'a CancellationToken,
        first: &TableName,
        tables_total: usize,
        rows_estimate: u64,
    ) -> Self {
        let mut tick = interval(REPORT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            observer,
            cancel,
            tick,
            progress: Progress {
                table: first.clone(),
                tables_done: 0,
                tables_total,
                rows: 0,
                rows_estimate,
                bytes: 0,
            },
        }
    }

    /// A table begins.
    pub(super) fn begin(&mut self, table: &TableName) {
        self.progress.table = table.clone();
        self.report();
    }

    /// Rows have been relayed.
    pub(super) fn moved(&mut self, rows: u64, bytes: u64) {
        self.progress.rows += rows;
        self.progress.bytes += bytes;
        self.report();
    }

    /// A table is committed.
    pub(super) fn done(&mut self) {
        self.progress.tables_done += 1;
        self.report();
    }

    /// Waits for a server, unless told to stop, and keeps reporting meanwhile.
    pub(super) async fn over<F: Future>(&mut self, work: F) -> Result<F::Output, CopyError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(CopyError::Cancelled),
                output = &mut work => return Ok(output),
                _ = self.tick.tick() => self.observer.progress(&self.progress),
            }
        }
    }

    fn report(&mut self) {
        self.tick.reset();
        self.observer.progress(&self.progress);
    }
}
