//! Where an outbox stands, and what must be true of that table.
//!
//! The defaults are Sentry's tables, so that rows written by others are drained as they are.
//! Two indexes carry the drain: by shard and id (the head of a shard, the shards themselves), and by
//! shard, category and object (what is coalesced). There is none on `scheduled_for`: a shard is due
//! when its head is, and a row whose schedule alone changes can then be updated in place.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tokio_postgres::Client;

use crate::cells::CellDirectory;
use crate::server_error::ServerError;
use crate::silo::Silo;

/// A table's name, with or without its schema.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    /// A table that the search path finds.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            schema: None,
            name: name.into(),
        }
    }

    /// The same table in a schema.
    #[must_use]
    pub fn in_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// The name alone.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it stands in SQL.
    pub(crate) fn sql(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(&self.name)),
            None => quoted(&self.name),
        }
    }

    /// The name of an index of this table.
    fn index(&self, suffix: &str) -> String {
        // Postgres cuts a name at 63 bytes; what tells two indexes apart stands at its end.
        let room = 63 - suffix.len() - 1;
        let mut end = self.name.len().min(room);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        quoted(&format!("{}_{suffix}", &self.name[..end]))
    }
}

impl From<&str> for TableName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// An identifier as SQL has it.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// A text as SQL has it.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The table of an outbox.
#[derive(Clone)]
pub struct Table<S> {
    name: TableName,
    target_column: String,
    cells: Option<Arc<dyn CellDirectory>>,
    silo: PhantomData<S>,
}

impl<S: Silo> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({} of {})", self.name, S::NAME)
    }
}

/// A table that cannot be made or cannot hold an outbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// There is none.
    #[error("there is no table {table}")]
    Missing {
        /// The table.
        table: TableName,
    },
    /// It lacks columns, or has them of other types.
    #[error("table {table}: {}", .faults.join("; "))]
    Columns {
        /// The table.
        table: TableName,
        /// Each column that is missing or of another type, and what is expected.
        faults: Vec<String>,
    },
    /// It lacks an index without which draining a large queue reads all of it.
    #[error("table {table} has no index that begins with ({columns})")]
    Index {
        /// The table.
        table: TableName,
        /// The columns, in order.
        columns: String,
    },
    /// The server refused.
    #[error("{doing} table {table}: {source}")]
    Server {
        /// What was being done.
        doing: &'static str,
        /// The table.
        table: TableName,
        /// What the server said.
        source: ServerError,
    },
}

/// The types that a column may have, as `format_type` writes them.
const INTEGERS: &[&str] = &["smallint", "integer", "bigint"];
const INSTANTS: &[&str] = &["timestamp with time zone"];
const PAYLOADS: &[&str] = &["jsonb", "json", "text"];
const NAMES: &[&str] = &["text", "character varying"];

impl<S: Silo> Default for Table<S> {
    fn default() -> Self {
        Self {
            name: TableName::new(S::TABLE),
            target_column: "region_name".to_owned(),
            cells: None,
            silo: PhantomData,
        }
    }
}

impl<S: Silo> Table<S> {
    /// Another table.
    #[must_use]
    pub fn named(name: impl Into<TableName>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Another column for the name of the target cell; `region_name` by default. A cell's outbox has
    /// none.
    #[must_use]
    pub fn target_column(mut self, column: impl Into<String>) -> Self {
        self.target_column = column.into();
        self
    }

    /// Asks this directory which cells a model's change is for.
    #[must_use]
    pub fn cells(mut self, directory: impl CellDirectory) -> Self {
        self.cells = Some(Arc::new(directory));
        self
    }

    pub(crate) fn directory(&self) -> Option<&dyn CellDirectory> {
        self.cells.as_deref()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TableName {
        &self.name
    }

    pub(crate) fn target(&self) -> &str {
        &self.target_column
    }

    /// The columns that name a shard, as SQL, in the order of the indexes.
    pub(crate) fn shard_columns(&self) -> Vec<String> {
        let mut columns = Vec::new();
        if S::TARGETED {
            columns.push(quoted(&self.target_column));
        }
        columns.push("shard_scope".to_owned());
        columns.push("shard_identifier".to_owned());
        columns
    }

    /// The SQL that makes the table and its indexes where they are not there.
    #[must_use]
    pub fn create_sql(&self) -> String {
        let table = self.name.sql();
        let target = if S::TARGETED {
            format!(
                "{} varchar(48) not null,\n    ",
                quoted(&self.target_column)
            )
        } else {
            String::new()
        };
        let shard = self.shard_columns().join(", ");
        let by_id = self.name.index("shard_id");
        let by_object = self.name.index("shard_object");
        format!(
            "create table if not exists {table} (
    id bigint generated by default as identity primary key,
    {target}shard_scope integer not null,
    shard_identifier bigint not null,
    category integer not null,
    object_identifier bigint not null,
    payload jsonb,
    scheduled_from timestamptz not null default now(),
    scheduled_for timestamptz not null default '2016-08-01 00:00:00+00',
    date_added timestamptz not null default now()
);
create index if not exists {by_id} on {table} ({shard}, id);
create index if not exists {by_object} on {table} ({shard}, category, object_identifier, id);
"
        )
    }

    /// Makes the table and its indexes where they are not there.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn create(&self, client: &Client) -> Result<(), TableError> {
        let made = client.batch_execute(&self.create_sql()).await;
        made.map_err(|error| self.server("make", error))
    }

