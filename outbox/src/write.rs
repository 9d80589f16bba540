//! Writing: only inside a transaction that the caller holds.
//!
//! A message promises what its transaction does. Written before, it could tell of what never
//! happened; written after, a crash in between would lose it. So a [`Writer`] is made of a
//! [`Transaction`], and there is no other way to write:
//!
//! ```compile_fail,E0308
//! # use monarch_outbox::{Cell, Table};
//! fn without_a_transaction(table: &Table<Cell>, client: &tokio_postgres::Client) {
//!     table.writer(client);
//! }
//! ```
//!
//! which fails for this reason alone, since with a transaction it does compile:
//!
//! ```
//! # use monarch_outbox::{Cell, Table};
//! fn with_a_transaction(table: &Table<Cell>, transaction: &tokio_postgres::Transaction<'_>) {
//!     table.writer(transaction);
//! }
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;

use crate::category::CategoryDef;
use crate::message::{Outbox, Payload, Shard};
use crate::receivers::BoxError;
use crate::server_error::ServerError;
use crate::silo::{Silo, Target};
use crate::table::{Table, TableName, quoted};

/// Rows of one `insert`: a statement has at most 65,535 parameters.
const ROWS_AT_ONCE: usize = 1_000;

/// Writes messages in a transaction, and remembers which shards they joined.
///
/// The transaction stays the caller's: to commit it, to roll it back, and to do in it what the
/// messages tell of.
pub struct Writer<'t, S: Silo> {
    transaction: &'t Transaction<'t>,
    table: &'t Table<S>,
    touched: Mutex<BTreeSet<Shard<S>>>,
}

/// The shards that a transaction wrote to, to be drained once it has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "its messages wait for the schedule unless they are flushed"]
pub struct Touched<S: Silo> {
    pub(crate) shards: BTreeSet<Shard<S>>,
}

/// A message that was not written. The transaction is as the server left it: a refused statement
/// has ended it, what is refused before a statement has not.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The category is no longer in use.
    #[error(
        "write an outbox of category {category} (scope {}, shard {shard}, object {object}): \
         the category is retired",
        .category.scope
    )]
    Retired {
        /// The category.
        category: CategoryDef,
        /// The shard's identifier.
        shard: i64,
        /// The object's identifier.
        object: i64,
    },
    /// The server refused.
    #[error("write {messages} outboxes to {table} (first: category {category}, scope {}, \
             shard {shard}, object {object}): {source}", .category.scope)]
    Server {
        /// The table.
        table: TableName,
        /// How many were to be written.
        messages: usize,
        /// The category of the first.
        category: CategoryDef,
        /// The shard's identifier of the first.
        shard: i64,
        /// The object's identifier of the first.
        object: i64,
        /// What the server said.
        source: ServerError,
    },
    /// The server refused a model's row.
    #[error("{doing} {table}: {source}")]
    Row {
        /// What was being done.
        doing: &'static str,
        /// The model's table.
        table: TableName,
        /// What the server said.
        source: ServerError,
    },
    /// There is no such row to change.
    #[error("update {table}: there is no row {id}")]
    NoRow {
        /// The model's table.
        table: TableName,
        /// The id.
        id: i64,
    },
    /// The model does not say its shard.
    #[error(
        "row {id} of {table} has no shard for category {category}: the column of scope {} is no \
         whole number", .category.scope
    )]
    NoShard {
        /// The model's table.
        table: TableName,
        /// The row's id.
        id: i64,
        /// The model's category.
        category: CategoryDef,
    },
    /// It is not known which cells the message is for.
    #[error("row {id} of {table}: which cells is it for?")]
    NoTarget {
        /// The model's table.
        table: TableName,
        /// The row's id.
        id: i64,
        /// Why.
        source: BoxError,
    },
}

impl<S: Silo> fmt::Debug for Writer<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("table", self.table)
            .field("touched", &self.touched)
            .finish_non_exhaustive()
    }
}

impl<S: Silo> Table<S> {
    /// Writes to this table in a transaction.
    pub fn writer<'t>(&'t self, transaction: &'t Transaction<'t>) -> Writer<'t, S> {
        Writer::new(transaction, self)
    }
}

