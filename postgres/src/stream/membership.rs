//! The in-scope ids of each dynamic parent, a view over the sink: derived from it at every start,
//! then grown and shrunk with what is applied, never stored elsewhere.
//!
//! Within one source transaction three more things are known, and forgotten at its end. Which ids
//! the transaction will have brought when it commits (`pending`): a child may come before its
//! parent. Which ids it has taken away (`departed`): their children are deleted at the commit, so
//! that those that are moved elsewhere in the same transaction keep what the log does not repeat.
//! And which ids are the organization's though no row on the sink says so at this moment (`kin`);
//! these are known until the rows that the log does not hold have been fetched ([`Early`]).
//!
//! Beside it stand the ids that rows referred to which were passed over, where no foreign key
//! forbids it (`passed_over`): an id that is not among them had no child behind the position at
//! which this mover began.

use std::collections::BTreeSet;
use std::pin::pin;

use bytes::Bytes;
use futures::TryStreamExt;
use tokio_postgres::{GenericClient, Row};

use super::early::Early;
use super::tables::{Table, TableIndex, Tables, Tie};
use super::{IdSet, KeyKind, Standing};
use crate::sql::quote_ident;
use crate::{Doing, Error, Unit};

/// How many ids of passed-over rows are remembered of each table. Beyond, each id may be one.
const PASSED_OVER_MAX: u64 = 1_000_000;

/// The membership of a store's dynamic parents.
#[derive(Debug)]
pub(super) struct Membership {
    parents: Vec<Option<Parent>>,
}

#[derive(Debug)]
struct Parent {
    ids: IdSet,
    /// Ids seen in children that were passed over, where no foreign key forbids it.
    passed_over: IdSet,
    pending: IdSet,
    leaving: IdSet,
    departed: BTreeSet<String>,
    /// Ids that left in this transaction and were not used again, whether or not their children still
    /// stand.
    gone: IdSet,
    early: Early,
}

impl Parent {
    fn new(kind: KeyKind) -> Self {
        Self {
            ids: IdSet::new(kind),
            passed_over: IdSet::new(kind),
            pending: IdSet::new(kind),
            leaving: IdSet::new(kind),
            departed: BTreeSet::new(),
            gone: IdSet::new(kind),
            early: Early::default(),
        }
    }
}

/// A key as text, for a statement's parameter. Postgres sends valid text or nothing at all works.
fn text(id: &[u8]) -> String {
    String::from_utf8_lossy(id).into_owned()
}

impl Membership {
    /// The membership of no row.
    pub(super) fn empty(tables: &Tables) -> Self {
        let parent = |table: &Table| table.is_parent().then(|| Parent::new(table.key_kind));
        Self {
            parents: tables.all.iter().map(parent).collect(),
        }
    }

    /// Reads from the sink which parents are the organization's. Rows are taken as they come:
    /// nothing but the sets is held.
    pub(super) async fn derive<C: GenericClient + Sync>(
        sink: &C,
        tables: &Tables,
    ) -> Result<Self, Error> {
        let mut membership = Self::empty(tables);
        for (index, table) in tables.parents() {
            let doing = || format!("derive the membership of {}", table.name);
            let statement = format!(
                "select pg_catalog.format('%s', t.{}) from {} as t where {}",
                quote_ident(&table.key_column().name),
                table.sql_name,
                table.condition
            );
            let rows = sink
                .query_raw(&statement, std::iter::empty::<&str>())
                .await
                .doing(doing())?;
            let mut rows = pin!(rows);
            while let Some(row) = rows.try_next().await.doing(doing())? {
                membership.insert(index, id(&row).doing(doing())?);
            }
        }
        Ok(membership)
    }

