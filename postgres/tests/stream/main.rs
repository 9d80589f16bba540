//! What the stream of a store promises, on real servers.

#![allow(clippy::unwrap_used)] // also in what the tests share

mod alignment;
mod bulk;
mod lifecycle;
mod rows;
mod scope;
mod tail;
mod world;
