//! Messages for rows that were there before their model had an outbox, or that must be replicated
//! anew.
//!
//! A model's [`REPLICATION_VERSION`](Replicated::REPLICATION_VERSION) is what the code can do; the
//! option `outbox_replication.<table>.replication_version` is how far it may: the lower one counts,
//! so that code is deployed first and its backfill begun, or halted, later. How far it came is a row
//! per model in the watermark table: the lowest id that is not done, and the version. That row moves
//! in the transaction that writes the batch's messages, so a crash repeats nothing and skips nothing.
//!
//! | watermark | meaning |
//! |---|---|
//! | (0, 1) | nothing was done yet |
//! | (id + 1, target) | rows up to this id are done |
//! | (0, target + 1) | all are done |
//! | version < target | a new version: from the beginning |

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use tokio_postgres::{Client, Transaction};

use crate::cells::InferTargets;
use crate::drain::{Drain, DrainError, Partition, Report};
use crate::model::columns;
use crate::options::{OptionError, number, texts};
use crate::replicated::Replicated;
use crate::server_error::ServerError;
use crate::silo::{Silo, Target};
use crate::table::TableName;
use crate::write::WriteError;

/// Rows that one transaction backfills.
const ROWS_AT_ONCE: i64 = 1_000;

/// Messages a minute, those included that wait already.
pub const BACKFILLS_PER_MINUTE: u32 = 10_000;

/// How far the backfill of a model came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The lowest id that is not done.
    pub low: i64,
    /// The version that is under way, or the one above the last that is done.
    pub version: i32,
}

/// How far backfills may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As far as the options let them.
    Gated,
    /// As far as the code can, whatever the options say: for an installation of one node, whose
    /// upgrade waits for it.
    Synchronous,
}

/// A backfill that stopped. What was done is recorded; the next run goes on there.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    /// The server refused.
    #[error("backfill {table}: {source}")]
    Server {
        /// The model's table.
        table: TableName,
        /// What the server said.
        source: ServerError,
    },
    /// A message was not written.
    #[error("backfill {table}")]
    Write {
        /// The model's table.
        table: TableName,
        /// Why.
        source: Box<WriteError>,
    },
    /// An option cannot be used.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// An option names a cell that cannot be.
    #[error("the option {key} must be a list of cells, and entry {place} is none")]
    NotACell {
        /// Its key.
        key: String,
        /// Which entry, from 1.
        place: usize,
    },
    /// What was backfilled could not be delivered.
    #[error(transparent)]
    Drain(#[from] DrainError),
}

/// What a run did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Backfilled {
    /// Rows whose messages were written, by table.
    pub rows: BTreeMap<&'static str, u64>,
}

impl Backfilled {
    /// Rows of all tables.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.rows.values().sum()
    }
}

type Step<S> = Box<
    dyn for<'a> Fn(
            &'a Backfills<S>,
            &'a Drain<S>,
            &'a mut Client,
            i64,
            Mode,
        ) -> BoxFuture<'a, Result<u64, BackfillError>>
        + Send
        + Sync,
>;

/// The models of a side that can be backfilled.
pub struct Backfills<S: Silo> {
    watermarks: TableName,
    steps: Vec<(&'static str, Step<S>)>,
}

impl<S: Silo> Default for Backfills<S> {
    fn default() -> Self {
        Self {
            watermarks: TableName::new("monarch_outbox_watermark"),
            steps: Vec::new(),
        }
    }
}

impl<S: Silo> std::fmt::Debug for Backfills<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables = self.steps.iter().map(|(table, _)| table);
        f.debug_list().entries(tables).finish()
    }
}

impl<S: Silo> Backfills<S> {
    /// Keeps watermarks in another table than `monarch_outbox_watermark`.
    #[must_use]
    pub fn watermarks(mut self, table: impl Into<TableName>) -> Self {
        self.watermarks = table.into();
        self
    }

