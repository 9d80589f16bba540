//! Starts a cluster and Temporal and holds them until it is ended, for a look by hand with `psql`
//! or a browser: `cargo run -p monarch-harness --bin hold -- 16`, the version being optional.

#![expect(clippy::print_stdout, reason = "a program that says where to look")]

use anyhow::{Context, Result};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Temporal};

#[tokio::main]
async fn main() -> Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "16".to_owned());
    let version = PgVersion::ALL
        .into_iter()
        .find(|version| version.major().to_string() == wanted);
    let version = version.with_context(|| format!("no version {wanted}: 14 to 18 are there"))?;

    let cluster = Cluster::start(ClusterOptions::new(version)).await?;
    println!("postgres {}", cluster.dsn("postgres"));
    println!("postgres_log {}", cluster.log().display());
    let temporal = Temporal::start().await?;
    println!("temporal {}", temporal.address());
    println!("temporal_ui {}", temporal.ui_url());
    println!("temporal_log {}", temporal.log().display());
    println!("Ctrl-C ends both");
    tokio::signal::ctrl_c().await.context("wait for Ctrl-C")
}
