//! Notices that the source's tables are not what they were when the copy began.
//!
//! The log says so of a table only with its next change, and a column that was added with a default
//! needs none: its rows would lack it on the sink. So what the catalog says of every table is noted
//! in the journal before the slot is made, fact by fact, and compared while the unit streams and at
//! every verification, the one behind the barrier included.

use std::time::Duration;

use monarch_model::{MoveId, StoreName, TableName};
use monarch_postgres::catalog::{Catalog, Fingerprint};
use serde_json::json;

use crate::code::Code;
use crate::failure::Fault;
use crate::journal;
use crate::world::{Caller, Place, World};

/// The kind of the journal's rows that hold what the catalog says of a store's tables.
const CATALOG: &str = "catalog";

/// How often a streaming unit's tables are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long the log is given to say itself what changed, since it says it better: the mover beside
/// ends with the log's own finding.
const LOG_FIRST: Duration = Duration::from_secs(2);

/// How many lines of the difference are told.
const LINES_MAX: usize = 12;

/// Notes what the source's tables are. Called before the slot is made, so that no change falls
/// between.
pub(crate) async fn note(place: &Place<'_>, source: &Catalog) -> Result<(), Fault> {
    let ledger = &place.case.world.ledger;
    let store = &place.unit.store;
    ledger
        .note(
            place.unit.move_id,
            Some(store),
            CATALOG,
            json!(source.fingerprint()),
        )
        .await?;
    Ok(())
}

/// Fails by name if the source's tables are not what was noted.
pub(crate) async fn check(place: &Place<'_>, source: &Catalog) -> Result<(), Fault> {
    let store = &place.unit.store;
    let Some(noted) = noted(place.case.world, place.unit.move_id, store).await? else {
        return Ok(());
    };
    let changes = Fingerprint::changes(&noted, &source.fingerprint());
    if changes.is_empty() {
        return Ok(());
    }
    Err(Fault::Fatal {
        code: Code::SchemaChanged,
        text: format!("{store}: since its copy began: {}", told(&changes)),
    })
}

fn told(changes: &[(TableName, String)]) -> String {
    let mut lines: Vec<String> = changes
        .iter()
        .take(LINES_MAX)
        .map(|(table, change)| format!("{table}: {change}"))
        .collect();
    if changes.len() > LINES_MAX {
        lines.push(format!("and {} more", changes.len() - LINES_MAX));
    }
    lines.join("; ")
}

/// Looks again and again; returns only with a change. A look that fails is made again: the mover
/// beside it meets the same trouble, and says so.
pub(crate) async fn until_changed(place: &Place<'_>) -> Fault {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        match look(place).await {
            Ok(()) => {}
            Err(changed @ Fault::Fatal { .. }) => {
                tokio::time::sleep(LOG_FIRST).await;
                return changed;
            }
            Err(fault) => {
                let error = fault.story();
                tracing::debug!(store = %place.unit.store, error, "the tables were not looked at");
            }
        }
    }
}

async fn look(place: &Place<'_>) -> Result<(), Fault> {
    let source = place.source_session(Caller::Watcher).await?;
    check(place, &place.catalog(&source).await?).await
}

async fn noted(
    world: &World,
    move_id: MoveId,
    store: &StoreName,
) -> Result<Option<Fingerprint>, Fault> {
    let noted = journal::newest_of(world, move_id, Some(store), CATALOG).await?;
    noted
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| Fault::BadInput(format!("read the journal's {CATALOG}: {error}")))
}
