//! What the copy of a store promises, on real servers.

#![allow(clippy::unwrap_used)]

mod catalog;
mod estimate;
mod publication;
mod scope;
mod sink;
mod slot;
mod snapshot;
mod spine;
mod world;
