//! Writes whole source transactions to the sink.
//!
//! A transaction is read twice. The first pass, made only if it touches a dynamic parent, finds
//! which parents it will have brought and taken away when it commits (`foresight`). The second
//! decides about each row in the log's order and writes it (`writer`). One sink transaction takes
//! one or several source transactions, holds the unit's row from its first statement and moves the
//! position with its last, so that rows and position are one. Where the log does not hold all of
//! what entered, it takes more of them, up to the position at which the rest was fetched
//! (`stretch`).
//!
//! Any error ends the mover: the membership in memory may then be ahead of the sink, and the next
//! start derives it again.

use std::collections::HashMap;
use std::sync::Arc;

use monarch_model::{Epoch, Lsn};
use tokio_postgres::Statement;

use super::alignment::{Alignment, aligned};
use super::assemble::SourceTransaction;
use super::error::StreamError;
use super::event::{Event, read_event};
use super::foresight::{let_others_run, plan};
use super::intake::{Group, Intake};
use super::membership::Membership;
use super::pipeline::Pipeline;
use super::primary::Primary;
use super::start::Preamble;
use super::statement::Shape;
use super::stretch;
use super::tables::Tables;
use super::writer::{SoFar, Writer, pass_over};
use super::{Action, mark};
use crate::sink::{self, Barrier, LastChange, Progress};
use crate::{Doing, Session, Unit};

/// What a sink transaction brought.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Applied {
    /// Where the unit stands now.
    pub(super) position: Lsn,
    /// The last change of the organization in it, if there was one.
    pub(super) last_change: Option<LastChange>,
    /// The last barrier in it, if there was one.
    pub(super) barrier: Option<Barrier>,
    /// Rows written or deleted.
    pub(super) changes: u64,
    /// Source transactions.
    pub(super) transactions: u64,
    /// How often rows were fetched from the source.
    pub(super) fetches: u64,
    /// Whether the sink's record says so. Where nothing was the organization's, nothing was written.
    pub(super) recorded: bool,
}

/// Up to where a sink transaction goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// To the group's end, or to where what it wants was fetched.
    AsWanted,
    /// To what a snapshot of the source sees, which is kept.
    Moment,
}

/// Writes a unit's changes to its sink.
pub(super) struct Applier {
    pub(super) unit: Unit,
    pub(super) epoch: Epoch,
    pub(super) tables: Arc<Tables>,
    pub(super) membership: Membership,
    pub(super) sink: Session,
    /// The source's primary, for what the log does not hold.
    pub(super) primary: Primary,
    /// What each sink transaction starts with, and whether the sink's foreign keys act in it.
    pub(super) preamble: Preamble,
    pub(super) statements: HashMap<Shape, Statement>,
}

impl Applier {
    /// Writes `group`, in order, in one sink transaction; in none if all of it is foreign. Takes
    /// more from `intake` if it must.
    pub(super) async fn apply(
        &mut self,
        group: Group,
        intake: &mut Intake,
        seen: &(dyn Fn() + Sync),
    ) -> Result<Applied, StreamError> {
        let mut foreign = 0;
        for transaction in &group.transactions {
            if !self.is_foreign(transaction, seen).await? {
                break;
            }
            self.primary.delivered.insert(transaction.xid);
            foreign += 1;
        }
        if foreign < group.transactions.len() {
            return Box::pin(self.write(group, foreign, End::AsWanted, intake, seen)).await;
        }
        Ok(Applied {
            position: group.end(),
            transactions: foreign as u64,
            ..Applied::default()
        })
    }

    /// Whether nothing in the transaction is the organization's, or may be. What the source's
    /// filters could not hold back is often all that comes, and must not cost a sink transaction.
    async fn is_foreign(
        &mut self,
        transaction: &SourceTransaction,
        seen: &(dyn Fn() + Sync),
    ) -> Result<bool, StreamError> {
        let (tables, membership) = (&*self.tables, &mut self.membership);
        plan(tables, membership, transaction).await?;
        let mut rows = 0;
        let mut foreign = true;
        let mut replay = transaction.recording.replay();
        while let Some(frame) = replay.next_frame()?.filter(|_| foreign) {
            let_others_run(rows).await;
            foreign = match read_event(frame, &transaction.recording, tables)? {
                Event::Change(change) => {
                    rows += 1;
                    let table = &tables.all[change.table];
                    let ignored = change.case(table, membership).decide() == Action::Ignore;
                    if ignored {
                        pass_over(membership, table, &change);
                    }
                    ignored
                }
                Event::Message { content } => mark::nonce_for(&content, &self.unit).is_none(),
                Event::Truncate(_) => false,
                Event::Other => true,
            };
        }
        membership.end_transaction();
        if foreign {
            (0..rows).for_each(|_| seen());
        }
        Ok(foreign)
    }

