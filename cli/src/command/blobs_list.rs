//! `monarch blobs list`

use clap::{Args, ValueEnum};
use monarch_ledger::{BlobChoice, BlobRecord, Ledger, Unit};
use monarch_model::StoreName;
use monarch_view::units_of_measure::bytes;
use serde::Serialize;

use super::move_::{find, none_such};
use crate::args::Which;
use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Keys of objects that the organization's rows name, as the ledger has them: those that a person has
/// to look at unless told otherwise. In no order that means anything.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Which keys
    #[arg(long, value_enum, default_value = "troubled")]
    state: State,
    /// Only those of this blob store
    #[arg(long, value_name = "STORE")]
    store: Option<StoreName>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// Those without an object on the source, and those in other trouble
    Troubled,
    /// Those whose object is not on the sink
    Uncopied,
    /// Those whose object is on the sink, proved
    Copied,
}

impl State {
    fn choice(self) -> BlobChoice {
        match self {
            Self::Troubled => BlobChoice::Troubled,
            Self::Uncopied => BlobChoice::Uncopied,
            Self::Copied => BlobChoice::Copied,
        }
    }
}

/// Some keys of a move.
#[derive(Debug, Serialize)]
struct Keys {
    keys: Vec<Key>,
    /// Whether there are more than were asked for.
    more: bool,
}

#[derive(Debug, Serialize)]
struct Key {
    store: StoreName,
    /// The table of the row that named it first.
    table: String,
    key: String,
    state: String,
    bytes: Option<u64>,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let ledger = context.ledger()?;
    let of = find(&ledger, &arguments.which)
        .await?
        .ok_or_else(|| none_such(&arguments.which))?;
    let mut units = ledger.units(of.id).await?;
    units.retain(|unit| unit.of_objects);
    if let Some(store) = &arguments.store {
        units.retain(|unit| unit.store == *store);
    }
    if units.is_empty() {
        return Err(Failure::not_ready("the move has no such objects"));
    }
    let keys = read(&ledger, &units, arguments).await?;
    console::show(context.output(), &keys, text)?;
    Ok(Exit::Done)
}

async fn read(ledger: &Ledger, units: &[Unit], arguments: &Arguments) -> Result<Keys, Failure> {
    let limit = arguments.limit as usize;
    let choice = arguments.state.choice();
    let mut keys = Vec::new();
    for unit in units {
        // One more than is shown tells whether there are more.
        let wanted = arguments.limit + 1;
        let page = ledger
            .blob_keys(unit.move_id, &unit.store, choice, None, wanted)
            .await?;
        keys.extend(page.records.into_iter().map(|record| Key::of(unit, record)));
        if keys.len() > limit {
            break;
        }
    }
    let more = keys.len() > limit;
    keys.truncate(limit);
    Ok(Keys { keys, more })
}

impl Key {
    fn of(unit: &Unit, record: BlobRecord) -> Self {
        let state = match (&record.problem, &record.copied) {
            (Some(problem), _) => problem.clone(),
            (None, Some(_)) => "copied".to_owned(),
            (None, None) if record.is_missing => "missing".to_owned(),
            (None, None) => "not copied yet".to_owned(),
        };
        Self {
            store: unit.store.clone(),
            table: record.table.to_string(),
            key: record.key,
            state,
            bytes: record.copied.map(|copy| copy.size_bytes),
        }
    }
}

fn text(keys: &Keys) -> String {
    if keys.keys.is_empty() {
        return "none".to_owned();
    }
    let mut shown = table(["store", "table", "state", "size", "key"]);
    for key in &keys.keys {
        let size = key.bytes.map_or_else(String::new, bytes);
        shown.add_row([
            plain(key.store.as_str()),
            plain(&key.table),
            key.state.clone(),
            size,
            plain(&key.key),
        ]);
    }
    let mut text = lines(&shown);
    if keys.more {
        text.push_str("\n… and more: see --limit");
    }
    text
}
