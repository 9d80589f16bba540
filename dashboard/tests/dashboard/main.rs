//! The page, served over a real ledger. What is Temporal's is answered by a stand-in here; the
//! end-to-end tests and the browser have the real one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod fixture;
mod hostile;
mod live;
mod shown;
mod size;
mod steered;
mod tls;
