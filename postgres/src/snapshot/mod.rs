//! Copies the organization's rows of one store, as they were at the slot's consistent point.
//!
//! The snapshot that the slot exported is adopted once, by one transaction that reads everything:
//! a copy is of one moment or of none. What the sink already holds of the organization is of
//! another moment, so a copy refuses to begin beside it: whoever starts over scrubs first.
//!
//! Parents are committed before their children. What a dead copy leaves behind can then always be
//! reached from the root, by the very walk that scrubs it.
//!
//! The position is written last. A sink without a position has no copy to stream behind.

mod estimate;
mod named;
mod relay;
mod statements;
mod watch;

use std::sync::Arc;

use monarch_config::{Graph, Table};
use monarch_model::{Epoch, Lsn, TableName};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};
use tokio_util::sync::CancellationToken;

use crate::catalog;
use crate::keys::{KeyRecorder, Keys, KeysNotRecorded};
use crate::scope::{Scope, ScopeError};
use crate::sink::{self, Progress as Position, SinkError};
use crate::spine::{self, Spine, SpineError};
use crate::sql::{qualified, quote_literal};
use crate::{Doing, Error, Unit};

use named::Named;
use statements::Statements;
use watch::Watch;

/// What is copied, and under whose name.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The unit.
    pub unit: &'a Unit,
    /// The mover's epoch; the unit was taken over with it on the sink.
    pub epoch: Epoch,
    /// Which tables move.
    pub graph: &'a Graph,
    /// The ids that were recorded when the move was registered.
    pub spine: &'a Spine,
    /// The name of the snapshot that the slot exported. The connection that exported it must stay
    /// open and idle until the observer hears of the first progress.
    pub snapshot: &'a str,
    /// The slot's consistent point.
    pub consistent_point: Lsn,
    /// Where the keys go that rows name.
    pub keys: &'a Arc<dyn KeyRecorder>,
}

/// Hears how far a copy is.
pub trait Observer: Send {
    /// Called by the loop that moves the bytes, with each chunk, and about once a second while a
    /// server is waited for.
    fn progress(&mut self, progress: &Progress);
}

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The table that is being copied.
    pub table: TableName,
    /// Tables that are committed on the sink.
    pub tables_done: usize,
    /// Tables in all.
    pub tables_total: usize,
    /// Rows relayed, of all tables.
    pub rows: u64,
    /// Rows in all, as the source's planner guesses.
    pub rows_estimate: u64,
    /// Bytes relayed, of all tables.
    pub bytes: u64,
}

/// A copy that is complete on the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// What was copied of each table, parents first.
    pub tables: Vec<TableCopied>,
}

/// What was copied of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCopied {
    /// The table.
    pub table: TableName,
    /// Rows.
    pub rows: u64,
    /// Bytes of the text format.
    pub bytes: u64,
}

