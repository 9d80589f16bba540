//! The static spine: the ids that may not change while a move lives.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use monarch_model::TableName;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The ids of the root and of each static table, as Postgres prints them. A table without an id is
/// the same as no table: the ledger's rows could not tell them apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spine(pub BTreeMap<TableName, BTreeSet<String>>);

impl Spine {
    /// The SHA-256, in hexadecimal, over each table and id in order of their bytes, each ended by
    /// a NUL, which neither can contain: two spines share a digest only if they are the same.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (table, ids) in &self.0 {
            for id in ids {
                hash.update(table.as_str().as_bytes());
                hash.update([0]);
                hash.update(id.as_bytes());
                hash.update([0]);
            }
        }
        hash.finalize()
            .iter()
            .fold(String::with_capacity(64), |mut hex, byte| {
                // Writing to a String does not fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            })
    }

    /// How many ids it holds.
    pub fn ids_total(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

impl<T: IntoIterator<Item = String>> FromIterator<(TableName, T)> for Spine {
    fn from_iter<I: IntoIterator<Item = (TableName, T)>>(tables: I) -> Self {
        Self(
            tables
                .into_iter()
                .map(|(table, ids)| (table, ids.into_iter().collect()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spine(tables: &[(&str, &[&str])]) -> Spine {
        tables
            .iter()
            .map(|(table, ids)| {
                let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
                (table.parse().unwrap(), ids)
            })
            .collect()
    }

    /// Guards the spine's guard: a digest that two spines share would let a project slip in.
    #[test]
    fn different_spines_have_different_digests() {
        let spines = [
            spine(&[]),
            spine(&[("project", &["1", "2"])]),
            spine(&[("project", &["12"])]),
            spine(&[("project", &["1"]), ("team", &["2"])]),
            spine(&[("project", &["1", "project", "2"])]),
            spine(&[("project", &["2"]), ("team", &["1"])]),
        ];
        let digests: BTreeSet<String> = spines.iter().map(Spine::digest).collect();
        assert_eq!(digests.len(), spines.len());
    }

    #[test]
    fn the_order_of_reading_does_not_matter() {
        let one = spine(&[("team", &["9"]), ("project", &["2", "10", "2"])]);
        let other = spine(&[("project", &["10", "2"]), ("team", &["9"]), ("empty", &[])]);
        assert_eq!(one.digest(), other.digest());
        assert_eq!(
            one.digest(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
