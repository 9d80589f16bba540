//! How many rows a copy will move, by the source's planner: counting would read every table twice.

use serde_json::Value;
use tokio_postgres::Transaction;

use crate::{Doing, Result};

/// The rows that the planner expects of `select`; zero if it does not say.
pub(super) async fn rows(source: &Transaction<'_>, select: &str) -> Result<u64> {
    let doing = "estimate the rows to copy";
    let row = source
        .query_one(&format!("explain (format json) {select}"), &[])
        .await
        .doing(doing)?;
    let plan: Value = row.try_get(0).doing(doing)?;
    let rows = plan
        .pointer("/0/Plan/Plan Rows")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    Ok(rows)
}