    /// Reads the membership that was kept when the unit was sealed.
    pub(super) async fn sealed<C: GenericClient + Sync>(
        sink: &C,
        tables: &Tables,
        unit: &Unit,
    ) -> Result<Self, Error> {
        let doing = "read the sealed membership";
        let mut membership = Self::empty(tables);
        for (index, table) in tables.parents() {
            let rows = sink
                .query_raw(
                    "select id from monarch.sealed_membership
                     where move_id = $1::text::uuid and store = $2 and table_name = $3",
                    [
                        unit.move_id.to_string().as_str(),
                        unit.store.as_str(),
                        table.name.as_str(),
                    ],
                )
                .await
                .doing(doing)?;
            let mut rows = pin!(rows);
            while let Some(row) = rows.try_next().await.doing(doing)? {
                membership.insert(index, id(&row).doing(doing)?);
            }
        }
        Ok(membership)
    }

    /// Where a value of the column that ties `tie`'s table stands; null is nobody's.
    pub(super) fn standing(&self, tie: &Tie, value: Option<&[u8]>) -> Standing {
        let Some(value) = value else {
            return Standing::Foreign;
        };
        match tie {
            Tie::Fixed { ids, .. } if ids.contains(value) => Standing::Ours,
            Tie::Fixed { .. } => Standing::Foreign,
            Tie::Within { parent, .. } => self.parent_standing(*parent, value),
        }
    }

    fn parent_standing(&self, table: TableIndex, id: &[u8]) -> Standing {
        let Some(parent) = &self.parents[table] else {
            return Standing::Foreign;
        };
        if parent.ids.contains(id) {
            Standing::Ours
        } else if parent.pending.contains(id) {
            Standing::Coming
        } else if !parent.departed.is_empty() && parent.departed.contains(&text(id)) {
            Standing::Gone
        } else {
            Standing::Foreign
        }
    }

    /// Whether the parent is the organization's.
    pub(super) fn contains(&self, table: TableIndex, id: &[u8]) -> bool {
        self.parents[table]
            .as_ref()
            .is_some_and(|parent| parent.ids.contains(id))
    }

    /// The number of ids of all parents.
    pub(super) fn len(&self) -> u64 {
        let parents = self.parents.iter().flatten();
        parents.map(|parent| parent.ids.len()).sum()
    }

    /// A parent came to the sink.
    pub(super) fn insert(&mut self, table: TableIndex, id: &[u8]) {
        if let Some(parent) = &mut self.parents[table] {
            parent.ids.insert(id);
            if !parent.early.is_empty() {
                parent.early.came(&text(id));
            }
        }
    }

    /// A parent is no longer the organization's; its children are still to be deleted.
    pub(super) fn depart(&mut self, table: TableIndex, id: &[u8]) {
        if let Some(parent) = &mut self.parents[table] {
            parent.ids.remove(id);
            parent.departed.insert(text(id));
            parent.gone.insert(id);
        }
    }

    /// A parent is no longer the organization's, and nothing hangs on it any more. Its id may be used
    /// again in this transaction.
    pub(super) fn remove(&mut self, table: TableIndex, id: &[u8]) {
        if let Some(parent) = &mut self.parents[table] {
            parent.ids.remove(id);
            parent.gone.insert(id);
        }
    }

    /// Whether the parent's id left in this transaction, and is used again now.
    pub(super) fn comes_back(&mut self, table: TableIndex, id: &[u8]) -> bool {
        self.parents[table].as_mut().is_some_and(|parent| {
            let gone = parent.gone.contains(id);
            if gone {
                parent.gone.remove(id);
            }
            gone
        })
    }

    /// This parent's id is the organization's, and no row on the sink ties it to that.
    pub(super) fn note_early(&mut self, table: TableIndex, id: &[u8]) {
        if let Some(parent) = &mut self.parents[table] {
            parent.early.note(text(id));
        }
    }

    /// The row of a child's table that has this key was written before any row on the sink ties its
    /// parent to the organization. Whether that can be remembered.
    pub(super) fn note_early_row(
        &mut self,
        (parent, id): (TableIndex, &[u8]),
        (child, key): (TableIndex, &[Bytes]),
    ) -> bool {
        self.parents[parent].as_mut().is_none_or(|parent| {
            parent.early.note_row(child, key, text(id));
            parent.early.is_within_bounds()
        })
    }

