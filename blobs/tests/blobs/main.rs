//! Objects on real servers: what is promised of their copies, whatever servers and networks do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod copies;
mod faults;
mod fixture;
mod keys;
mod look;
mod removal;
