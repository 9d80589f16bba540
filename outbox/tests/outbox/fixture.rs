//! A database with both outboxes, and what most tests do with them.

use std::sync::{Arc, Mutex};

use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_outbox::{
    BoxError, Cell, CellName, CellOutbox, Control, ControlOutbox, Delivery, Drain, Message,
    Receiver, Receivers, Registry, Silo, Table,
};
use tokio_postgres::{Client, NoTls};

monarch_outbox::categories! {
    /// The categories of these tests.
    pub enum Category in Scope {
        /// An organization and what belongs to it.
        Organization = 0, shard(organization_id),
            switch("hybrid_cloud.authentication.disabled_organization_shards")
        {
            /// The organization itself.
            OrganizationUpdate = 2,
            /// A member.
            Member = 3,
            /// Nobody receives it.
            Unheard = 8,
            /// No longer in use.
            Retired = 20 retired,
        }
        /// A user.
        User = 1, shard(user_id), switch("hybrid_cloud.authentication.disabled_user_shards") {
            /// The user itself.
            UserUpdate = 0,
        }
        /// Every entry counts.
        AuditLog = 3 {
            /// An entry.
            AuditLogEvent = 5,
        }
    }
}

pub(crate) fn registry() -> Registry {
    Registry::new(Category::ALL).unwrap()
}

/// A database of its own.
pub(crate) struct Db {
    pub(crate) dsn: String,
    pub(crate) client: Client,
}

impl Db {
    pub(crate) async fn empty() -> Self {
        Self::of(PgVersion::V16).await
    }

    pub(crate) async fn of(version: PgVersion) -> Self {
        let cluster = shared::cluster(version).await;
        let dsn = cluster
            .create_database(&fresh_name("outbox"))
            .await
            .unwrap();
        let client = connect(&dsn).await;
        Self { dsn, client }
    }

    /// With both outboxes.
    pub(crate) async fn new() -> Self {
        let db = Self::empty().await;
        Table::<Cell>::default().create(&db.client).await.unwrap();
        Table::<Control>::default()
            .create(&db.client)
            .await
            .unwrap();
        db
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(&self.dsn).await
    }

    /// Writes cell messages, each `(category, shard, object)`, in one transaction.
    pub(crate) async fn write(&mut self, messages: &[(Category, i64, i64)]) {
        let all: Vec<CellOutbox> = messages
            .iter()
            .map(|&(category, shard, object)| CellOutbox::new(category, shard, object))
            .collect();
        let transaction = self.client.transaction().await.unwrap();
        let table = Table::default();
        let writer = table.writer(&transaction);
        writer.write_all(&all).await.unwrap();
        let _ = writer.finish();
        transaction.commit().await.unwrap();
    }

    pub(crate) async fn write_control(&mut self, messages: &[(&str, Category, i64, i64)]) {
        let all: Vec<ControlOutbox> = messages
            .iter()
            .map(|&(cell, category, shard, object)| {
                ControlOutbox::new(CellName::new(cell).unwrap(), category, shard, object)
            })
            .collect();
        let transaction = self.client.transaction().await.unwrap();
        let table = Table::default();
        let writer = table.writer(&transaction);
        writer.write_all(&all).await.unwrap();
        let _ = writer.finish();
        transaction.commit().await.unwrap();
    }

    /// How many rows the cell's outbox has.
    pub(crate) async fn queued(&self) -> i64 {
        self.number("select count(*) from sentry_regionoutbox")
            .await
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// Lets every schedule come.
    pub(crate) async fn wait_out_backoffs(&self) {
        self.run(
            "update sentry_regionoutbox set scheduled_from = scheduled_from - interval '2 hours', \
             scheduled_for = scheduled_for - interval '2 hours'",
        )
        .await;
    }
}

pub(crate) async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Remembers what it was given: `(category, shard, object)` in order.
pub(crate) struct Log<S: Silo>(Arc<Mutex<Vec<Message<S>>>>);

impl<S: Silo> Clone for Log<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Silo> Receiver<S> for Log<S> {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, S>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        self.push(delivery.message().clone());
        Box::pin(std::future::ready(Ok(())))
    }
}

impl<S: Silo> Log<S> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn push(&self, message: Message<S>) {
        self.0.lock().unwrap().push(message);
    }

    pub(crate) fn messages(&self) -> Vec<Message<S>> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn objects(&self) -> Vec<i64> {
        let messages = self.messages();
        messages
            .iter()
            .map(|message| message.object_identifier)
            .collect()
    }

    /// Receives every category that is in use but [`Category::Unheard`].
    pub(crate) fn receivers(&self) -> Receivers<S> {
        let heard = Category::ALL
            .iter()
            .filter(|category| !category.def().retired && **category != Category::Unheard);
        heard.fold(Receivers::new(), |receivers, category| {
            let log = self.clone();
            receivers.on(*category, move |message| {
                log.push(message);
                std::future::ready(Ok::<(), BoxError>(()))
            })
        })
    }

    /// A drain that remembers what it delivers.
    pub(crate) fn drain(&self) -> Drain<S> {
        Drain::new(Table::default(), registry(), self.receivers()).unwrap()
    }
}
