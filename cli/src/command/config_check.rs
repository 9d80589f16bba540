//! `monarch config check`

use std::fmt::Write as _;

use clap::Args;
use monarch_config::{Config, Fault, Store, StoreKind};
use serde::Serialize;

use crate::console::{self, Output};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {}

/// What both files say, in short.
#[derive(Serialize)]
struct Checked {
    root: String,
    stores: Vec<CheckedStore>,
    cells: Vec<String>,
    from: Option<String>,
    to: Option<String>,
    /// No edge leads from these tables to the root: they stay where they are.
    not_moved: Vec<String>,
}

#[derive(Serialize)]
struct CheckedStore {
    name: String,
    kind: &'static str,
    migrate: bool,
    tables_moved: usize,
}

#[derive(Serialize)]
struct Faulty {
    faults: Vec<FoundFault>,
}

#[derive(Serialize)]
struct FoundFault {
    file: String,
    line: Option<usize>,
    key: String,
    found: String,
    expected: String,
    did_you_mean: Option<String>,
}

pub(crate) fn run(_: &Arguments, context: &Context) -> Result<Exit, Failure> {
    match (context.read_config(), context.output()) {
        (Ok(config), output) => {
            console::show(output, &Checked::from(&config), text)?;
            Ok(Exit::Done)
        }
        (Err(faults), Output::Json) => {
            let faults = faults.as_slice().iter().map(FoundFault::from).collect();
            console::show(Output::Json, &Faulty { faults }, |_| String::new())?;
            Ok(Exit::Usage)
        }
        (Err(faults), Output::Text) => {
            let n = faults.as_slice().len();
            let plural = if n == 1 { "" } else { "s" };
            Err(Failure::usage(format!("{n} fault{plural}:\n{faults}")))
        }
    }
}

impl From<&Config> for Checked {
    fn from(config: &Config) -> Self {
        let stores = config.graph.stores().map(|store| CheckedStore {
            name: store.name.to_string(),
            kind: kind(store),
            migrate: store.migrate,
            tables_moved: config.graph.walk(&store.name).len(),
        });
        let fleet = &config.fleet;
        Self {
            root: config.graph.root().name.to_string(),
            stores: stores.collect(),
            cells: fleet
                .cells
                .iter()
                .map(|cell| cell.name.to_string())
                .collect(),
            from: fleet.from.as_ref().map(ToString::to_string),
            to: fleet.to.as_ref().map(ToString::to_string),
            not_moved: config
                .graph
                .unmoved()
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }
}

impl From<&Fault> for FoundFault {
    fn from(fault: &Fault) -> Self {
        Self {
            file: fault.file.clone(),
            line: fault.line,
            key: fault.key.clone(),
            found: fault.found.clone(),
            expected: fault.expected.clone(),
            did_you_mean: fault.suggestion.clone(),
        }
    }
}

fn kind(store: &Store) -> &'static str {
    match store.kind {
        StoreKind::Postgres => "postgres",
        StoreKind::Blob { .. } => "blob_store",
    }
}

fn text(checked: &Checked) -> String {
    let mut table = console::table(["store", "type", "migrated", "tables moved"]);
    for store in &checked.stores {
        let migrated = if store.migrate { "yes" } else { "no" };
        let tables = store.tables_moved.to_string();
        table.add_row([store.name.as_str(), store.kind, migrated, tables.as_str()]);
    }
    let mut text = format!("both files are fine; the root is {}\n\n", checked.root);
    let _ = writeln!(text, "{}\n", console::lines(&table));
    let _ = writeln!(text, "cells: {}", checked.cells.join(", "));
    if !checked.not_moved.is_empty() {
        let names = checked.not_moved.join(", ");
        let _ = writeln!(text, "no scope edge, so not moved: {names}");
    }
    text
}
