//! Who handles which category.
//!
//! A receiver must be idempotent: it may be called again for the same message, and it sees only the
//! newest of several. It is called with the shard's lock held, so the messages of one shard reach it
//! one after another.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_postgres::Transaction;

use crate::category::CategoryDef;
use crate::message::{Message, Outbox, Shard};
use crate::server_error::ServerError;
use crate::silo::Silo;
use crate::table::Table;
use crate::write::{WriteError, Writer};

/// The longest timeout that the server takes.
const MOST_MS: u128 = i32::MAX as u128;

/// An application's error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Handles the messages of a category.
pub trait Receiver<S: Silo>: Send + Sync + 'static {
    /// Handles a message. An error puts the whole shard on backoff, this message still at its head.
    fn receive<'a>(&'a self, delivery: &'a Delivery<'a, S>) -> BoxFuture<'a, Result<(), BoxError>>;
}

/// What a receiver is given: the message, and the transaction in which it will be deleted.
pub struct Delivery<'a, S: Silo> {
    message: &'a Message<S>,
    transaction: &'a Transaction<'a>,
    table: &'a Table<S>,
    /// How long the receiver, and each statement of it, may take.
    within: Duration,
    saved: AtomicBool,
    written: Mutex<Vec<Shard<S>>>,
}

impl<S: Silo> fmt::Debug for Delivery<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the message: its payload is nobody's to print.
        f.debug_struct("Delivery")
            .field("id", &self.message.id)
            .field("shard", &self.message.shard)
            .finish_non_exhaustive()
    }
}

impl<'a, S: Silo> Delivery<'a, S> {
    pub(crate) fn new(
        message: &'a Message<S>,
        transaction: &'a Transaction<'a>,
        table: &'a Table<S>,
        within: Duration,
    ) -> Self {
        Self {
            message,
            transaction,
            table,
            within,
            saved: AtomicBool::new(false),
            written: Mutex::default(),
        }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &'a Message<S> {
        self.message
    }

    /// The transaction in which the message is deleted once it is handled. What a receiver does here
    /// happens exactly if the message goes; it is undone if the receiver fails. A statement in it
    /// takes no longer than a receiver may: what is undone waits for the statement under way.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn transaction(&self) -> Result<&'a Transaction<'a>, ServerError> {
        if !self.saved.swap(true, Ordering::AcqRel) {
            let timeout_ms = self.within.as_millis().clamp(1, MOST_MS);
            let save = format!("savepoint receiver; set local statement_timeout = {timeout_ms}");
            self.transaction.batch_execute(&save).await?;
        }
        Ok(self.transaction)
    }

    /// Writes messages in that transaction: delivered after it, when the shard that they join comes.
    ///
    /// # Errors
    ///
    /// When a category is retired or the server refuses.
    pub async fn write_all(&self, outboxes: &[Outbox<S>]) -> Result<(), BoxError> {
        let writer = Writer::new(self.transaction().await?, self.table);
        let written: Result<(), WriteError> = writer.write_all(outboxes).await;
        written?;
        let mut shards = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        shards.extend(writer.finish().shards);
        Ok(())
    }

    /// Keeps what the receiver did; returns the shards that it wrote to. The server refuses where the
    /// receiver went on after a statement of its own had failed: then nothing of it can be kept.
    pub(crate) async fn keep(&self) -> Result<Vec<Shard<S>>, ServerError> {
        if self.saved.load(Ordering::Acquire) {
            let keep = "release savepoint receiver; set local statement_timeout to default";
            self.transaction.batch_execute(keep).await?;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *written))
    }

    /// Undoes what the receiver did in the transaction.
    pub(crate) async fn undo(&self) -> Result<(), ServerError> {
        if self.saved.load(Ordering::Acquire) {
            let undo = "rollback to savepoint receiver; release savepoint receiver";
            self.transaction.batch_execute(undo).await?;
        }
        Ok(())
    }
}

/// A closure that is given the message alone.
struct Plain<F>(F);

impl<S, F, Fut, E> Receiver<S> for Plain<F>
where
    S: Silo,
    F: Fn(Message<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    fn receive<'a>(&'a self, delivery: &'a Delivery<'a, S>) -> BoxFuture<'a, Result<(), BoxError>> {
        let handling = (self.0)(delivery.message().clone());
        Box::pin(async move { handling.await.map_err(Into::into) })
    }
}

/// The receivers of a program, one a category.
pub struct Receivers<S: Silo> {
    by_category: BTreeMap<i32, (CategoryDef, Arc<dyn Receiver<S>>)>,
    otherwise: Option<Arc<dyn Receiver<S>>>,
    pub(crate) taken_twice: Vec<CategoryDef>,
}

impl<S: Silo> Default for Receivers<S> {
    fn default() -> Self {
        Self {
            by_category: BTreeMap::new(),
            otherwise: None,
            taken_twice: Vec::new(),
        }
    }
}

impl<S: Silo> fmt::Debug for Receivers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let categories = self.by_category.keys();
        f.debug_set().entries(categories).finish()
    }
}

impl<S: Silo> Receivers<S> {
    /// None yet. A message of a category that nobody receives fails, and stays.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles a category with a closure that is given the message alone.
    #[must_use]
    pub fn on<F, Fut, E>(self, category: impl Into<CategoryDef>, handle: F) -> Self
    where
        F: Fn(Message<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        self.with(category, Plain(handle))
    }

    /// Handles a category with a receiver.
    #[must_use]
    pub fn with(mut self, category: impl Into<CategoryDef>, receiver: impl Receiver<S>) -> Self {
        let category = category.into();
        let entry = (category, Arc::new(receiver) as Arc<dyn Receiver<S>>);
        let before = self.by_category.insert(category.number, entry);
        if before.is_some() {
            self.taken_twice.push(category);
        }
        self
    }

    /// Lets the messages of a category go unhandled: for one that is retired, or that this program
    /// no longer cares for.
    #[must_use]
    pub fn ignore(self, category: impl Into<CategoryDef>) -> Self {
        self.on(category, |_| std::future::ready(Ok::<(), BoxError>(())))
    }

    /// Hands whatever has no receiver of its own to this one, categories that are not registered or
    /// stand in another scope included: for a program that passes messages on to others who know what
    /// they mean.
    #[must_use]
    pub fn otherwise(mut self, receiver: impl Receiver<S>) -> Self {
        self.otherwise = Some(Arc::new(receiver));
        self
    }

    pub(crate) fn of(&self, category: i32) -> Option<&Arc<dyn Receiver<S>>> {
        let own = self.by_category.get(&category);
        own.map(|(_, receiver)| receiver)
            .or(self.otherwise.as_ref())
    }

    /// Whether a category is received whether it is registered or not.
    pub(crate) fn take_unregistered(&self, category: i32) -> bool {
        self.otherwise.is_some() && !self.by_category.contains_key(&category)
    }

    pub(crate) fn categories(&self) -> impl Iterator<Item = CategoryDef> {
        self.by_category.values().map(|(category, _)| *category)
    }
}