    /// Brings the sink to a state of the source that can be read on both, and answers with it. All
    /// up to `stands` is written.
    pub(super) async fn align(
        &mut self,
        alignment: Alignment,
        stands: Lsn,
        intake: &mut Intake,
        seen: &(dyn Fn() + Sync),
    ) -> Result<Applied, StreamError> {
        let Alignment {
            source,
            sink,
            reply,
        } = alignment;
        let own = self.primary.lend(source).await?;
        let group = Group::quiet(stands);
        let applied = Box::pin(self.write(group, 0, End::Moment, intake, seen)).await?;
        let source = self.primary.take_back(own)?;
        // Who asked may have gone: then both sessions end here.
        let _ = reply.send(aligned(source, sink, applied.position).await);
        Ok(applied)
    }

    /// Writes the transactions of `group` behind the first `foreign` ones.
    async fn write(
        &mut self,
        group: Group,
        foreign: usize,
        end: End,
        intake: &mut Intake,
        seen: &(dyn Fn() + Sync),
    ) -> Result<Applied, StreamError> {
        let doing = "write a transaction on the sink";
        let tx = self.sink.transaction().await.doing(doing)?;
        tx.batch_execute(self.preamble.sql).await.doing(doing)?;
        sink::hold(&tx, &self.unit, self.epoch).await?;
        let mut writer = Writer {
            tx: &tx,
            unit: &self.unit,
            tables: &self.tables,
            membership: &mut self.membership,
            statements: &mut self.statements,
            primary: &mut self.primary,
            pipeline: Pipeline::new(),
            cascades: self.preamble.cascades,
            seen,
            so_far: SoFar::default(),
        };
        let mut applied = Applied {
            position: group.end(),
            transactions: group.transactions.len() as u64,
            ..Applied::default()
        };
        for transaction in &group.transactions[foreign..] {
            writer.transaction(transaction).await?;
        }
        writer.settle().await?;
        writer.look().await?;
        let wanting = !writer.so_far.wanted.is_empty();
        if wanting || end == End::Moment {
            // What was told of a quiet stretch behind the group is not told again.
            let from = applied.position.max(group.quiet);
            // Its share of the queue is needed for what comes.
            drop(group);
            let reached = stretch::fetch_behind(&mut writer, intake, from).await?;
            if end == End::AsWanted {
                writer.primary.let_go().await?;
            }
            applied.position = reached.position;
            applied.transactions += reached.transactions;
            applied.fetches = u64::from(wanting);
        }
        let SoFar {
            changes,
            last_change,
            barrier,
            ..
        } = std::mem::take(&mut writer.so_far);
        drop(writer);
        applied.changes = changes;
        applied.last_change = last_change;
        applied.barrier = barrier;
        applied.recorded = changes > 0 || barrier.is_some();
        if !applied.recorded {
            tx.rollback().await.doing(doing)?;
            return Ok(applied);
        }
        let progress = Progress {
            position: applied.position,
            last_change: applied.last_change,
            barrier: applied.barrier,
            horizon: None,
        };
        sink::advance(&tx, &self.unit, self.epoch, &progress).await?;
        tx.commit().await.doing("commit on the sink")?;
        Ok(applied)
    }

    /// Records that nothing before `position` was the organization's.
    pub(super) async fn advance(&mut self, position: Lsn) -> Result<(), StreamError> {
        let tx = self.sink.transaction().await.doing("advance on the sink")?;
        let progress = Progress {
            position,
            last_change: None,
            barrier: None,
            horizon: None,
        };
        sink::advance(&tx, &self.unit, self.epoch, &progress).await?;
        Ok(tx.commit().await.doing("commit on the sink")?)
    }
}
