//! Writes whole source transactions to the sink.
//!
//! A transaction is read twice. The first pass, made only if it touches a dynamic parent, finds
//! which parents it will have brought and taken away when it commits. The second decides about each
//! row in the log's order and writes it. One sink transaction takes one or several source
//! transactions, holds the unit's row from its first statement and moves the position with its
//! last, so that rows and position are one.
//!
//! Any error ends the mover: the membership in memory may then be ahead of the sink, and the next
//! start derives it again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use monarch_model::{Epoch, Lsn};
use tokio_postgres::{Statement, Transaction};

use super::change::{Change, Value};
use super::error::StreamError;
use super::event::{Event, read_change, read_event};
use super::membership::Membership;
use super::pipeline::Pipeline;
use super::spool::Recording;
use super::start::Preamble;
use super::statement::{Param, Shape, Verb, set_columns, subtree_deletes};
use super::tables::{Kind, Table, TableIndex, Tables, Tie};
use super::{Action, Missing, Operation, Reason, Row, mark};
use crate::sink::{self, Barrier, LastChange, Progress};
use crate::{Doing, PgTime, Session, Unit};

/// The most prepared statements that are kept.
const STATEMENTS_MAX: usize = 1024;
/// The most parents that have left whose children are left standing until the commit.
const DEPARTED_MAX: usize = 256;

/// A source transaction that is whole.
#[derive(Debug)]
pub(super) struct SourceTransaction {
    /// Where it ends in the source's log.
    pub(super) end: Lsn,
    /// When it committed, by the source's clock.
    pub(super) committed_at: PgTime,
    /// Its frames.
    pub(super) recording: Recording,
    /// The tables that it changes.
    pub(super) touched: BTreeSet<TableIndex>,
}

/// What a sink transaction brought.
#[derive(Debug, Clone, Copy)]
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
    /// Whether the sink's record says so. Where nothing was the organization's, nothing was written.
    pub(super) recorded: bool,
}

impl Applied {
    /// Nothing was the organization's.
    fn nothing(position: Lsn) -> Self {
        Self {
            position,
            last_change: None,
            barrier: None,
            changes: 0,
            transactions: 0,
            recorded: false,
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
    /// What each sink transaction starts with, and whether the sink's foreign keys act in it.
    pub(super) preamble: Preamble,
    pub(super) statements: HashMap<Shape, Statement>,
}

impl Applier {
    /// Writes `group`, in order, in one sink transaction; in none if all of it is foreign.
    pub(super) async fn apply(
        &mut self,
        group: &[SourceTransaction],
        seen: &(dyn Fn() + Sync),
    ) -> Result<Applied, StreamError> {
        let position = group.last().map_or(Lsn::default(), |last| last.end);
        let mut rest = group;
        while let Some((first, others)) = rest.split_first() {
            if !self.is_foreign(first, seen).await? {
                break;
            }
            rest = others;
        }
        let mut applied = match rest {
            [] => Applied::nothing(position),
            rest => self.write(rest, seen).await?,
        };
        applied.transactions = group.len() as u64;
        Ok(applied)
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

    async fn write(
        &mut self,
        group: &[SourceTransaction],
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
            pipeline: Pipeline::new(),
            cascades: self.preamble.cascades,
            parent_left: false,
            seen,
            changes: 0,
            at: None,
            last_change: None,
            barrier: None,
        };
        for transaction in group {
            writer.transaction(transaction).await?;
        }
        writer.settle().await?;
        let position = group.last().map_or(Lsn::default(), |last| last.end);
        let applied = Applied {
            position,
            last_change: writer.last_change,
            barrier: writer.barrier,
            changes: writer.changes,
            transactions: group.len() as u64,
            recorded: writer.changes > 0 || writer.barrier.is_some(),
        };
        drop(writer);
        if !applied.recorded {
            tx.rollback().await.doing(doing)?;
            return Ok(applied);
        }
        let progress = Progress {
            position,
            last_change: applied.last_change,
            barrier: applied.barrier,
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
        };
        sink::advance(&tx, &self.unit, self.epoch, &progress).await?;
        Ok(tx.commit().await.doing("commit on the sink")?)
    }
}

/// What is said of a statement under way.
struct Written {
    table: TableIndex,
    missing: Missing,
    at: LastChange,
}

struct Writer<'a> {
    tx: &'a Transaction<'a>,
    unit: &'a Unit,
    tables: &'a Tables,
    membership: &'a mut Membership,
    statements: &'a mut HashMap<Shape, Statement>,
    pipeline: Pipeline<'a, Written>,
    /// Whether the sink's foreign keys act.
    cascades: bool,
    /// Whether a parent left in this transaction.
    parent_left: bool,
    /// Told of each change that is read: a long transaction shows that it moves.
    seen: &'a (dyn Fn() + Sync),
    changes: u64,
    /// The source transaction at hand.
    at: Option<LastChange>,
    last_change: Option<LastChange>,
    barrier: Option<Barrier>,
}

impl<'a> Writer<'a> {
    async fn transaction(&mut self, transaction: &SourceTransaction) -> Result<(), StreamError> {
        self.at = Some(LastChange {
            lsn: transaction.end,
            committed_at: transaction.committed_at.timestamp().ok_or_else(|| {
                StreamError::Protocol {
                    what: "a commit time that no calendar has".to_owned(),
                }
            })?,
        });
        self.parent_left = false;
        plan(self.tables, self.membership, transaction).await?;
        let mut replay = transaction.recording.replay();
        let mut frames = 0;
        while let Some(frame) = replay.next_frame()? {
            frames += 1;
            let_others_run(frames).await;
            (self.seen)();
            match read_event(frame, &transaction.recording, self.tables)? {
                Event::Change(change) => self.change(&change).await?,
                Event::Truncate(tables) => return Err(truncated(self.tables, &tables)),
                Event::Message { content } => self.message(&content, transaction.end),
                Event::Other => {}
            }
        }
        self.delete_subtrees().await?;
        self.membership.end_transaction();
        Ok(())
    }

