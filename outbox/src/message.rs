//! Messages: what is written, and what is delivered.

use std::fmt;

use bytes::{BufMut, BytesMut};
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::category::{CategoryDef, ScopeDef};
use crate::silo::{Cell, CellName, Control, Here, Silo, Target};

/// A queue of its own: the messages of one scope with one identifier (and, on the control side, for
/// one cell) are handled one after another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard<S: Silo> {
    /// For control, the cell that its messages are for.
    pub target: S::Target,
    /// The number of its scope.
    pub scope: i32,
    /// Such as the organization's id.
    pub identifier: i64,
}

impl Shard<Cell> {
    /// A shard of a cell's outbox.
    #[must_use]
    pub fn cell(scope: impl Into<ScopeDef>, identifier: i64) -> Self {
        Self {
            target: Here,
            scope: scope.into().number,
            identifier,
        }
    }
}

impl Shard<Control> {
    /// A shard of control's outbox.
    #[must_use]
    pub fn control(cell: CellName, scope: impl Into<ScopeDef>, identifier: i64) -> Self {
        Self {
            target: cell,
            scope: scope.into().number,
            identifier,
        }
    }
}

impl<S: Silo> fmt::Display for Shard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {}, shard {}", self.scope, self.identifier)?;
        match self.target.cell() {
            Some(cell) => write!(f, ", cell {cell}"),
            None => Ok(()),
        }
    }
}

/// A message to be written, in the transaction that it tells of.
#[derive(Debug, Clone, PartialEq)]
pub struct Outbox<S: Silo> {
    pub(crate) category: CategoryDef,
    pub(crate) shard: Shard<S>,
    pub(crate) object_identifier: i64,
    pub(crate) payload: Option<Value>,
}

/// A message of a cell, for control.
pub type CellOutbox = Outbox<Cell>;

/// A message of control, for one cell.
pub type ControlOutbox = Outbox<Control>;

impl Outbox<Cell> {
    /// A message of a cell. Messages of equal category, shard and object are coalesced: where each
    /// one counts, each needs an object identifier of its own.
    #[must_use]
    pub fn new(category: impl Into<CategoryDef>, shard: i64, object: i64) -> Self {
        Self::to(Here, category.into(), shard, object)
    }
}

impl Outbox<Control> {
    /// A message of control for one cell. Messages of equal cell, category, shard and object are
    /// coalesced: where each one counts, each needs an object identifier of its own.
    #[must_use]
    pub fn new(cell: CellName, category: impl Into<CategoryDef>, shard: i64, object: i64) -> Self {
        Self::to(cell, category.into(), shard, object)
    }
}

impl<S: Silo> Outbox<S> {
    pub(crate) fn to(target: S::Target, category: CategoryDef, shard: i64, object: i64) -> Self {
        Self {
            category,
            shard: Shard {
                target,
                scope: category.scope.number,
                identifier: shard,
            },
            object_identifier: object,
            payload: None,
        }
    }

    /// With a payload. Of several messages that are coalesced only the last one's is delivered.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Option<Value>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The shard that it joins.
    #[must_use]
    pub fn shard(&self) -> &Shard<S> {
        &self.shard
    }
}

/// A message to be handled: the newest of those that were coalesced.
#[derive(Debug, Clone, PartialEq)]
pub struct Message<S: Silo> {
    /// The id of its row.
    pub id: i64,
    /// What kind it is.
    pub category: CategoryDef,
    /// The queue that it stands in.
    pub shard: Shard<S>,
    /// The object that it is about, such as the id of a model's row.
    pub object_identifier: i64,
    /// What was sent along.
    pub payload: Option<Value>,
    /// When it was written, by the database's clock.
    pub date_added: Timestamp,
    /// When the shard is tried again if this fails.
    pub scheduled_for: Timestamp,
    /// How many older messages it stands for.
    pub coalesced: u64,
}

impl<S: Silo> Message<S> {
    /// The identifier of its shard, such as the organization's id.
    #[must_use]
    pub fn shard_identifier(&self) -> i64 {
        self.shard.identifier
    }
}

impl Message<Control> {
    /// The cell that it is for.
    #[must_use]
    pub fn cell_name(&self) -> &CellName {
        &self.shard.target
    }
}

/// A payload as a parameter: tables of others keep it as text, json or jsonb.
#[derive(Debug)]
pub(crate) struct Payload<'a>(pub(crate) Option<&'a Value>);

impl ToSql for Payload<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(payload) = self.0 else {
            return Ok(IsNull::Yes);
        };
        if *kind == Type::JSONB {
            // The version of jsonb's binary form.
            out.put_u8(1);
        }
        serde_json::to_writer(out.writer(), payload)?;
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        [Type::JSONB, Type::JSON, Type::TEXT, Type::VARCHAR].contains(kind)
    }

    to_sql_checked!();
}
