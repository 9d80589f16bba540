//! One case: two sides, measured in turns.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::copy::{self, Copying};
use crate::pair::Pair;
use crate::stream::{self, Streaming};

/// What is measured, and what for.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// Rows copied or changes applied.
    pub(crate) rows: u64,
    /// How many times as fast as the native tool we want to be.
    pub(crate) goal: f64,
    pub(crate) work: Work,
}

/// What is done.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Copy(Copying),
    Stream(Streaming),
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Ours,
    /// `psql` piped into `psql`.
    CopyText,
    /// The same with `format binary`.
    CopyBinary,
    /// `create subscription`.
    Subscription,
    /// Our own stream of rows that name no objects.
    WithoutObjects,
}

/// How one side did.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Times {
    pub(crate) side: Side,
    pub(crate) runs: Vec<Duration>,
}

impl Times {
    /// The middle one; the later of two.
    pub(crate) fn median(&self) -> Duration {
        let mut runs = self.runs.clone();
        runs.sort();
        runs.get(runs.len() / 2).copied().unwrap_or_default()
    }

    /// From the fastest to the slowest run, as a share of the median.
    pub(crate) fn spread(&self) -> f64 {
        let slowest = self.runs.iter().max().copied().unwrap_or_default();
        let fastest = self.runs.iter().min().copied().unwrap_or_default();
        (slowest - fastest).as_secs_f64() / self.median().as_secs_f64()
    }
}

/// What came of a case.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) rows: u64,
    pub(crate) goal: f64,
    pub(crate) ours: Times,
    pub(crate) native: Vec<Times>,
    /// The most memory that this process had above what it had before, in bytes.
    pub(crate) memory_bytes: u64,
}

impl Measured {
    /// The fastest of the native tools.
    pub(crate) fn best_native(&self) -> Option<&Times> {
        self.native.iter().min_by_key(|times| times.median())
    }

    /// How many times as fast as it we are.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let native = self.best_native()?.median();
        Some(native.as_secs_f64() / self.ours.median().as_secs_f64())
    }
}

/// Measures a case.
pub(crate) async fn run(pair: &Pair, case: Case, runs: usize) -> Result<Measured> {
    let sides = match &case.work {
        Work::Copy(_) => vec![Side::Ours, Side::CopyText, Side::CopyBinary],
        Work::Stream(work) => vec![Side::Ours, work.rival()],
    };
    let mut times: Vec<Times> = sides
        .into_iter()
        .map(|side| Times {
            side,
            runs: Vec::new(),
        })
        .collect();
    let mut memory_bytes = 0;
    for run in 1..=runs {
        for of in &mut times {
            let (took, grew) = match &case.work {
                Work::Copy(work) => copy::measure(pair, work, of.side).await,
                Work::Stream(work) => stream::measure(pair, work, of.side).await,
            }
            .with_context(|| format!("{}, {:?}, run {run}", case.name, of.side))?;
            eprintln!("{}, run {run}, {:?}: {took:.2?}", case.name, of.side);
            of.runs.push(took);
            if of.side == Side::Ours {
                memory_bytes = memory_bytes.max(grew);
            }
        }
    }
    let ours = times.remove(0);
    Ok(Measured {
        name: case.name,
        rows: case.rows,
        goal: case.goal,
        ours,
        native: times,
        memory_bytes,
    })
}
