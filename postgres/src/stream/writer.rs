//! Writes the rows of source transactions within one sink transaction, in the log's order.
//!
//! What is found to be missing from the log on the way is noted as wanted, and fetched at the end:
//! [`super::stretch`]. From the first such row on, a row that must be on the sink and is not is
//! wanted too, since what it hangs on may be among what is still to be fetched.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use futures::TryStreamExt;
use monarch_model::Lsn;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row as Fetched, Statement, Transaction};

use super::assemble::SourceTransaction;
use super::change::{Change, Value};
use super::error::StreamError;
use super::event::{Event, read_event};
use super::fetch::{Query, Wanted};
use super::flush::{Done, Sent};
use super::foresight::{let_others_run, plan};
use super::many::Many;
use super::membership::Membership;
use super::pace::Pace;
use super::pipeline::Pipeline;
use super::primary::Primary;
use super::statement::{
    Param, Shape, Verb, others_sql, renumbered_sql, set_columns, subtree_deletes,
};
use super::suited::Suited;
use super::tables::{Kind, Table, TableIndex, Tables, Tie};
use super::together::{Together, Write};
use super::{Action, After, Missing, Operation, Reason, Row, mark};
use crate::keys::Keys;
use crate::sink::{Barrier, LastChange};
use crate::{Doing, Unit};

/// The most prepared statements that are kept.
pub(super) const STATEMENTS_MAX: usize = 1024;
/// The most parents that have left whose children are left standing until the commit.
const DEPARTED_MAX: usize = 256;
/// The most rows whose numbers are remembered before they are compared.
const NUMBERS_MAX: usize = 1000;
/// The most new parents of which the source is asked at once whether they have children.
const NEWCOMERS_MAX: usize = 1000;

/// What is said of a statement for one row under way.
pub(super) struct Written {
    table: TableIndex,
    missing: Missing,
    /// The key that the row has afterwards, if it has one.
    key: Option<Vec<Bytes>>,
    at: LastChange,
}

/// A sink transaction that is being written.
pub(super) struct Writer<'a> {
    pub(super) tx: &'a Transaction<'a>,
    pub(super) unit: &'a Unit,
    pub(super) tables: &'a Tables,
    pub(super) membership: &'a mut Membership,
    pub(super) statements: &'a mut HashMap<Shape, Statement>,
    pub(super) many: &'a mut HashMap<Many, Statement>,
    pub(super) suited: &'a [Suited],
    pub(super) pace: &'a mut Pace,
    pub(super) primary: &'a mut Primary,
    /// Writes of single rows. None is under way while a flush is.
    pub(super) pipeline: Pipeline<'a, Written>,
    /// What is gathered.
    pub(super) together: Together,
    /// The flush under way, and its statements.
    pub(super) sent: Option<Together>,
    pub(super) flushing: Pipeline<'a, Sent, Done>,
    /// Whether the transaction has a savepoint.
    pub(super) savepoint: bool,
    pub(super) keys: &'a mut Keys,
    /// Whether the sink's foreign keys act.
    pub(super) cascades: bool,
    /// Told of each change that is read: a long transaction shows that it moves.
    pub(super) seen: &'a (dyn Fn() + Sync),
    pub(super) so_far: SoFar,
}

/// What has been written, and what is still to be found out.
#[derive(Debug, Default)]
pub(super) struct SoFar {
    /// Rows written or deleted.
    pub(super) changes: u64,
    /// The last change of the organization.
    pub(super) last_change: Option<LastChange>,
    /// The last barrier.
    pub(super) barrier: Option<Barrier>,
    /// How often rows were fetched from the source.
    pub(super) fetches: u64,
    /// What the log does not hold.
    pub(super) wanted: Wanted,
    /// New parents of which it is not known whether children came before them.
    newcomers: BTreeMap<TableIndex, BTreeSet<String>>,
    /// The numbers, by key, of rows in columns that the sink takes for new rows only.
    numbers: BTreeMap<TableIndex, BTreeMap<Vec<String>, Vec<String>>>,
    /// The source transaction at hand.
    at: Option<LastChange>,
    /// Whether rows on the sink do not say by themselves whose they are at each moment of it: then
    /// nothing is gathered.
    irregular: bool,
}

