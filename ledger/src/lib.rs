//! Monarch's own durable state, and the invariants that it holds.
