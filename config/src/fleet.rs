//! The checked fleet: where each cell keeps its stores, and who routes an organization.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use monarch_model::{CellName, StoreName};

use crate::dsn::Dsn;

/// What `fleet.yaml` says, checked against a graph: every cell holds every store that is migrated
/// exactly once.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The cell that organizations leave, unless a move names another.
    pub from: Option<CellName>,
    /// The cell where they arrive, unless a move names another.
    pub to: Option<CellName>,
    /// The cells, in the order of the file, each name once.
    pub cells: Vec<Cell>,
    /// The database `monarch_ledger`.
    pub ledger: Dsn,
    /// Who fences and flips; without one, the operator's word stands.
    pub control: Option<Control>,
    /// Who is given the messages of the application's outbox in the control database.
    pub control_outbox: Option<Deliver>,
}

/// A program that is given the messages of an application's outbox, one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    /// The program and its arguments, run without a shell, and never empty.
    pub command: Vec<String>,
    /// How long it may take for one message.
    pub timeout: Duration,
}

/// One deployment: its databases and buckets.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Its name.
    pub name: CellName,
    /// Its databases, in the order of the file.
    pub databases: Vec<Database>,
    /// Where its blob stores are.
    pub blobs: BTreeMap<StoreName, BlobPlace>,
    /// The ids that its sequences give, if the fleet shares ids out between its cells. No two cells
    /// share one.
    pub sequences: Option<IdRange>,
    /// Who is given the messages of the application's outbox in its databases.
    pub outbox: Option<Deliver>,
}

/// Ids from the least to the greatest, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The least.
    pub least: i64,
    /// The greatest; not below the least.
    pub greatest: i64,
}

impl IdRange {
    /// Whether some id is in both.
    pub fn meets(self, other: Self) -> bool {
        self.least <= other.greatest && other.least <= self.greatest
    }

    /// Whether an id is in it.
    pub fn contains(self, id: i64) -> bool {
        (self.least..=self.greatest).contains(&id)
    }
}

/// A physical database of a cell.
#[derive(Debug, Clone)]
pub struct Database {
    /// Its place in the cell, as `databases[0]`: a name for messages that holds no secret.
    pub name: String,
    /// Where rows are written, and barriers and publications made.
    pub primary: Dsn,
    /// Where rows are read and decoded, if there is a standby for it.
    pub standby: Option<Dsn>,
    /// The stores that it holds, in the order of the file.
    pub stores: Vec<StoreName>,
}

/// Where a cell keeps a blob store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobPlace {
    /// A folder, relative to where the program runs unless it is absolute.
    FilePath(PathBuf),
    /// A bucket, and perhaps a prefix in it: `s3://`, `gs://`, `az://` or `file://`. Holds no
    /// password.
    Url(String),
}

/// Who holds back an organization's writes and changes its routing.
#[derive(Debug, Clone)]
pub enum Control {
    /// The control database.
    Database(Dsn),
    /// Four commands, each a program and its arguments, run without a shell, and never empty.
    Commands {
        /// Stops the organization's writes.
        fence: Vec<String>,
        /// Lets the organization write again.
        unfence: Vec<String>,
        /// Routes the organization to the sink.
        flip: Vec<String>,
        /// Prints the cell that the routing names.
        where_: Vec<String>,
        /// How long each of them may run.
        timeout: Duration,
    },
}

impl Fleet {
    /// The cell of that name.
    pub fn cell(&self, name: &CellName) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.name == *name)
    }
}

impl Cell {
    /// The database that holds `store`. There is one for every Postgres store that is migrated.
    pub fn database_of(&self, store: &StoreName) -> Option<&Database> {
        self.databases
            .iter()
            .find(|database| database.stores.contains(store))
    }
}
