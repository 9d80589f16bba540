//! The outbox's promises, on a real server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backfill;
mod diagnostics;
mod drain;
mod faults;
mod fixture;
mod metrics;
mod replicated;
mod retarget;
mod runner;
mod storage;
mod testing;
mod tombstones;
mod writing;
