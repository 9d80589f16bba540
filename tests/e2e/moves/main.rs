//! Moves that succeed: whole, under traffic, between versions, and what holds after the flip.

mod after_flip;
mod buckets;
mod control_database;
mod drained_again;
mod memory;
mod objects;
mod paused;
mod real_manifest;
mod shared_out;
mod shared_sink;
mod verified;
mod whole;
