//! Reads a move's journal for what the last event of a kind said.

use monarch_model::{MoveId, StoreName};
use serde_json::Value;

use crate::failure::Fault;
use crate::world::World;

/// Events asked for at a time.
const PAGE: u32 = 1_000;

/// The detail of the move's newest event of `kind`. Units have events of the same names.
pub(crate) async fn newest(
    world: &World,
    move_id: MoveId,
    kind: &str,
) -> Result<Option<Value>, Fault> {
    newest_of(world, move_id, None, kind).await
}

/// The same of one unit, or of the move as a whole where there is none.
pub(crate) async fn newest_of(
    world: &World,
    move_id: MoveId,
    store: Option<&StoreName>,
    kind: &str,
) -> Result<Option<Value>, Fault> {
    let mut after = 0;
    let mut found = None;
    loop {
        let events = world.ledger.events(move_id, after, PAGE).await?;
        let Some(last) = events.last() else {
            return Ok(found);
        };
        after = last.id;
        found = events
            .into_iter()
            .rfind(|event| event.kind == kind && event.store.as_ref() == store)
            .map(|e| e.detail)
            .or(found);
    }
}
