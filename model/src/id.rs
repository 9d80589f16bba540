//! Identifiers. A bare `i64` or `String` says nothing about what it names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// An identifier was given in a form that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {given:?}: {expected}")]
pub struct InvalidId {
    /// What was being named, for example `organization id`.
    pub what: &'static str,
    /// What was given, cut to 64 characters.
    pub given: String,
    /// What would have been accepted.
    pub expected: &'static str,
}

impl InvalidId {
    pub(crate) fn new(what: &'static str, given: &str, expected: &'static str) -> Self {
        Self {
            what,
            given: given.chars().take(64).collect(),
            expected,
        }
    }
}

/// One move: the lease, the token in the control plane, and the root of every name that the move
/// creates in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MoveId(pub Uuid);

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MoveId {
    type Err = InvalidId;

    fn from_str(s: &str) -> Result<Self, InvalidId> {
        Uuid::parse_str(s)
            .map(Self)
            .map_err(|_| InvalidId::new("move id", s, "expected a uuid"))
    }
}

/// The root row's key, in the text form that Postgres prints for its type.
///
/// The type itself (integer, uuid or text) is the catalog's to know: whoever first meets the
/// root table casts the text to the key's type and keeps what Postgres prints, so that `007` and
/// `7`, or two spellings of one uuid, are one organization.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OrgId(String);

impl OrgId {
    /// The longest key that is accepted, in bytes: what a btree index can hold.
    pub const MAX_BYTES: usize = 2_600;

    /// The key as text, to be cast by Postgres to the root key's type.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OrgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for OrgId {
    type Err = InvalidId;

    fn from_str(s: &str) -> Result<Self, InvalidId> {
        if s.is_empty() || s.len() > Self::MAX_BYTES || s.contains('\0') {
            return Err(InvalidId::new(
                "organization id",
                s,
                "expected 1 to 2,600 bytes of text without NUL",
            ));
        }
        Ok(Self(s.to_owned()))
    }
}

impl<'de> Deserialize<'de> for OrgId {
    /// Takes a JSON number (an integer) or a string.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Number(n) if n.is_i64() || n.is_u64() => n.to_string(),
            serde_json::Value::String(s) => s,
            _ => {
                return Err(serde::de::Error::custom(
                    "org_id: expected an integer or a string",
                ));
            }
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as it stands in the configuration.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(s: &str) -> Result<Self, InvalidId> {
                if s.is_empty() || s.len() > 255 || s.chars().any(char::is_control) {
                    return Err(InvalidId::new(
                        $what,
                        s,
                        "expected 1 to 255 bytes without control characters",
                    ));
                }
                Ok(Self(s.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(s: String) -> Result<Self, InvalidId> {
                s.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

name! {
    /// A cell of the fleet, as named under `cells` in `fleet.yaml`.
    CellName, "cell name"
}
name! {
    /// A store, as named under `stores` in `manifest.yaml`.
    StoreName, "store name"
}

/// Who may write for a unit. Each mover, scrub or seal takes the next one from the ledger; the
/// sink refuses all but the newest.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organization_id_is_a_number_or_a_string_in_json() {
        let from = |json: &str| serde_json::from_str::<OrgId>(json).map(|id| id.to_string());
        assert_eq!(from("1").unwrap(), "1");
        assert_eq!(from("\"acme\"").unwrap(), "acme");
        for bad in ["1.5", "null", "\"\"", "[1]", "true", "\"a\\u0000b\""] {
            assert!(from(bad).is_err(), "{bad} was taken");
        }
    }
}