    /// A mark in the log. Those of other moves are none of ours.
    fn message(&mut self, content: &[u8], end: Lsn) {
        if let Some(nonce) = mark::nonce_for(content, self.unit) {
            self.barrier = Some(Barrier { nonce, lsn: end });
        }
    }

    async fn change(&mut self, change: &Change) -> Result<(), StreamError> {
        let table = &self.tables.all[change.table];
        let case = change.case(table, self.membership);
        match case.decide() {
            Action::Ignore => pass_over(self.membership, table, change),
            Action::Upsert => self.upsert(table, change).await?,
            Action::Replace => self.replace(table, change, case.operation).await?,
            Action::Update(missing) => {
                self.set(table, change, case.operation, case.row, missing)
                    .await?;
            }
            Action::RekeyParent => self.rekey_parent(table, change, case.row).await?,
            Action::Delete(missing) => self.delete(table, change, missing).await?,
            Action::DeleteSubtree => self.delete_parent(table, change).await?,
            Action::Fatal(reason) => return Err(table.finding(reason)),
        }
        Ok(())
    }

    async fn upsert(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        if table.is_parent() {
            let key = new_key(table, change)?;
            if self.membership.has_departed(change.table, &key[0]) {
                self.delete_subtrees().await?;
            }
        }
        let values = change.new.iter().flatten().map(Param::from).collect();
        let taken = Missing::Fatal(Reason::KeyTakenByOtherTenant);
        self.write(table, change.table, Verb::Upsert, values, taken)
            .await?;
        self.grow(table, change)
    }

    /// What the row's coming means for the membership.
    fn grow(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let loose = self.note_early(table, change);
        if table.is_parent() {
            let key = new_key(table, change)?;
            self.membership.insert(change.table, &key[0]);
            if loose {
                self.membership.note_early(change.table, &key[0]);
            }
        }
        Ok(())
    }

    /// Whether no row on the sink ties this one to the organization yet.
    fn note_early(&mut self, table: &Table, change: &Change) -> bool {
        let (Tie::Within { parent, .. }, Some(id)) = (&table.tie, change.new_tie(table)) else {
            return false;
        };
        let early = !self.membership.contains(*parent, id) || self.membership.is_kin(*parent, id);
        if early {
            self.membership.note_early(*parent, id);
        }
        early
    }

    async fn replace(
        &mut self,
        table: &Table,
        change: &Change,
        operation: Operation,
    ) -> Result<(), StreamError> {
        if operation == Operation::Rekey {
            self.delete(table, change, Missing::Fine).await?;
        }
        self.upsert(table, change).await
    }

    async fn set(
        &mut self,
        table: &Table,
        change: &Change,
        operation: Operation,
        row: Row,
        missing: Missing,
    ) -> Result<(), StreamError> {
        let rekey = operation == Operation::Rekey;
        // A number that the sink gives out cannot be set, only inserted.
        if rekey
            && table
                .key
                .iter()
                .any(|&at| table.columns[at].identity_always)
        {
            return match row {
                Row::Complete => {
                    self.delete(table, change, missing).await?;
                    self.upsert(table, change).await
                }
                Row::Partial => Err(table.finding(Reason::IncompleteRow)),
            };
        }
        let Some(new) = &change.new else {
            return Err(table.finding(Reason::RowUnidentified));
        };
        let set = columns_to_set(table, new, rekey);
        let mut params: Vec<Param> = new
            .iter()
            .zip(&set)
            .filter(|(_, set)| **set)
            .map(|(value, _)| Param::from(value))
            .collect();
        if set_columns(table, &set).next().is_none() {
            return Ok(());
        }
        params.extend(old_key(table, change)?.into_iter().map(Param::Text));
        let verb = Verb::Update { set };
        self.note_early(table, change);
        self.write(table, change.table, verb, params, missing).await
    }

