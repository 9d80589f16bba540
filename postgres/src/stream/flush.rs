//! Sends gathered writes together, and row by row where the sink does not take them so.
//!
//! One flush is under way while the next is gathered. It stands behind a savepoint: when a statement
//! of it fails, or finds fewer rows than it must, all of it is rolled back and written again row by
//! row in the order of the log. So the outcome, down to the name of a failure, is that of single
//! rows, and nothing else is ever sent before the outcome is known.

use futures::TryStreamExt;
use tokio_postgres::error::SqlState;
use tokio_postgres::{RowStream, Statement};

use super::error::StreamError;
use super::statement::Param;
use super::together::{Batch, Together, Write};
use super::writer::{STATEMENTS_MAX, Writer, refused};
use crate::Doing;

/// Where a refused flush goes back to.
const SAVEPOINT: &str = "savepoint monarch_rows";
/// Undoes it.
const ROLLBACK: &str = "rollback to savepoint monarch_rows";
/// Rows are found by their keys' indexes. The planner does not know how many come, nor how large a
/// table is that was filled a minute ago, and its plans are kept.
const PLAN_BY_KEY: &str = "set local plan_cache_mode = force_generic_plan; \
                           set local enable_seqscan = off; set local enable_hashjoin = off; \
                           set local enable_mergejoin = off; set local jit = off";
/// Statements of other kinds are planned as ever.
const PLAN_AS_EVER: &str = "set local plan_cache_mode to default; \
                            set local enable_seqscan to default; \
                            set local enable_hashjoin to default; \
                            set local enable_mergejoin to default; set local jit to default";

/// What a statement of a flush came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Rows written or deleted, where that is all that it says.
    rows: u64,
    /// The rows that it found, counted from 1, where it tells.
    found: Vec<i64>,
}

/// What is said of a statement of a flush: which batch it is, if it is one.
pub(super) type Sent = Option<usize>;

