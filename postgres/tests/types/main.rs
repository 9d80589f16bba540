//! Every type, table shape, pair of versions and kind of role through a whole move at this level:
//! preflight, copy, stream, verification, eviction.

#![allow(clippy::unwrap_used)]

mod keys;
mod shapes;
mod values;
mod world;
