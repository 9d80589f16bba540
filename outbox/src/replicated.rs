//! Models that are replicated to the other side.
//!
//! Creating, changing and deleting such a row writes its message in the same transaction, singly or
//! in bulk. When the message is delivered, the row is read as it is then: if it is there, it is
//! replicated; if it is gone, its deletion is.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_postgres::types::ToSql;

use crate::category::{CategoryDef, ScopeDef};
use crate::cells::{InferTargets, Targets};
use crate::message::Outbox;
use crate::model::{Ids, Model, Sequence, columns, find, identifier};
use crate::receivers::{BoxError, Delivery, Receiver, Receivers};
use crate::server_error::ServerError;
use crate::silo::Silo;
use crate::table::quoted;
use crate::write::{WriteError, Writer};

/// Parameters that a statement may have.
const PARAMETERS: usize = 65_535;

/// A model whose changes are told to the other side.
///
/// The category and what it is sharded by are checked when the program is built: a model of a
/// retired category does not compile, nor does one in which the shard's column cannot be found.
///
/// ```compile_fail,E0080
/// monarch_outbox::categories! {
///     /// Ours.
///     pub enum Category in Scope {
///         /// An organization.
///         Organization = 0, shard(organization_id) {
///             /// A member.
///             Member = 3,
///         }
///     }
/// }
/// monarch_outbox::model! {
///     /// A row that does not say its organization.
///     pub struct Stray in Cell table "stray" {
///         /// A name.
///         pub name: String,
///     }
/// }
/// # use monarch_outbox::{BoxError, Cell, CategoryDef, Delivery, Replicated};
/// impl Replicated for Stray {
///     const CATEGORY: CategoryDef = Category::Member.def();
///     type Services = ();
///     async fn handle_async_replication(&self, _: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> {
///         Ok(())
///     }
///     async fn handle_async_deletion(_: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> {
///         Ok(())
///     }
/// }
/// # fn main() {
/// let stray = Stray { id: 1, name: String::new() };
/// stray.shard_identifier();
/// # }
/// ```
pub trait Replicated: Model<Silo: InferTargets> {
    /// Its category. A category is one model's.
    const CATEGORY: CategoryDef;

    /// Raised when every row must be replicated anew: starts a backfill.
    const REPLICATION_VERSION: u32 = 1;

    /// The column that holds the shard's identifier: the scope's, or `id` where the table is named
    /// for it (`organization_id` and `sentry_organization`).
    const SHARD_COLUMN: &'static str =
        infer_shard_column(Self::CATEGORY.scope, Self::TABLE, Self::COLUMNS);

    /// What its handlers work with: clients of other services, say.
    type Services: Send + Sync + 'static;

    /// The row was created or changed. Must be idempotent.
    fn handle_async_replication(
        &self,
        services: &Self::Services,
        delivery: &Delivery<'_, Self::Silo>,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// The row is gone. Must be idempotent. Its id is the message's object identifier.
    fn handle_async_deletion(
        services: &Self::Services,
        delivery: &Delivery<'_, Self::Silo>,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// What the deletion's handler needs and cannot read once the row is gone. Only the last one
    /// survives, so it should not change often.
    fn payload_for_update(&self) -> Option<serde_json::Value> {
        None
    }

    /// The identifier of its shard: the value of [`Self::SHARD_COLUMN`], or what an override says.
    fn shard_identifier(&self) -> Option<i64> {
        identifier(self, Self::SHARD_COLUMN)
    }

    /// Where its messages go: control for a cell's model, the cells of its organization or user for
    /// control's, or what an override says.
    fn outbox_targets(
        &self,
        targets: Targets<'_, Self::Silo>,
    ) -> impl Future<Output = Result<Vec<<Self::Silo as Silo>::Target>, BoxError>> + Send {
        <Self::Silo as InferTargets>::infer(targets, self)
    }
}

/// Finds the column that holds a shard's identifier.
#[doc(hidden)]
#[must_use]
pub const fn infer_shard_column(
    scope: ScopeDef,
    table: &'static str,
    columns: &'static [&'static str],
) -> &'static str {
    let Some(column) = scope.shard_column else {
        panic!("the scope has no shard column: set SHARD_COLUMN or override shard_identifier");
    };
    if is_named_for(table.as_bytes(), column.as_bytes()) {
        return "id";
    }
    let mut at = 0;
    while at < columns.len() {
        if ends_with(columns[at].as_bytes(), column.as_bytes()) && columns[at].len() == column.len()
        {
            return columns[at];
        }
        at += 1;
    }
    panic!(
        "the model lacks its scope's shard column: set SHARD_COLUMN or override shard_identifier"
    )
}

