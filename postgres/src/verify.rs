//! Compares the organization's rows on two sides without moving them.
//!
//! Each table is reduced, where it lives, to its number of rows and two sums of hashes, one per
//! seed, of each row as text. A sum does not ask in which order rows come, and, unlike an
//! exclusive-or, is not blind to rows that are there twice. What a count alone would miss: a lost
//! update, a truncated or re-rounded value, an out-of-line value that was not carried over, a row
//! of one key that stands in for another.
//!
//! Two things make the text of a row comparable between servers: columns are taken by name, in
//! the order of their names, and the settings that decide how values are printed are the same:
//! those of every [`Session`]. A row is printed as a composite, which quotes whatever could be taken
//! for a separator and tells a null from an empty text; so two rows print alike only if every
//! column prints alike.

use std::collections::BTreeMap;

use monarch_model::TableName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_postgres::GenericClient;

use crate::catalog::Relation;
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Result, Session};

/// What is to be read of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The table.
    pub table: TableName,
    /// The columns that count, sorted by name.
    pub columns: Vec<String>,
    /// Which rows are the organization's, over the alias `t`.
    pub predicate: String,
}

/// What a table's rows of the organization come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDigest {
    /// How many they are.
    pub rows: u64,
    /// The sums of their hashes, one per seed, in decimal.
    pub sums: [String; 2],
}

/// What one database, or several merged, hold of the organization: table by table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digests(pub BTreeMap<TableName, TableDigest>);

impl Digests {
    /// How many rows there are in all tables.
    pub fn rows(&self) -> u64 {
        self.0.values().map(|table| table.rows).sum()
    }

    /// One digest of all of it, in hexadecimal.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for (table, digest) in &self.0 {
            let line = format!(
                "{table}\t{}\t{}\t{}\n",
                digest.rows, digest.sums[0], digest.sums[1]
            );
            hash.update(line.as_bytes());
        }
        hash.finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The columns by which a table is compared: those that both sides have, generated ones included,
/// in the order of their names. That no other column is missing is the catalog's to check.
pub fn shared_columns(source: &Relation, sink: &Relation) -> Vec<String> {
    let mut columns: Vec<String> = source
        .columns
        .iter()
        .filter(|column| sink.columns.iter().any(|other| other.name == column.name))
        .map(|column| column.name.clone())
        .collect();
    columns.sort();
    columns
}

/// Begins the transaction whose snapshot is read: all digests of one side are of one moment.
pub async fn begin(session: &Session) -> Result<()> {
    session
        .batch_execute("begin isolation level repeatable read, read only")
        .await
        .doing("open a snapshot to verify")
}

/// Reads each table of `subjects` in the snapshot of the transaction that `client` is in.
pub async fn digest(client: &impl GenericClient, subjects: &[Subject]) -> Result<Digests> {
    let utf8 = is_utf8(client).await.doing("open a snapshot to verify")?;
    let mut digests = Digests::default();
    for subject in subjects {
        let digest = digest_table(client, subject, utf8)
            .await
            .doing(format!("digest table {}", subject.table))?;
        digests.0.insert(subject.table.clone(), digest);
    }
    Ok(digests)
}

async fn is_utf8(client: &impl GenericClient) -> std::result::Result<bool, tokio_postgres::Error> {
    let row = client
        .query_one("select current_setting('server_encoding') = 'UTF8'", &[])
        .await?;
    row.try_get(0)
}

async fn digest_table(
    client: &impl GenericClient,
    subject: &Subject,
    utf8: bool,
) -> std::result::Result<TableDigest, tokio_postgres::Error> {
    let row = client.query_one(&digest_sql(subject, utf8), &[]).await?;
    let rows: i64 = row.try_get(0)?;
    Ok(TableDigest {
        rows: rows.unsigned_abs(),
        sums: [row.try_get(1)?, row.try_get(2)?],
    })
}

/// The second seed; any other number than the first would do.
const OTHER_SEED: i64 = 7_046_029_254_386_353_131;

fn digest_sql(subject: &Subject, utf8: bool) -> String {
    let columns: Vec<String> = subject
        .columns
        .iter()
        .map(|column| format!("t.{}", quote_ident(column)))
        .collect();
    let printed = format!("row({})::text", columns.join(", "));
    // A hash is over bytes, and those are of the server's encoding: print the row's UTF-8 bytes.
    let encoded = if utf8 {
        printed
    } else {
        format!("convert_from(convert_to({printed}, 'UTF8'), 'SQL_ASCII')")
    };
    // `offset 0`: the row is printed once, not once per seed.
    format!(
        "select count(*), \
         coalesce(sum(hashtextextended(e, 0)), 0)::text, \
         coalesce(sum(hashtextextended(e, {OTHER_SEED})), 0)::text \
         from (select {encoded} collate \"C\" as e from {table} as t where {predicate} offset 0) s",
        table = qualified(&subject.table),
        predicate = subject.predicate,
    )
}

/// How a table compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The same rows on both sides.
    Equal {
        /// How many.
        rows: u64,
    },
    /// Not the same rows.
    Differs {
        /// How many on the source.
        source_rows: u64,
        /// How many on the sink.
        sink_rows: u64,
    },
    /// Only the sink was read.
    MissingOnSource {
        /// How many on the sink.
        sink_rows: u64,
    },
    /// Only the source was read.
    MissingOnSink {
        /// How many on the source.
        source_rows: u64,
    },
}

/// Each table that either side has, compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Comparison(pub BTreeMap<TableName, Outcome>);

impl Comparison {
    /// Whether both sides hold the same rows in each table.
    pub fn is_equal(&self) -> bool {
        self.differing().next().is_none()
    }

    /// The tables that are not equal.
    pub fn differing(&self) -> impl Iterator<Item = (&TableName, &Outcome)> {
        self.0
            .iter()
            .filter(|(_, outcome)| !matches!(outcome, Outcome::Equal { .. }))
    }
}

/// Compares what the source holds with what the sink holds.
pub fn compare(source: &Digests, sink: &Digests) -> Comparison {
    let tables = source.0.keys().chain(sink.0.keys());
    let outcome = |table: &TableName| match (source.0.get(table), sink.0.get(table)) {
        (Some(source), Some(sink)) if source == sink => Outcome::Equal { rows: source.rows },
        (source, sink) => {
            let rows = |digest: Option<&TableDigest>| digest.map(|digest| digest.rows);
            match (rows(source), rows(sink)) {
                (Some(source_rows), Some(sink_rows)) => Outcome::Differs {
                    source_rows,
                    sink_rows,
                },
                (Some(source_rows), None) => Outcome::MissingOnSink { source_rows },
                (None, sink_rows) => Outcome::MissingOnSource {
                    sink_rows: sink_rows.unwrap_or_default(),
                },
            }
        }
    };
    Comparison(
        tables
            .map(|table| (table.clone(), outcome(table)))
            .collect(),
    )
}
