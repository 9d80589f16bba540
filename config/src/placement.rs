//! Checks that every cell has one place for every store that moves.

use std::collections::{HashMap, HashSet};

use monarch_model::StoreName;

use crate::fault::{Place, Report, quoted};
use crate::fleet::BlobPlace;
use crate::fleet_file::ReadCell;
use crate::graph::{Eviction, StoreKind};
use crate::manifest::Stores;

/// Reports what is wrong with the places of `stores` in `cells`.
pub(crate) fn check(cells: &[ReadCell], stores: &Stores, report: &mut Report) {
    for read in cells {
        check_databases(read, stores, report);
        check_blobs(read, stores, report);
        if read.whole {
            check_complete(read, stores, report);
        }
    }
    check_shared(cells, stores, report);
}

fn check_databases(read: &ReadCell, stores: &Stores, report: &mut Report) {
    let mut placed: HashMap<&StoreName, &Place> = HashMap::new();
    for (name, place) in read.databases.iter().flat_map(|database| &database.stores) {
        if let Some(Some(store)) = stores.find(name, place, report)
            && store.is_blob()
        {
            let found = format!("{} is a blob store", quoted(name.as_str()));
            report.fault(
                place,
                found,
                "a postgres store; a blob store goes under blobs",
            );
        }
        match placed.get(name) {
            Some(first) => {
                let found = format!("{} has a place already", quoted(name.as_str()));
                let expected = format!("each store once in a cell (first at {})", first.key);
                report.fault(place, found, expected);
            }
            None => {
                placed.insert(name, place);
            }
        }
    }
}

fn check_blobs(read: &ReadCell, stores: &Stores, report: &mut Report) {
    for blob in &read.blobs {
        if let Some(Some(store)) = stores.find(&blob.store, &blob.place, report)
            && !store.is_blob()
        {
            let found = format!("{} is a postgres store", quoted(blob.store.as_str()));
            let expected = "a blob store; a postgres store goes into a database's stores";
            report.fault(&blob.place, found, expected);
        }
    }
}

/// Every store that is migrated has a place.
fn check_complete(read: &ReadCell, stores: &Stores, report: &mut Report) {
    let databases: HashSet<&StoreName> = read
        .databases
        .iter()
        .flat_map(|database| &database.stores)
        .map(|(name, _)| name)
        .collect();
    let blobs: HashSet<&StoreName> = read.blobs.iter().map(|blob| &blob.store).collect();
    for store in stores.iter().filter(|store| store.migrate) {
        let (placed, key, expected) = if store.is_blob() {
            (&blobs, "blobs", "a file_path or url for it under blobs")
        } else {
            (&databases, "databases", "it in one database's stores")
        };
        if !placed.contains(&store.name) {
            let place = Place {
                key: format!("{}.{key}", read.place.key),
                line: read.place.line,
            };
            let found = format!("store {} has no place", quoted(store.name.as_str()));
            report.fault(&place, found, expected);
        }
    }
}

/// Two cells do not keep objects that eviction deletes in one place: the sink's would go too.
fn check_shared(cells: &[ReadCell], stores: &Stores, report: &mut Report) {
    let mut first: HashMap<(&StoreName, String), &Place> = HashMap::new();
    for blob in cells.iter().flat_map(|read| &read.blobs) {
        let store = stores.get(&blob.store);
        let deletes = store.is_some_and(|store| store.migrate && is_deleting(store.kind));
        let (Some(kept_at), true) = (&blob.kept_at, deletes) else {
            continue;
        };
        let spelled = match kept_at {
            BlobPlace::FilePath(path) => path.to_string_lossy().into_owned(),
            BlobPlace::Url(url) => url.trim_start_matches("file://").to_owned(),
        };
        let spelled = spelled.trim_end_matches('/').to_owned();
        if let Some(first) = first.insert((&blob.store, spelled), &blob.place) {
            let found = format!("the same place as {}", first.key);
            let expected = "a place of its own, since eviction deletes from it";
            report.fault(&blob.place, found, expected);
        }
    }
}

fn is_deleting(kind: StoreKind) -> bool {
    matches!(
        kind,
        StoreKind::Blob {
            eviction: Eviction::Delete,
            ..
        }
    )
}
