//! The deterministic half of a move: the workflow and the contract of its activities.