    /// A row with this parent was passed over, or may have stayed behind.
    pub(super) fn note_passed_over(&mut self, table: TableIndex, id: &[u8]) {
        if let Some(parent) = &mut self.parents[table]
            && parent.passed_over.len() < PASSED_OVER_MAX
        {
            parent.passed_over.insert(id);
        }
    }

    /// Whether a row with this parent was passed over, as far as is known.
    pub(super) fn may_be_passed_over(&self, table: TableIndex, id: &[u8]) -> bool {
        self.parents[table].as_ref().is_some_and(|parent| {
            parent.passed_over.len() >= PASSED_OVER_MAX || parent.passed_over.contains(id)
        })
    }

    /// What the transaction will have done with a parent when it commits. Told of each of its
    /// changes in order, before any is applied, parents before their children's tables.
    pub(super) fn plan(&mut self, table: TableIndex, id: &[u8], ours: bool) {
        if let Some(parent) = &mut self.parents[table] {
            if ours {
                parent.pending.insert(id);
                parent.leaving.remove(id);
            } else {
                parent.pending.remove(id);
                parent.leaving.insert(id);
            }
        }
    }

    /// Whether a value of the column that ties `tie`'s table is the organization's when the
    /// transaction commits.
    pub(super) fn planned(&self, tie: &Tie, value: &[u8]) -> bool {
        match tie {
            Tie::Fixed { ids, .. } => ids.contains(value),
            Tie::Within { parent, .. } => self.parents[*parent].as_ref().is_some_and(|parent| {
                parent.pending.contains(value)
                    || (parent.ids.contains(value) && !parent.leaving.contains(value))
            }),
        }
    }

    /// The ids of its parent that the row of this key may hang on, and that are the organization's though
    /// no row on the sink says so now.
    pub(super) fn kin(&self, tie: &Tie, child: TableIndex, key: &[Bytes]) -> Vec<String> {
        let Tie::Within { parent, .. } = tie else {
            return Vec::new();
        };
        let Some(parent) = &self.parents[*parent] else {
            return Vec::new();
        };
        let mut kin = parent.early.kin(child, key);
        kin.extend(parent.departed.iter().cloned());
        kin
    }

    /// Whether the id is the organization's though no row on the sink says so now.
    pub(super) fn is_kin(&self, table: TableIndex, id: &[u8]) -> bool {
        self.parents[table]
            .as_ref()
            .is_some_and(|parent| !parent.early.is_empty() && parent.early.contains(&text(id)))
            || self.has_departed(table, id)
    }

    /// Whether the parent's id left in this transaction and its children still stand.
    pub(super) fn has_departed(&self, table: TableIndex, id: &[u8]) -> bool {
        self.parents[table].as_ref().is_some_and(|parent| {
            !parent.departed.is_empty() && parent.departed.contains(&text(id))
        })
    }

    /// Whether a parent of the table left in this transaction and its children still stand.
    pub(super) fn has_any_departed(&self, table: TableIndex) -> bool {
        let parent = self.parents[table].as_ref();
        parent.is_some_and(|parent| !parent.departed.is_empty())
    }

    /// How many parents have left whose children still stand.
    pub(super) fn departed_total(&self) -> usize {
        let parents = self.parents.iter().flatten();
        parents.map(|parent| parent.departed.len()).sum()
    }

    /// Hands over the parents of a table that have left, to delete their children.
    pub(super) fn take_departed(&mut self, table: TableIndex) -> Vec<String> {
        self.parents[table]
            .as_mut()
            .map(|parent| std::mem::take(&mut parent.departed).into_iter().collect())
            .unwrap_or_default()
    }

    /// Forgets what was known within a transaction.
    pub(super) fn end_transaction(&mut self) {
        for parent in self.parents.iter_mut().flatten() {
            parent.pending.clear();
            parent.leaving.clear();
            parent.departed.clear();
            parent.gone.clear();
        }
    }

    /// Each of the organization's ids has its row on the sink.
    pub(super) fn all_written(&mut self) {
        for parent in self.parents.iter_mut().flatten() {
            parent.early.clear();
        }
    }
}

fn id(row: &Row) -> Result<&[u8], tokio_postgres::Error> {
    row.try_get::<_, &str>(0).map(str::as_bytes)
}
