//! Delivers the messages of an application's outbox by a program of the application's.
//!
//! An application in Rust drains its outbox itself, with receivers of its own. One in another language
//! names a program in `fleet.yaml` (`outbox: {deliver: …}`), and is given the same order, coalescing,
//! backoff and switches. The program is run for each message, without a shell, and reads on its
//! standard input one JSON object:
//!
//! ```json
//! {"outbox": "cell", "scope": 0, "category": 3, "id": "17", "shard_identifier": "1",
//!  "object_identifier": "7", "payload": null, "coalesced": 0, "date_added": "2026-12-01T00:00:00Z"}
//! ```
//!
//! Identifiers are texts: not every language reads a whole number of 64 bits as one. A message of
//! control also has `cell_name`, the cell that it is for. Exit code 0 takes delivery; with any other,
//! and after the timeout, the message stays at the head of its shard, which is put off. The program
//! may be run again for a message that it took, so it must be idempotent.

use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use monarch_config::Deliver;
use monarch_outbox::{
    BoxError, Delivery, Drain, DrainSettings, OptionTable, Receiver, Receivers, Registry,
    RegistryError, Silo, StartError, Table, TableError, TableName, Target as _, sentry,
};
use monarch_postgres::{Doing as _, Session};
use serde::Serialize;
use serde_json::Value;

use crate::control::ControlError;
use crate::control::commands::execute;

/// What a receiver is given beyond the program's own timeout, which names the program.
const BEYOND_TIMEOUT: Duration = Duration::from_secs(5);

const LOOK: &str = "
    select to_regclass($1) is not null, to_regclass('public.monarch_outbox_option') is not null";

/// An application's outbox cannot be drained.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// Its database did not do what was asked.
    #[error(transparent)]
    Database(#[from] monarch_postgres::Error),
    /// Its table cannot be drained.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A fault of ours: the categories do not fit together.
    #[error(transparent)]
    Categories(#[from] RegistryError),
    /// A fault of ours: the receivers do not fit the categories.
    #[error(transparent)]
    Receivers(#[from] StartError),
}

/// A drain of the outbox under its usual name in this database, which hands each message to a
/// program; nothing where the database has none.
///
/// # Errors
/// The database does not answer, or its table cannot be drained.
pub async fn drain<S: Silo>(
    deliver: &Deliver,
    session: &Session,
) -> Result<Option<Drain<S>>, DeliverError> {
    let table = Table::<S>::named(TableName::new(S::TABLE).in_schema("public"));
    let name = format!("public.{}", S::TABLE);
    let looked = session.query_one(LOOK, &[&name]).await;
    let row = looked.doing("look for the application's outbox")?;
    if !row.get::<_, bool>(0) {
        return Ok(None);
    }
    table.check(session).await?;
    let receivers = Receivers::new().otherwise(Program(deliver.clone()));
    let settings = DrainSettings {
        receiver_timeout: deliver.timeout + BEYOND_TIMEOUT,
        idle_timeout: deliver.timeout + BEYOND_TIMEOUT,
        ..DrainSettings::default()
    };
    let drain = Drain::new(table, Registry::new(sentry::Category::ALL)?, receivers)?;
    let drain = drain.settings(settings);
    // Made when the first shard is switched off.
    let has_options: bool = row.get(1);
    Ok(Some(match has_options {
        true => drain.options(OptionTable::named(
            TableName::new("monarch_outbox_option").in_schema("public"),
        )),
        false => drain,
    }))
}

/// The program that takes the messages.
struct Program(Deliver);

/// What it reads.
#[derive(Serialize)]
struct Order<'a> {
    outbox: &'static str,
    scope: i32,
    category: i32,
    id: String,
    shard_identifier: String,
    object_identifier: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell_name: Option<&'a str>,
    payload: &'a Option<Value>,
    coalesced: u64,
    date_added: Timestamp,
}

impl Program {
    async fn take<S: Silo>(&self, delivery: &Delivery<'_, S>) -> Result<(), BoxError> {
        const ACTION: &str = "deliver";
        let message = delivery.message();
        let order = Order {
            outbox: S::NAME,
            scope: message.shard.scope,
            category: message.category.number,
            id: message.id.to_string(),
            shard_identifier: message.shard.identifier.to_string(),
            object_identifier: message.object_identifier.to_string(),
            cell_name: message.shard.target.cell().map(|cell| cell.as_str()),
            payload: &message.payload,
            coalesced: message.coalesced,
            date_added: message.date_added,
        };
        let input = serde_json::to_vec(&order)?;
        let Deliver { command, timeout } = &self.0;
        match execute(ACTION, command, &input, *timeout).await? {
            (0, _) => Ok(()),
            (code, _) => Err(ControlError::Failed {
                action: ACTION,
                code,
            }
            .into()),
        }
    }
}

impl<S: Silo> Receiver<S> for Program {
    fn receive<'a>(&'a self, delivery: &'a Delivery<'a, S>) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(self.take(delivery))
    }
}
