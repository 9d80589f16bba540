//! The ledger's invariants, on real servers: the oldest supported version and a new one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod blobs;
mod connection;
mod fixture;
mod journal;
mod phases;
mod progress;
mod queries;
mod register;
mod schema;
mod units;
mod verifications;
