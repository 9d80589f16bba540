//! Which cells a change of control is for.

use std::future::Future;

use futures::future::BoxFuture;
use tokio_postgres::Transaction;

use crate::model::{Model, identifier};
use crate::receivers::BoxError;
use crate::silo::{Cell, CellName, Control, Here, Silo};
use crate::write::Writer;

/// Knows where organizations live. Control's models ask it for the cells of a change.
pub trait CellDirectory: Send + Sync + 'static {
    /// The cells of an organization; usually one.
    fn of_organization<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        organization: i64,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>>;

    /// The cells of the organizations that a user is a member of.
    fn of_user<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        user: i64,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>>;

    /// Every cell.
    fn all<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>>;
}

/// The directory of control's own mapping tables, as Sentry has them: `sentry_organizationmapping`
/// and `sentry_organizationmembermapping`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MappingTables;

const OF_ORGANIZATION: &str = "
    select distinct region_name::text from sentry_organizationmapping
    where organization_id = $1 order by 1";
const OF_USER: &str = "
    select distinct region_name::text
    from sentry_organizationmembermapping
    join sentry_organizationmapping using (organization_id)
    where user_id = $1 order by 1";
const ALL: &str = "select distinct region_name::text from sentry_organizationmapping order by 1";

async fn names(
    transaction: &Transaction<'_>,
    sql: &str,
    id: Option<i64>,
) -> Result<Vec<CellName>, BoxError> {
    let rows = match id {
        Some(id) => transaction.query(sql, &[&id]).await,
        None => transaction.query(sql, &[]).await,
    };
    let rows = rows.map_err(crate::ServerError::from)?;
    let names = rows
        .iter()
        .map(|row| CellName::new(row.get::<_, String>(0)));
    Ok(names.collect::<Result<_, _>>()?)
}

impl CellDirectory for MappingTables {
    fn of_organization<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        organization: i64,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>> {
        Box::pin(names(transaction, OF_ORGANIZATION, Some(organization)))
    }

    fn of_user<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
        user: i64,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>> {
        Box::pin(names(transaction, OF_USER, Some(user)))
    }

    fn all<'a>(
        &'a self,
        transaction: &'a Transaction<'a>,
    ) -> BoxFuture<'a, Result<Vec<CellName>, BoxError>> {
        Box::pin(names(transaction, ALL, None))
    }
}

/// Why it is not known which cells a change is for.
#[derive(Debug, thiserror::Error)]
pub enum NoCells {
    /// Nobody knows where organizations live.
    #[error("the table of the outbox has no directory of cells (Table::cells)")]
    NoDirectory,
    /// The model says neither organization nor user.
    #[error("table {0} has no organization_id and no user_id: override outbox_targets")]
    NotInferred(&'static str),
}

/// Answers where a model's messages go, in the transaction that writes them.
#[derive(Debug, Clone, Copy)]
pub struct Targets<'w, S: Silo>(pub(crate) &'w Writer<'w, S>);

impl Targets<'_, Control> {
    /// The cells of an organization.
    ///
    /// # Errors
    ///
    /// When there is no directory, or it fails.
    pub async fn of_organization(&self, organization: i64) -> Result<Vec<CellName>, BoxError> {
        let directory = self.directory()?;
        directory
            .of_organization(self.0.transaction(), organization)
            .await
    }

    /// The cells of a user's organizations.
    ///
    /// # Errors
    ///
    /// When there is no directory, or it fails.
    pub async fn of_user(&self, user: i64) -> Result<Vec<CellName>, BoxError> {
        self.directory()?.of_user(self.0.transaction(), user).await
    }

    /// Every cell.
    ///
    /// # Errors
    ///
    /// When there is no directory, or it fails.
    pub async fn all(&self) -> Result<Vec<CellName>, BoxError> {
        self.directory()?.all(self.0.transaction()).await
    }

    fn directory(&self) -> Result<&dyn CellDirectory, NoCells> {
        self.0.table().directory().ok_or(NoCells::NoDirectory)
    }
}

/// Where a model's messages go, if the model does not say it.
pub trait InferTargets: Silo {
    /// A cell's go to control. Control's go to the cells of the model's `organization_id`, else of
    /// its `user_id`.
    fn infer<M: Model>(
        targets: Targets<'_, Self>,
        model: &M,
    ) -> impl Future<Output = Result<Vec<Self::Target>, BoxError>> + Send;
}

impl InferTargets for Cell {
    async fn infer<M: Model>(_: Targets<'_, Self>, _: &M) -> Result<Vec<Here>, BoxError> {
        Ok(vec![Here])
    }
}

impl InferTargets for Control {
    async fn infer<M: Model>(
        targets: Targets<'_, Self>,
        model: &M,
    ) -> Result<Vec<CellName>, BoxError> {
        if let Some(organization) = identifier(model, "organization_id") {
            targets.of_organization(organization).await
        } else if let Some(user) = identifier(model, "user_id") {
            targets.of_user(user).await
        } else {
            Err(NoCells::NotInferred(M::TABLE).into())
        }
    }
}
