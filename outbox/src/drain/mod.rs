//! Draining: shard by shard, one message at a time.
//!
//! A drain makes transactions of its own and holds locks while receivers work; inside of another
//! transaction it would hold them for too long, or wait for itself. So it takes the connection whole,
//! which nobody can lend out while a transaction lives on it:
//!
//! ```compile_fail,E0499
//! # use monarch_outbox::{Cell, Drain, Shard};
//! # async fn inside(drain: &Drain<Cell>, client: &mut tokio_postgres::Client, shard: &Shard<Cell>) {
//! let transaction = client.transaction().await.unwrap();
//! drain.shard(client, shard).await.unwrap();
//! transaction.commit().await.unwrap();
//! # }
//! ```
//!
//! Nor does it take a transaction:
//!
//! ```compile_fail,E0308
//! # use monarch_outbox::{Cell, Drain, Shard};
//! # async fn inside(
//! #     drain: &Drain<Cell>, transaction: &mut tokio_postgres::Transaction<'_>, shard: &Shard<Cell>,
//! # ) {
//! drain.shard(transaction, shard).await.unwrap();
//! # }
//! ```
//!
//! Once the transaction has ended, it does compile:
//!
//! ```
//! # use monarch_outbox::{Cell, Drain, Shard};
//! # async fn outside(drain: &Drain<Cell>, client: &mut tokio_postgres::Client, shard: &Shard<Cell>) {
//! let transaction = client.transaction().await.unwrap();
//! transaction.commit().await.unwrap();
//! drain.shard(client, shard).await.unwrap();
//! # }
//! ```

mod backoff;
mod chosen;
mod error;
pub(crate) mod index;
mod lock;
#[cfg(test)]
mod plans;
mod settings;
pub(crate) mod statements;
mod visit;
mod walk;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::category::{CategoryDef, Registry};
use crate::message::Shard;
use crate::options::{FixedOptions, Options};
use crate::receivers::Receivers;
use crate::server_error::ServerError;
use crate::silo::Silo;
use crate::table::Table;
use crate::write::{Touched, Writer};

pub use error::{AtomicError, DeliveryError, DrainError, StartError, Undelivered};
pub use settings::DrainSettings;
pub use walk::{Partition, Report};

use statements::Statements;
use visit::How;
use walk::Lookups;

/// How often a flush follows the messages that its receivers write.
const ROUNDS: usize = 10;

/// Delivers the messages of one table.
pub struct Drain<S: Silo> {
    table: Table<S>,
    registry: Registry,
    receivers: Receivers<S>,
    options: Arc<dyn Options>,
    settings: DrainSettings,
    stop: CancellationToken,
    statements: Statements,
    lookups: Lookups,
}

impl<S: Silo> std::fmt::Debug for Drain<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain")
            .field("table", &self.table)
            .field("receivers", &self.receivers)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What a transaction of [`Drain::atomic`] left.
#[derive(Debug)]
pub struct Committed<T> {
    /// What the work returned.
    pub value: T,
    /// What became of its messages. An error here takes nothing back: the transaction has committed,
    /// and the messages are delivered later.
    pub flushed: Result<Report, DrainError>,
}

impl<S: Silo> Drain<S> {
    /// A drain of a table with these receivers.
    ///
    /// # Errors
    ///
    /// When receivers and registry do not fit together; all faults at once.
    pub fn new(
        table: Table<S>,
        registry: Registry,
        receivers: Receivers<S>,
    ) -> Result<Self, StartError> {
        let twice = receivers.taken_twice.iter();
        let mut faults: Vec<String> = twice
            .map(|category| format!("category {category} has two receivers"))
            .collect();
        let unknown = receivers.categories();
        faults.extend(
            unknown
                .filter(|category| registry.category(category.number) != Some(*category))
                .map(|category: CategoryDef| {
                    format!("category {category} has a receiver and is not registered")
                }),
        );
        if !faults.is_empty() {
            return Err(StartError { faults });
        }
        Ok(Self {
            statements: Statements::new(&table),
            lookups: Lookups::new(&table),
            table,
            registry,
            receivers,
            options: Arc::new(FixedOptions::default()),
            settings: DrainSettings::default(),
            stop: CancellationToken::new(),
        })
    }

