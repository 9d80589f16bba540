//! One server of a kind for all tests of a binary.
//!
//! Starting a server costs more than most tests, and two cores do not carry many of them. Tests
//! that share one keep apart by database or namespace; a test that kills, pauses or restarts a
//! server starts its own. Nothing here belongs to a tokio runtime, since each `#[tokio::test]` has
//! one of its own. A static is never dropped: what ends these servers is the end of the process.
//!
//! # Panics
//!
//! When the server cannot be started: no test that asked for it can pass.

use tokio::sync::OnceCell;

use crate::{Cluster, ClusterOptions, PgVersion, Temporal};

/// The cluster of this version that all tests of this binary share, with the settings of
/// [`ClusterOptions::new`].
pub async fn cluster(version: PgVersion) -> &'static Cluster {
    static CLUSTERS: [OnceCell<Cluster>; 5] = [const { OnceCell::const_new() }; 5];
    let start = async || match Cluster::start(ClusterOptions::new(version)).await {
        Ok(cluster) => cluster,
        Err(error) => panic!("start the shared cluster of {version}: {error:#}"),
    };
    CLUSTERS[version as usize].get_or_init(start).await
}

/// The Temporal server that all tests of this binary share; each works in a
/// [`namespace`](Temporal::namespace) of its own.
pub async fn temporal() -> &'static Temporal {
    static TEMPORAL: OnceCell<Temporal> = OnceCell::const_new();
    let start = async || match Temporal::start().await {
        Ok(temporal) => temporal,
        Err(error) => panic!("start the shared Temporal server: {error:#}"),
    };
    TEMPORAL.get_or_init(start).await
}
