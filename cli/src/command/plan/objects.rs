//! The part of a plan that is about objects: where they go, what names them, and what is done with
//! those that are missing or left.

use monarch_config::{BlobPlace, Cell, Config, Eviction, Missing, Store, StoreKind};
use monarch_model::{CellName, StoreName};
use monarch_view::units_of_measure::count;
use serde::Serialize;

use super::StorePlan;

/// The objects of a blob store that move.
#[derive(Serialize)]
pub(super) struct ObjectPlan {
    store: StoreName,
    source: String,
    sink: String,
    named_by: Vec<NamedBy>,
    /// What a key without an object on the source means: `block` or `accept`.
    missing: &'static str,
    /// What is done with the source's objects at the end: `keep` or `delete`.
    eviction: &'static str,
}

/// A column that names objects.
#[derive(Clone, Serialize)]
pub(super) struct NamedBy {
    table: String,
    column: String,
    rows_estimated: u64,
}

/// A column of a table, and the blob store whose objects it names.
#[derive(Clone)]
pub(super) struct Naming {
    pub(super) column: String,
    pub(super) store: StoreName,
    pub(super) rows_estimated: u64,
}

/// Plans every blob store that moves.
pub(super) fn plan(
    config: &Config,
    from: &CellName,
    to: &CellName,
    stores: &[StorePlan],
) -> Vec<ObjectPlan> {
    let cells = config.fleet.cell(from).zip(config.fleet.cell(to));
    let moving = config.graph.moving_blobs();
    moving
        .filter_map(|store| {
            let (from, to) = cells?;
            let StoreKind::Blob { eviction, missing } = store.kind else {
                return None;
            };
            Some(ObjectPlan {
                store: store.name.clone(),
                source: place(from, store)?,
                sink: place(to, store)?,
                named_by: named_by(store, stores),
                missing: match missing {
                    Missing::Block => "block",
                    Missing::Accept => "accept",
                },
                eviction: match eviction {
                    Eviction::Keep => "keep",
                    Eviction::Delete => "delete",
                },
            })
        })
        .collect()
}

fn place(cell: &Cell, store: &Store) -> Option<String> {
    Some(match cell.blobs.get(&store.name)? {
        BlobPlace::FilePath(path) => path.display().to_string(),
        BlobPlace::Url(url) => url.clone(),
    })
}

fn named_by(store: &Store, stores: &[StorePlan]) -> Vec<NamedBy> {
    let tables = stores.iter().flat_map(|planned| &planned.tables);
    tables
        .flat_map(|table| table.objects.iter().map(move |naming| (table, naming)))
        .filter(|(_, naming)| naming.store == store.name)
        .map(|(table, naming)| NamedBy {
            table: table.table.clone(),
            column: naming.column.clone(),
            rows_estimated: naming.rows_estimated,
        })
        .collect()
}

/// A paragraph on a blob store.
pub(super) fn text(of: &ObjectPlan) -> String {
    let columns: Vec<String> = of
        .named_by
        .iter()
        .map(|by| {
            format!(
                "{}.{} (~{} rows)",
                by.table,
                by.column,
                count(by.rows_estimated)
            )
        })
        .collect();
    let missing = match of.missing {
        "accept" => "rows arrive without an object that the source does not have",
        _ => "a row whose object the source does not have holds the cut-over back",
    };
    let eviction = match of.eviction {
        "delete" => "eviction deletes them from the source",
        _ => "eviction leaves them on the source",
    };
    format!(
        "objects of {}: {} to {}, named by {}; {missing}; {eviction}",
        of.store,
        of.source,
        of.sink,
        columns.join(", ")
    )
}