    /// The SQL that makes the watermark table where it is not there.
    #[must_use]
    pub fn create_sql(&self) -> String {
        format!(
            "create table if not exists {} (
    table_name text primary key,
    low bigint not null default 0,
    version integer not null default 1,
    updated_at timestamptz not null default now()
);
",
            self.watermarks.sql()
        )
    }

    /// Makes the watermark table where it is not there.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn create(&self, client: &Client) -> Result<(), ServerError> {
        Ok(client.batch_execute(&self.create_sql()).await?)
    }

    /// Whether no model is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Where a model's backfill stands.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn watermark<M: Replicated>(
        &self,
        client: &Client,
    ) -> Result<Watermark, ServerError> {
        let select = format!(
            "select low, version from {} where table_name = $1",
            self.watermarks.sql()
        );
        let row = client.query_opt(&select, &[&M::TABLE]).await?;
        Ok(
            row.map_or(Watermark { low: 0, version: 1 }, |row| Watermark {
                low: row.get(0),
                version: row.get(1),
            }),
        )
    }

    /// A minute's share: as many messages as `per_minute` leaves beside those that wait already.
    ///
    /// # Errors
    ///
    /// When the server refuses, an option cannot be used, or a message cannot be written.
    pub async fn minute(
        &self,
        drain: &Drain<S>,
        client: &mut Client,
        per_minute: u32,
    ) -> Result<Backfilled, BackfillError> {
        let queued = drain.queued_up_to(client, per_minute).await?;
        let mut room = i64::from(per_minute) - queued;
        let mut done = Backfilled::default();
        for (table, step) in &self.steps {
            while room > 0 && !drain.is_stopped() {
                let rows = step(self, drain, client, room.min(ROWS_AT_ONCE), Mode::Gated).await?;
                if rows == 0 {
                    break;
                }
                room -= i64::try_from(rows).unwrap_or(i64::MAX);
                *done.rows.entry(table).or_default() += rows;
            }
        }
        Ok(done)
    }

    /// Everything at once, whatever the options say, and delivered: what an installation of one node
    /// does when it is upgraded.
    ///
    /// # Errors
    ///
    /// When the server refuses or a message cannot be written. Messages that cannot be delivered are
    /// in the report.
    pub async fn synchronous(
        &self,
        drain: &Drain<S>,
        client: &mut Client,
    ) -> Result<(Backfilled, Report), BackfillError> {
        let mut done = Backfilled::default();
        let mut report = Report::default();
        for (table, step) in &self.steps {
            loop {
                let rows = step(self, drain, client, ROWS_AT_ONCE, Mode::Synchronous).await?;
                if rows == 0 {
                    break;
                }
                *done.rows.entry(table).or_default() += rows;
            }
            report.merge(drain.partition(client, Partition::ALL).await?);
        }
        Ok((done, report))
    }
}

impl<S: InferTargets> Backfills<S> {
    /// With a model.
    #[must_use]
    pub fn model<M: Replicated<Silo = S>>(mut self) -> Self {
        let step: Step<S> = Box::new(|backfills, drain, client, rows, mode| {
            Box::pin(backfills.step::<M>(drain, client, rows, mode))
        });
        self.steps.push((M::TABLE, step));
        self
    }

    /// The next rows of a model; how many. None when it is done, or may not go on.
    async fn step<M: Replicated<Silo = S>>(
        &self,
        drain: &Drain<S>,
        client: &mut Client,
        rows: i64,
        mode: Mode,
    ) -> Result<u64, BackfillError> {
        let target = target_version::<M>(drain, client, mode).await?;
        let cells = target_cells::<S, M>(drain, client).await?;
        let transaction = client.transaction().await.map_err(failed::<M>)?;
        let mark = self.lock::<M>(&transaction).await?;
        if mark.version > target {
            return Ok(0);
        }
        let low = if mark.version < target { 0 } else { mark.low };
        let models = read::<M>(&transaction, low, rows).await?;
        let next = match models.last() {
            Some(last) => Watermark {
                low: last.id() + 1,
                version: target,
            },
            None => Watermark {
                low: 0,
                version: target + 1,
            },
        };
        let writer = drain.table().writer(&transaction);
        let written = writer.announce_to(&models, cells.as_deref()).await;
        written.map_err(|source| BackfillError::Write {
            table: M::table(),
            source: Box::new(source),
        })?;
        self.advance::<M>(&transaction, next).await?;
        transaction.commit().await.map_err(failed::<M>)?;
        metrics::gauge!("backfill_outboxes.low_bound", "table" => M::TABLE).set(next.low as f64);
        metrics::counter!("backfill_outboxes.backfilled", "table" => M::TABLE)
            .increment(models.len() as u64);
        Ok(models.len() as u64)
    }

