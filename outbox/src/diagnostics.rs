//! What an operator asks of an outbox: which shards are deep, which are stuck, what is in one.
//!
//! Each question is a [`Question`]: its SQL can be printed and pasted into a session elsewhere, with
//! the names of numbers as comments and a limit, or be asked here.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::{Client, Row};

use crate::category::{CategoryDef, Registry, ScopeDef};
use crate::drain::Drain;
use crate::message::Shard;
use crate::server_error::ServerError;
use crate::silo::{Silo, Target};
use crate::table::{TableName, literal, quoted};

/// A question and how its rows are read.
#[derive(Debug, Clone)]
pub struct Question<T> {
    sql: String,
    read: fn(&Row) -> Result<T, tokio_postgres::Error>,
}

impl<T> Question<T> {
    /// The SQL, to be pasted into a session.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Asks.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn ask(&self, client: &Client) -> Result<Vec<T>, ServerError> {
        let rows = client.query_typed(&self.sql, &[]).await?;
        let rows: Result<Vec<T>, _> = rows.iter().map(self.read).collect();
        Ok(rows?)
    }
}

/// How deep a shard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depth {
    /// On the control side, the cell.
    pub cell: Option<String>,
    /// The scope's number.
    pub scope: i32,
    /// The shard's identifier.
    pub shard: i64,
    /// How many messages wait.
    pub depth: i64,
}

/// A shard on backoff, by category.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// On the control side, the cell.
    pub cell: Option<String>,
    /// The scope's number.
    pub scope: i32,
    /// The shard's identifier.
    pub shard: i64,
    /// The category's number.
    pub category: i32,
    /// How many messages are marked.
    pub depth: i64,
    /// When it is tried again.
    pub next_attempt: Timestamp,
    /// When the oldest was written.
    pub oldest_message: Timestamp,
    /// When the newest was written.
    pub newest_message: Timestamp,
}

/// A message that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Its id.
    pub id: i64,
    /// On the control side, the cell.
    pub cell: Option<String>,
    /// The scope's number.
    pub scope: i32,
    /// The shard's identifier.
    pub shard: i64,
    /// The category's number.
    pub category: i32,
    /// The object's identifier.
    pub object: i64,
    /// Its payload, as text: it may not be JSON.
    pub payload: Option<String>,
    /// When its shard was last put off.
    pub scheduled_from: Timestamp,
    /// When its shard is tried again.
    pub scheduled_for: Timestamp,
    /// When it was written.
    pub date_added: Timestamp,
}

impl Waiting {
    /// The payload, if it is JSON.
    #[must_use]
    pub fn json(&self) -> Option<Value> {
        serde_json::from_str(self.payload.as_deref()?).ok()
    }
}

/// Questions about one outbox. Made by [`Drain::diagnostics`].
#[derive(Debug)]
pub struct Diagnostics<'a> {
    table: &'a TableName,
    registry: &'a Registry,
    /// `null` or the column of the cell.
    cell: String,
    targeted: bool,
}

impl<S: Silo> Drain<S> {
    /// Questions about its table.
    #[must_use]
    pub fn diagnostics(&self) -> Diagnostics<'_> {
        Diagnostics {
            table: self.table().name(),
            registry: self.registry(),
            cell: if S::TARGETED {
                quoted(self.table().target())
            } else {
                "null".to_owned()
            },
            targeted: S::TARGETED,
        }
    }
}

