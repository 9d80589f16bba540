//! What guards a move, on real servers: preflight, drain, verification, sequences, and the
//! deletion of the losing side.

#![allow(clippy::unwrap_used)]

mod cells;
mod drain;
mod evict;
mod preflight;
mod scrub;
mod sequences;
mod uniqueness;
mod verify;
