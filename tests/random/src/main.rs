//! Runs moves of random seeds for a while, several at a time, and says what came of them.

#![allow(clippy::print_stdout)] // it is a command

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use futures::stream::{FuturesUnordered, StreamExt as _};
use monarch_postgres::stream::Batching;
use monarch_random::{Order, run, story};

#[derive(Parser)]
#[command(about = "Moves of random schemas under random workloads")]
struct Options {
    /// How long new seeds are begun
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first seed; the others follow it. A random one by default
    #[arg(long)]
    seed: Option<u64>,
    /// How many moves at most
    #[arg(long, default_value_t = usize::MAX)]
    moves: usize,
    /// How many at a time
    #[arg(long, default_value_t = 3)]
    together: usize,
    /// No more than so many transactions of each script
    #[arg(long, default_value_t = usize::MAX)]
    transactions: usize,
    /// Without roles, standbys and hazards
    #[arg(long)]
    plain: bool,
    /// Each row by a statement of its own, whatever the seed has
    #[arg(long)]
    row_by_row: bool,
    /// Say what the seed stands for and run nothing
    #[arg(long, requires = "seed")]
    story: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let first = options.seed.unwrap_or_else(|| rand::random::<u64>() >> 24);
    let order = |seed| Order {
        seed,
        transactions: options.transactions,
        hazardous: !options.plain,
        batching: options.row_by_row.then_some(Batching::Off),
    };
    if options.story {
        println!("{}", story(&order(first)));
        return ExitCode::SUCCESS;
    }
    println!("soak: seeds from {first} on");
    let until = Instant::now() + Duration::from_secs_f64(60.0 * options.minutes);
    let mut seeds = (first..).take(options.moves);
    let mut next = || {
        let seed = seeds.next().filter(|_| Instant::now() < until)?;
        let order = order(seed);
        Some(tokio::spawn(
            async move { (seed, Box::pin(run(&order)).await) },
        ))
    };
    let mut under_way: FuturesUnordered<_> = (0..options.together).map_while(|_| next()).collect();
    let mut summary = Summary::default();
    while let Some(ended) = under_way.next().await {
        match ended {
            Ok((seed, judged)) => summary.take(seed, judged),
            Err(panic) => summary.panics.push(panic.to_string()),
        }
        under_way.extend(next());
    }
    summary.print();
    if summary.failed.is_empty() && summary.panics.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Default)]
struct Summary {
    outcomes: BTreeMap<String, usize>,
    moves: usize,
    changes: u64,
    transactions: usize,
    disturbances: usize,
    failed: Vec<u64>,
    panics: Vec<String>,
}

impl Summary {
    fn take(&mut self, seed: u64, judged: anyhow::Result<monarch_random::Judged>) {
        self.moves += 1;
        match judged {
            Ok(judged) => {
                *self.outcomes.entry(judged.outcome.to_string()).or_default() += 1;
                self.changes += judged.changes;
                self.transactions += judged.transactions;
                self.disturbances += judged.disturbances;
            }
            Err(error) => {
                println!("seed {seed} FAILED: {error:#}");
                self.failed.push(seed);
            }
        }
    }

    fn print(&self) {
        println!(
            "soak: {} moves, {} transactions beside them, {} changes streamed, {} disturbances",
            self.moves, self.transactions, self.changes, self.disturbances
        );
        for (outcome, count) in &self.outcomes {
            println!("  {outcome}: {count}");
        }
        for seed in &self.failed {
            println!("  FAILED: make soak SEED={seed}");
        }
        for panic in &self.panics {
            println!("  PANICKED: {panic}");
        }
    }
}
