//! Sets of row keys, small enough that a mover can hold a parent table's whole membership.
//!
//! Integers go into a compressed bitmap (a million neighbours take a few hundred kilobytes).
//! A uuid is kept as its 16 bytes. A text, whose length nothing bounds, is kept as 16 bytes of
//! its SHA-256 digest: for two of a billion texts to share one has a chance of about 10^-21.

use std::collections::HashSet;

use roaring::RoaringTreemap;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// How many keys an emptied set keeps room for.
const SPARE_KEYS: usize = 1024;

/// What a key column holds, as far as a set of its values must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// `smallint`, `integer` or `bigint`.
    Integer,
    /// `uuid`.
    Uuid,
    /// Anything else, told apart by its text.
    Text,
}

impl KeyKind {
    /// The kind of a column that is compared as `key_type`, as the catalog writes it.
    pub fn of_type(key_type: &str) -> Self {
        match key_type {
            "pg_catalog.int8" => KeyKind::Integer,
            "pg_catalog.uuid" => KeyKind::Uuid,
            _ => KeyKind::Text,
        }
    }
}

/// A set of keys of one table, each given in the text form that Postgres prints.
#[derive(Debug, Clone)]
pub enum IdSet {
    /// Integers, shifted so that their order as unsigned numbers is their own.
    Integers(RoaringTreemap),
    /// Sixteen bytes of each key.
    Digests(KeyKind, HashSet<u128>),
}

/// A key in the form a set holds.
enum Member {
    Integer(u64),
    Digest(u128),
}

impl IdSet {
    /// An empty set of keys of this kind.
    pub fn new(kind: KeyKind) -> Self {
        match kind {
            KeyKind::Integer => IdSet::Integers(RoaringTreemap::new()),
            KeyKind::Uuid | KeyKind::Text => IdSet::Digests(kind, HashSet::new()),
        }
    }

    /// Adds a key; whether it was new. A text that is no key of this kind is not added: no row can
    /// have it for a key.
    pub fn insert(&mut self, id: &[u8]) -> bool {
        match (self.member(id), self) {
            (Some(Member::Integer(id)), IdSet::Integers(set)) => set.insert(id),
            (Some(Member::Digest(id)), IdSet::Digests(_, set)) => set.insert(id),
            _ => false,
        }
    }

    /// Takes a key out; whether it was there.
    pub fn remove(&mut self, id: &[u8]) -> bool {
        match (self.member(id), self) {
            (Some(Member::Integer(id)), IdSet::Integers(set)) => set.remove(id),
            (Some(Member::Digest(id)), IdSet::Digests(_, set)) => set.remove(&id),
            _ => false,
        }
    }

    /// Whether the key is there.
    pub fn contains(&self, id: &[u8]) -> bool {
        match (self.member(id), self) {
            (Some(Member::Integer(id)), IdSet::Integers(set)) => set.contains(id),
            (Some(Member::Digest(id)), IdSet::Digests(_, set)) => set.contains(&id),
            _ => false,
        }
    }

    /// Takes all keys out.
    pub fn clear(&mut self) {
        match self {
            IdSet::Integers(set) => set.clear(),
            IdSet::Digests(_, set) => {
                set.clear();
                set.shrink_to(SPARE_KEYS);
            }
        }
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        match self {
            IdSet::Integers(set) => set.len(),
            IdSet::Digests(_, set) => set.len() as u64,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn member(&self, id: &[u8]) -> Option<Member> {
        match self {
            IdSet::Integers(_) => {
                let number: i64 = std::str::from_utf8(id).ok()?.parse().ok()?;
                Some(Member::Integer(number.cast_unsigned() ^ (1 << 63)))
            }
            IdSet::Digests(KeyKind::Uuid, _) => {
                let uuid = Uuid::try_parse_ascii(id).ok()?;
                Some(Member::Digest(uuid.as_u128()))
            }
            IdSet::Digests(_, _) => {
                let digest: [u8; 32] = Sha256::digest(id).into();
                let (half, _) = digest.split_first_chunk::<16>()?;
                Some(Member::Digest(u128::from_be_bytes(*half)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(kind: KeyKind, ids: &[&str]) -> IdSet {
        let mut set = IdSet::new(kind);
        for id in ids {
            assert!(set.insert(id.as_bytes()), "{id} was not new");
        }
        set
    }

    #[test]
    fn integers_of_either_sign_are_told_apart() {
        let ends = [i64::MIN.to_string(), i64::MAX.to_string()];
        let mut ids = set(KeyKind::Integer, &["0", "-1", "1", &ends[0], &ends[1]]);
        assert_eq!(ids.len(), 5);
        assert!(ids.contains(b"-1") && ids.contains(ends[0].as_bytes()));
        assert!(!ids.contains(b"2") && !ids.contains(b"-2"));
        assert!(ids.remove(b"-1") && !ids.remove(b"-1") && ids.contains(b"1"));
    }

    /// Guards promise 1: two spellings are one uuid, and nothing else is.
    #[test]
    fn a_uuid_is_its_value_and_a_text_is_its_bytes() {
        let uuid = "8e0b7b4e-2f38-4d9c-a6a5-0e9a0c6d2f11";
        let uuids = set(KeyKind::Uuid, &[uuid]);
        assert!(uuids.contains(uuid.to_uppercase().as_bytes()));
        assert!(!uuids.contains(b"8e0b7b4e-2f38-4d9c-a6a5-0e9a0c6d2f12"));
        let texts = set(KeyKind::Text, &["a", "A", ""]);
        assert_eq!(texts.len(), 3);
        assert!(!texts.contains(b"a "));
    }

    #[test]
    fn what_is_no_key_of_the_kind_is_in_no_set() {
        let mut ids = set(KeyKind::Integer, &["7"]);
        for odd in ["", "x", "7.0", "99999999999999999999"] {
            assert!(!ids.insert(odd.as_bytes()) && !ids.contains(odd.as_bytes()));
        }
        assert!(!set(KeyKind::Uuid, &[]).insert(b"no uuid"));
    }

    /// Guards the memory promise: a million neighbours are a few hundred kilobytes.
    #[test]
    fn a_million_neighbours_are_small() {
        let mut ids = IdSet::new(KeyKind::Integer);
        for id in 0..1_000_000 {
            ids.insert(i64::to_string(&id).as_bytes());
        }
        let IdSet::Integers(bitmap) = &ids else {
            panic!("integers are kept in a bitmap");
        };
        assert!(bitmap.serialized_size() < 400_000);
    }
}
