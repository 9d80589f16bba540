//! `monarch manifest diff`

use std::fmt::Write as _;

use clap::Args;
use monarch_model::CellName;
use monarch_schema::{Database, Drift, Severity};
use serde::Serialize;

use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

use super::open;

/// Reads catalogs only. Run it where the schema is changed: a table that is added and not listed in
/// the manifest stays behind when its organization moves. Ends with 1 if there is an error.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The cell to look at; `from` of the fleet unless given
    #[arg(long, value_name = "CELL")]
    cell: Option<CellName>,
    /// End with 1 at warnings too
    #[arg(long)]
    strict: bool,
}

/// What was found in a cell.
#[derive(Serialize)]
struct Compared<'a> {
    cell: &'a CellName,
    drift: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    drift: &'a Drift,
    what: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    to_do: String,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let config = context.config()?;
    let fleet = &config.fleet;
    let name = arguments.cell.as_ref().or(fleet.from.as_ref());
    let name = name.ok_or_else(|| Failure::usage("neither --cell nor the fleet names a cell"))?;
    let cell = fleet.cell(name).ok_or_else(|| {
        let known: Vec<&str> = fleet.cells.iter().map(|cell| cell.name.as_str()).collect();
        Failure::usage(format!("the fleet has no cell {name}"))
            .advising(format!("name one of {}", known.join(", ")))
    })?;
    let mut databases: Vec<Database> = Vec::new();
    for database in &cell.databases {
        let session = open(&database.primary).await?;
        let tables = monarch_schema::read(&*session).await?;
        session.close().await;
        databases.push(Database {
            stores: database.stores.clone(),
            tables,
        });
    }
    let drift = monarch_schema::drift(&config.graph, &databases);
    let compared = Compared {
        cell: name,
        drift: drift.iter().map(Told::of).collect(),
    };
    console::show(context.output(), &compared, text)?;
    let fails = |drift: &Drift| match drift.severity {
        Severity::Error => true,
        Severity::Warning => arguments.strict,
        Severity::Note => false,
    };
    Ok(match drift.iter().any(fails) {
        true => Exit::Failed,
        false => Exit::Done,
    })
}

impl<'a> Told<'a> {
    fn of(drift: &'a Drift) -> Self {
        Self {
            drift,
            what: drift.kind.to_string(),
            to_do: drift.kind.to_do(),
        }
    }
}

fn text(compared: &Compared<'_>) -> String {
    let is_note = |told: &&Told<'_>| told.drift.severity == Severity::Note;
    let (notes, told): (Vec<_>, Vec<_>) = compared.drift.iter().partition(is_note);
    let mut said = match told.is_empty() {
        true => format!("cell {} has what the manifest says", compared.cell),
        false => {
            let mut shown = table(["", "table", "store", "what", "what to do"]);
            for Told { drift, what, to_do } in told {
                let name = plain(drift.table.as_str());
                let store = plain(drift.store.as_str());
                let severity = drift.severity.as_str();
                shown.add_row([severity, &name, &store, &plain(what), &plain(to_do)]);
            }
            lines(&shown)
        }
    };
    if !notes.is_empty() {
        let name = |told: &&Told<'_>| plain(told.drift.table.as_str());
        let names: Vec<String> = notes.iter().map(name).collect();
        let _ = write!(
            said,
            "\n\nnot in the manifest, and related to nothing in it: {}",
            names.join(", ")
        );
    }
    said
}
