//! A position in the write-ahead log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A byte position in a cluster's write-ahead log, written `16/B374D848` as Postgres does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Lsn(pub u64);

impl Lsn {
    /// The bytes of log between `earlier` and this position; zero if `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A text is not a log position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a log position: expected two hexadecimal numbers like 16/B374D848")]
pub struct InvalidLsn(String);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(s: &str) -> Result<Self, InvalidLsn> {
        let invalid = || InvalidLsn(s.chars().take(32).collect());
        let (high, low) = s.split_once('/').ok_or_else(invalid)?;
        let parse = |part: &str| u32::from_str_radix(part, 16).map_err(|_| invalid());
        Ok(Self(
            (u64::from(parse(high)?) << 32) | u64::from(parse(low)?),
        ))
    }
}

impl TryFrom<String> for Lsn {
    type Error = InvalidLsn;

    fn try_from(s: String) -> Result<Self, InvalidLsn> {
        s.parse()
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> String {
        lsn.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_prints_as_postgres_prints_it_and_reads_back() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "0/1"] {
            assert_eq!(text.parse::<Lsn>().unwrap().to_string(), text);
        }
        for bad in ["", "16", "16/", "x/1", "100000000/0", "1/2/3"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad} was taken");
        }
    }
}
