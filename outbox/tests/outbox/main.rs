//! The outbox's promises, on a real server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod drain;
mod fixture;
mod storage;
mod writing;
