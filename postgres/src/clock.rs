//! The server's clock on the wire.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds between 1970 and 2000, where Postgres begins to count.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// A moment as replication messages carry it: microseconds since 2000-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTime(pub i64);

impl PgTime {
    /// This machine's clock.
    pub fn now() -> Self {
        let since_1970_us = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(_) => 0,
        };
        Self(since_1970_us.saturating_sub(POSTGRES_EPOCH_US))
    }

    /// Microseconds since 1970-01-01 UTC.
    pub fn unix_us(self) -> i64 {
        self.0.saturating_add(POSTGRES_EPOCH_US)
    }

    /// The same moment for the calendar, unless it lies beyond it.
    pub fn timestamp(self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_microsecond(self.unix_us()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_counts_from_the_year_2000() {
        let text = PgTime(0).timestamp().map(|t| t.to_string());
        assert_eq!(text.as_deref(), Some("2000-01-01T00:00:00Z"));
        assert_eq!(PgTime(i64::MAX).timestamp(), None);
    }
}
