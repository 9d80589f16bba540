//! One visit of one shard.
//!
//! A visit is a chain of transactions. Each takes the shard's lock, chooses the next messages, calls
//! their receivers one after another, deletes what was delivered, and commits. Deleted is what was
//! seen when the message was chosen, by id, so that an id that commits late is still delivered.
//!
//! A scheduled visit first puts the shard's head on backoff, and every head after it as it comes: if
//! the process dies in a receiver, the shard waits, as it does after any other failure. The head
//! decides for its shard. The rows behind it are marked as well when a message fails, so that queries
//! see it, up to [`ROWS_PUT_OFF`]: no row is needed for the shard to wait.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row, Transaction};

use super::backoff::Taken;
use super::chosen::Chosen;
use super::index::Parameter;
use super::statements::{Run, SETTINGS, Statements};
use super::{DeliveryError, Drain, DrainError, Undelivered};
use crate::category::CategoryDef;
use crate::message::{Message, Shard};
use crate::receivers::Delivery;
use crate::server_error::ServerError;
use crate::silo::Silo;

/// Rows of a shard that a failure marks.
const ROWS_PUT_OFF: i64 = 10_000;

/// Rows that are looked at for a message: more, and rows are read in vain where nothing is coalesced;
/// fewer, and a batch is small where much is.
const ROWS_A_MESSAGE: i64 = 2;

/// How long a scheduled visit waits for the lock of a shard that it has taken. Others that look
/// whether the shard is to be had hold it for a moment; who holds it for longer is at work.
const GIVES_WAY_AFTER: Duration = Duration::from_millis(500);

/// In whose name a shard is visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// The schedule's: if due, giving way to others, until it is empty.
    Scheduled,
    /// A commit's: what is there when it begins, waiting for others.
    AtCommit,
    /// An operator's: due or not, waiting for others, until it is empty.
    ByHand,
}

/// How a visit ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// No message is left.
    Empty,
    /// What was to be delivered is; there are newer messages, or the visit took long enough.
    Bound,
    /// Another drain is at work in the shard.
    Busy,
    /// The shard is on backoff, or empty.
    NotDue,
    /// The drain was told to stop.
    Stopped,
    /// A message was not delivered.
    Failed(Box<DeliveryError>),
}

/// What a visit did.
#[derive(Debug)]
pub(super) struct Visited<S: Silo> {
    /// Messages delivered.
    pub(super) delivered: u64,
    /// Older messages deleted with them.
    pub(super) coalesced: u64,
    /// How it ended.
    pub(super) ended: Ended,
    /// The shards that receivers wrote to.
    pub(super) followed: Vec<Shard<S>>,
}

/// What a transaction of a visit did.
enum Batch {
    /// The shard's lock is another's.
    Busy,
    /// There was nothing to choose.
    Nothing,
    /// Messages were delivered.
    Delivered {
        /// Whether the shard has more to deliver.
        more: bool,
    },
    /// One was not; those before it were.
    Failed(Box<DeliveryError>),
}

/// A visit under way.
struct Visit<'d, S: Silo, T> {
    drain: &'d Drain<S>,
    statements: &'d Statements<T>,
    shard: &'d Shard<S>,
    how: How,
    /// The highest id that a head may have.
    upto: i64,
    /// The delay of the shard if it fails, where that is known before.
    delay_secs: Option<f64>,
    begun: Instant,
    done: Visited<S>,
}

impl<S: Silo> Drain<S> {
    pub(super) async fn visit(
        &self,
        client: &mut Client,
        statements: &Statements<impl Run>,
        shard: &Shard<S>,
        how: How,
    ) -> Result<Visited<S>, DrainError> {
        let mut visit = Visit {
            drain: self,
            statements,
            shard,
            how,
            upto: i64::MAX,
            delay_secs: None,
            begun: Instant::now(),
            done: Visited {
                delivered: 0,
                coalesced: 0,
                ended: Ended::Empty,
                followed: Vec::new(),
            },
        };
        visit.done.ended = match how {
            How::Scheduled => match visit.take(client).await? {
                Taken::Had { delay_secs } => {
                    visit.delay_secs = Some(delay_secs);
                    visit.go_on(client).await?
                }
                Taken::Busy => Ended::Busy,
                Taken::NotDue => Ended::NotDue,
            },
            How::AtCommit => match self.highest(client, shard).await? {
                Some(highest) => {
                    visit.upto = highest;
                    visit.go_on(client).await?
                }
                None => Ended::Empty,
            },
            How::ByHand => visit.go_on(client).await?,
        };
        if let Ended::Failed(error) = &visit.done.ended {
            let source = std::error::Error::source(&error.why).map(ToString::to_string);
            tracing::error!(
                table = %self.table.name(), category = error.category, scope = error.scope,
                shard = error.shard, object = error.object, cell = error.cell,
                why = %error.why, source, "outbox not delivered"
            );
        }
        Ok(visit.done)
    }

