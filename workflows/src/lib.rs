//! The deterministic half of a move: what happens in which order, and nothing of how.
//!
//! Temporal replays this code from history after every restart, so it may not read a clock, draw
//! a number, start a task or reach a database; `clippy.toml` beside this crate's manifest bans the
//! first three and a check on the dependency tree the last. Everything that touches the world is
//! an activity, named and typed in [`contract`] and implemented in the `activities` crate.
//!
//! - [`contract`]: the activities, as one table of names, inputs and outputs;
//! - [`input`]: what starts and steers a move, as its caller writes it;
//! - [`org_move`]: the walk `active → draining → cut_over → finalized`, and its ways out;
//! - [`sweep`]: the schedule that ends what nobody ends;
//! - [`outbox`]: the schedules that deliver what the outboxes of control and of cells still hold.

pub mod contract;
pub mod input;
pub mod org_move;
pub mod outbox;
pub mod queue;
pub mod sweep;

pub use org_move::OrgMove;
pub use outbox::OutboxDrain;
pub use sweep::Sweep;
