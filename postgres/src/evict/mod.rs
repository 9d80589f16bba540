//! Deletes the organization from the losing side: from the source after a move, from the sink when
//! a move is given up. One piece of code does both, so that what is tested on every aborted move is
//! what later runs, once, on the rows that cannot be had back.
//!
//! Children go before their parents, foreign keys stay on: a row that something still needs is an
//! error that names the constraint, never an orphan. While a unit is small, all of it goes in one
//! transaction; beyond that, keys are listed once per table and deleted in bounded transactions.
//! Nothing is remembered in between: doing it again looks for what is left and deletes that.
//!
//! What is the organization's is decided by the spine that the move recorded, not by the parents
//! that happen to be there: on a half-copied sink the parents in other stores may be missing, and
//! half-way through an eviction they are gone.
//!
//! The sides differ in what forbids a deletion:
//!
//! * On the source ([`evict`]), a row version that was not there when the slots were read to their
//!   head was never copied. It is older than the recorded [`Horizon`] or it stops the eviction. The
//!   [`EvictionPermit`] is handed out only when no change came late and no slot is left.
//! * On the sink ([`scrub`]), a mover that was declared dead may still be writing. The unit is taken
//!   over by epoch first, and every transaction holds it. A [`ScrubPermit`] is handed out only in a
//!   phase in which the sink is the losing side.

mod delete;
mod horizon;
mod order;
mod permit;

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_config::{Graph, Scope as Edge, Table};
use monarch_model::{Epoch, StoreName, TableName};
use tokio_postgres::Client;

use crate::Unit;
use crate::catalog::{Catalog, Column};
use crate::scope::{Scope, ScopeError};
use crate::sink::{self, SinkError, TakeOver};

use delete::{Deletion, Guard};

pub use horizon::{Horizon, InvalidHorizon, OpenTransaction, Recorded, record_horizon};
pub use order::unit_order;
pub use permit::{EvictionPermit, Evidence, ScrubPermit, slots_alive};

/// Rows of the organization by table.
pub type Rows = BTreeMap<TableName, u64>;

