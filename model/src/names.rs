//! The names of what a move creates in a cell: readable, at most 63 bytes, the same whenever they
//! are asked for, and never the same for two moves, stores or databases of one server.
//!
//! Slot names are server-wide, publication names are per database. Both begin with
//! `monarch_org_<organization>_<store>_<digest>`, where the digest covers the move, so an operator
//! who meets one knows whose it is. A slot's name ends in the epoch that made it: a mover that was
//! superseded can drop its own slot without ever touching its successor's.

use sha2::{Digest, Sha256};

use crate::{Epoch, MoveId, OrgId, StoreName};

/// The longest name that Postgres keeps, in bytes.
const NAME_BYTES: usize = 63;
/// Bytes of the digest, in hexadecimal digits.
const DIGEST_DIGITS: usize = 12;
/// Bytes kept of an organization's id and of a store's name each.
const PART_BYTES: usize = 13;

/// The beginning that all names of one unit share, and no other unit's name has.
pub fn unit_prefix(move_id: MoveId, org: &OrgId, store: &StoreName) -> String {
    let mut hash = Sha256::new();
    hash.update(move_id.0.as_bytes());
    hash.update(store.as_str().as_bytes());
    let digest: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "{}{}_{}",
        org_prefix(org),
        plain(store.as_str()),
        &digest[..DIGEST_DIGITS]
    )
}

/// What the names of all units of all moves of one organization begin with. An id that is long, or
/// goes on after an underscore, may share it: what has it may be the organization's.
pub fn org_prefix(org: &OrgId) -> String {
    format!("monarch_org_{}_", plain(org.as_str()))
}

/// The slot that the mover of `epoch` makes.
pub fn slot(unit_prefix: &str, epoch: Epoch) -> String {
    fits(format!("{unit_prefix}_e{epoch}"))
}

/// The publication of inserts.
pub fn insert_publication(unit_prefix: &str) -> String {
    fits(format!("{unit_prefix}_ins"))
}

/// The publication of updates, deletes and truncates.
pub fn mutation_publication(unit_prefix: &str) -> String {
    fits(format!("{unit_prefix}_mut"))
}

/// What a session of a unit calls itself, so that a successor finds it in `pg_stat_activity`.
pub fn application(unit_prefix: &str, epoch: Epoch) -> String {
    fits(format!("{unit_prefix}_e{epoch}"))
}

/// Lower-case letters, digits and underscores are all that a slot's name may have.
fn plain(text: &str) -> String {
    text.chars()
        .take(PART_BYTES)
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .collect()
}

fn fits(name: String) -> String {
    assert!(
        name.len() <= NAME_BYTES,
        "{name} is longer than Postgres keeps"
    );
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn prefix(id: u128, org: &str, store: &str) -> String {
        unit_prefix(
            MoveId(Uuid::from_u128(id)),
            &org.parse().unwrap(),
            &store.parse().unwrap(),
        )
    }

    #[test]
    fn the_longest_names_fit() {
        let prefix = prefix(1, &"9".repeat(200), &"Størage ".repeat(20));
        slot(&prefix, Epoch(99_999_999));
        insert_publication(&prefix);
    }

    /// Guards promise 8: a slot of any move of the organization is known for its own.
    #[test]
    fn every_name_of_an_organization_begins_alike() {
        let org = "Acme Corporation".parse().unwrap();
        for id in [1, 2] {
            let unit = prefix(id, "Acme Corporation", "default");
            assert!(slot(&unit, Epoch(7)).starts_with(&org_prefix(&org)));
        }
        assert!(!prefix(1, "12", "default").starts_with(&org_prefix(&"1".parse().unwrap())));
    }

    /// Guards promise 7: no unit takes another's slot for its own, whatever is cut from its name.
    #[test]
    fn two_units_never_share_a_name() {
        let names = [
            prefix(1, "1", "default"),
            prefix(2, "1", "default"),
            prefix(1, "1", "default_but_longer_a"),
            prefix(1, "1", "default_but_longer_b"),
            prefix(1, "1", "Default"),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
