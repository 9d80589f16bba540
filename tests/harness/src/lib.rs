//! Real servers for tests and the demo: Postgres clusters of every supported version, physical
//! standbys, Temporal, and our own program as a child that can be killed.
//!
//! Monarch's promises are about what real servers do when processes die, so nothing here is a
//! stand-in. What is started here never outlives its user: a server ends, with its folder, when its
//! handle drops, and also when the process that holds the handle dies in whatever way (`keeper`
//! says how). [`shared`] keeps one server of a kind for all tests of a binary; each test works in a
//! database or namespace of its own, named by [`fresh_name`].
//!
//! Errors are `anyhow`'s: a harness has no caller that could act on a kind of failure, only a
//! reader who wants to know what was being done and what the server's log said.

mod account;
mod browser;
mod cluster;
mod install;
mod keeper;
mod name;
#[cfg(feature = "object-stores")]
pub mod object_stores;
mod pooler;
mod program;
pub mod shared;
mod standby;
mod template;
mod temporal;
mod tls;

pub use browser::Browser;
pub use cluster::{Cluster, ClusterOptions, PASSWORD, PgVersion, ServerTls};
pub use name::fresh_name;
pub use pooler::TransactionPooler;
pub use program::{Program, monarch_binary};
pub use standby::Standby;
pub use temporal::Temporal;
pub use tls::{Authority, ClientCertificate};