/// A copy did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The sink already holds rows of the organization, which are of another moment.
    #[error("{table} on the sink already holds rows of the organization: scrub the unit first")]
    NotEmpty {
        /// The first such table, parents first.
        table: TableName,
    },
    /// A table's columns are not the same on both sides.
    #[error(
        "{table}: the columns differ: only the source has [{}], only the sink has [{}]",
        .only_source.join(", "), .only_sink.join(", ")
    )]
    ColumnsDiffer {
        /// The table.
        table: TableName,
        /// Columns that the sink lacks.
        only_source: Vec<String>,
        /// Columns that the source lacks.
        only_sink: Vec<String>,
    },
    /// The sink took fewer or more rows than the source gave: a trigger or a rule is at work.
    #[error("{table}: the source gave {given} rows and the sink took {taken}")]
    RowsDiffer {
        /// The table.
        table: TableName,
        /// Rows that the source gave.
        given: u64,
        /// Rows that the sink took.
        taken: u64,
    },
    /// Keys that rows name could not be recorded.
    #[error(transparent)]
    Keys(#[from] KeysNotRecorded),
    /// The mover was told to stop.
    #[error("told to stop while copying")]
    Cancelled,
    /// The static spine could not be compared, or has changed.
    #[error(transparent)]
    Spine(#[from] SpineError),
    /// A table cannot be scoped.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// The unit on the sink is not the mover's.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A database did not do what it was asked.
    #[error(transparent)]
    Asked(#[from] Error),
}

/// Copies the organization's rows of a store from `source`, a session on the server that exported
/// the snapshot, to `sink`. Each table is one transaction on the sink.
///
/// After an error both sessions must be dropped: the answer to a statement that was broken off is
/// still on its way through them.
pub async fn copy(
    job: &Job<'_>,
    source: &mut Client,
    sink: &mut Client,
    observer: &mut dyn Observer,
    cancel: &CancellationToken,
) -> Result<Copied, CopyError> {
    sink::begin_copy(sink, job.unit, job.epoch).await?;
    let source = adopt(source, job.snapshot).await?;
    let horizon = horizon(&source).await?;
    let store = &job.unit.store;
    spine::compare(&source, job.graph, store, &job.unit.org, job.spine).await?;
    let steps = plan(job, &source, sink).await?;
    let mut tables = Vec::new();
    if let Some(first) = steps.first() {
        let rows_estimate = steps.iter().map(|step| step.rows_estimate).sum();
        let mut watch = Watch::new(observer, cancel, &first.table, steps.len(), rows_estimate);
        let disables_triggers = may_disable_triggers(sink).await?;
        let mut keys = Keys::new(Arc::clone(job.keys));
        for step in &steps {
            tables.push(one(job, step, &source, sink, disables_triggers, &mut watch).await?);
            named::take(&step.table, &step.named, sink, &mut keys, &mut watch).await?;
        }
        watch.over(keys.settle()).await??;
    }
    record(job, horizon, sink).await?;
    Ok(Copied { tables })
}

/// One table to copy.
struct Step {
    table: TableName,
    statements: Statements,
    /// What reads, on the sink, the keys that its rows name.
    named: Vec<Named>,
    rows_estimate: u64,
}

/// Decides every statement before the first row moves.
async fn plan(
    job: &Job<'_>,
    source: &Transaction<'_>,
    sink: &Client,
) -> Result<Vec<Step>, CopyError> {
    let tables = job.graph.walk(&job.unit.store);
    let from = catalog::load(source, &tables).await?;
    let to = catalog::load(sink, &tables).await?;
    let scope = |catalog| {
        let Job {
            graph, unit, spine, ..
        } = job;
        Scope::new(graph, &unit.store, &unit.org, spine, catalog)
    };
    let on_sink = scope(&to)?;
    refuse_rows(&tables, sink, &on_sink).await?;
    let scope = scope(&from)?;
    let mut steps = Vec::new();
    for table in tables {
        let statements = Statements::new(&table.name, &from, &to, &scope)?;
        steps.push(Step {
            table: table.name.clone(),
            rows_estimate: estimate::rows(source, &statements.select).await?,
            named: named::queries(job.graph, table, &on_sink)?,
            statements,
        });
    }
    Ok(steps)
}

async fn one(
    job: &Job<'_>,
    step: &Step,
    source: &Transaction<'_>,
    sink: &mut Client,
    disables_triggers: bool,
    watch: &mut Watch<'_>,
) -> Result<TableCopied, CopyError> {
    watch.begin(&step.table);
    let tx = sink.transaction().await.doing("begin on the sink")?;
    sink::hold(&tx, job.unit, job.epoch).await?;
    if disables_triggers {
        tx.batch_execute(DISABLE_TRIGGERS)
            .await
            .doing("disable triggers for the copy")?;
    }
    let copied = relay::table(&step.table, &step.statements, source, &tx, watch).await?;
    let doing = format!("commit {} on the sink", step.table);
    watch.over(tx.commit()).await?.doing(doing)?;
    watch.done();
    Ok(copied)
}

/// Begins the one transaction that reads everything.
async fn adopt<'a>(source: &'a mut Client, snapshot: &str) -> Result<Transaction<'a>, Error> {
    let doing = "adopt the slot's snapshot";
    let tx = source
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .doing(doing)?;
    tx.batch_execute(&format!(
        "set transaction snapshot {}",
        quote_literal(snapshot)
    ))
    .await
    .doing(doing)?;
    Ok(tx)
}

/// Two snapshots are never mixed: what is there already is of another one.
async fn refuse_rows(tables: &[&Table], sink: &Client, scope: &Scope) -> Result<(), CopyError> {
    for table in tables {
        let doing = || {
            format!(
                "look for rows of the organization in {} on the sink",
                table.name
            )
        };
        let statement = format!(
            "select exists (select from {} as t where {})",
            qualified(&table.name),
            scope.predicate(&table.name, "t")?
        );
        let row = sink.query_one(&statement, &[]).await.doing(doing())?;
        if row.try_get(0).doing(doing())? {
            return Err(CopyError::NotEmpty {
                table: table.name.clone(),
            });
        }
    }
    Ok(())
}

/// Foreign keys of the sink may point into stores that are copied side by side, and its triggers
/// would do again what the source's have done.
const DISABLE_TRIGGERS: &str = "set local session_replication_role = replica";

/// Whether the role may do so: tried, since from Postgres 15 on it can be granted.
async fn may_disable_triggers(sink: &mut Client) -> Result<bool, Error> {
    let doing = "try to disable triggers on the sink";
    let tx = sink.transaction().await.doing(doing)?;
    let tried = tx.batch_execute(DISABLE_TRIGGERS).await.doing(doing);
    tx.rollback().await.doing(doing)?;
    match tried {
        Ok(()) => Ok(true),
        Err(error) if error.is(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// An id above those of all transactions that the snapshot sees, for a stream that must tell what
/// was written behind it.
async fn horizon(source: &Transaction<'_>) -> Result<Option<u64>, Error> {
    let doing = "read the snapshot's newest transaction id";
    let row = source
        .query_one(
            "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
            &[],
        )
        .await
        .doing(doing)?;
    let horizon: i64 = row.try_get(0).doing(doing)?;
    Ok(u64::try_from(horizon).ok())
}

async fn record(job: &Job<'_>, horizon: Option<u64>, sink: &mut Client) -> Result<(), CopyError> {
    let doing = "record the copy's position on the sink";
    let tx = sink.transaction().await.doing(doing)?;
    let position = Position {
        position: job.consistent_point,
        last_change: None,
        barrier: None,
        horizon,
    };
    sink::advance(&tx, job.unit, job.epoch, &position).await?;
    tx.commit().await.doing(doing)?;
    Ok(())
}
