//! Which task queue hosts what.
//!
//! Workflows and the activities that steer a move share one queue; the movers of a unit run on a
//! queue of its store in the cell that they work in, so that a worker can live next to its data and
//! the stores of a large cell can be shared out among workers.

use monarch_model::{CellName, StoreName};

/// The queue of the workflows and of the activities that steer them.
pub const MONARCH: &str = "monarch";

/// The queue of the movers that work on `store` in `cell`.
///
/// Where names have dashes, two stores may come to one queue; whoever hosts it then hosts both.
pub fn of_store(cell: &CellName, store: &StoreName) -> String {
    format!("{MONARCH}-{cell}-{store}")
}