    /// Looks whether the table can hold an outbox: every column there, of a type that fits, none of
    /// others that a message would have to fill, and the indexes that the drain walks. To be called at
    /// the start of a program.
    ///
    /// # Errors
    ///
    /// When it cannot; all faulty columns at once.
    pub async fn check(&self, client: &Client) -> Result<(), TableError> {
        let found = self.columns(client).await?;
        let expected = self.expected();
        let mut faults: Vec<String> = expected
            .iter()
            .filter_map(|(column, types)| fault(column, types, &found))
            .collect();
        faults.extend(
            found
                .iter()
                .filter_map(|column| column.not_filled(&expected)),
        );
        if !faults.is_empty() {
            return Err(TableError::Columns {
                table: self.name.clone(),
                faults,
            });
        }
        self.check_indexes(client).await
    }

    fn expected(&self) -> Vec<(String, &'static [&'static str])> {
        let mut expected: Vec<(String, &[&str])> = vec![
            ("id".into(), &["bigint", "integer"]),
            ("shard_scope".into(), INTEGERS),
            ("shard_identifier".into(), INTEGERS),
            ("category".into(), INTEGERS),
            ("object_identifier".into(), INTEGERS),
            ("payload".into(), PAYLOADS),
            ("scheduled_from".into(), INSTANTS),
            ("scheduled_for".into(), INSTANTS),
            ("date_added".into(), INSTANTS),
        ];
        if S::TARGETED {
            expected.push((self.target_column.clone(), NAMES));
        }
        expected
    }

    /// The columns of the table, their types without a modifier.
    async fn columns(&self, client: &Client) -> Result<Vec<Column>, TableError> {
        const COLUMNS: &str = "
            select attname::text, format_type(atttypid, null), attnotnull,
                atthasdef or attidentity <> ''
            from pg_attribute
            where attrelid = to_regclass($1) and attnum > 0 and not attisdropped";
        let rows = client
            .query(COLUMNS, &[&self.name.sql()])
            .await
            .map_err(|error| self.server("read the columns of", error))?;
        if rows.is_empty() {
            return Err(TableError::Missing {
                table: self.name.clone(),
            });
        }
        let column = |row: &tokio_postgres::Row| Column {
            name: row.get(0),
            kind: row.get(1),
            is_required: row.get(2),
            fills_itself: row.get(3),
        };
        Ok(rows.iter().map(column).collect())
    }

    async fn check_indexes(&self, client: &Client) -> Result<(), TableError> {
        const INDEXES: &str = "
            select array(
                select attname::text
                from unnest(indkey::int2[]) with ordinality as key (attnum, place)
                join pg_attribute using (attnum)
                where attrelid = indrelid
                order by place
            )
            from pg_index
            where indrelid = to_regclass($1) and indisvalid and indpred is null";
        let rows = client
            .query(INDEXES, &[&self.name.sql()])
            .await
            .map_err(|error| self.server("read the indexes of", error))?;
        let indexes: Vec<Vec<String>> = rows.iter().map(|row| row.get(0)).collect();
        let mut shard = vec!["shard_scope".to_owned(), "shard_identifier".to_owned()];
        if S::TARGETED {
            shard.insert(0, self.target_column.clone());
        }
        let of_shard = [&["id"][..], &["category", "object_identifier"]].map(|rest| {
            let rest = rest.iter().map(|&column| column.to_owned());
            shard.iter().cloned().chain(rest).collect()
        });
        for needed in [vec!["id".to_owned()]].into_iter().chain(of_shard) {
            if !indexes.iter().any(|index| index.starts_with(&needed)) {
                return Err(TableError::Index {
                    table: self.name.clone(),
                    columns: needed.join(", "),
                });
            }
        }
        Ok(())
    }

    fn server(&self, doing: &'static str, error: tokio_postgres::Error) -> TableError {
        TableError::Server {
            doing,
            table: self.name.clone(),
            source: error.into(),
        }
    }
}

/// A column as the table has it.
struct Column {
    name: String,
    kind: String,
    /// It may not be null.
    is_required: bool,
    /// It has a default, or is an identity.
    fills_itself: bool,
}

impl Column {
    /// Why a message that is written leaves it without a value that it must have. Of the expected
    /// columns all but the id are written.
    fn not_filled(&self, expected: &[(String, &[&str])]) -> Option<String> {
        let name = &self.name;
        match (name == "id", self.fills_itself) {
            (_, true) => None,
            (true, false) => Some("column id has no default and is no identity".to_owned()),
            (false, false) if expected.iter().any(|(written, _)| written == name) => None,
            (false, false) => self.is_required.then(|| {
                format!("column {name} is not one of an outbox's, is not null and has no default")
            }),
        }
    }
}

/// What is wrong with an expected column, if anything is.
fn fault(column: &str, types: &[&str], found: &[Column]) -> Option<String> {
    let types_expected = types.join(" or ");
    match found.iter().find(|found| found.name == column) {
        None => Some(format!("column {column} ({types_expected}) is missing")),
        Some(found) if types.contains(&found.kind.as_str()) => None,
        Some(found) => Some(format!(
            "column {column} is {}, not {types_expected}",
            found.kind
        )),
    }
}
