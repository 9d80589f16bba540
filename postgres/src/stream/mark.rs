//! Reads the marks that Monarch leaves in a source's log, to know when a reader has come past them.
//!
//! A mark is what [`crate::drain::emit_barrier`] writes: a transactional logical message, so that it
//! stands in the log in the order of commits. It names move and store; those of other units are
//! passed over.

use monarch_model::{MoveId, StoreName};
use serde::Deserialize;
use uuid::Uuid;

use crate::Unit;

#[derive(Deserialize)]
struct Content {
    #[serde(rename = "move")]
    move_id: MoveId,
    store: StoreName,
    nonce: Uuid,
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
        let ours = format!(
            r#"{{"move":"{}","store":"a","nonce":"{nonce}"}}"#,
            Uuid::from_u128(1)
        );
        assert_eq!(nonce_for(ours.as_bytes(), &unit(1, "a")), Some(nonce));
        assert_eq!(nonce_for(ours.as_bytes(), &unit(1, "b")), None);
        assert_eq!(nonce_for(ours.as_bytes(), &unit(2, "a")), None);
        assert_eq!(nonce_for(b"hello", &unit(1, "a")), None);
    }
}
