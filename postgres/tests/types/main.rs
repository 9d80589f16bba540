//! Every type, table shape, pair of versions and kind of role through a whole move at this level:
//! preflight, copy, stream, verification, eviction.

#![allow(clippy::unwrap_used)]

mod endings;
mod keys;
mod objects;
mod schema;
mod secrets;
mod sequences;
mod sessions;
mod shapes;
mod together;
mod values;
mod versions;
mod world;
