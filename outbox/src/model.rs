//! Rows of an application's tables, as far as the outbox must know them.
//!
//! Whoever changes a replicated row must write its message in the same transaction. So that nobody
//! has to remember, the row and its message are written by one call: [`Writer::create`] and its
//! siblings, which need to know a table, its columns and their values. [`model!`](crate::model) tells
//! them; a type of one's own implements [`Model`].

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::server_error::ServerError;
use crate::silo::Silo;
use crate::table::{TableName, quoted};

#[expect(unused_imports, reason = "the documentation names it")]
use crate::write::Writer;

mod sealed {
    pub trait Sealed {}
}

/// Where a model's ids come from: [`Sequence`] or [`Snowflake`].
pub trait Ids: sealed::Sealed + 'static {
    /// Whether the database gives them.
    const GIVEN: bool;
}

/// Ids from the column's sequence.
#[derive(Debug, Clone, Copy)]
pub enum Sequence {}

/// Ids that the application makes, and sets before it creates a row.
#[derive(Debug, Clone, Copy)]
pub enum Snowflake {}

impl sealed::Sealed for Sequence {}
impl sealed::Sealed for Snowflake {}

impl Ids for Sequence {
    const GIVEN: bool = true;
}

impl Ids for Snowflake {
    const GIVEN: bool = false;
}

/// A row of a table whose primary key is the column `id`.
pub trait Model: Sized + Send + Sync + 'static {
    /// The side whose database holds the table.
    type Silo: Silo;

    /// Where its ids come from.
    type Ids: Ids;

    /// The table's name.
    const TABLE: &'static str;

    /// The columns without `id`, in the order of [`Self::values`].
    const COLUMNS: &'static [&'static str];

    /// The row's id; 0 where the database has not given it one yet.
    fn id(&self) -> i64;

    /// Remembers the id that the database gave.
    fn set_id(&mut self, id: i64);

    /// The values of [`Self::COLUMNS`].
    fn values(&self) -> Vec<&(dyn ToSql + Sync)>;

    /// Reads a row whose columns are `id` and [`Self::COLUMNS`].
    ///
    /// # Errors
    ///
    /// When a column is of another type.
    fn from_row(row: &Row) -> Result<Self, tokio_postgres::Error>;

    /// The table; to be overridden where the search path does not find it.
    #[must_use]
    fn table() -> TableName {
        TableName::new(Self::TABLE)
    }
}

/// The row of this id, if there is one.
///
/// # Errors
///
/// When the server refuses or a column is of another type.
pub async fn find<M: Model>(
    client: &impl GenericClient,
    id: i64,
) -> Result<Option<M>, ServerError> {
    let select = format!(
        "select {} from {} where id = $1",
        columns::<M>(),
        M::table().sql()
    );
    let rows = client.query_typed(&select, &[(&id, Type::INT8)]).await?;
    Ok(rows.first().map(M::from_row).transpose()?)
}

/// `id, "a", "b"`
pub(crate) fn columns<M: Model>() -> String {
    let columns = M::COLUMNS.iter().map(|column| quoted(column));
    let all: Vec<String> = std::iter::once("id".to_owned()).chain(columns).collect();
    all.join(", ")
}

/// The value of a column as an identifier, if it is a whole number and not null.
pub(crate) fn identifier<M: Model>(model: &M, column: &str) -> Option<i64> {
    if column == "id" {
        return Some(model.id());
    }
    let at = M::COLUMNS.iter().position(|&name| name == column)?;
    let values = model.values();
    let value = values.get(at)?;
    // A value says what it is only as a parameter; so it is read as the server would read it.
    let bytes = |kind: &Type| {
        let mut bytes = BytesMut::new();
        match value.to_sql_checked(kind, &mut bytes) {
            Ok(IsNull::No) => Some(bytes),
            Ok(IsNull::Yes) | Err(_) => None,
        }
    };
    if let Some(bytes) = bytes(&Type::INT8) {
        return Some(i64::from_be_bytes(bytes.as_ref().try_into().ok()?));
    }
    let bytes = bytes(&Type::INT4)?;
    Some(i32::from_be_bytes(bytes.as_ref().try_into().ok()?).into())
}

/// Declares a model: a type, its table and its columns.
///
/// ```
/// monarch_outbox::model! {
///     /// A member of an organization.
///     #[derive(Debug, Clone, PartialEq)]
///     pub struct Member in Cell table "sentry_organizationmember" {
///         /// The organization.
///         pub organization_id: i64,
///         /// How we call them.
///         pub name: String,
///     }
/// }
///
/// let member = Member { id: 0, organization_id: 1, name: "Ada".to_owned() };
/// ```
///
/// The field `id` is there by itself. Behind the table may stand `snowflake`, where ids are the
/// application's.
#[macro_export]
macro_rules! model {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident in $silo:ident table $table:literal $($ids:ident)? {
            $(
                $(#[$field_meta:meta])*
                $field_visibility:vis $field:ident: $kind:ty
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $visibility struct $name {
            /// The row's id; 0 until the database gives one.
            pub id: i64,
            $( $(#[$field_meta])* $field_visibility $field: $kind, )*
        }

        impl $crate::Model for $name {
            type Silo = $crate::$silo;
            type Ids = $crate::model_ids!($($ids)?);
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [&'static str] = &[$(stringify!($field)),*];

            fn id(&self) -> i64 {
                self.id
            }

            fn set_id(&mut self, id: i64) {
                self.id = id;
            }

            fn values(&self) -> Vec<&(dyn $crate::ToSql + Sync)> {
                vec![$(&self.$field),*]
            }

            fn from_row(row: &$crate::Row) -> Result<Self, $crate::PgError> {
                Ok(Self {
                    id: row.try_get("id")?,
                    $( $field: row.try_get(stringify!($field))?, )*
                })
            }
        }
    };
}

/// Which ids a model has.
#[doc(hidden)]
#[macro_export]
macro_rules! model_ids {
    () => {
        $crate::Sequence
    };
    (snowflake) => {
        $crate::Snowflake
    };
}