impl Diagnostics<'_> {
    /// The deepest shards. Counts every message.
    #[must_use]
    pub fn depths(&self, limit: u32) -> Question<Depth> {
        let keys = self.keys();
        Question {
            sql: format!(
                "-- The deepest shards, in every scope and category\n{scopes}\
                 select {cell}::text as cell, shard_scope::int4, shard_identifier::int8, \
                 count(*) as depth\nfrom {table}\ngroup by {keys}\norder by depth desc, {keys}\n\
                 limit {limit};",
                scopes = self.scopes(),
                cell = self.cell,
                table = self.table.sql(),
            ),
            read: |row| {
                Ok(Depth {
                    cell: row.try_get(0)?,
                    scope: row.try_get(1)?,
                    shard: row.try_get(2)?,
                    depth: row.try_get(3)?,
                })
            },
        }
    }

    /// Shards on backoff. Of a deep shard the first ten thousand messages are marked.
    #[must_use]
    pub fn stuck(&self, limit: u32) -> Question<Stuck> {
        let keys = self.keys();
        Question {
            sql: format!(
                "-- Shards on backoff after a failure\n{scopes}{categories}\
                 select {cell}::text as cell, shard_scope::int4, shard_identifier::int8, \
                 category::int4,\n    count(*) as depth, min(scheduled_for) as next_attempt, \
                 min(date_added) as oldest_message,\n    max(date_added) as newest_message\n\
                 from {table}\nwhere scheduled_for > now()\ngroup by {keys}, category\n\
                 order by depth desc, {keys}, category\nlimit {limit};",
                scopes = self.scopes(),
                categories = self.categories(),
                cell = self.cell,
                table = self.table.sql(),
            ),
            read: |row| {
                Ok(Stuck {
                    cell: row.try_get(0)?,
                    scope: row.try_get(1)?,
                    shard: row.try_get(2)?,
                    category: row.try_get(3)?,
                    depth: row.try_get(4)?,
                    next_attempt: row.try_get(5)?,
                    oldest_message: row.try_get(6)?,
                    newest_message: row.try_get(7)?,
                })
            },
        }
    }

    /// The messages of a shard, the newest first.
    #[must_use]
    pub fn shard<S: Silo>(&self, shard: &Shard<S>, limit: u32) -> Question<Waiting> {
        let (scope, identifier) = (shard.scope, shard.identifier);
        let cell = match shard.target.cell() {
            Some(name) => format!("{} = {} and ", self.cell, literal(name.as_str())),
            None => String::new(),
        };
        self.waiting(
            &format!(
                "-- The messages of one shard, the newest first\n{}{}",
                self.one_scope(scope),
                self.categories()
            ),
            &format!("{cell}shard_scope = {scope} and shard_identifier = {identifier}"),
            limit,
        )
    }

    /// The messages about an object, the newest first.
    #[must_use]
    pub fn object(&self, category: CategoryDef, object: i64, limit: u32) -> Question<Waiting> {
        let number = category.number;
        // A shard is not known, so the index by shard and object helps only where scopes are few.
        self.waiting(
            &format!(
                "-- The messages about one object, the newest first\n-- category: {number} = {}\n",
                category.name
            ),
            &format!("category = {number} and object_identifier = {object}"),
            limit,
        )
    }

    /// How many messages of a category wait.
    #[must_use]
    pub fn category(&self, category: CategoryDef) -> Question<i64> {
        Question {
            sql: format!(
                "-- The messages of one category that wait\n-- category: {number} = {name}\n\
                 select count(*) as pending\nfrom {table}\nwhere category = {number};",
                number = category.number,
                name = category.name,
                table = self.table.sql(),
            ),
            read: |row| row.try_get(0),
        }
    }

    fn waiting(&self, comment: &str, condition: &str, limit: u32) -> Question<Waiting> {
        Question {
            sql: format!(
                "{comment}select id::int8, {cell}::text as cell, shard_scope::int4, \
                 shard_identifier::int8,\n    category::int4, object_identifier::int8, \
                 payload::text, scheduled_from, scheduled_for,\n    date_added\nfrom {table}\n\
                 where {condition}\norder by id desc\nlimit {limit};",
                cell = self.cell,
                table = self.table.sql(),
            ),
            read: |row| {
                Ok(Waiting {
                    id: row.try_get(0)?,
                    cell: row.try_get(1)?,
                    scope: row.try_get(2)?,
                    shard: row.try_get(3)?,
                    category: row.try_get(4)?,
                    object: row.try_get(5)?,
                    payload: row.try_get(6)?,
                    scheduled_from: row.try_get(7)?,
                    scheduled_for: row.try_get(8)?,
                    date_added: row.try_get(9)?,
                })
            },
        }
    }

    fn keys(&self) -> String {
        if self.targeted {
            format!("{}, shard_scope, shard_identifier", self.cell)
        } else {
            "shard_scope, shard_identifier".to_owned()
        }
    }

    fn scopes(&self) -> String {
        let scopes = self.registry.scopes();
        legend(
            "shard_scope",
            scopes.map(|scope: ScopeDef| (scope.number, scope.name)),
        )
    }

    fn one_scope(&self, number: i32) -> String {
        let scope = self.registry.scope(number);
        legend(
            "shard_scope",
            scope.into_iter().map(|scope| (scope.number, scope.name)),
        )
    }

    fn categories(&self) -> String {
        let categories = self.registry.categories();
        legend(
            "category",
            categories.map(|category| (category.number, category.name)),
        )
    }
}

/// A comment that says what numbers mean, a few a line.
fn legend(column: &str, names: impl Iterator<Item = (i32, &'static str)>) -> String {
    let mut text = String::new();
    for (at, (number, name)) in names.enumerate() {
        let before = match at {
            0 => format!("-- {column}: "),
            _ if at % 6 == 0 => "\n--     ".to_owned(),
            _ => ", ".to_owned(),
        };
        // A string takes what is written to it.
        let _ = write!(text, "{before}{number} = {name}");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}
