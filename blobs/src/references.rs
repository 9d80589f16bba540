//! Which keys the rows of others name too, asked of the databases.
//!
//! Buckets cannot say to whom an object belongs; rows can. A store of the policy `delete` declares
//! its keys exclusive to their organization, and before a move that is looked at on a sample. After
//! a scrub has taken the organization's rows from the sink, whatever row still names a key there is
//! somebody else's.

use std::collections::HashSet;

use async_trait::async_trait;
use monarch_config::{Graph, Table};
use monarch_model::{StoreName, TableName};
use monarch_postgres::scope::Scope;
use monarch_postgres::sql::{qualified, quote_ident};
use monarch_postgres::{ServerError, Session};

use crate::error::BlobError;
use crate::remove::References;

/// The rows of one database, and which of them are the organization's own.
pub struct Rows<'a> {
    /// A session with the database.
    pub session: &'a Session,
    /// The tables of it whose columns hold keys.
    pub tables: Vec<&'a Table>,
    /// What the organization's own rows are, to be left out; none where it has none any more.
    pub own: Option<&'a Scope>,
}

/// The rows of a cell's databases that name objects of one blob store.
pub struct CellReferences<'a> {
    /// The blob store.
    pub store: &'a StoreName,
    /// The databases.
    pub databases: Vec<Rows<'a>>,
}

/// The tables that live in one of `stores` and hold keys of the blob store `blobs`, moved or not.
pub fn tables_naming<'g>(
    graph: &'g Graph,
    stores: &[StoreName],
    blobs: &StoreName,
) -> Vec<&'g Table> {
    graph
        .tables()
        .filter(|table| stores.contains(&table.store))
        .filter(|table| table.blobs.iter().any(|blob| blob.store == *blobs))
        .collect()
}

#[async_trait]
impl References for CellReferences<'_> {
    async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError> {
        let mut shared = HashSet::new();
        for rows in &self.databases {
            for table in &rows.tables {
                for blob in table.blobs.iter().filter(|blob| blob.store == *self.store) {
                    shared.extend(named_by_others(rows, &table.name, &blob.column, keys).await?);
                }
            }
        }
        Ok(shared)
    }
}

async fn named_by_others(
    rows: &Rows<'_>,
    table: &TableName,
    column: &str,
    keys: &[&str],
) -> Result<Vec<String>, BlobError> {
    let column = quote_ident(column);
    // A table that does not move has no predicate: all its rows are others'.
    let own = rows.own.and_then(|scope| scope.predicate(table, "r").ok());
    let others = own.map_or_else(String::new, |own| format!(" and ({own}) is not true"));
    let query = format!(
        "select distinct r.{column}::text as key from {} as r
          where r.{column}::text = any($1){others}",
        qualified(table)
    );
    let failed = |error| BlobError::References(ServerError::from(error));
    let found = rows.session.query(&query, &[&keys]).await.map_err(failed)?;
    found
        .iter()
        .map(|row| row.try_get("key").map_err(failed))
        .collect()
}
