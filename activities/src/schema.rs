//! Notices that the source's tables are not what they were when the copy began.
//!
//! The log says so of a table only with its next change, and a column that was added with a default
//! needs none: its rows would lack it on the sink. So a digest of every table's catalog entry is
//! noted in the journal before the slot is made, and compared while the unit streams and at every
//! verification, the one behind the barrier included.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_model::{MoveId, StoreName};
use monarch_postgres::catalog::Catalog;
use serde_json::{Value, json};

use crate::failure::Fault;
use crate::journal;
use crate::world::{Caller, Place, World};

/// The kind of the journal's rows that hold a store's digests.
const SCHEMA: &str = "schema";

/// How often a streaming unit's tables are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long the log is given to say itself what changed, since it says it better: the mover beside
/// ends with the log's own finding.
const LOG_FIRST: Duration = Duration::from_secs(2);

/// Digits kept of a table's digest.
const DIGITS: usize = 16;

/// Notes what the source's tables are. Called before the slot is made, so that no change falls
/// between.
pub(crate) async fn note(place: &Place<'_>, source: &Catalog) -> Result<(), Fault> {
    let ledger = &place.case.world.ledger;
    let store = &place.unit.store;
    ledger
        .note(
            place.unit.move_id,
            Some(store),
            SCHEMA,
            json!(digests(source)),
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
    let now = digests(source);
    let known = |table: &String| noted.get(table).and_then(Value::as_str);
    let changed: Vec<&str> = now
        .iter()
        .filter(|(table, digest)| known(table) != Some(digest.as_str()))
        .map(|(table, _)| table.as_str())
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(Fault::Fatal {
        code: "schema-changed",
        text: format!(
            "{store}: since its copy began, columns, types, identity, partitions or files changed \
             of {}",
            changed.join(", ")
        ),
    })
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

fn digests(catalog: &Catalog) -> BTreeMap<String, String> {
    let short = |digest: String| digest.chars().take(DIGITS).collect();
    catalog
        .fingerprint()
        .digests()
        .into_iter()
        .map(|(table, digest)| (table.to_string(), short(digest)))
        .collect()
}

async fn noted(world: &World, move_id: MoveId, store: &StoreName) -> Result<Option<Value>, Fault> {
    journal::newest_of(world, move_id, Some(store), SCHEMA).await
}
