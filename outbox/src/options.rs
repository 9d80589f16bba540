//! Settings that operators change while programs run: which shards are left alone, and how far
//! backfills may go.
//!
//! An application that has such options already implements [`Options`] over them; for others there
//! are a table ([`OptionTable`]) and a fixed list ([`FixedOptions`]).

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio_postgres::{Client, GenericClient};

use crate::receivers::BoxError;
use crate::server_error::ServerError;
use crate::table::{TableName, literal};

/// Where options are read.
pub trait Options: Send + Sync + 'static {
    /// The option of this key; nothing where it is not set. `client` is a connection to the outbox's
    /// database, outside of a transaction.
    fn option<'a>(
        &'a self,
        client: &'a Client,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, BoxError>>;
}

/// An option that cannot be read or is not what it must be.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    /// It cannot be read.
    #[error("read the option {key}")]
    Unreadable {
        /// Its key.
        key: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// It is not a number.
    #[error("the option {key} must be a whole number, and is {found}")]
    NotANumber {
        /// Its key.
        key: String,
        /// What kind of thing it is.
        found: &'static str,
    },
    /// It is not a list of texts.
    #[error("the option {key} must be a list of texts, and {place} is {found}")]
    NotTexts {
        /// Its key.
        key: String,
        /// Which part of it: `it`, or the entry's number, from 1.
        place: String,
        /// What kind of thing that is.
        found: &'static str,
    },
    /// It is not a list of numbers.
    #[error("the option {key} must be a list of whole numbers, and {place} is {found}")]
    NotNumbers {
        /// Its key.
        key: String,
        /// Which part of it: `it`, or the entry's number, from 1.
        place: String,
        /// What kind of thing that is.
        found: &'static str,
    },
}

/// Options that are part of the program.
#[derive(Debug, Clone, Default)]
pub struct FixedOptions(BTreeMap<String, Value>);

impl FixedOptions {
    /// With an option set.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }
}

impl Options for FixedOptions {
    fn option<'a>(
        &'a self,
        _: &'a Client,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, BoxError>> {
        Box::pin(std::future::ready(Ok(self.0.get(key).cloned())))
    }
}

/// Options in a table of the outbox's database, `monarch_outbox_option` by default.
#[derive(Debug, Clone)]
pub struct OptionTable(TableName);

impl Default for OptionTable {
    fn default() -> Self {
        Self(TableName::new("monarch_outbox_option"))
    }
}

impl OptionTable {
    /// Another table.
    #[must_use]
    pub fn named(name: impl Into<TableName>) -> Self {
        Self(name.into())
    }

    /// The SQL that makes the table where it is not there.
    #[must_use]
    pub fn create_sql(&self) -> String {
        format!(
            "create table if not exists {} (key text primary key, value jsonb not null);\n",
            self.0.sql()
        )
    }

    /// Makes the table where it is not there.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn create(&self, client: &Client) -> Result<(), ServerError> {
        Ok(client.batch_execute(&self.create_sql()).await?)
    }

    /// Sets an option.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn set(
        &self,
        client: &impl GenericClient,
        key: &str,
        value: &Value,
    ) -> Result<(), ServerError> {
        let set = format!(
            "insert into {} (key, value) values ($1, $2) \
             on conflict (key) do update set value = excluded.value",
            self.0.sql()
        );
        client.execute(&set, &[&key, value]).await?;
        Ok(())
    }

    /// The SQL that sets an option, to be pasted into a session.
    #[must_use]
    pub fn set_sql(&self, key: &str, value: &Value) -> String {
        format!(
            "insert into {} (key, value) values ({}, {}::jsonb)\n\
             on conflict (key) do update set value = excluded.value;",
            self.0.sql(),
            literal(key),
            literal(&value.to_string())
        )
    }

    /// The SQL that puts a number into the list that an option is: a shard into a scope's switch.
    /// Again is the same.
    #[must_use]
    pub fn list_sql(&self, key: &str, number: i64) -> String {
        let (table, key) = (self.0.sql(), literal(key));
        format!(
            "insert into {table} as option (key, value) values ({key}, '[{number}]'::jsonb)\n\
             on conflict (key) do update set value = option.value || excluded.value\n\
             where not option.value @> excluded.value;"
        )
    }

    /// The SQL that takes a number out of that list.
    #[must_use]
    pub fn unlist_sql(&self, key: &str, number: i64) -> String {
        format!(
            "update {} set value = (\n    \
             select coalesce(jsonb_agg(entry), '[]'::jsonb) from jsonb_array_elements(value) as entry\n    \
             where entry <> '{number}'::jsonb\n)\nwhere key = {};",
            self.0.sql(),
            literal(key)
        )
    }

    /// Unsets an option.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn unset(&self, client: &impl GenericClient, key: &str) -> Result<(), ServerError> {
        let unset = format!("delete from {} where key = $1", self.0.sql());
        client.execute(&unset, &[&key]).await?;
        Ok(())
    }
}

impl Options for OptionTable {
    fn option<'a>(
        &'a self,
        client: &'a Client,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, BoxError>> {
        Box::pin(async move {
            let sql = format!("select value from {} where key = $1", self.0.sql());
            let row = client.query_opt(&sql, &[&key]).await;
            let row = row.map_err(ServerError::from)?;
            Ok(row.map(|row| row.get(0)))
        })
    }
}

/// A whole number.
pub(crate) async fn number(
    options: &dyn Options,
    client: &Client,
    key: &str,
) -> Result<Option<i64>, OptionError> {
    let Some(value) = read(options, client, key).await? else {
        return Ok(None);
    };
    match value.as_i64() {
        Some(number) => Ok(Some(number)),
        None => Err(OptionError::NotANumber {
            key: key.to_owned(),
            found: match value {
                Value::Number(_) => "a number with a fraction or out of range",
                _ => kind(&value),
            },
        }),
    }
}

/// A list of whole numbers; none where the option is not set.
pub(crate) async fn numbers(
    options: &dyn Options,
    client: &Client,
    key: &str,
) -> Result<Vec<i64>, OptionError> {
    let fault = |place, found| OptionError::NotNumbers {
        key: key.to_owned(),
        place,
        found,
    };
    let numbers = list(options, client, key, Value::as_i64, fault).await?;
    Ok(numbers.unwrap_or_default())
}

/// A list of texts; nothing where the option is not set.
pub(crate) async fn texts(
    options: &dyn Options,
    client: &Client,
    key: &str,
) -> Result<Option<Vec<String>>, OptionError> {
    let fault = |place, found| OptionError::NotTexts {
        key: key.to_owned(),
        place,
        found,
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    list(options, client, key, text, fault).await
}

async fn list<T>(
    options: &dyn Options,
    client: &Client,
    key: &str,
    entry: impl Fn(&Value) -> Option<T>,
    fault: impl Fn(String, &'static str) -> OptionError,
) -> Result<Option<Vec<T>>, OptionError> {
    let values = match read(options, client, key).await? {
        None => return Ok(None),
        Some(Value::Array(values)) => values,
        Some(value) => return Err(fault("it".to_owned(), kind(&value))),
    };
    let entries = values.iter().enumerate().map(|(at, value)| {
        entry(value).ok_or_else(|| fault(format!("entry {}", at + 1), kind(value)))
    });
    Ok(Some(entries.collect::<Result<_, _>>()?))
}

async fn read(
    options: &dyn Options,
    client: &Client,
    key: &str,
) -> Result<Option<Value>, OptionError> {
    let value = options.option(client, key).await;
    value.map_err(|source| OptionError::Unreadable {
        key: key.to_owned(),
        source,
    })
}

/// What a value is, without the value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