impl<'t, S: Silo> Writer<'t, S> {
    pub(crate) fn new(transaction: &'t Transaction<'t>, table: &'t Table<S>) -> Self {
        Self {
            transaction,
            table,
            touched: Mutex::default(),
        }
    }

    /// The transaction that it writes in.
    #[must_use]
    pub fn transaction(&self) -> &'t Transaction<'t> {
        self.transaction
    }

    pub(crate) fn table(&self) -> &'t Table<S> {
        self.table
    }

    /// Writes a message.
    ///
    /// # Errors
    ///
    /// When its category is retired or the server refuses.
    pub async fn write(&self, outbox: &Outbox<S>) -> Result<(), WriteError> {
        self.write_all(std::slice::from_ref(outbox)).await
    }

    /// Writes messages, many a statement. Their ids are in the order given.
    ///
    /// # Errors
    ///
    /// When a category is retired, and then none is written, or the server refuses.
    pub async fn write_all(&self, outboxes: &[Outbox<S>]) -> Result<(), WriteError> {
        for outbox in outboxes {
            if outbox.category.retired {
                return Err(WriteError::Retired {
                    category: outbox.category,
                    shard: outbox.shard.identifier,
                    object: outbox.object_identifier,
                });
            }
        }
        for some in outboxes.chunks(ROWS_AT_ONCE) {
            self.insert(some).await?;
        }
        Ok(())
    }

    /// The shards written to. To be flushed when the transaction has committed.
    pub fn finish(self) -> Touched<S> {
        let shards = self
            .touched
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Touched { shards }
    }

    async fn insert(&self, outboxes: &[Outbox<S>]) -> Result<(), WriteError> {
        let Some(first) = outboxes.first() else {
            return Ok(());
        };
        let payloads: Vec<Payload<'_>> = outboxes
            .iter()
            .map(|outbox| Payload(outbox.payload.as_ref()))
            .collect();
        let targets: Vec<Option<&str>> = outboxes
            .iter()
            .map(|outbox| outbox.shard.target.cell().map(|cell| cell.as_str()))
            .collect();
        let mut values: Vec<&(dyn ToSql + Sync)> = Vec::new();
        for ((outbox, payload), target) in outboxes.iter().zip(&payloads).zip(&targets) {
            values.push(&outbox.shard.scope);
            values.push(&outbox.shard.identifier);
            values.push(&outbox.category.number);
            values.push(&outbox.object_identifier);
            values.push(payload);
            if S::TARGETED {
                values.push(target);
            }
        }
        self.transaction
            .execute(&self.table.insert_sql(outboxes.len()), &values)
            .await
            .map_err(|error| WriteError::Server {
                table: self.table.name().clone(),
                messages: outboxes.len(),
                category: first.category,
                shard: first.shard.identifier,
                object: first.object_identifier,
                source: error.into(),
            })?;
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.extend(outboxes.iter().map(|outbox| outbox.shard.clone()));
        drop(touched);
        metrics::counter!("outbox.saved", "silo" => S::NAME).increment(outboxes.len() as u64);
        Ok(())
    }
}

impl<S: Silo> Table<S> {
    /// Due at once: the schedule of a new message lies in the past. Instants are the database's, so
    /// that writers' clocks do not matter.
    fn insert_sql(&self, rows: usize) -> String {
        let target = if S::TARGETED {
            format!(", {}", quoted(self.target()))
        } else {
            String::new()
        };
        let columns = if S::TARGETED { 6 } else { 5 };
        let rows: Vec<String> = (0..rows)
            .map(|row| {
                let first = row * columns;
                let [scope, shard, category, object, payload] = [1, 2, 3, 4, 5].map(|n| first + n);
                let target = if S::TARGETED {
                    format!(", ${}::text", first + 6)
                } else {
                    String::new()
                };
                format!(
                    "(${scope}::int4, ${shard}::int8, ${category}::int4, ${object}::int8, \
                     ${payload}, statement_timestamp(), '2016-08-01 00:00:00+00', \
                     statement_timestamp(){target})"
                )
            })
            .collect();
        format!(
            "insert into {} (shard_scope, shard_identifier, category, object_identifier, payload, \
             scheduled_from, scheduled_for, date_added{target}) values {}",
            self.name().sql(),
            rows.join(", ")
        )
    }
}
