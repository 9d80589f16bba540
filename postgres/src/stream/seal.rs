//! Closes a unit for good: what the membership is at that moment is kept beside the unit's row.
//!
//! After the flip the organization lives on the sink, and its new rows say nothing about the tail
//! of the source's log. So the tail is judged by what was the organization's at the seal. The ids
//! are copied within the sink: they never travel.

use std::collections::BTreeMap;

use monarch_config::{Graph, Scope as Edge};
use monarch_model::Epoch;
use tokio_postgres::Client;

use super::StreamError;
use crate::catalog;
use crate::scope::Scope;
use crate::sink::{self, State};
use crate::spine::Spine;
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Unit};

/// Seals the unit under `epoch`, with which the caller has taken it over. Sealing again changes
/// nothing: the organization may already live on the sink. Returns the unit as it stands.
///
/// # Errors
///
/// When a newer writer has the unit, or the sink refuses.
pub async fn seal(
    sink: &mut Client,
    unit: &Unit,
    epoch: Epoch,
    graph: &Graph,
    spine: &Spine,
) -> Result<State, StreamError> {
    let doing = "seal the unit on the sink";
    let before = sink::read(&*sink, unit).await?;
    if let Some(state) = before.filter(|state| state.sealed && state.epoch == epoch) {
        return Ok(state);
    }
    let walk = graph.walk(&unit.store);
    let catalog = catalog::load(&*sink, &walk).await?;
    let scope = Scope::new(graph, &unit.store, &unit.org, spine, &catalog)?;
    let tx = sink.transaction().await.doing(doing)?;
    match sink::hold(&tx, unit, epoch).await {
        // Sealed under an older epoch: its membership stands.
        Err(sink::SinkError::Sealed { .. }) => {}
        held => {
            held?;
            sink::seal(&tx, unit, epoch, &BTreeMap::new()).await?;
            for table in walk {
                let is_spine = table.is_static || table.scope == Edge::Root;
                if is_spine || !graph.has_children(&table.name) {
                    continue;
                }
                let key = table.primary_key.first().map_or("", String::as_str);
                let statement = format!(
                    "insert into monarch.sealed_membership (move_id, store, table_name, id)
                     select $1, $2, $3, pg_catalog.format('%s', t.{}) from {} as t where {}",
                    quote_ident(key),
                    qualified(&table.name),
                    scope.predicate(&table.name, "t")?
                );
                tx.execute(
                    &statement,
                    &[&unit.move_id.0, &unit.store.as_str(), &table.name.as_str()],
                )
                .await
                .doing(doing)?;
            }
        }
    }
    tx.commit().await.doing(doing)?;
    sink::read(&*sink, unit).await?.ok_or_else(|| {
        StreamError::Sink(sink::SinkError::Superseded {
            store: unit.store.clone(),
            epoch,
        })
    })
}