    /// Reads a model's watermark, made where it is not there, and holds it.
    async fn lock<M: Replicated>(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<Watermark, BackfillError> {
        let table = self.watermarks.sql();
        let make = format!("insert into {table} (table_name) values ($1) on conflict do nothing");
        transaction
            .execute(&make, &[&M::TABLE])
            .await
            .map_err(failed::<M>)?;
        let lock = format!("select low, version from {table} where table_name = $1 for update");
        let row = transaction
            .query_one(&lock, &[&M::TABLE])
            .await
            .map_err(failed::<M>)?;
        Ok(Watermark {
            low: row.get(0),
            version: row.get(1),
        })
    }

    async fn advance<M: Replicated>(
        &self,
        transaction: &Transaction<'_>,
        next: Watermark,
    ) -> Result<(), BackfillError> {
        let update = format!(
            "update {} set low = $2, version = $3, updated_at = now() where table_name = $1",
            self.watermarks.sql()
        );
        let values: [&(dyn crate::ToSql + Sync); 3] = [&M::TABLE, &next.low, &next.version];
        transaction
            .execute(&update, &values)
            .await
            .map_err(failed::<M>)?;
        Ok(())
    }
}

/// The lower one of what the option allows and the code can. Without the option nothing begins.
async fn target_version<M: Replicated>(
    drain: &Drain<M::Silo>,
    client: &Client,
    mode: Mode,
) -> Result<i32, BackfillError> {
    let coded = i64::from(M::REPLICATION_VERSION);
    let target = match mode {
        Mode::Synchronous => coded,
        Mode::Gated => {
            let key = format!("outbox_replication.{}.replication_version", M::TABLE);
            number(drain.option_source(), client, &key)
                .await?
                .unwrap_or(0)
                .min(coded)
        }
    };
    Ok(i32::try_from(target).unwrap_or(i32::MAX - 1))
}

/// The cells that the option names instead of the model's own.
async fn target_cells<S: InferTargets, M: Replicated<Silo = S>>(
    drain: &Drain<S>,
    client: &Client,
) -> Result<Option<Vec<S::Target>>, BackfillError> {
    if !S::TARGETED {
        return Ok(None);
    }
    let key = format!("outbox_replication.{}.target_cells", M::TABLE);
    let Some(names) = texts(drain.option_source(), client, &key).await? else {
        return Ok(None);
    };
    let cells = names.into_iter().enumerate().map(|(at, name)| {
        S::Target::from_row(Some(name)).ok_or_else(|| BackfillError::NotACell {
            key: key.clone(),
            place: at + 1,
        })
    });
    Ok(Some(cells.collect::<Result<_, _>>()?))
}

async fn read<M: Replicated>(
    transaction: &Transaction<'_>,
    low: i64,
    rows: i64,
) -> Result<Vec<M>, BackfillError> {
    let select = format!(
        "select {} from {} where id >= $1 order by id limit $2",
        columns::<M>(),
        M::table().sql()
    );
    let rows = transaction
        .query(&select, &[&low, &rows])
        .await
        .map_err(failed::<M>)?;
    let models: Result<Vec<M>, _> = rows.iter().map(M::from_row).collect();
    models.map_err(failed::<M>)
}

fn failed<M: Replicated>(error: tokio_postgres::Error) -> BackfillError {
    BackfillError::Server {
        table: M::table(),
        source: error.into(),
    }
}