impl Writer<'_> {
    /// Writes a source transaction.
    pub(super) async fn transaction(
        &mut self,
        transaction: &SourceTransaction,
    ) -> Result<(), StreamError> {
        self.primary.delivered.insert(transaction.xid);
        self.so_far.at = Some(LastChange {
            lsn: transaction.end,
            committed_at: transaction.committed_at.timestamp().ok_or_else(|| {
                StreamError::Protocol {
                    what: "a commit time that no calendar has".to_owned(),
                }
            })?,
        });
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
        self.so_far.irregular = false;
        self.compare_numbers().await?;
        self.membership.end_transaction();
        if self.so_far.wanted.is_empty() {
            self.membership.all_written();
        }
        Ok(())
    }

    /// A mark in the log. Those of other moves are none of ours.
    fn message(&mut self, content: &[u8], end: Lsn) {
        if let Some(nonce) = mark::nonce_for(content, self.unit) {
            self.so_far.barrier = Some(Barrier { nonce, lsn: end });
        }
    }

    async fn change(&mut self, change: &Change) -> Result<(), StreamError> {
        let table = &self.tables.all[change.table];
        if self.has_left_above(table) {
            self.delete_subtrees().await?;
        }
        let case = change.case(table, self.membership);
        let action = case.decide();
        if case.after == After::Out {
            pass_over(self.membership, table, change);
        }
        match action {
            Action::Ignore => {}
            Action::Upsert => self.upsert(table, change).await?,
            Action::UpsertAndLook => {
                self.upsert(table, change).await?;
                self.newcomer(table, change).await?;
            }
            Action::Enter => self.enter(table, change, case.row).await?,
            Action::Replace => self.replace(table, change, case.operation).await?,
            Action::Update(missing) => {
                self.set(table, change, case.operation, case.row, missing)
                    .await?;
            }
            Action::RekeyParent => self.rekey_parent(table, change, case.row).await?,
            Action::RekeyParentAndLook => {
                self.rekey_parent(table, change, case.row).await?;
                self.newcomer(table, change).await?;
            }
            Action::Delete(missing) => self.delete(table, change, missing).await?,
            Action::DeleteSubtree => self.delete_parent(table, change).await?,
            Action::Fatal(reason) => return Err(table.finding(reason)),
        }
        Ok(())
    }

    /// Whether a row left in this transaction from which the table's own parents may hang. They count
    /// as the organization's until what hangs on it is deleted, and no row of theirs on the sink
    /// says so any more.
    fn has_left_above(&self, table: &Table) -> bool {
        let parent_of = |table: &Table| match table.tie {
            Tie::Within { parent, .. } => Some(parent),
            Tie::Fixed { .. } => None,
        };
        let mut above = parent_of(table);
        while let Some(grandparent) = above.and_then(|at| parent_of(&self.tables.all[at])) {
            if self.membership.has_any_departed(grandparent) {
                return true;
            }
            above = Some(grandparent);
        }
        false
    }

    /// A parent is new under its key. What was passed over because it lacked this parent is wanted;
    /// what came before this mover began is asked for later, for many parents at once.
    async fn newcomer(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let key = new_key(table, change)?;
        let id = String::from_utf8_lossy(&key[0]).into_owned();
        if self.membership.may_be_passed_over(change.table, &key[0]) {
            return self.so_far.wanted.subtree(self.tables, change.table, id);
        }
        let newcomers = self.so_far.newcomers.entry(change.table).or_default();
        newcomers.insert(id);
        if newcomers.len() >= NEWCOMERS_MAX {
            self.look().await?;
        }
        Ok(())
    }

    /// Asks the source which of the new parents have children that came before them.
    pub(super) async fn look(&mut self) -> Result<(), StreamError> {
        for (table, ids) in std::mem::take(&mut self.so_far.newcomers) {
            let ids: Vec<String> = ids.into_iter().collect();
            let found = self.primary.came_before(self.tables, table, &ids).await?;
            for id in found {
                self.so_far.wanted.subtree(self.tables, table, id)?;
            }
        }
        Ok(())
    }

    /// A parent that was another's is the organization's now: what hangs on it is wanted, and its
    /// own row, where the log does not hold all of it.
    async fn enter(&mut self, table: &Table, change: &Change, row: Row) -> Result<(), StreamError> {
        self.so_far.irregular = true;
        let key = new_key(table, change)?;
        let id = String::from_utf8_lossy(&key[0]).into_owned();
        self.so_far.wanted.subtree(self.tables, change.table, id)?;
        if row == Row::Complete {
            return self.upsert(table, change).await;
        }
        if self.membership.has_departed(change.table, &key[0]) {
            self.delete_subtrees().await?;
        }
        self.membership.insert(change.table, &key[0]);
        self.membership.note_early(change.table, &key[0]);
        Ok(())
    }

    async fn upsert(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        if table.is_parent() {
            let key = new_key(table, change)?;
            self.come_back(change.table, &key[0]).await?;
        }
        let values = change.new.iter().flatten().map(Param::from).collect();
        let taken = Missing::Fatal(Reason::KeyTakenByOtherTenant);
        self.write(table, change, Verb::Upsert, values, taken)
            .await?;
        self.note_numbers(table, change).await?;
        self.grow(table, change)
    }

    /// A row that is written over keeps its numbers. Whether they are still the source's is looked at
    /// for many rows at once.
    async fn note_numbers(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let text = |at: usize| {
            let value = change.new.as_ref()?[at].text()?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let numbers: Option<Vec<String>> = table.numbers().map(text).collect();
        let key: Option<Vec<String>> = table.key.iter().map(|&at| text(at)).collect();
        let (Some(key), Some(numbers)) = (key, numbers.filter(|numbers| !numbers.is_empty()))
        else {
            return Ok(());
        };
        let noted = self.so_far.numbers.entry(change.table).or_default();
        noted.insert(key, numbers);
        if noted.len() >= NUMBERS_MAX {
            self.compare_numbers().await?;
        }
        Ok(())
    }

    async fn compare_numbers(&mut self) -> Result<(), StreamError> {
        if self.so_far.numbers.is_empty() {
            return Ok(());
        }
        self.settle().await?;
        for (index, noted) in std::mem::take(&mut self.so_far.numbers) {
            let table = &self.tables.all[index];
            let width = table.key.len() + table.numbers().count();
            let mut given = vec![Vec::with_capacity(noted.len()); width];
            for (key, numbers) in noted {
                for (column, value) in given.iter_mut().zip(key.into_iter().chain(numbers)) {
                    column.push(value);
                }
            }
            let doing = || format!("compare what the sink numbers of {}", table.name);
            let sql = renumbered_sql(table);
            let given: Vec<&(dyn ToSql + Sync)> = given.iter().map(|column| column as _).collect();
            let other = self.tx.query_opt(&sql, &given).await.doing(doing())?;
            if other.is_some() {
                return Err(table.finding(Reason::NumberChanged));
            }
        }
        Ok(())
    }

    /// A parent's key left in this transaction and is used again. What hung on it goes; and since a
    /// deferrable foreign key lets children wait for the key's return, what hangs on it is wanted.
    async fn come_back(&mut self, parent: TableIndex, id: &[u8]) -> Result<(), StreamError> {
        if !self.membership.comes_back(parent, id) {
            return Ok(());
        }
        self.so_far.irregular = true;
        if self.membership.has_departed(parent, id) {
            self.delete_subtrees().await?;
        }
        let id = String::from_utf8_lossy(id).into_owned();
        self.so_far.wanted.subtree(self.tables, parent, id)
    }

    /// What the row's coming means for the membership.
    fn grow(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let loose = self.note_early(table, change)?;
        if table.is_parent() {
            let key = new_key(table, change)?;
            self.membership.insert(change.table, &key[0]);
            if loose {
                self.membership.note_early(change.table, &key[0]);
            }
        }
        Ok(())
    }

    /// Whether no row on the sink ties this one, which was written, to the organization yet.
    fn note_early(&mut self, table: &Table, change: &Change) -> Result<bool, StreamError> {
        let (Tie::Within { parent, .. }, Some(id)) = (&table.tie, change.new_tie(table)) else {
            return Ok(false);
        };
        let early = !self.membership.contains(*parent, id) || self.membership.is_kin(*parent, id);
        if early {
            self.so_far.irregular = true;
            let key = new_key(table, change)?;
            let row = (change.table, &*key);
            if !self.membership.note_early_row((*parent, id), row) {
                return Err(table.finding(Reason::ParentsTooLate));
            }
        }
        Ok(early)
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
            self.delete(table, change, missing).await?;
            return match row {
                Row::Complete => self.upsert(table, change).await,
                Row::Partial => {
                    let key = new_key(table, change)?;
                    let (tables, wanted) = (self.tables, &mut self.so_far.wanted);
                    if table.is_parent() {
                        let id = String::from_utf8_lossy(&key[0]).into_owned();
                        return wanted.subtree(tables, change.table, id);
                    }
                    wanted.row(tables, change.table, key)
                }
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
        self.write(table, change, verb, params, missing).await?;
        if self.note_early(table, change)? && table.is_parent() {
            self.adrift(table, change).await?;
        }
        // A row that was never the organization's has numbers of its own.
        match missing {
            Missing::Fine => Ok(()),
            Missing::Fetch | Missing::Fatal(_) => self.note_numbers(table, change).await,
        }
    }

    /// A parent was moved under one whose row comes later. Until then the sink cannot tell that what
    /// hangs on it is the organization's: it goes, and is fetched again.
    async fn adrift(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        let key = new_key(table, change)?;
        if self.membership.is_kin(change.table, &key[0]) {
            // It came in this transaction, and so did all that hangs on it.
            return Ok(());
        }
        self.settle().await?;
        let id = String::from_utf8_lossy(&key[0]).into_owned();
        let ids = [id.clone()];
        for delete in subtree_deletes(self.tables, change.table) {
            self.delete_below(delete.table, &delete.sql, &ids).await?;
        }
        self.membership.note_early(change.table, &key[0]);
        self.so_far.wanted.subtree(self.tables, change.table, id)
    }

    async fn rekey_parent(
        &mut self,
        table: &Table,
        change: &Change,
        row: Row,
    ) -> Result<(), StreamError> {
        self.so_far.irregular = true;
        let missing = Missing::Fatal(Reason::RowMissing);
        let (old, new) = (old_key(table, change)?, new_key(table, change)?);
        self.come_back(change.table, &new[0]).await?;
        self.empty_first(change.table, &old[0]).await?;
        self.set(table, change, Operation::Rekey, row, missing)
            .await?;
        self.left(table, change.table, &old[0]).await?;
        self.membership.insert(change.table, &new[0]);
        if row == Row::Partial && !self.so_far.wanted.is_empty() {
            // It may be one of the rows that are still to be fetched.
            self.membership.note_early(change.table, &new[0]);
        }
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
        self.write(table, change, Verb::Delete, params, missing)
            .await
    }

    async fn delete_parent(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        self.so_far.irregular = true;
        let key = old_key(table, change)?;
        let missing = Missing::Fatal(Reason::RowMissing);
        self.empty_first(change.table, &key[0]).await?;
        self.delete(table, change, missing).await?;
        self.left(table, change.table, &key[0]).await?;
        if self.membership.departed_total() >= DEPARTED_MAX {
            self.delete_subtrees().await?;
        }
        Ok(())
    }

    /// Where the sink's foreign keys act, what hangs on a parent goes before it leaves: else a key
    /// would refuse that, or do with the children what it says, behind the membership's back. Those
    /// that the transaction moves elsewhere come again like any that enter.
    async fn empty_first(&mut self, parent: TableIndex, id: &[u8]) -> Result<(), StreamError> {
        if !self.cascades {
            return Ok(());
        }
        self.settle().await?;
        let ids = [String::from_utf8_lossy(id).into_owned()];
        for delete in subtree_deletes(self.tables, parent) {
            self.delete_below(delete.table, &delete.sql, &ids).await?;
        }
        Ok(())
    }

    /// A parent's id is no longer the organization's. What hangs on it goes with the transaction's end,
    /// if it did not go first.
    async fn left(
        &mut self,
        table: &Table,
        parent: TableIndex,
        id: &[u8],
    ) -> Result<(), StreamError> {
        if self.cascades {
            self.membership.remove(parent, id);
            let ids = [String::from_utf8_lossy(id).into_owned()];
            self.refuse_others(parent, &ids).await?;
        } else {
            self.membership.depart(parent, id);
        }
        self.note_left_behind(table, parent, id);
        Ok(())
    }

    /// Where nothing holds children to a parent that left, they may stand when its key comes back.
    fn note_left_behind(&mut self, table: &Table, index: TableIndex, id: &[u8]) {
        if table.kind == (Kind::Parent { enforced: false }) {
            self.membership.note_passed_over(index, id);
        }
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
            self.refuse_others(index, &ids).await?;
            for delete in subtree_deletes(tables, index) {
                self.delete_below(delete.table, &delete.sql, &ids).await?;
            }
        }
        Ok(())
    }

    /// A parent that left is not on the sink any more, so what hangs on its id is the
    /// organization's. In a stretch it may never have been there: then the id may be another
    /// tenant's, and so what hangs on it.
    async fn refuse_others(
        &mut self,
        index: TableIndex,
        ids: &[String],
    ) -> Result<(), StreamError> {
        if self.so_far.wanted.is_empty() {
            return Ok(());
        }
        self.settle().await?;
        let table = &self.tables.all[index];
        let doing = || format!("look whose the ids of {} are on the sink", table.name);
        let sql = others_sql(table);
        let others = self.tx.query_opt(&sql, &[&ids]).await.doing(doing())?;
        match others {
            Some(_) => Err(table.finding(Reason::KeyTakenByOtherTenant)),
            None => Ok(()),
        }
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
        while let Some(row) = rows.try_next().await.doing(doing())? {
            deleted += 1;
            let key: String = row.try_get(0).doing(doing())?;
            self.membership.remove(index, key.as_bytes());
            self.note_left_behind(table, index, key.as_bytes());
        }
        if !table.is_parent() {
            deleted = rows.rows_affected().unwrap_or_default();
        }
        self.so_far.changes += deleted;
        if deleted > 0 {
            self.so_far.last_change = self.so_far.at;
        }
        Ok(())
    }

    /// Writes a row: with others, or by itself.
    async fn write(
        &mut self,
        table: &Table,
        change: &Change,
        verb: Verb,
        params: Vec<Param>,
        missing: Missing,
    ) -> Result<(), StreamError> {
        let Some(at) = self.so_far.at else {
            return Ok(());
        };
        if !matches!(verb, Verb::Delete) {
            self.take_keys(table, change).await?;
        }
        let own = match verb {
            Verb::Upsert => new_key(table, change)?,
            Verb::Update { .. } | Verb::Delete => old_key(table, change)?,
        };
        let fresh = verb == Verb::Upsert && change.is_insert;
        let write = Write {
            table: change.table,
            verb,
            params,
            missing,
            own,
            key: change.new_key(table),
            tie: change.new_tie_text(table),
            fresh: fresh && self.pace.expects_new(change.table),
            at,
        };
        if self.may_be_gathered(&write) {
            return self.gather(write).await;
        }
        self.flush().await?;
        self.conclude().await?;
        let kin = self.membership.kin(&table.tie, write.table, &write.own);
        self.single(write, kin).await
    }

    /// Whether nobody could tell if the write was sent with others. It needs no kin then: ids that no
    /// row on the sink ties to the organization make a transaction irregular, or their rows are wanted.
    fn may_be_gathered(&self, write: &Write) -> bool {
        let so_far = &self.so_far;
        self.pace.gathers(write.bytes())
            && self.suited[write.table].together
            && !so_far.irregular
            && so_far.wanted.is_empty()
            && write.keeps_key()
    }

    /// Sends the statement for one row.
    pub(super) async fn single(
        &mut self,
        write: Write,
        kin: Vec<String>,
    ) -> Result<(), StreamError> {
        let table = &self.tables.all[write.table];
        let shape = Shape {
            table: write.table,
            verb: write.verb,
            with_kin: !kin.is_empty(),
        };
        let mut params = write.params;
        if shape.with_kin {
            params.push(Param::Ids(kin));
        }
        let statement = self.prepared(table, shape).await?;
        while self.pipeline.is_full() {
            self.answer().await?;
        }
        let bytes = params.iter().map(Param::bytes).sum();
        let written = Written {
            table: write.table,
            missing: write.missing,
            key: write.key,
            at: write.at,
        };
        let tx = self.tx;
        let statement = async move { tx.execute_raw(&statement, params).await };
        self.pipeline.push(written, bytes, statement).await;
        Ok(())
    }

    /// A key that was left out because it did not change was taken when its row came.
    async fn take_keys(&mut self, table: &Table, change: &Change) -> Result<(), StreamError> {
        for (column, store) in &table.blobs {
            let value = change.new.as_ref().and_then(|new| new.get(*column));
            if let Some(key) = value.and_then(Value::text) {
                let key = String::from_utf8_lossy(key);
                self.keys.take(store, &table.name, &key).await?;
            }
        }
        Ok(())
    }

    async fn prepared(&mut self, table: &Table, shape: Shape) -> Result<Statement, StreamError> {
        if let Some(statement) = self.statements.get(&shape) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        // The connection reads on only as answers are taken: one that nobody takes would keep this one
        // back for ever.
        self.take_answers().await?;
        let statement = self.tx.prepare(&shape.sql(table)).await;
        let statement = statement.map_err(|error| refused(table, error))?;
        self.statements.insert(shape, statement.clone());
        Ok(statement)
    }

    /// Sends what is gathered, and takes the answers of all that is under way.
    pub(super) async fn settle(&mut self) -> Result<(), StreamError> {
        self.flush().await?;
        self.conclude().await?;
        self.take_answers().await
    }

    /// Takes the answers of single rows under way.
    pub(super) async fn take_answers(&mut self) -> Result<(), StreamError> {
        while self.answer().await? {}
        Ok(())
    }

    /// Takes the next answer; whether there was one.
    async fn answer(&mut self) -> Result<bool, StreamError> {
        let Some((written, answer)) = self.pipeline.next().await else {
            return Ok(false);
        };
        let table = &self.tables.all[written.table];
        let so_far = &mut self.so_far;
        match (answer, written.missing) {
            (Err(error), _) => return Err(refused(table, error)),
            (Ok(0), Missing::Fine) => {}
            (Ok(0), Missing::Fetch) => {
                let key = written
                    .key
                    .ok_or_else(|| table.finding(Reason::RowUnidentified))?;
                so_far.wanted.row(self.tables, written.table, key)?;
            }
            (Ok(0), Missing::Fatal(Reason::RowMissing)) if !so_far.wanted.is_empty() => {
                if let Some(key) = written.key {
                    so_far.wanted.row(self.tables, written.table, key)?;
                }
            }
            (Ok(0), Missing::Fatal(reason)) => return Err(table.finding(reason)),
            (Ok(rows), _) => {
                so_far.changes += rows;
                so_far.last_change = Some(written.at);
            }
        }
        Ok(true)
    }

    /// Fetches what is wanted, in the moment that was taken on the source.
    pub(super) async fn fetch(&mut self) -> Result<(), StreamError> {
        self.so_far.fetches += u64::from(!self.so_far.wanted.is_empty());
        let mut gone = self.so_far.wanted.parents();
        for query in self.so_far.wanted.queries(self.tables) {
            self.fetch_rows(&query, &mut gone).await?;
        }
        self.settle().await?;
        self.compare_numbers().await?;
        self.take_back(gone).await?;
        self.so_far.wanted = Wanted::default();
        self.membership.all_written();
        Ok(())
    }

    /// Parents that entered and are not the organization's at the end of the stretch, since what
    /// they hang on has left. Where their own rows were still to be fetched, nothing on the sink
    /// tied to that what came of their subtrees, so it stands yet.
    async fn take_back(
        &mut self,
        gone: BTreeMap<TableIndex, BTreeSet<String>>,
    ) -> Result<(), StreamError> {
        for (table, ids) in gone {
            for id in ids {
                self.membership.depart(table, id.as_bytes());
            }
        }
        self.delete_subtrees().await
    }

    /// Rows are relayed as they come. A row that is there already is as it is fetched.
    async fn fetch_rows(
        &mut self,
        query: &Query,
        gone: &mut BTreeMap<TableIndex, BTreeSet<String>>,
    ) -> Result<(), StreamError> {
        let table = &self.tables.all[query.table];
        let doing = || format!("fetch rows of {} from the source", table.name);
        let rows = self.primary.rows(query, doing).await?;
        let mut rows = std::pin::pin!(rows);
        while let Some(row) = rows.try_next().await.doing(doing())? {
            (self.seen)();
            let change = Change {
                table: query.table,
                old: None,
                new: Some(values(&row).doing(doing())?),
                is_insert: true,
            };
            if let (Some(gone), Some(key)) = (gone.get_mut(&query.table), change.new_key(table)) {
                gone.remove(&*String::from_utf8_lossy(&key[0]));
            }
            self.upsert(table, &change).await?;
        }
        Ok(())
    }
}

fn values(row: &Fetched) -> Result<Vec<Value>, tokio_postgres::Error> {
    let value = |at| {
        let text: Option<&str> = row.try_get(at)?;
        Ok(text.map_or(Value::Null, |text| {
            Value::Text(Bytes::copy_from_slice(text.as_bytes()))
        }))
    };
    (0..row.len()).map(value).collect()
}

/// A row that is not ours now may become ours by its parent, where no foreign key forbids it.
pub(super) fn pass_over(membership: &mut Membership, table: &Table, change: &Change) {
    if let (Tie::Within { parent, .. }, false, Some(id)) =
        (&table.tie, table.tie_enforced, change.new_tie(table))
    {
        membership.note_passed_over(*parent, id);
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

pub(super) fn refused(table: &Table, error: tokio_postgres::Error) -> StreamError {
    let source = crate::Error::Asked {
        doing: "write a row".into(),
        source: error.into(),
    };
    StreamError::Refused {
        table: Box::new(table.name.clone()),
        source: Box::new(source),
    }
}
