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

use monarch_model::{Epoch, Lsn, TableName};
use tokio_postgres::Statement;

use super::alignment::{self, Alignment, aligned};
use super::assemble::SourceTransaction;
use super::error::StreamError;
use super::event::{Event, read_event};
use super::foresight::{let_others_run, plan};
use super::intake::{Group, Intake};
use super::many::Many;
use super::membership::Membership;
use super::pace::Pace;
use super::pipeline::Pipeline;
use super::primary::{self, Primary};
use super::start::Preamble;
use super::statement::Shape;
use super::stretch::{self, Effort, Met, Reached};
use super::suited::Suited;
use super::tables::Tables;
use super::together::Together;
use super::writer::{SoFar, Writer, pass_over};
use super::{Action, mark};
use crate::keys::Keys;
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

impl Applied {
    fn new(reached: &Reached, so_far: &SoFar) -> Self {
        Self {
            position: reached.position,
            last_change: so_far.last_change,
            barrier: so_far.barrier,
            changes: so_far.changes,
            transactions: reached.transactions,
            fetches: so_far.fetches,
            recorded: so_far.changes > 0 || so_far.barrier.is_some(),
        }
    }

    /// What the sink records of it.
    fn progress(&self) -> Progress {
        Progress {
            position: self.position,
            last_change: self.last_change,
            barrier: self.barrier,
            horizon: None,
        }
    }
}

/// Up to where a sink transaction goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// To the group's end, or to where what it wants was fetched.
    AsWanted,
    /// To what a snapshot of the source sees, which is kept.
    Moment,
}

impl End {
    /// What is wanted must be fetched, or the mover ends; an alignment may be refused.
    fn effort(self) -> Effort {
        let (snapshot_wait, tries) = match self {
            End::AsWanted => (primary::SNAPSHOT_WAIT, stretch::TRIES),
            End::Moment => (alignment::SNAPSHOT_WAIT, alignment::TRIES),
        };
        Effort {
            snapshot_wait,
            tries,
        }
    }
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
    /// Statements for many rows.
    pub(super) many: HashMap<Many, Statement>,
    /// How each table's rows may share statements.
    pub(super) suited: Vec<Suited>,
    /// How many rows are gathered.
    pub(super) pace: Pace,
    /// The keys of objects that rows name.
    pub(super) keys: Keys,
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
            let written = self.write(group, foreign, End::AsWanted, intake, seen);
            return Ok(Box::pin(written).await?.0);
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

    /// Brings the sink to a state of the source that can be read on both, and answers with it, or
    /// with why it cannot be. All up to `stands` is written.
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
        let nothing = Applied {
            position: stands,
            ..Applied::default()
        };
        // Horizon and commits under way are learned in a session of its own, as for any fetch.
        if let Err(error) = self.primary.connect().await {
            let _ = reply.send(Err(error));
            return Ok(nothing);
        }
        let own = self.primary.lend(source);
        let group = Group::quiet(stands);
        let written = Box::pin(self.write(group, 0, End::Moment, intake, seen)).await;
        let source = self.primary.take_back(own)?;
        let (applied, met) = written?;
        let answer = match met {
            Some(Met::None(error)) => Err(error),
            _ => aligned(source, sink, applied.position).await,
        };
        // Who asked may have gone: then both sessions end here.
        let _ = reply.send(answer);
        Ok(applied)
    }

    /// Writes the transactions of `group` behind the first `foreign` ones, and what must share their
    /// sink transaction.
    async fn write(
        &mut self,
        group: Group,
        foreign: usize,
        end: End,
        intake: &mut Intake,
        seen: &(dyn Fn() + Sync),
    ) -> Result<(Applied, Option<Met>), StreamError> {
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
            many: &mut self.many,
            suited: &self.suited,
            pace: &mut self.pace,
            primary: &mut self.primary,
            pipeline: Pipeline::new(),
            together: Together::default(),
            sent: None,
            flushing: Pipeline::new(),
            savepoint: false,
            keys: &mut self.keys,
            cascades: self.preamble.cascades,
            seen,
            so_far: SoFar::default(),
        };
        for transaction in &group.transactions[foreign..] {
            writer.transaction(transaction).await?;
        }
        // They are recorded while the sink does its part.
        writer.keys.hand_on().await?;
        writer.settle().await?;
        writer.look().await?;
        let mut reached = Reached {
            // What was told of a quiet stretch behind the group is not told again.
            position: group.end().max(group.quiet),
            transactions: group.transactions.len() as u64,
        };
        // Its share of the queue is needed for what comes.
        drop(group);
        let mut met = None;
        if end == End::Moment || !writer.so_far.wanted.is_empty() {
            let effort = end.effort();
            let stretch = stretch::fetch_behind(&mut writer, intake, &mut reached, effort);
            met = Some(stretch.await?);
        }
        writer.keys.settle().await?;
        let so_far = std::mem::take(&mut writer.so_far);
        drop(writer);
        match met {
            Some(Met::None(error)) if !so_far.wanted.is_empty() => return Err(error),
            Some(Met::Moment) if end == End::AsWanted => self.primary.let_go().await?,
            _ => {}
        }
        let applied = Applied::new(&reached, &so_far);
        if applied.recorded {
            let progress = applied.progress();
            sink::advance(&tx, &self.unit, self.epoch, &progress).await?;
            let tables = &self.tables;
            tx.commit()
                .await
                .map_err(|error| at_commit(tables, error))?;
        } else {
            tx.rollback().await.doing(doing)?;
        }
        Ok((applied, met))
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

/// A constraint that is deferred refuses a row only now.
fn at_commit(tables: &Tables, error: tokio_postgres::Error) -> StreamError {
    let refused = error.as_db_error().and_then(|told| {
        let is_constraint = told.code().code().starts_with("23");
        let name = TableName::new(told.schema()?, told.table()?).ok()?;
        let known = tables.all.iter().any(|table| table.name == name);
        (is_constraint && known).then_some(name)
    });
    let source = crate::Error::Asked {
        doing: "commit on the sink".into(),
        source: error.into(),
    };
    match refused {
        Some(table) => StreamError::Refused {
            table: Box::new(table),
            source: Box::new(source),
        },
        None => source.into(),
    }
}
