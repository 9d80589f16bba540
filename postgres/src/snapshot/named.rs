//! The keys of objects that copied rows name, asked of the sink.
//!
//! The relay does not parse rows, so the keys are read once their table is committed, from the side
//! that is not anybody's to wait for. The copy's position is written after the last of them is
//! recorded: a copy that dies before begins again, and so does this.

use futures::TryStreamExt;
use monarch_config::{Graph, Table};
use monarch_model::{StoreName, TableName};
use tokio_postgres::Client;

use super::CopyError;
use super::watch::Watch;
use crate::Doing;
use crate::keys::{Keys, key_columns};
use crate::scope::{Scope, ScopeError};
use crate::sql::{qualified, quote_ident};

/// What reads the keys of one column.
pub(super) struct Named {
    store: StoreName,
    query: String,
}

/// What reads the keys that the organization's rows of `table` name, each as often as it is named.
pub(super) fn queries(
    graph: &Graph,
    table: &Table,
    scope: &Scope,
) -> Result<Vec<Named>, ScopeError> {
    let predicate = scope.predicate(&table.name, "t")?;
    let named = key_columns(graph, table).map(|(column, store)| {
        let column = quote_ident(column);
        Named {
            store: store.clone(),
            query: format!(
                "select t.{column}::text from {} as t where t.{column} is not null and ({predicate})",
                qualified(&table.name)
            ),
        }
    });
    Ok(named.collect())
}

/// Takes the keys row by row: memory holds a batch, whatever their number.
pub(super) async fn take(
    table: &TableName,
    named: &[Named],
    sink: &Client,
    keys: &mut Keys,
    watch: &mut Watch<'_>,
) -> Result<(), CopyError> {
    let doing = || format!("read the keys that {table} names");
    for Named { store, query } in named {
        let none: [&str; 0] = [];
        let rows = watch.over(sink.query_raw(query, none)).await?;
        let mut rows = std::pin::pin!(rows.doing(doing())?);
        while let Some(row) = watch.over(rows.try_next()).await?.doing(doing())? {
            let key: &str = row.try_get(0).doing(doing())?;
            watch.over(keys.take(store, table, key)).await??;
        }
    }
    Ok(())
}
