//! Moves of random schemas under random workloads.
//!
//! One number, the seed, tells a schema within the rules of a manifest, the rows of an organization
//! and of its neighbours, a script of transactions, when which mover dies, and how the move ends.
//! The move is real, on real servers, by the engine's own functions as the activities call them;
//! what it must come to is found without any of them: the printed rows of the source at the
//! barrier, those that the walk up the scope columns ties to the organization, beside the rows that
//! the sink had before. A move that fails by name must have had its cause, which the generator
//! knows, because it made it.
//!
//! What this cannot see: the workflow, the ledger and the control plane, which the end-to-end tests
//! drive; and whatever the generator does not roll.

pub mod cells;
pub mod dice;
pub mod hazard;
pub mod model;
pub mod mover;
pub mod run;
pub mod schema;
pub mod sql;
pub mod value;
pub mod work;
pub mod writers;

pub use run::{Judged, Order, Outcome, run, story};