    /// The highest id of a shard.
    pub(super) async fn highest(
        &self,
        client: &Client,
        shard: &Shard<S>,
    ) -> Result<Option<i64>, DrainError> {
        let target = shard.target_name();
        let parameters = shard.parameters(&target);
        let asked = client.query_typed(&self.lookups.highest, &parameters).await;
        let rows = asked.map_err(self.server("look into a shard of"))?;
        Ok(rows.first().and_then(|row| row.get(0)))
    }
}

impl<S: Silo, T: Run> Visit<'_, S, T> {
    /// Puts the head of a shard that is due on backoff, all in one go. A crash of the server may undo
    /// it, and everything that is done after it: it need not be waited for on disk.
    async fn take(&self, client: &Client) -> Result<Taken, DrainError> {
        let target = self.shard.target_name();
        let lock = self.shard.lock(&self.drain.table);
        let mut parameters = self.shard.parameters(&target);
        parameters.push((&lock, Type::INT8));
        let begin = format!("begin; {SETTINGS} set local synchronous_commit = off;");
        // In this order; whatever fails, the last one ends the transaction.
        let taken = tokio::try_join!(
            biased;
            client.batch_execute(&begin),
            self.statements.take.rows(client, &parameters),
            client.batch_execute("commit"),
        );
        match taken {
            Ok(((), rows, ())) => Ok(Taken::read(&rows)),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Taken::Busy),
            Err(error) => Err(self.drain.server("take a shard of")(error)),
        }
    }

    async fn go_on(&mut self, client: &mut Client) -> Result<Ended, DrainError> {
        loop {
            match self.batch(client).await? {
                Batch::Busy => return Ok(Ended::Busy),
                Batch::Nothing => return Ok(Ended::Empty),
                Batch::Failed(error) => return Ok(Ended::Failed(error)),
                Batch::Delivered { more: false } => {
                    return Ok(match self.how {
                        How::AtCommit => Ended::Bound,
                        How::Scheduled | How::ByHand => Ended::Empty,
                    });
                }
                Batch::Delivered { more: true } => {
                    if let Some(ended) = self.enough() {
                        self.make_due(client).await?;
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Whether to end here, though there is more to deliver.
    fn enough(&self) -> Option<Ended> {
        if self.drain.stop.is_cancelled() {
            return Some(Ended::Stopped);
        }
        let long = self.begun.elapsed() >= self.drain.settings.visit_time;
        (self.how == How::Scheduled && long).then_some(Ended::Bound)
    }

    /// What is left of a shard that did not fail is due.
    async fn make_due(&self, client: &Client) -> Result<(), DrainError> {
        if self.how != How::Scheduled {
            return Ok(());
        }
        let target = self.shard.target_name();
        let parameters = self.shard.parameters(&target);
        let made = self.statements.make_due.rows(client, &parameters).await;
        made.map_err(self.drain.server("give back a shard of"))?;
        Ok(())
    }

    async fn batch(&mut self, client: &mut Client) -> Result<Batch, DrainError> {
        let failed = self.drain.server("deliver a shard of");
        let transaction = client.transaction().await.map_err(&failed)?;
        let rows = match self.choose(&transaction).await {
            Ok(rows) => rows,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                return self.not_locked();
            }
            Err(error) => return Err(failed(error)),
        };
        if rows.is_empty() {
            return Ok(Batch::Nothing);
        }
        let mut delivered = Vec::new();
        let mut failure = None;
        let begun = Instant::now();
        for row in &rows {
            let chosen = Chosen::read(row).map_err(&failed)?;
            let late = begun.elapsed() >= self.drain.settings.batch_time;
            if !delivered.is_empty() && (late || self.drain.stop.is_cancelled()) {
                break;
            }
            match self.deliver(&transaction, &chosen).await? {
                Ok(()) => delivered.push(chosen),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let more = self
            .settle(&transaction, &delivered, failure.is_some())
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        self.count(&delivered);
        Ok(match failure {
            Some(error) => Batch::Failed(Box::new(error)),
            None => Batch::Delivered { more },
        })
    }

    fn not_locked(&self) -> Result<Batch, DrainError> {
        if self.how == How::Scheduled {
            return Ok(Batch::Busy);
        }
        Err(DrainError::Locked {
            table: self.drain.table.name().clone(),
            scope: self.drain.registry.scope_label(self.shard.scope),
            shard: self.shard.identifier,
        })
    }

    /// Takes the shard's locks and chooses messages, all sent at once: each statement sees what was
    /// committed before it began, so the choice is made after the lock was had.
    async fn choose(
        &mut self,
        transaction: &Transaction<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let (settings, statements) = (&self.drain.settings, self.statements);
        let timeout_ms = match self.how {
            How::Scheduled => GIVES_WAY_AFTER,
            How::AtCommit | How::ByHand => settings.lock_timeout,
        }
        .as_millis();
        let set = format!(
            "{SETTINGS} set local lock_timeout = {timeout_ms}; \
             set local idle_in_transaction_session_timeout = {}",
            settings.idle_ms()
        );
        let number = self.shard.lock(&self.drain.table);
        let number: [Parameter<'_>; 1] = [(&number, Type::INT8)];
        let target = self.shard.target_name();
        let shard = self.shard.parameters(&target);
        let messages = i64::from(settings.batch_messages.max(1));
        let rows = messages * ROWS_A_MESSAGE;
        let bytes = i64::from(settings.batch_bytes.max(1));
        let mut choice = self.shard.parameters(&target);
        choice.push((&self.upto, Type::INT8));
        choice.push((&rows, Type::INT8));
        choice.push((&messages, Type::INT8));
        choice.push((&bytes, Type::INT8));
        // In this order, so that the first failure is reported and not those that follow from it.
        let (_, _, head, chosen) = tokio::try_join!(
            biased;
            transaction.batch_execute(&set),
            statements.lock.rows(transaction, &number),
            statements.lock_head.rows(transaction, &shard),
            statements.choose.rows(transaction, &choice),
        )?;
        if let (true, Some(head)) = (self.how != How::Scheduled, head.first()) {
            // A shard that is on backoff already is not put off further by a commit.
            let due: bool = head.get(1);
            self.delay_secs = due.then(|| head.get(0));
        }
        Ok(chosen)
    }

    /// Calls the receiver of a message, and keeps or undoes what it did in the transaction.
    async fn deliver(
        &mut self,
        transaction: &Transaction<'_>,
        chosen: &Chosen,
    ) -> Result<Result<(), DeliveryError>, DrainError> {
        let message = match self.message(chosen) {
            Ok(message) => message,
            Err(why) => return Ok(Err(self.undelivered(chosen, why))),
        };
        let Some(receiver) = self.drain.receivers.of(chosen.category) else {
            return Ok(Err(self.undelivered(chosen, Undelivered::NoReceiver)));
        };
        let after = self.drain.settings.receiver_timeout;
        let delivery = Delivery::new(&message, transaction, &self.drain.table, after);
        let begun = Instant::now();
        let receiving = AssertUnwindSafe(receiver.receive(&delivery)).catch_unwind();
        let received = match tokio::time::timeout(after, receiving).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Undelivered::Receiver(error)),
            Ok(Err(_)) => Err(Undelivered::Panic),
            Err(_) => Err(Undelivered::Timeout { after }),
        };
        let category = message.category.name;
        metrics::histogram!("outbox.send_signal.duration", "category" => category)
            .record(begun.elapsed());
        let kept = match received {
            Ok(()) => delivery.keep().await.map_err(Undelivered::from),
            Err(why) => Err(why),
        };
        match kept {
            Ok(followed) => {
                measure(category, begun.elapsed(), chosen.queued_secs);
                self.done.followed.extend(followed);
                Ok(Ok(()))
            }
            Err(why) => {
                let undone = delivery.undo().await;
                undone.map_err(|source| DrainError::Server {
                    doing: "undo a receiver's work of",
                    table: self.drain.table.name().clone(),
                    source,
                })?;
                Ok(Err(self.undelivered(chosen, why)))
            }
        }
    }

    fn message(&self, chosen: &Chosen) -> Result<Message<S>, Undelivered> {
        let payload = chosen.payload.as_deref().map(|text| {
            serde_json::from_str(text).map_err(|error| Undelivered::NotJson {
                bytes: text.len(),
                line: error.line(),
                column: error.column(),
            })
        });
        Ok(Message {
            id: chosen.ids.last().copied().unwrap_or_default(),
            category: self.category(chosen.category)?,
            shard: self.shard.clone(),
            object_identifier: chosen.object,
            payload: payload.transpose()?,
            date_added: chosen.date_added,
            scheduled_for: chosen.scheduled_for,
            coalesced: chosen.ids.len() as u64 - 1,
        })
    }

    /// The category of a row. Who receives what is not registered knows better than we where it belongs.
    fn category(&self, number: i32) -> Result<CategoryDef, Undelivered> {
        let scope = self.shard.scope;
        let known = self.drain.registry.category(number);
        match known {
            Some(category) if category.scope.number == scope => Ok(category),
            _ if self.drain.receivers.take_unregistered(number) => {
                Ok(CategoryDef::unregistered(number, scope))
            }
            Some(category) => Err(Undelivered::WrongScope {
                expected: category.scope.to_string(),
            }),
            None => Err(Undelivered::UnknownCategory),
        }
    }

    fn undelivered(&self, chosen: &Chosen, why: Undelivered) -> DeliveryError {
        let registry = &self.drain.registry;
        DeliveryError {
            category: registry.category_label(chosen.category),
            scope: registry.scope_label(self.shard.scope),
            shard: self.shard.identifier,
            object: chosen.object,
            cell: self.shard.target_name().map(str::to_owned),
            why,
        }
    }

    /// Deletes what was delivered, the older messages of each in batches and the newest ones last,
    /// and puts off what must wait; all sent at once. Whether there is more to deliver.
    async fn settle(
        &self,
        transaction: &Transaction<'_>,
        delivered: &[Chosen],
        failed: bool,
    ) -> Result<bool, tokio_postgres::Error> {
        let older: Vec<i64> = delivered
            .iter()
            .filter_map(|chosen| chosen.ids.split_last())
            .flat_map(|(_, older)| older.iter().copied())
            .collect();
        let newest = delivered.iter().filter_map(|chosen| chosen.ids.last());
        let newest: Vec<i64> = newest.copied().collect();
        let ((), (), more) = tokio::try_join!(
            biased;
            self.delete(transaction, &older),
            self.delete(transaction, &newest),
            self.put_off(transaction, failed),
        )?;
        Ok(more)
    }

    async fn delete(
        &self,
        transaction: &Transaction<'_>,
        ids: &[i64],
    ) -> Result<(), tokio_postgres::Error> {
        let delete = &self.statements.delete;
        let batches = ids.chunks(self.drain.settings.delete_rows.max(1));
        let deletes = batches.map(|ids| async move {
            let ids: [Parameter<'_>; 1] = [(&ids, Type::INT8_ARRAY)];
            delete.rows(transaction, &ids).await
        });
        futures::future::try_join_all(deletes).await?;
        Ok(())
    }

    /// After a failure the shard is put off; else the next head is, while the visit goes on. Whether
    /// there is a next head.
    async fn put_off(
        &self,
        transaction: &Transaction<'_>,
        failed: bool,
    ) -> Result<bool, tokio_postgres::Error> {
        let statements = self.statements;
        let target = self.shard.target_name();
        let mut parameters: Vec<Parameter<'_>> = self.shard.parameters(&target);
        let Some(delay_secs) = self.delay_secs else {
            // On backoff already, and visited all the same.
            return self.has_more(transaction, &parameters).await;
        };
        if !failed && self.how != How::Scheduled {
            return self.has_more(transaction, &parameters).await;
        }
        parameters.push((&delay_secs, Type::FLOAT8));
        if failed {
            parameters.push((&ROWS_PUT_OFF, Type::INT8));
            let put_off = &statements.put_off_shard;
            put_off.rows(transaction, &parameters).await?;
            return Ok(true);
        }
        let next = statements
            .put_off_head
            .rows(transaction, &parameters)
            .await?;
        Ok(!next.is_empty())
    }

    async fn has_more(
        &self,
        transaction: &Transaction<'_>,
        shard: &[Parameter<'_>],
    ) -> Result<bool, tokio_postgres::Error> {
        let mut parameters = shard.to_vec();
        parameters.push((&self.upto, Type::INT8));
        let next = &self.statements.head_upto;
        let next = next.rows(transaction, &parameters).await?;
        Ok(!next.is_empty())
    }

    fn count(&mut self, delivered: &[Chosen]) {
        self.done.delivered += delivered.len() as u64;
        let older = delivered.iter().map(|chosen| chosen.ids.len() as u64 - 1);
        self.done.coalesced += older.sum::<u64>();
    }
}

/// Counts a message that was delivered.
fn measure(category: &'static str, took: Duration, queued_secs: f64) {
    metrics::counter!("outbox.processed", "category" => category).increment(1);
    metrics::histogram!("outbox.coalesced_net_processing_time", "category" => category)
        .record(took);
    metrics::histogram!("outbox.coalesced_net_queue_time", "category" => category)
        .record(queued_secs);
    metrics::histogram!("outbox.processing_lag", "category" => category).record(queued_secs);
}

impl From<ServerError> for Undelivered {
    fn from(error: ServerError) -> Self {
        Self::Receiver(Box::new(error))
    }
}