    async fn rekey_parent(
        &mut self,
        table: &Table,
        change: &Change,
        row: Row,
    ) -> Result<(), StreamError> {
        let missing = Missing::Fatal(Reason::RowMissing);
        self.set(table, change, Operation::Rekey, row, missing)
            .await?;
        let (old, new) = (old_key(table, change)?, new_key(table, change)?);
        self.membership.depart(change.table, &old[0]);
        self.membership.insert(change.table, &new[0]);
        Ok(())
    }

    async fn delete(
        &mut self,
        table: &Table,
        change: &Change,
        missing: Missing,
    ) -> Result<(), StreamError> {
        let key = old_key(table, change)?;
        let params = key.into_iter().map(Param::Text).collect();
        // The sink's own cascade may have come first.
        let cascaded = self.cascades && self.parent_left;
        let missing = if cascaded { Missing::Fine } else { missing };
        self.write(table, change.table, Verb::Delete, params, missing)
            .await
    }

    async fn delete_parent(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let key = old_key(table, change)?;
        let missing = Missing::Fatal(Reason::RowMissing);
        self.delete(table, change, missing).await?;
        self.membership.depart(change.table, &key[0]);
        self.parent_left = true;
        if table.kind == (Kind::Parent { enforced: false }) {
            self.membership.note_passed_over(change.table, &key[0]);
        }
        if self.membership.departed_total() >= DEPARTED_MAX {
            self.delete_subtrees().await?;
        }
        Ok(())
    }

    /// Deletes what still hangs on the parents that have left.
    async fn delete_subtrees(&mut self) -> Result<(), StreamError> {
        if self.membership.departed_total() == 0 {
            return Ok(());
        }
        self.settle().await?;
        let tables = self.tables;
        for (index, _) in tables.parents() {
            let ids = self.membership.take_departed(index);
            if ids.is_empty() {
                continue;
            }
            for delete in subtree_deletes(tables, index) {
                self.delete_below(delete.table, &delete.sql, &ids).await?;
            }
        }
        Ok(())
    }

    async fn delete_below(
        &mut self,
        index: TableIndex,
        sql: &str,
        ids: &[String],
    ) -> Result<(), StreamError> {
        let table = &self.tables.all[index];
        let doing = || format!("delete from {} what hung on a parent that left", table.name);
        let rows = self.tx.query_raw(sql, [&ids]).await.doing(doing())?;
        let mut rows = std::pin::pin!(rows);
        let mut deleted = 0;
        while let Some(row) = futures::TryStreamExt::try_next(&mut rows)
            .await
            .doing(doing())?
        {
            deleted += 1;
            let key: String = row.try_get(0).doing(doing())?;
            self.membership.remove(index, key.as_bytes());
            if table.kind == (Kind::Parent { enforced: false }) {
                self.membership.note_passed_over(index, key.as_bytes());
            }
        }
        if !table.is_parent() {
            deleted = rows.rows_affected().unwrap_or_default();
        }
        self.changes += deleted;
        if deleted > 0 {
            self.last_change = self.at;
        }
        Ok(())
    }

    /// Sends a statement.
    async fn write(
        &mut self,
        table: &Table,
        index: TableIndex,
        verb: Verb,
        mut params: Vec<Param>,
        missing: Missing,
    ) -> Result<(), StreamError> {
        let Some(at) = self.at else {
            return Ok(());
        };
        let kin = self.membership.kin(&table.tie);
        let shape = Shape {
            table: index,
            verb,
            with_kin: !kin.is_empty(),
        };
        if shape.with_kin {
            params.push(Param::Ids(kin));
        }
        let statement = self.prepared(table, shape).await?;
        while self.pipeline.is_full() {
            self.answer().await?;
        }
        let bytes = params.iter().map(Param::bytes).sum();
        let written = Written {
            table: index,
            missing,
            at,
        };
        let tx = self.tx;
        let statement = async move { tx.execute_raw(&statement, params).await };
        self.pipeline.push(written, bytes, statement).await;
        Ok(())
    }

    async fn prepared(&mut self, table: &Table, shape: Shape) -> Result<Statement, StreamError> {
        if let Some(statement) = self.statements.get(&shape) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        let statement = self.tx.prepare(&shape.sql(table)).await;
        let statement = match statement {
            Ok(statement) => statement,
            // The transaction may have failed before: the first answer says why.
            Err(error) => {
                self.settle().await?;
                return Err(refused(table, error));
            }
        };
        self.statements.insert(shape, statement.clone());
        Ok(statement)
    }

