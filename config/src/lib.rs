//! Turns `manifest.yaml` and `fleet.yaml` into a checked [`Graph`] and [`Fleet`].
//!
//! Everything that can be known to be wrong without asking a database is found here, all of it at
//! once, before a move touches anything: whoever holds a [`Config`] need not check again that an
//! edge leads somewhere or that a store has a place. Files and the environment are reached at the
//! edge, in [`load`], alone.
//!
//! The files, by example, are `examples/manifest.yaml` and `examples/fleet.yaml`.

mod document;
mod dsn;
mod fault;
mod fields;
mod fleet;
mod fleet_file;
mod graph;
mod manifest;
mod parameters;
mod placement;
mod scope;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use dsn::{Dsn, Env};
pub use fault::{Fault, Faults, near_miss};
pub use fleet::{BlobPlace, Cell, Control, Database, Deliver, Fleet, IdRange};
pub use graph::{BlobRef, Edge, Eviction, Graph, Missing, Scope, Store, StoreKind, Table};
pub use parameters::{DsnError, HostParameters, Parameters};

use fault::Report;
use fields::At;
use manifest::{Manifest, Stores};

/// Both files, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the manifest says.
    pub graph: Graph,
    /// What the fleet says.
    pub fleet: Fleet,
}

/// Reads and checks both files. `env` fills the variables of the fleet; pass
/// `&|name| std::env::var(name).ok()` for those of the process.
///
/// # Errors
/// Every fault of both files. What the manifest's own faults leave unknown is not held against
/// the fleet.
pub fn load(manifest: &Path, fleet: &Path, env: &Env<'_>) -> Result<Config, Faults> {
    let name = manifest.display().to_string();
    let mut report = Report::new(&name);
    let read = match read_file(manifest, &mut report) {
        Some(text) => read_manifest(&text, &mut report),
        None => Manifest::unread(),
    };
    let graph = finish(read.graph, report);

    let name = fleet.display().to_string();
    let mut report = Report::new(&name);
    let fleet = read_file(fleet, &mut report)
        .and_then(|text| read_fleet(&text, read.stores.as_ref(), env, &mut report));
    match (graph, finish(fleet, report)) {
        (Ok(graph), Ok(fleet)) => Ok(Config { graph, fleet }),
        (Err(first), Err(second)) => Err(first.and(second)),
        (Err(faults), Ok(_)) | (Ok(_), Err(faults)) => Err(faults),
    }
}

/// Checks the text of a manifest. `file` is what faults call it.
///
/// # Errors
/// Every fault of it.
pub fn manifest_from_str(file: &str, text: &str) -> Result<Graph, Faults> {
    let mut report = Report::new(file);
    let read = read_manifest(text, &mut report);
    finish(read.graph, report)
}

/// Checks the text of a fleet against `graph`. `file` is what faults call it; `env` fills its
/// variables.
///
/// # Errors
/// Every fault of it.
pub fn fleet_from_str(
    file: &str,
    text: &str,
    graph: &Graph,
    env: &Env<'_>,
) -> Result<Fleet, Faults> {
    let mut report = Report::new(file);
    let fleet = read_fleet(text, Some(&Stores::of(graph)), env, &mut report);
    finish(fleet, report)
}

/// What was read, if nothing was at fault.
fn finish<T>(read: Option<T>, report: Report) -> Result<T, Faults> {
    match read {
        Some(read) if !report.has_faults() => Ok(read),
        _ => Err(report.into_faults()),
    }
}

fn read_manifest(text: &str, report: &mut Report) -> Manifest {
    match document::parse(text, report) {
        Some(node) => manifest::read(&At::root(&node), report),
        None => Manifest::unread(),
    }
}

fn read_fleet(
    text: &str,
    stores: Option<&Stores>,
    env: &Env<'_>,
    report: &mut Report,
) -> Option<Fleet> {
    let node = document::parse(text, report)?;
    fleet_file::read(&At::root(&node), stores, env, report)
}

/// The text of a file, of which no more is read than may be.
fn read_file(path: &Path, report: &mut Report) -> Option<String> {
    let mut bytes = Vec::new();
    let limit = document::MAX_BYTES as u64 + 1;
    if let Err(error) = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
        report.file_fault(None, format!("cannot be read ({error})"), "a readable file");
        return None;
    }
    if bytes.len() > document::MAX_BYTES {
        document::report_size(report);
        return None;
    }
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(_) => {
            report.file_fault(None, "the file is not UTF-8", "text in UTF-8");
            None
        }
    }
}
