//! `monarch move verify`

use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use monarch_ledger::{Ledger, Move, Verification, VerificationOutcome};
use monarch_model::{Phase, StoreName, UnitStatus};
use monarch_view::advice::may_be_asked;
use monarch_view::units_of_measure::{count, duration};
use serde_json::Value;

use super::{find, none_such};
use crate::args::Which;
use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Both sides are read in full, each in one snapshot, on the source's primary and on the sink. It
/// ends with 1 unless all are equal. Where one differs, a cut-over is refused until a later
/// verification of that store finds both sides equal. An interrupted command takes nothing back:
/// what was asked for is answered in the journal.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Only this store; may be given several times
    #[arg(long = "store", value_name = "STORE")]
    stores: Vec<StoreName>,
    /// How many seconds a store's mover may be silent
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

/// Between two looks at the ledger.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let ledger = context.ledger()?;
    let of = find(&ledger, &arguments.which)
        .await?
        .ok_or_else(|| none_such(&arguments.which))?;
    if of.phase != Phase::Active {
        let why = format!(
            "the move is {}: stores are verified while they stream",
            of.phase
        );
        return Err(Failure::not_ready(why).advising(may_be_asked(Some(of.phase), false, &of.org)));
    }
    let stores = chosen(&ledger, &of, &arguments.stores).await?;
    let patience = Duration::from_secs(arguments.timeout);
    let mut ended = Vec::new();
    // One after the other: each reads both sides in full.
    for store in &stores {
        let number = ledger.ask_verification(of.id, store).await?;
        ended.push(answer(&ledger, &of, (store, number), patience).await?);
    }
    console::show(context.output(), &ended, |ended| text(ended))?;
    let equal = |one: &Verification| one.outcome == Some(VerificationOutcome::Equal);
    Ok(match ended.iter().all(equal) {
        true => Exit::Done,
        false => Exit::Failed,
    })
}

/// The stores that were named, or all of the move; refused before anything is asked for if one of
/// them is not streaming.
async fn chosen(
    ledger: &Ledger,
    of: &Move,
    named: &[StoreName],
) -> Result<Vec<StoreName>, Failure> {
    let mut units = ledger.units(of.id).await?;
    units.retain(|unit| !unit.of_objects);
    let known = || {
        let names: Vec<&str> = units.iter().map(|unit| unit.store.as_str()).collect();
        names.join(", ")
    };
    let strangers: Vec<String> = named
        .iter()
        .filter(|name| !units.iter().any(|unit| unit.store == **name))
        .map(|name| {
            format!(
                "the move has no rows in store {name}; it has some in {}",
                known()
            )
        })
        .collect();
    if !strangers.is_empty() {
        return Err(Failure::usage(strangers.join("; ")));
    }
    let chosen: Vec<_> = units
        .iter()
        .filter(|unit| named.is_empty() || named.contains(&unit.store))
        .collect();
    let early: Vec<String> = chosen
        .iter()
        .filter(|unit| unit.status != UnitStatus::Streaming)
        .map(|unit| format!("{} does not stream yet: it is {}", unit.store, unit.status))
        .collect();
    if !early.is_empty() {
        return Err(Failure::not_ready(early.join("; ")));
    }
    Ok(chosen.into_iter().map(|unit| unit.store.clone()).collect())
}

/// Waits for one to end: as long as it takes, while its mover is at work.
async fn answer(
    ledger: &Ledger,
    of: &Move,
    (store, number): (&StoreName, i32),
    patience: Duration,
) -> Result<Verification, Failure> {
    let since = Instant::now();
    loop {
        let found = ledger.verification(of.id, store, number).await?;
        if let Some(one) = found.filter(|one| one.ended_at.is_some()) {
            return Ok(one);
        }
        let phase = ledger.move_by_id(of.id).await?.map(|of| of.phase);
        if let Some(phase) = phase.filter(|phase| *phase != Phase::Active) {
            let why = format!("the move is {phase} by now: nobody answers any more");
            return Err(Failure::not_ready(why));
        }
        let units = ledger.units(of.id).await?;
        let unit = units.iter().find(|unit| unit.store == *store);
        if let Some(unit) = unit.filter(|unit| unit.status != UnitStatus::Streaming) {
            let why = format!("{store} is {} by now: nobody answers any more", unit.status);
            return Err(Failure::not_ready(why));
        }
        // A mover that reads both sides goes on reporting.
        let heard = unit.and_then(|unit| unit.heartbeat_at);
        // The ledger's clock may be ahead of ours.
        let silence = |at| Duration::try_from(Timestamp::now().duration_since(at));
        let silent = heard.is_none_or(|at| silence(at).unwrap_or_default() >= patience);
        if silent && since.elapsed() >= patience {
            return Err(Failure::unreachable(format!(
                "the mover of {store} is silent; what was asked for stands, and is answered in the \
                 journal when it is back"
            ))
            .advising(format!(
                "see `monarch move status --move {}`: is its worker gone?",
                of.id
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn text(ended: &[Verification]) -> String {
    let mut table = table([
        "store",
        "verification",
        "source rows",
        "sink rows",
        "digest",
        "at",
        "took",
    ]);
    let mut remarks = Vec::new();
    for one in ended {
        let outcome = one.outcome.map_or("open", VerificationOutcome::as_str);
        table.add_row([
            one.store.to_string(),
            outcome.to_owned(),
            rows(&one.detail["source"]),
            rows(&one.detail["sink"]),
            digest(&one.detail),
            one.lsn
                .map_or_else(|| "-".to_owned(), |lsn| lsn.to_string()),
            took(one.asked_at, one.ended_at),
        ]);
        let differences = one.detail["differences"].as_array();
        let told = differences
            .into_iter()
            .flatten()
            .chain(one.detail.get("why"));
        remarks.extend(
            told.filter_map(Value::as_str)
                .map(|told| plain(&format!("{}: {told}", one.store))),
        );
    }
    let mut text = lines(&table);
    for remark in remarks {
        text.push('\n');
        text.push_str(&remark);
    }
    text
}

fn rows(side: &Value) -> String {
    side["rows"].as_u64().map_or_else(|| "-".to_owned(), count)
}

/// The beginning of the source's digest, and of the sink's where it is another.
fn digest(detail: &Value) -> String {
    let beginning = |side: &str| {
        let whole = detail[side]["sha256"].as_str().unwrap_or_default();
        whole.chars().take(10).collect::<String>()
    };
    match (beginning("source"), beginning("sink")) {
        (source, sink) if source == sink => source,
        (source, sink) => format!("{source} / {sink}"),
    }
}

fn took(from: Timestamp, to: Option<Timestamp>) -> String {
    let took = to.and_then(|to| to.duration_since(from).try_into().ok());
    took.map_or_else(|| "-".to_owned(), duration)
}