    /// Takes the answers of all that is under way.
    async fn settle(&mut self) -> Result<(), StreamError> {
        while self.answer().await? {}
        Ok(())
    }

    /// Takes the next answer; whether there was one.
    async fn answer(&mut self) -> Result<bool, StreamError> {
        let Some((written, answer)) = self.pipeline.next().await else {
            return Ok(false);
        };
        let table = &self.tables.all[written.table];
        match (answer, written.missing) {
            (Err(error), _) => return Err(refused(table, error)),
            (Ok(0), Missing::Fine) => {}
            (Ok(0), Missing::Fatal(reason)) => return Err(table.finding(reason)),
            (Ok(rows), _) => {
                self.changes += rows;
                self.last_change = Some(written.at);
            }
        }
        Ok(true)
    }
}

/// A row that is not ours now may become ours by its parent, where no foreign key forbids it.
fn pass_over(membership: &mut Membership, table: &Table, change: &Change) {
    if let (Tie::Within { parent, .. }, false, Some(id)) =
        (&table.tie, table.tie_enforced, change.new_tie(table))
    {
        membership.note_passed_over(*parent, id);
    }
}

/// A pass over a large transaction may find nothing to wait for; the task that answers the
/// walsender must get its turn all the same.
async fn let_others_run(frames: u64) {
    if frames.is_multiple_of(1024) {
        tokio::task::yield_now().await;
    }
}

/// Finds what the transaction will have done with dynamic parents when it commits, the upper ones
/// first, since they decide about the lower.
async fn plan(
    tables: &Tables,
    membership: &mut Membership,
    transaction: &SourceTransaction,
) -> Result<(), StreamError> {
    let parents: Vec<TableIndex> = transaction
        .touched
        .iter()
        .copied()
        .filter(|&index| tables.all[index].is_parent())
        .collect();
    let depths: BTreeSet<usize> = parents.iter().map(|&at| tables.all[at].depth).collect();
    for depth in depths {
        let mut replay = transaction.recording.replay();
        let mut frames = 0;
        while let Some(frame) = replay.next_frame()? {
            frames += 1;
            let_others_run(frames).await;
            let wanted = |index: TableIndex| {
                tables.all[index].is_parent() && tables.all[index].depth == depth
            };
            if let Some(change) = read_change(frame, &transaction.recording, tables, &wanted)? {
                plan_change(&tables.all[change.table], membership, &change);
            }
        }
    }
    Ok(())
}

fn plan_change(table: &Table, membership: &mut Membership, change: &Change) {
    let old = change.old_key(table);
    let new = change.new_key(table);
    let ours = match change.new.as_ref().map(|new| &new[table.tie.column()]) {
        None | Some(Value::Null) => false,
        Some(Value::Text(id)) => membership.planned(&table.tie, id),
        // It stays what it was.
        Some(Value::Unchanged) => old
            .as_ref()
            .is_some_and(|key| membership.contains(change.table, &key[0])),
    };
    if let Some(old) = old.filter(|_| !change.is_insert) {
        membership.plan(change.table, &old[0], false);
    }
    if let Some(new) = new {
        membership.plan(change.table, &new[0], ours);
    }
}

/// The columns that an update sets: those that came, the key only if it changes or nothing else
/// came, and never what the sink numbers.
fn columns_to_set(table: &Table, new: &[Value], rekey: bool) -> Vec<bool> {
    let pick = |keys: bool| -> Vec<bool> {
        let columns = table.columns.iter().zip(new);
        columns
            .map(|(column, value)| {
                *value != Value::Unchanged && !column.identity_always && (keys || !column.in_key)
            })
            .collect()
    };
    let set = pick(rekey);
    if set.contains(&true) { set } else { pick(true) }
}

fn old_key(table: &Table, change: &Change) -> Result<Vec<Bytes>, StreamError> {
    let key = change.old_key(table);
    key.ok_or_else(|| table.finding(Reason::RowUnidentified))
}

fn new_key(table: &Table, change: &Change) -> Result<Vec<Bytes>, StreamError> {
    let key = change.new_key(table);
    key.ok_or_else(|| table.finding(Reason::RowUnidentified))
}

fn truncated(tables: &Tables, truncated: &[TableIndex]) -> StreamError {
    match truncated.first() {
        Some(&index) => tables.all[index].finding(Reason::Truncated),
        None => StreamError::Protocol {
            what: "a TRUNCATE of no table".to_owned(),
        },
    }
}

fn refused(table: &Table, error: tokio_postgres::Error) -> StreamError {
    let source = crate::Error::Asked {
        doing: "write a row".into(),
        source: error.into(),
    };
    StreamError::Refused {
        table: Box::new(table.name.clone()),
        source: Box::new(source),
    }
}