    /// Reads options here: shards that are left alone, backfills. By default none is set.
    #[must_use]
    pub fn options(mut self, options: impl Options) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// Other limits than the usual ones.
    #[must_use]
    pub fn settings(mut self, settings: DrainSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Stops after the message under way when this token is cancelled.
    #[must_use]
    pub fn stop_on(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// The table that it drains, to write to.
    #[must_use]
    pub fn table(&self) -> &Table<S> {
        &self.table
    }

    /// The categories that it knows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The SQL of a drain, a statement each, with what it does and what its parameters are.
    #[must_use]
    pub fn sql(&self) -> String {
        self.statements.described()
    }

    pub(crate) fn option_source(&self) -> &dyn Options {
        &*self.options
    }

    /// Whether it was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when it is told to stop.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Does work in a transaction of its own, commits, and delivers what the work wrote.
    ///
    /// The messages are delivered before this returns, and what goes wrong with that is in
    /// [`Committed::flushed`]: the work itself is done.
    ///
    /// # Errors
    ///
    /// When the work fails, and then the transaction is rolled back, or when it cannot commit.
    pub async fn atomic<T, E>(
        &self,
        client: &mut Client,
        work: impl AsyncFnOnce(&Writer<'_, S>) -> Result<T, E>,
    ) -> Result<Committed<T>, AtomicError<E>> {
        let (value, touched) = self.atomic_without_flush(client, work).await?;
        let flushed = self.flush(client, touched).await;
        Ok(Committed { value, flushed })
    }

    /// The same without delivering: the messages wait for the schedule, or for a
    /// [`flush`](Self::flush) of what is returned.
    ///
    /// # Errors
    ///
    /// When the work fails, and then the transaction is rolled back, or when it cannot commit.
    pub async fn atomic_without_flush<T, E>(
        &self,
        client: &mut Client,
        work: impl AsyncFnOnce(&Writer<'_, S>) -> Result<T, E>,
    ) -> Result<(T, Touched<S>), AtomicError<E>> {
        let begun = client.transaction().await;
        let transaction = begun.map_err(|error| AtomicError::Begin(error.into()))?;
        let writer = self.table.writer(&transaction);
        match work(&writer).await {
            Ok(value) => {
                let touched = writer.finish();
                let committed = transaction.commit().await;
                committed.map_err(|error| AtomicError::Commit(error.into()))?;
                Ok((value, touched))
            }
            Err(error) => {
                // What the server says to a rollback changes nothing: it is rolled back.
                let _ = transaction.rollback().await;
                Err(AtomicError::Work(error))
            }
        }
    }

    /// Delivers what a transaction wrote, once it has committed: in each shard what was there when
    /// its turn began, waiting for another drain that is at work in it. Shards that receivers write
    /// to meanwhile are followed.
    ///
    /// # Errors
    ///
    /// When the server fails. A message that cannot be delivered is no error of the flush: it is in
    /// the report, and its shard on backoff.
    pub async fn flush(
        &self,
        client: &mut Client,
        touched: Touched<S>,
    ) -> Result<Report, DrainError> {
        let mut report = Report::default();
        let mut shards = touched.shards;
        for _ in 0..ROUNDS {
            if shards.is_empty() {
                break;
            }
            let skipped = self.skipped(client).await?;
            let mut next = BTreeSet::new();
            for shard in shards {
                if skipped.contains(&(shard.scope, shard.identifier)) {
                    report.skipped += 1;
                    continue;
                }
                let visited = self
                    .visit(client, &self.statements, &shard, How::AtCommit)
                    .await?;
                next.extend(report.add(visited));
            }
            shards = next;
        }
        Ok(report)
    }

    /// Delivers a shard now, whether it is due or not, unless it is switched off.
    ///
    /// # Errors
    ///
    /// When the shard has no message, or the server fails. A message that cannot be delivered is in
    /// the report.
    pub async fn shard(&self, client: &mut Client, shard: &Shard<S>) -> Result<Report, DrainError> {
        let mut report = Report::default();
        if self.highest(client, shard).await?.is_none() {
            return Err(DrainError::NoSuchShard {
                table: self.table.name().clone(),
                scope: self.registry.scope_label(shard.scope),
                shard: shard.identifier,
                cell: shard.target_name().map(str::to_owned),
            });
        }
        let skipped = self.skipped(client).await?;
        if skipped.contains(&(shard.scope, shard.identifier)) {
            report.skipped += 1;
        } else {
            let visited = self
                .visit(client, &self.statements, shard, How::ByHand)
                .await?;
            report.add(visited);
        }
        Ok(report)
    }

    /// The shards that operators have switched off, by scope and identifier.
    pub(crate) async fn skipped(
        &self,
        client: &Client,
    ) -> Result<BTreeSet<(i32, i64)>, DrainError> {
        let mut skipped = BTreeSet::new();
        for scope in self.registry.scopes() {
            let Some(key) = scope.switch else { continue };
            let shards = crate::options::numbers(&*self.options, client, key).await?;
            skipped.extend(shards.into_iter().map(|shard| (scope.number, shard)));
        }
        Ok(skipped)
    }

    /// How many messages there are; no more than `most` are counted.
    pub(crate) async fn queued_up_to(&self, client: &Client, most: u32) -> Result<i64, DrainError> {
        let count = format!(
            "select count(*) from (select from {} limit {most}) as counted",
            self.table.name().sql()
        );
        let rows = client.query_typed(&count, &[]).await;
        let rows = rows.map_err(self.server("count the messages of"))?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    fn server(&self, doing: &'static str) -> impl Fn(tokio_postgres::Error) -> DrainError {
        let table = self.table.name().clone();
        move |error| DrainError::Server {
            doing,
            table: table.clone(),
            source: ServerError::from(error),
        }
    }
}
