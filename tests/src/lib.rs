//! What the end-to-end tests share: a scene with a fleet in it, and the questions that every move
//! must be able to answer when it ends.
//!
//! Each test drives the real program: `monarch worker` as a child process, moves started and
//! steered with `monarch` and `temporal`. Tests of one binary share servers and keep apart by
//! databases and namespaces; a test that kills a server starts its own.

mod held;
mod judge;
mod scene;

pub use held::Held;
pub use judge::{Neighbours, assert_nothing_left, org_on, tells};
pub use scene::{PATIENCE, Scene, Servers, Stage};