impl Writer<'_> {
    /// Holds a write back to send it with others.
    pub(super) async fn gather(&mut self, write: Write) -> Result<(), StreamError> {
        let table = &self.tables.all[write.table];
        let suited = &self.suited[write.table];
        self.together.gather(write, table, suited);
        if self
            .pace
            .is_reached(self.together.len(), self.together.bytes())
        {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends what is gathered, when the outcome of what was sent before is known.
    pub(super) async fn flush(&mut self) -> Result<(), StreamError> {
        if self.together.len() == 0 {
            return Ok(());
        }
        let together = std::mem::take(&mut self.together);
        self.conclude().await?;
        self.take_answers().await?;
        let batches = together.batches().len();
        if !self.pace.pays(together.len(), batches) {
            return self.one_by_one(together).await;
        }
        let mut statements = Vec::with_capacity(batches);
        for batch in together.batches() {
            statements.push(self.prepare_many(batch).await?);
        }
        self.send(together, statements).await;
        Ok(())
    }

    async fn prepare_many(&mut self, batch: &Batch) -> Result<Statement, StreamError> {
        if let Some(statement) = self.many.get(&batch.many) {
            return Ok(statement.clone());
        }
        if self.many.len() >= STATEMENTS_MAX {
            self.many.clear();
        }
        let table = &self.tables.all[batch.many.table];
        let statement = self.tx.prepare(&batch.many.sql(table)).await;
        let statement = statement.map_err(|error| refused(table, error))?;
        self.many.insert(batch.many.clone(), statement.clone());
        Ok(statement)
    }

    /// `statements` are those of its batches.
    async fn send(&mut self, together: Together, statements: Vec<Statement>) {
        let tx = self.tx;
        let release = match std::mem::replace(&mut self.savepoint, true) {
            true => "release savepoint monarch_rows; ",
            false => "",
        };
        let begin = format!("{release}{SAVEPOINT}; {PLAN_BY_KEY}");
        let begin = async move { tx.batch_execute(&begin).await.map(|()| Done::default()) };
        self.flushing.push(None, 0, begin).await;
        for (at, (batch, statement)) in together.batches().iter().zip(statements).enumerate() {
            let params = together.params(batch);
            let bytes = params.iter().map(Param::bytes).sum();
            if batch.many.tells {
                let asking = async move { found(tx.query_raw(&statement, params).await?).await };
                self.flushing.push(Some(at), bytes, asking).await;
            } else {
                let asking = async move {
                    let rows = tx.execute_raw(&statement, params).await?;
                    let found = Vec::new();
                    Ok(Done { rows, found })
                };
                self.flushing.push(Some(at), bytes, asking).await;
            }
        }
        let end = async move {
            tx.batch_execute(PLAN_AS_EVER)
                .await
                .map(|()| Done::default())
        };
        self.flushing.push(None, 0, end).await;
        self.sent = Some(together);
    }

    /// Learns what became of the flush under way, and writes it row by row if it was refused.
    pub(super) async fn conclude(&mut self) -> Result<(), StreamError> {
        let Some(together) = self.sent.take() else {
            return Ok(());
        };
        let mut failed = None;
        let mut fell_short = false;
        let mut done = Vec::new();
        while let Some((sent, answer)) = self.flushing.next().await {
            match (sent, answer) {
                (sent, Err(error)) => failed = failed.or(Some((sent, error))),
                (None, Ok(_)) => {}
                (Some(at), Ok(answer)) => {
                    let batch = &together.batches()[at];
                    fell_short |= !batch.many.tells && answer.rows != batch.rows.len() as u64;
                    done.push((at, answer));
                }
            }
        }
        if failed.is_none() && !fell_short {
            for (at, answer) in &done {
                self.count(&together.batches()[*at], answer);
            }
            self.pace.taken();
            return Ok(());
        }
        self.roll_back(&together, failed).await?;
        self.pace.refused();
        self.one_by_one(together).await
    }

    /// Counts what a batch wrote.
    fn count(&mut self, batch: &Batch, done: &Done) {
        let so_far = &mut self.so_far;
        let place = |n: &i64| usize::try_from(*n - 1).ok();
        let all = (0..batch.rows.len()).filter(|_| !batch.many.tells);
        for row in done.found.iter().filter_map(place).chain(all) {
            let Some(row) = batch.rows.get(row) else {
                continue;
            };
            so_far.changes += row.writes;
            if so_far.last_change.is_none_or(|last| last.lsn < row.at.lsn) {
                so_far.last_change = Some(row.at);
            }
        }
    }

    /// Undoes a flush. Where the server cannot even do that, what failed first says why.
    async fn roll_back(
        &mut self,
        together: &Together,
        failed: Option<(Sent, tokio_postgres::Error)>,
    ) -> Result<(), StreamError> {
        let undone = self.tx.batch_execute(ROLLBACK).await;
        let doing = "go back before rows that were written together";
        let Some((sent, error)) = failed else {
            return Ok(undone.doing(doing)?);
        };
        let Some(batch) = sent.and_then(|at| together.batches().get(at)) else {
            return Ok(Err(error).doing(doing)?);
        };
        let table = batch.many.table;
        if batch.many.fresh && error.code() == Some(&SqlState::UNIQUE_VIOLATION) {
            self.pace.meets(table);
        }
        match undone {
            Ok(()) => Ok(()),
            Err(_) => Err(refused(&self.tables.all[table], error)),
        }
    }

    /// Writes in the order of the log.
    async fn one_by_one(&mut self, together: Together) -> Result<(), StreamError> {
        for write in together.into_writes() {
            self.single(write, Vec::new()).await?;
        }
        Ok(())
    }
}

/// What a statement that tells which rows it found has told.
async fn found(rows: RowStream) -> Result<Done, tokio_postgres::Error> {
    let rows: Vec<_> = rows.try_collect().await?;
    let found: Option<Vec<i64>> = match rows.first() {
        Some(row) => row.try_get(0)?,
        None => None,
    };
    let found = found.unwrap_or_default();
    Ok(Done { rows: 0, found })
}