/// Why rows were not deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A statement failed, after being tried again where that could help. A foreign key that
    /// forbids a deletion is named.
    #[error(transparent)]
    Asked(#[from] crate::Error),
    /// Rows of the organization are newer than what was copied. They are to be looked at by a
    /// person; trying again does not help.
    #[error("rows of the organization were written after its log had been read: {}", list(.0))]
    NewerRows(Rows),
    /// Slots of the organization are still there: its log may not have been read to the head.
    #[error("slots of the organization are still there: {}", .0.join(", "))]
    SlotsAlive(Vec<String>),
    /// Changes came after the barrier and were not copied.
    #[error("{0} changes came after the barrier and were not copied")]
    LateChanges(u64),
    /// Transactions that were open when the horizon was set have not ended in time.
    #[error("transactions are still open: {}", blockers(.0))]
    OpenTransactions(Vec<OpenTransaction>),
    /// The recorded horizon cannot be read.
    #[error(transparent)]
    Horizon(#[from] InvalidHorizon),
    /// A newer epoch has the unit: whoever asked is no longer in charge.
    #[error("the unit was taken over by a newer epoch")]
    Superseded,
    /// The sink's unit row could not be held.
    #[error("hold the unit on the sink")]
    Sink(#[from] SinkError),
    /// Rows are left although nothing forbade their deletion: something goes on writing.
    #[error("rows are left after deleting: {}", list(.0))]
    RowsRemain(Rows),
    /// It is not known what to delete.
    #[error(transparent)]
    Scope(#[from] ScopeError),
}

fn list(rows: &Rows) -> String {
    let rows: Vec<String> = rows
        .iter()
        .map(|(table, count)| format!("{table} ({count})"))
        .collect();
    rows.join(", ")
}

fn blockers(open: &[OpenTransaction]) -> String {
    let open: Vec<String> = open.iter().map(ToString::to_string).collect();
    open.join("; ")
}

/// What is to be deleted of one table.
#[derive(Debug, Clone)]
pub struct Doomed {
    /// The table.
    pub table: TableName,
    /// The columns of its key.
    pub key: Vec<Column>,
    /// Which rows are the organization's, over the alias `t`.
    pub predicate: String,
    /// The table of the same store whose rows decide which rows are the organization's.
    pub parent: Option<TableName>,
}

/// The tables of a unit, parents first, as `catalog` and `scope` have them.
///
/// A table or key that is missing is an error: what a spelling mistake hides would stay behind.
pub fn doomed(
    graph: &Graph,
    store: &StoreName,
    scope: &Scope,
    catalog: &Catalog,
) -> Result<Vec<Doomed>, Error> {
    let walk = graph.walk(store);
    walk.into_iter()
        .map(|table| Ok(doomed_table(table, scope, catalog)?))
        .collect()
}

fn doomed_table(table: &Table, scope: &Scope, catalog: &Catalog) -> Result<Doomed, ScopeError> {
    let relation = catalog
        .relation(&table.name)
        .ok_or_else(|| ScopeError::MissingTable {
            table: table.name.clone(),
        })?;
    let key = table
        .primary_key
        .iter()
        .map(|column| match relation.column(column) {
            Some(column) => Ok(column.clone()),
            None => Err(ScopeError::MissingColumn {
                table: table.name.clone(),
                column: column.clone(),
            }),
        })
        .collect::<Result<_, _>>()?;
    let parent = match &table.scope {
        Edge::ByDynamic { parent, .. } => Some(parent.clone()),
        _ => None,
    };
    Ok(Doomed {
        table: table.name.clone(),
        key,
        predicate: scope.predicate(&table.name, "t")?,
        parent,
    })
}

/// What is told of the rows that are gone: a table, and how many more.
pub type Progress<'a> = &'a mut (dyn FnMut(&TableName, u64) + Send);

/// Deletes one unit of the organization from the source, children first, and returns how many rows
/// went, by table. Units that share a database go in [`unit_order`].
///
/// # Errors
///
/// [`Error::NewerRows`] if a row version is newer than the permit's horizon. If it was there before
/// this call, nothing is deleted.
pub async fn evict(
    primary: &mut Client,
    tables: &[Doomed],
    permit: &EvictionPermit,
    progress: Progress<'_>,
) -> Result<Rows, Error> {
    permit.still_holds(primary).await?;
    let deletion = Deletion {
        tables,
        guard: Guard::Source(permit.horizon()),
    };
    let deleted = deletion.run(primary, progress).await?;
    let left = deletion.count(primary).await?;
    if left.is_empty() {
        return Ok(deleted);
    }
    Err(Error::NewerRows(left))
}

/// How long an older mover's transaction in flight is waited for.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a scrub starts over for rows that appeared behind it: a transaction of a mover that
/// was taken over may have committed just before.
const SCRUB_ROUNDS: usize = 3;

/// Takes the unit over and deletes the organization from its tables on the sink, children first.
/// The unit's row stays, held by `epoch`: a copy that starts over goes on from here.
pub async fn scrub_rows(
    sink: &mut Client,
    unit: &Unit,
    epoch: Epoch,
    tables: &[Doomed],
    _permit: &ScrubPermit,
    progress: Progress<'_>,
) -> Result<Rows, Error> {
    sink::ensure_schema(sink).await?;
    match sink::take_over(sink, unit, epoch, TAKE_OVER_TIMEOUT).await? {
        TakeOver::Held(_) => {}
        TakeOver::Superseded { .. } => return Err(Error::Superseded),
    }
    let deletion = Deletion {
        tables,
        guard: Guard::Sink { unit, epoch },
    };
    let mut deleted = Rows::new();
    for _ in 0..SCRUB_ROUNDS {
        for (table, rows) in deletion.run(sink, progress).await? {
            *deleted.entry(table).or_default() += rows;
        }
        if deletion.count(sink).await?.is_empty() {
            return Ok(deleted);
        }
    }
    Err(Error::RowsRemain(deletion.count(sink).await?))
}

/// [`scrub_rows`], and then the unit's row goes too: nothing of the unit is left on the sink.
pub async fn scrub(
    sink: &mut Client,
    unit: &Unit,
    epoch: Epoch,
    tables: &[Doomed],
    permit: &ScrubPermit,
    progress: Progress<'_>,
) -> Result<Rows, Error> {
    let deleted = scrub_rows(sink, unit, epoch, tables, permit, progress).await?;
    sink::remove(sink, unit).await?;
    Ok(deleted)
}
