//! The statements of a visit, as texts or as a connection has them prepared.
//!
//! A visit of a shard with few messages costs what its statements cost to plan. A tour of many shards
//! therefore prepares them once, and lets the server keep a plan for any shard. Such a plan may be
//! made while the queue is empty and used when it is long; so scans of the whole table and sorts are
//! discouraged, and what is left is an index that stops where it must.

use std::future::Future;

use tokio_postgres::{Client, GenericClient, Row, Statement};

use super::backoff;
use super::chosen;
use super::index::{Keys, Parameter};
use super::lock;
use crate::silo::Silo;
use crate::table::Table;

/// What every transaction of a drain begins with.
pub(crate) const SETTINGS: &str = "
    set local enable_seqscan = off;
    set local enable_bitmapscan = off;
    set local enable_sort = off;
    set local jit = off;
    set local plan_cache_mode = force_generic_plan;";

/// The statements of a visit of one table. Those that name rows by many ids are never prepared: while
/// the queue is empty, an index in which the id stands last looks as good as the primary key.
#[derive(Debug, Clone)]
pub(crate) struct Statements<T = String> {
    /// Takes a shard that is due.
    pub(super) take: T,
    /// Waits for a shard's lock.
    pub(crate) lock: T,
    /// Locks the head.
    pub(crate) lock_head: T,
    /// Chooses the next messages.
    pub(super) choose: T,
    /// Deletes rows by id. Parameters: the ids.
    pub(super) delete: String,
    /// Puts a shard's head on backoff.
    pub(super) put_off_head: T,
    /// Puts a shard on backoff.
    pub(super) put_off_shard: String,
    /// Undoes the head's backoff.
    pub(super) make_due: T,
    /// Whether a shard has a message up to an id. Parameters: the shard, the id.
    pub(super) head_upto: T,
}

/// A statement that can be run: a text, which is planned for its parameters, or what a connection has
/// prepared.
pub(crate) trait Run: Send + Sync {
    /// Sends it when it is first polled, so that several can be under way; all of its rows.
    fn rows(
        &self,
        client: &(impl GenericClient + Sync),
        parameters: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send;
}

impl Run for String {
    async fn rows(
        &self,
        client: &(impl GenericClient + Sync),
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        client.query_typed(self, parameters).await
    }
}

impl Run for Statement {
    async fn rows(
        &self,
        client: &(impl GenericClient + Sync),
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        client.query(self, &values).await
    }
}

impl Statements {
    pub(crate) fn new<S: Silo>(table: &Table<S>) -> Self {
        let name = table.name().sql();
        let keys = Keys::new(table);
        Self {
            take: backoff::take(&name, &keys),
            lock: lock::LOCK.to_owned(),
            lock_head: lock::lock_head(&name, &keys),
            choose: chosen::choose(&name, &keys),
            delete: format!("delete from {name} where id = any($1::int8[])"),
            put_off_head: backoff::put_off_head(&name, &keys),
            put_off_shard: backoff::put_off_shard(&name, &keys),
            make_due: backoff::make_due(&name, &keys),
            head_upto: format!(
                "select from ({}) as head where id <= ${}::int8",
                backoff::head(&name, &keys),
                keys.next
            ),
        }
    }

    /// Prepares them on a connection, all sent at once.
    pub(super) async fn prepare(
        &self,
        client: &Client,
    ) -> Result<Statements<Statement>, tokio_postgres::Error> {
        let (take, lock, lock_head, choose) = tokio::try_join!(
            client.prepare(&self.take),
            client.prepare(&self.lock),
            client.prepare(&self.lock_head),
            client.prepare(&self.choose),
        )?;
        let (put_off_head, make_due, head_upto) = tokio::try_join!(
            client.prepare(&self.put_off_head),
            client.prepare(&self.make_due),
            client.prepare(&self.head_upto),
        )?;
        Ok(Statements {
            take,
            lock,
            lock_head,
            choose,
            delete: self.delete.clone(),
            put_off_head,
            put_off_shard: self.put_off_shard.clone(),
            make_due,
            head_upto,
        })
    }

    /// The statements of a scheduled visit in their order, each with a comment.
    pub(super) fn described(&self) -> String {
        let visit = [
            (
                "Takes a shard that is due and puts its head off. Parameters: the shard, its lock",
                &self.take,
            ),
            (
                "Waits for the shard's lock. Parameters: its number",
                &self.lock,
            ),
            ("Locks the head. Parameters: the shard", &self.lock_head),
            (
                "The next messages. Parameters: the shard, the highest id, rows to look at, messages \
                 to choose, bytes of payload",
                &self.choose,
            ),
            (
                "Deletes what was delivered. Parameters: the ids",
                &self.delete,
            ),
            (
                "Puts the next head off. Parameters: the shard, seconds",
                &self.put_off_head,
            ),
            (
                "Puts a shard off after a failure. Parameters: the shard, seconds, rows",
                &self.put_off_shard,
            ),
        ];
        let visit = visit.map(|(what, sql)| format!("-- {what}\n{sql};\n"));
        visit.join("\n")
    }
}
