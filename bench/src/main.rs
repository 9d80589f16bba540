//! Copy and stream, measured against what comes with Postgres, in the same run and on the same
//! servers: `make bench`.
//!
//! A machine is never as fast as it was a minute ago, so only ratios are worth anything: each run of
//! ours stands beside a run of the native tool, in turns, and what is told is the median of each
//! side, their ratio, and how far the native tool's own runs lie apart. Everything, servers included,
//! runs on one machine and shares its cores.

mod copy;
mod measure;
mod memory;
mod objects;
mod pair;
mod report;
mod stream;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;

use crate::measure::Case;
use crate::pair::Pair;

/// Measures copy and stream against Postgres's own tools.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only cases with this in their name; may be given several times
    cases: Vec<String>,
    /// How often each side of a case is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Rows and changes are so many times as many
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Where the results are written
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut cases: Vec<Case> = copy::cases(arguments.scale);
    cases.extend(stream::cases(arguments.scale));
    let wanted = |case: &Case| {
        let mut named = arguments.cases.iter();
        arguments.cases.is_empty() || named.any(|part| case.name.contains(part.as_str()))
    };
    cases.retain(wanted);
    ensure!(!cases.is_empty(), "no case has such a name");
    ensure!(arguments.runs > 0, "a case is measured at least once");
    let pair = Pair::start().await?;
    let mut measured = Vec::new();
    for case in cases {
        measured.push(measure::run(&pair, case, arguments.runs).await?);
    }
    report::write(&arguments.results, &measured)
}