/// Whether `sentry_organization` or `organization` is the table of `organization_id`.
const fn is_named_for(table: &[u8], column: &[u8]) -> bool {
    if !ends_with(column, b"_id") {
        return false;
    }
    let (kind, _) = column.split_at(column.len() - 3);
    ends_with(table, kind)
        && (table.len() == kind.len() || table[table.len() - kind.len() - 1] == b'_')
}

const fn ends_with(text: &[u8], end: &[u8]) -> bool {
    if text.len() < end.len() {
        return false;
    }
    let mut at = 0;
    while at < end.len() {
        if text[text.len() - end.len() + at] != end[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl<S: InferTargets> Writer<'_, S> {
    /// Creates a row and writes its messages. An id that the database gives is set.
    ///
    /// # Errors
    ///
    /// When the server refuses, or shard or cells cannot be told.
    pub async fn create<M: Replicated<Silo = S>>(&self, model: &mut M) -> Result<(), WriteError> {
        if M::Ids::GIVEN {
            let ids = self.allocate::<M>(1).await?;
            model.set_id(ids.first().copied().unwrap_or_default());
        }
        self.insert_rows(std::slice::from_ref(model)).await?;
        self.announce(std::slice::from_ref(model)).await
    }

    /// Changes a row to what the model says and writes its messages.
    ///
    /// # Errors
    ///
    /// When there is no such row, the server refuses, or shard or cells cannot be told.
    pub async fn update<M: Replicated<Silo = S>>(&self, model: &M) -> Result<(), WriteError> {
        self.bulk_update(std::slice::from_ref(model)).await
    }

    /// Deletes a row and writes its messages. A row that is gone already is told again.
    ///
    /// # Errors
    ///
    /// When the server refuses, or shard or cells cannot be told.
    pub async fn delete<M: Replicated<Silo = S>>(&self, model: &M) -> Result<(), WriteError> {
        self.bulk_delete(std::slice::from_ref(model)).await
    }

    /// Creates rows and writes their messages; the ids are set. Models whose ids the application
    /// makes are refused:
    ///
    /// ```compile_fail,E0271
    /// # monarch_outbox::categories! {
    /// #     /// Ours.
    /// #     pub enum Category in Scope {
    /// #         /// An organization.
    /// #         Organization = 0, shard(organization_id) {
    /// #             /// A project.
    /// #             Project = 8,
    /// #         }
    /// #     }
    /// # }
    /// # use monarch_outbox::{BoxError, Cell, CategoryDef, Delivery, Replicated, Writer};
    /// monarch_outbox::model! {
    ///     /// A project.
    ///     pub struct Project in Cell table "sentry_project" snowflake {
    ///         /// Its organization.
    ///         pub organization_id: i64,
    ///     }
    /// }
    /// # impl Replicated for Project {
    /// #     const CATEGORY: CategoryDef = Category::Project.def();
    /// #     type Services = ();
    /// #     async fn handle_async_replication(&self, _: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> { Ok(()) }
    /// #     async fn handle_async_deletion(_: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> { Ok(()) }
    /// # }
    /// async fn create(writer: &Writer<'_, Cell>, projects: &mut [Project]) {
    ///     writer.bulk_create(projects).await.unwrap();
    /// }
    /// # fn main() { let _ = create; }
    /// ```
    ///
    /// With ids from a sequence it does compile:
    ///
    /// ```
    /// # monarch_outbox::categories! {
    /// #     /// Ours.
    /// #     pub enum Category in Scope {
    /// #         /// An organization.
    /// #         Organization = 0, shard(organization_id) {
    /// #             /// A project.
    /// #             Project = 8,
    /// #         }
    /// #     }
    /// # }
    /// # use monarch_outbox::{BoxError, Cell, CategoryDef, Delivery, Replicated, Writer};
    /// monarch_outbox::model! {
    ///     /// A project.
    ///     pub struct Project in Cell table "sentry_project" {
    ///         /// Its organization.
    ///         pub organization_id: i64,
    ///     }
    /// }
    /// # impl Replicated for Project {
    /// #     const CATEGORY: CategoryDef = Category::Project.def();
    /// #     type Services = ();
    /// #     async fn handle_async_replication(&self, _: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> { Ok(()) }
    /// #     async fn handle_async_deletion(_: &(), _: &Delivery<'_, Cell>) -> Result<(), BoxError> { Ok(()) }
    /// # }
    /// async fn create(writer: &Writer<'_, Cell>, projects: &mut [Project]) {
    ///     writer.bulk_create(projects).await.unwrap();
    /// }
    /// # fn main() { let _ = create; }
    /// ```
    ///
    /// # Errors
    ///
    /// When the server refuses, or shard or cells cannot be told.
    pub async fn bulk_create<M>(&self, models: &mut [M]) -> Result<(), WriteError>
    where
        M: Replicated<Silo = S> + Model<Ids = Sequence>,
    {
        let ids = self.allocate::<M>(models.len()).await?;
        for (model, id) in models.iter_mut().zip(ids) {
            model.set_id(id);
        }
        self.insert_rows(models).await?;
        self.announce(models).await
    }

    /// Changes rows to what the models say and writes their messages.
    ///
    /// # Errors
    ///
    /// When a row does not exist, the server refuses, or shard or cells cannot be told.
    pub async fn bulk_update<M: Replicated<Silo = S>>(
        &self,
        models: &[M],
    ) -> Result<(), WriteError> {
        if models.is_empty() {
            return Ok(());
        }
        let set: Vec<String> = M::COLUMNS
            .iter()
            .enumerate()
            .map(|(at, column)| format!("{} = ${}", quoted(column), at + 2))
            .collect();
        let table = M::table().sql();
        let update = format!("update {table} set {} where id = $1", set.join(", "));
        let prepared = self.transaction().prepare(&update).await;
        let update = prepared.map_err(|error| row_error::<M>("update", error))?;
        for model in models {
            let id = model.id();
            let mut values: Vec<&(dyn ToSql + Sync)> = vec![&id];
            values.extend(model.values());
            let changed = self.transaction().execute(&update, &values).await;
            if changed.map_err(|error| row_error::<M>("update", error))? == 0 {
                return Err(WriteError::NoRow {
                    table: M::table(),
                    id,
                });
            }
        }
        self.announce(models).await
    }

    /// Deletes rows and writes their messages.
    ///
    /// # Errors
    ///
    /// When the server refuses, or shard or cells cannot be told.
    pub async fn bulk_delete<M: Replicated<Silo = S>>(
        &self,
        models: &[M],
    ) -> Result<(), WriteError> {
        // Cells may be inferred from rows that go.
        self.announce(models).await?;
        let ids: Vec<i64> = models.iter().map(Model::id).collect();
        let delete = format!("delete from {} where id = any($1)", M::table().sql());
        let deleted = self.transaction().execute(&delete, &[&ids]).await;
        deleted.map_err(|error| row_error::<M>("delete", error))?;
        Ok(())
    }

    /// Writes the messages of rows without changing the rows: for a change made in another way in
    /// this transaction, or to have them replicated again.
    ///
    /// # Errors
    ///
    /// When the server refuses, or shard or cells cannot be told.
    pub async fn announce<M: Replicated<Silo = S>>(&self, models: &[M]) -> Result<(), WriteError> {
        self.announce_to(models, None).await
    }

    /// The same for these targets instead of the models' own.
    pub(crate) async fn announce_to<M: Replicated<Silo = S>>(
        &self,
        models: &[M],
        only: Option<&[S::Target]>,
    ) -> Result<(), WriteError> {
        const { assert!(!M::CATEGORY.retired, "the model's category is retired") };
        let mut outboxes = Vec::with_capacity(models.len());
        for model in models {
            let id = model.id();
            let shard = model.shard_identifier().ok_or(WriteError::NoShard {
                table: M::table(),
                id,
                category: M::CATEGORY,
            })?;
            let targets = match only {
                Some(targets) => targets.to_vec(),
                None => model
                    .outbox_targets(Targets(self))
                    .await
                    .map_err(|source| WriteError::NoTarget {
                        table: M::table(),
                        id,
                        source,
                    })?,
            };
            outboxes.extend(targets.into_iter().map(|target| {
                Outbox::to(target, M::CATEGORY, shard, id).payload(model.payload_for_update())
            }));
        }
        self.write_all(&outboxes).await
    }

    /// New ids of the table's sequence.
    async fn allocate<M: Model>(&self, count: usize) -> Result<Vec<i64>, WriteError> {
        const NEXT: &str = "
            select nextval(pg_get_serial_sequence($1, 'id')) from generate_series(1, $2::int8)";
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let rows = self
            .transaction()
            .query(NEXT, &[&M::table().sql(), &count])
            .await;
        let rows = rows.map_err(|error| row_error::<M>("take ids of", error))?;
        let ids = rows.iter().map(|row| row.try_get::<_, i64>(0));
        let ids: Result<Vec<i64>, _> = ids.collect();
        ids.map_err(|error| row_error::<M>("take ids of", error))
    }

    async fn insert_rows<M: Model>(&self, models: &[M]) -> Result<(), WriteError> {
        let width = M::COLUMNS.len() + 1;
        for some in models.chunks(PARAMETERS / width) {
            let rows: Vec<String> = (0..some.len())
                .map(|row| {
                    let values: Vec<String> = (1..=width)
                        .map(|n| format!("${}", row * width + n))
                        .collect();
                    format!("({})", values.join(", "))
                })
                .collect();
            let insert = format!(
                "insert into {} ({}) overriding system value values {}",
                M::table().sql(),
                columns::<M>(),
                rows.join(", ")
            );
            let ids: Vec<i64> = some.iter().map(Model::id).collect();
            let mut values: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(some.len() * width);
            for (model, id) in some.iter().zip(&ids) {
                values.push(id);
                values.extend(model.values());
            }
            let inserted = self.transaction().execute(&insert, &values).await;
            inserted.map_err(|error| row_error::<M>("insert into", error))?;
        }
        Ok(())
    }
}

fn row_error<M: Model>(doing: &'static str, error: tokio_postgres::Error) -> WriteError {
    WriteError::Row {
        doing,
        table: M::table(),
        source: ServerError::from(error),
    }
}

/// Reads a model's row and calls one of its handlers.
struct Replicating<M: Replicated>(Arc<M::Services>);

impl<M: Replicated> Receiver<M::Silo> for Replicating<M> {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, M::Silo>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let id = delivery.message().object_identifier;
            match find::<M>(delivery.transaction().await?, id).await? {
                Some(model) => model.handle_async_replication(&self.0, delivery).await,
                None => M::handle_async_deletion(&self.0, delivery).await,
            }
        })
    }
}

impl<S: Silo> Receivers<S> {
    /// Handles the category of a replicated model with the model's own handlers.
    #[must_use]
    pub fn replicated<M: Replicated<Silo = S>>(
        self,
        services: impl Into<Arc<M::Services>>,
    ) -> Self {
        self.with(M::CATEGORY, Replicating::<M>(services.into()))
    }
}
