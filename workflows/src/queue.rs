//! Which task queue hosts what.
//!
//! Workflows and the activities that steer a move share one queue; movers run on a queue of the
//! cell they write to, so that a worker can live next to its data.

use monarch_model::CellName;

/// The queue of the workflows and of the activities that steer them.
pub const MONARCH: &str = "monarch";

/// The queue of the movers that write to `cell`.
pub fn of_cell(cell: &CellName) -> String {
    format!("{MONARCH}-{cell}")
}
