//! Marks that Monarch leaves in a source's log, to know when a reader has come past them.
//!
//! A mark is a transactional logical message, so it stands in the log in the order of commits. It
//! names move and store; a reader passes over those of other units.

use monarch_model::{Lsn, MoveId, StoreName};
use serde::{Deserialize, Serialize};
use tokio_postgres::GenericClient;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use crate::{Doing, Error, Unit};

/// The prefix of our messages.
pub(super) const PREFIX: &str = "monarch";

#[derive(Serialize, Deserialize)]
struct Content {
    #[serde(rename = "move")]
    move_id: MoveId,
    store: StoreName,
    nonce: Uuid,
}

/// Leaves a mark for `unit` in the log of the primary that `client` is connected to; where it was
/// written. Its transaction commits behind.
///
/// # Errors
///
/// When the server refuses.
pub(super) async fn leave<C: GenericClient + Sync>(
    client: &C,
    unit: &Unit,
    nonce: Uuid,
) -> Result<Lsn, Error> {
    let row = client
        .query_one(
            "select pg_catalog.pg_logical_emit_message(true, $1, $2::text)",
            &[&PREFIX, &content(unit, nonce)],
        )
        .await
        .doing("leave a mark in the source's log")?;
    let lsn: PgLsn = row.try_get(0).doing("leave a mark in the source's log")?;
    Ok(Lsn(lsn.into()))
}

/// What a mark for `unit` says.
pub(super) fn content(unit: &Unit, nonce: Uuid) -> String {
    serde_json::json!({
        "move": unit.move_id,
        "store": unit.store,
        "nonce": nonce,
    })
    .to_string()
}

/// The nonce of a mark, if it is for `unit`. Anything else that stands in the log is not ours.
pub(super) fn nonce_for(content: &[u8], unit: &Unit) -> Option<Uuid> {
    let content: Content = serde_json::from_slice(content).ok()?;
    (content.move_id == unit.move_id && content.store == unit.store).then_some(content.nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 3: the barrier of another move or store proves nothing about ours.
    #[test]
    fn a_mark_is_for_one_unit() {
        let unit = |id: u128, store: &str| Unit {
            move_id: MoveId(Uuid::from_u128(id)),
            org: "1".parse().unwrap(),
            store: store.parse().unwrap(),
        };
        let nonce = Uuid::from_u128(9);
        let ours = content(&unit(1, "a"), nonce);
        assert_eq!(nonce_for(ours.as_bytes(), &unit(1, "a")), Some(nonce));
        assert_eq!(nonce_for(ours.as_bytes(), &unit(1, "b")), None);
        assert_eq!(nonce_for(ours.as_bytes(), &unit(2, "a")), None);
        assert_eq!(nonce_for(b"hello", &unit(1, "a")), None);
    }
}
