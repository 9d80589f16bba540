//! One change of one row, read from a frame, and what is known of its scope.

use bytes::Bytes;

use super::membership::Membership;
use super::tables::{Kind, Table, TableIndex, Tie};
use super::{
    Action, After, Before, ChildEdges, Operation, Role, Row, Standing, Telling, decide, is, was,
};

/// A value in the text form of its type.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Null.
    Null,
    /// Stored out of line and not changed: the log does not repeat it.
    Unchanged,
    /// The text.
    Text(Bytes),
}

/// A change of one row. Values stand in the order of the table's columns.
pub(super) struct Change {
    /// The table.
    pub(super) table: TableIndex,
    /// The old row, as far as its replica identity tells; none if the log has nothing of it, which
    /// for an UPDATE says that its identity did not change.
    pub(super) old: Option<Vec<Value>>,
    /// The new row; none for a DELETE.
    pub(super) new: Option<Vec<Value>>,
    /// Whether it is an INSERT.
    pub(super) is_insert: bool,
}

/// What a decision is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) role: Role,
    pub(super) operation: Operation,
    pub(super) before: Before,
    pub(super) after: After,
    pub(super) row: Row,
}

impl Case {
    /// What to do on the sink.
    pub(super) fn decide(self) -> Action {
        decide(self.role, self.operation, self.before, self.after, self.row)
    }
}

impl Value {
    /// The text, if there is one.
    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged => None,
        }
    }
}

impl Change {
    /// Takes what the new row leaves out from the old one, where the log has it there.
    pub(super) fn complete(&mut self, table: &Table) {
        let (Some(old), Some(new)) = (&self.old, &mut self.new) else {
            return;
        };
        for ((new, old), column) in new.iter_mut().zip(old).zip(&table.columns) {
            if *new == Value::Unchanged && column.in_identity {
                *new = old.clone();
            }
        }
    }

    /// Whether the numbers of values are those of the table's columns.
    pub(super) fn fits(&self, table: &Table) -> bool {
        let mut rows = self.old.iter().chain(&self.new);
        rows.all(|values| values.len() == table.columns.len())
    }

    /// The key that the row had; none if the log does not say.
    pub(super) fn old_key(&self, table: &Table) -> Option<Vec<Bytes>> {
        key(table, self.old.as_deref().or(self.new.as_deref())?)
    }

    /// The key that the row has; none if there is no row or the log does not say.
    pub(super) fn new_key(&self, table: &Table) -> Option<Vec<Bytes>> {
        key(table, self.new.as_deref()?)
    }

    /// The scope column's new value; none if it is null, not repeated, or there is no row.
    pub(super) fn new_tie(&self, table: &Table) -> Option<&[u8]> {
        self.new.as_ref()?[table.tie.column()].text()
    }

    /// The same, to be kept.
    pub(super) fn new_tie_text(&self, table: &Table) -> Option<Bytes> {
        match &self.new.as_ref()?[table.tie.column()] {
            Value::Text(text) => Some(text.clone()),
            Value::Null | Value::Unchanged => None,
        }
    }

    /// What is known of the change, against the membership at this point of the transaction.
    pub(super) fn case(&self, table: &Table, membership: &Membership) -> Case {
        let operation = self.operation(table);
        Case {
            role: role(table),
            operation,
            before: self.before(table, membership),
            after: self.after(table, membership),
            row: match &self.new {
                Some(new) if new.contains(&Value::Unchanged) => Row::Partial,
                _ => Row::Complete,
            },
        }
    }

    fn operation(&self, table: &Table) -> Operation {
        if self.is_insert {
            Operation::Insert
        } else if self.new.is_none() {
            Operation::Delete
        } else if self.old_key(table) == self.new_key(table) {
            Operation::Update
        } else {
            Operation::Rekey
        }
    }

    fn before(&self, table: &Table, membership: &Membership) -> Before {
        let by_key = |ours: bool| if ours { Before::In } else { Before::Out };
        match table.kind {
            // The spine is a set of ids: a row of it is told by its key.
            Kind::Spine if self.is_insert => Before::Absent,
            Kind::Spine => self
                .old_key(table)
                .map_or(Before::Unknown, |key| by_key(table.spine.contains(&key[0]))),
            Kind::Parent { .. } => self.old_key(table).map_or(Before::Unknown, |key| {
                by_key(membership.contains(self.table, &key[0]))
            }),
            Kind::Leaf if self.is_insert => Before::Absent,
            Kind::Leaf => self.before_by_tie(table, membership),
        }
    }

    /// The old value of the scope column says it, if the log has it.
    fn before_by_tie(&self, table: &Table, membership: &Membership) -> Before {
        // Without an old row the identity did not change.
        let values = self.old.as_ref().or(self.new.as_ref());
        let telling = match values.map(|values| &values[table.tie.column()]) {
            None | Some(Value::Unchanged) => Telling::KeyAlone,
            Some(_) => table.telling,
        };
        let old = values.and_then(|values| values[table.tie.column()].text());
        was(telling, standing(table, membership, old))
    }

    fn after(&self, table: &Table, membership: &Membership) -> After {
        let Some(new) = &self.new else {
            return After::Absent;
        };
        match &new[table.tie.column()] {
            Value::Unchanged => After::Same,
            value => is(standing(table, membership, value.text())),
        }
    }
}

/// Where a value of the table's scope column leads.
fn standing(table: &Table, membership: &Membership, value: Option<&[u8]>) -> Standing {
    match (membership.standing(&table.tie, value), &table.tie) {
        (Standing::Ours, Tie::Within { .. }) if !table.tie_enforced => Standing::OursLoosely,
        (standing, _) => standing,
    }
}

fn role(table: &Table) -> Role {
    match table.kind {
        Kind::Spine => Role::Spine,
        Kind::Leaf => Role::Leaf,
        Kind::Parent { enforced: true } => Role::Parent(ChildEdges::Enforced),
        Kind::Parent { enforced: false } => Role::Parent(ChildEdges::Loose),
    }
}

fn key(table: &Table, values: &[Value]) -> Option<Vec<Bytes>> {
    let column = |&column: &usize| match &values[column] {
        Value::Text(text) => Some(text.clone()),
        Value::Null | Value::Unchanged => None,
    };
    table.key.iter().map(column).collect()
}
