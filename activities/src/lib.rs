//! The activities of a move, a file each: what touches ledger, cells and control plane.
//!
//! Every activity may run twice, die at any line and run again on another machine. They are written
//! in one order: *intent* (the ledger says what is meant, by compare-and-swap), *effect*,
//! *read-back* (the cell is looked at), *record*. A crash between any two is found by the next try,
//! which looks before it does.
//!
//! - [`World`]: configuration and ledger, which all of them stand on;
//! - [`Steering`]: what steers a move, on the queue of the workflow;
//! - [`Movers`]: what moves, deletes and drops rows and slots, on the queue of a cell;
//! - `failure`: the one place where errors become Temporal's failures; `code`: their names.

mod adopt;
mod blobs;
mod close_tail;
mod code;
mod control;
mod deletion;
pub mod deliver;
mod drain;
mod ending;
mod evict;
mod failure;
mod fence;
mod flip;
mod hold;
mod hosted;
mod journal;
mod org_outbox;
mod outbox;
pub mod preflight;
mod readiness;
mod register;
mod reporting;
mod retained_log;
mod roll_call;
pub mod routing;
mod schema;
mod scrub;
mod seal;
mod snapshot;
mod stream;
pub mod sweep;
mod verification;
mod verify;
mod vitals;
mod world;

pub use control::ControlError;
pub use hosted::{Movers, Steering};
pub use verify::VERIFIED;
pub use world::World;
