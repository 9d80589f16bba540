//! What is really in the databases, looked at from outside: rows counted and digested, and what a
//! move might leave behind. None of Monarch's own code is asked.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Client;

use crate::fleet::connect;
use crate::{Cell, Place, ScopedTable};

/// Rows counted, and a digest that changes with any of their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// How many rows there are.
    pub count: i64,
    /// SHA-256 over the rows, whatever their order.
    pub digest: String,
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.count,
            self.digest.get(..12).unwrap_or_default()
        )
    }
}

/// Rows by store and table.
pub type Census = BTreeMap<String, BTreeMap<String, Rows>>;

/// Whose rows are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Those that the tables' predicates select.
    Theirs,
    /// All the others.
    Others,
}

/// Counts and digests the rows of every table of a cell.
///
/// # Errors
///
/// When a database does not answer.
pub async fn census(cell: &Cell, tables: &[ScopedTable], whose: Whose) -> Result<Census> {
    let mut found = Census::new();
    for place in &cell.places {
        let client = place.connect().await?;
        for table in tables
            .iter()
            .filter(|table| place.stores.contains(&table.store))
        {
            let rows = rows(&client, table, whose)
                .await
                .with_context(|| format!("count {} of {}", table.name, cell.name))?;
            let store = found.entry(table.store.clone()).or_default();
            store.insert(table.name.clone(), rows);
        }
    }
    Ok(found)
}

/// The sum of a census by store.
#[must_use]
pub fn by_store(census: &Census) -> BTreeMap<String, Rows> {
    let sum = |tables: &BTreeMap<String, Rows>| {
        let mut hash = Sha256::new();
        for (table, rows) in tables {
            hash.update(format!("{table} {} {}\n", rows.count, rows.digest));
        }
        Rows {
            count: tables.values().map(|rows| rows.count).sum(),
            digest: hex(&hash.finalize()),
        }
    };
    census
        .iter()
        .map(|(store, tables)| (store.clone(), sum(tables)))
        .collect()
}

/// How many rows a census has.
#[must_use]
pub fn total(census: &Census) -> i64 {
    census
        .values()
        .flat_map(BTreeMap::values)
        .map(|rows| rows.count)
        .sum()
}

/// Columns are taken by name, since two cells need not agree on their order.
async fn rows(client: &Client, table: &ScopedTable, whose: Whose) -> Result<Rows> {
    const COLUMNS: &str = "
        select string_agg(quote_ident(attname), ', ' order by attname collate \"C\")
        from pg_attribute
        where attrelid = $1::text::regclass and attnum > 0 and not attisdropped";
    let columns: String = client.query_one(COLUMNS, &[&table.name]).await?.get(0);
    let condition = match whose {
        Whose::Theirs => "is true",
        Whose::Others => "is not true",
    };
    let query = format!(
        "select md5(row({columns})::text) from {} where ({}) {condition} order by 1",
        table.name, table.predicate
    );
    let mut hash = Sha256::new();
    let lines = client.query(&query, &[]).await?;
    for line in &lines {
        hash.update(line.get::<_, &str>(0));
    }
    Ok(Rows {
        count: i64::try_from(lines.len())?,
        digest: hex(&hash.finalize()),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What moves left in the databases of a cell, each in one line; empty when there is nothing.
///
/// # Errors
///
/// When a database does not answer.
pub async fn leftovers(cell: &Cell) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for place in &cell.places {
        found.extend(left_at(place, &place.dsn).await?);
        if let Some(standby) = &place.standby_dsn {
            found.extend(left_at(place, standby).await?);
        }
    }
    Ok(found)
}

async fn left_at(place: &Place, dsn: &str) -> Result<Vec<String>> {
    const LEFT: &str = r"
        select 'slot ' || slot_name from pg_replication_slots where database = current_database()
        union all
        select 'publication ' || pubname from pg_publication
        union all
        select 'origin ' || roname from pg_replication_origin where roname like 'monarch%'
        union all
        select 'prepared transaction ' || gid from pg_prepared_xacts
        where database = current_database()
        union all
        select backend_type || ' ' || application_name from pg_stat_activity
        where datname = current_database()
          and (backend_type = 'walsender' or application_name like 'monarch\_org\_%')";
    const TABLES: &str = "
        select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'monarch'";
    let client = connect(dsn, &place.database).await?;
    let describe = |what: &str| format!("{}: {what}", place.database);
    let rows = client
        .query(LEFT, &[])
        .await
        .context("look for leftovers")?;
    let mut found: Vec<_> = rows.iter().map(|row| describe(row.get(0))).collect();
    for table in client
        .query(TABLES, &[])
        .await
        .context("look for our tables")?
    {
        let table: &str = table.get(0);
        let count: i64 = client
            .query_one(&format!("select count(*) from {table}"), &[])
            .await
            .with_context(|| format!("count {table}"))?
            .get(0);
        if count > 0 {
            found.push(describe(&format!("{count} rows in {table}")));
        }
    }
    Ok(found)
}
