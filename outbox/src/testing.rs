//! For the tests of applications.
//!
//! [`outbox_runner`] does some work and then delivers everything that it led to, on either side, as a
//! schedule would in its time. To see what was written instead of what it did, leave out the runner
//! and write with [`Drain::atomic_without_flush`]. A [`SiloGuard`] makes a query of the other side's
//! tables an error where a test keeps both sides in one database.

use std::future::Future;

use futures::future::BoxFuture;
use tokio_postgres::Client;

use crate::drain::{DeliveryError, Drain, DrainError};
use crate::model::Model;
use crate::server_error::ServerError;
use crate::silo::{Cell, Control, Silo};
use crate::table::{TableName, quoted};

/// How often the runner goes over the outboxes.
const ROUNDS: usize = 10;

/// Why the outboxes are not empty.
#[derive(Debug, thiserror::Error)]
pub enum OutboxRunnerError {
    /// A message was not delivered.
    #[error("flush the outbox")]
    OutboxFlush(#[source] Box<DeliveryError>),
    /// After ten rounds there were still messages: receivers write what leads to themselves.
    #[error("after {ROUNDS} rounds the outboxes are not empty")]
    OutboxRecursionLimit,
    /// The server failed.
    #[error(transparent)]
    Drain(#[from] DrainError),
}

/// A drain and its connection.
#[derive(Debug)]
pub struct Side<'a, S: Silo> {
    drain: &'a Drain<S>,
    client: &'a mut Client,
}

impl<'a, S: Silo> Side<'a, S> {
    /// A drain and the connection that it works on.
    pub fn new(drain: &'a Drain<S>, client: &'a mut Client) -> Self {
        Self { drain, client }
    }
}

/// A side of either kind.
pub trait AnySide: Send {
    /// Delivers what is there, due or not; whether there was anything.
    fn round(&mut self) -> BoxFuture<'_, Result<bool, OutboxRunnerError>>;
}

impl<S: Silo> AnySide for Side<'_, S> {
    fn round(&mut self) -> BoxFuture<'_, Result<bool, OutboxRunnerError>> {
        Box::pin(async {
            let report = self.drain.everything(self.client).await?;
            if let Some(error) = report.errors.into_iter().next() {
                return Err(OutboxRunnerError::OutboxFlush(Box::new(error)));
            }
            Ok(report.delivered > 0)
        })
    }
}

/// Does work, then delivers everything it led to.
///
/// # Errors
///
/// When a message is not delivered, or there is no end of them.
pub async fn outbox_runner<T>(
    sides: &mut [&mut dyn AnySide],
    work: impl Future<Output = T>,
) -> Result<T, OutboxRunnerError> {
    let value = work.await;
    for _ in 0..ROUNDS {
        let mut any = false;
        for side in &mut *sides {
            any |= side.round().await?;
        }
        if !any {
            return Ok(value);
        }
    }
    Err(OutboxRunnerError::OutboxRecursionLimit)
}

/// The tables of each side, for tests that keep both in one database.
///
/// A connection that [`enter`](Self::enter)s a side takes a role that may use that side's tables and
/// no others; a query of the other side's fails with SQLSTATE 42501, whoever wrote it.
#[derive(Debug, Default)]
pub struct SiloGuard {
    cell: Vec<TableName>,
    control: Vec<TableName>,
}

impl SiloGuard {
    /// With a model's table, on the model's side.
    #[must_use]
    pub fn model<M: Model>(self) -> Self {
        self.table::<M::Silo>(M::table())
    }

    /// With a table of a side.
    #[must_use]
    pub fn table<S: Silo>(mut self, table: impl Into<TableName>) -> Self {
        let tables = if S::NAME == Cell::NAME {
            &mut self.cell
        } else {
            &mut self.control
        };
        tables.push(table.into());
        self
    }

    /// Makes the roles and says what they may use. The connection must be a superuser's.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn install(&self, client: &Client) -> Result<(), ServerError> {
        self.install_side::<Cell>(client, &self.cell).await?;
        self.install_side::<Control>(client, &self.control).await
    }

    async fn install_side<S: Silo>(
        &self,
        client: &Client,
        tables: &[TableName],
    ) -> Result<(), ServerError> {
        let role = quoted(&role::<S>());
        // Roles are the cluster's: another test may make it at the same moment.
        let make = format!(
            "do $$ begin create role {role}; \
             exception when duplicate_object or unique_violation then null; end $$; \
             grant usage on all sequences in schema public to {role};"
        );
        client.batch_execute(&make).await?;
        for table in tables {
            let grant = format!("grant all on {} to {role}", table.sql());
            client.batch_execute(&grant).await?;
        }
        Ok(())
    }

    /// From now on this connection is on one side.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn enter<S: Silo>(&self, client: &Client) -> Result<(), ServerError> {
        let set = format!("set role {}", quoted(&role::<S>()));
        Ok(client.batch_execute(&set).await?)
    }

    /// From now on this connection is on both sides.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn leave(&self, client: &Client) -> Result<(), ServerError> {
        Ok(client.batch_execute("reset role").await?)
    }
}

fn role<S: Silo>() -> String {
    format!("monarch_outbox_{}", S::NAME)
}
