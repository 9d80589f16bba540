//! What earlier looks have seen of a store's stream, in bounded memory: a reading alone knows no
//! pace and no lag in seconds.
//!
//! Points are taken when a mover has reported, and carry the ledger's time of that report, so that
//! neither our clock nor the rhythm of our looks is in any number.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use monarch_ledger::Unit;
use monarch_model::Lsn;

/// Points kept: ten minutes of a mover that reports every second.
const POINTS: usize = 600;

/// The pace of changes is that of about so long.
const PACE_OVER: Duration = Duration::from_secs(15);

/// The reports of one store's mover.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    at: Timestamp,
    source_head: Option<Lsn>,
    lag_bytes: Option<u64>,
    changes: u64,
}

/// How long ago the source was where the sink is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lag {
    /// So long.
    Exactly(Duration),
    /// Longer than anything that was seen.
    MoreThan(Duration),
}

impl History {
    /// Takes a unit's last report in, once.
    pub(crate) fn note(&mut self, unit: &Unit) {
        let Some(at) = unit.heartbeat_at else { return };
        let stream = &unit.stream;
        let newest = self.points.back();
        if newest.is_some_and(|newest| newest.changes > stream.changes_applied) {
            // The copy began over: what was seen before is of another stream.
            self.points.clear();
        } else if newest.is_some_and(|newest| newest.at >= at) {
            return;
        }
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            at,
            source_head: stream.source_head,
            lag_bytes: stream.lag_bytes,
            changes: stream.changes_applied,
        });
    }

    /// Changes applied in a second, over the last while.
    pub(crate) fn changes_per_second(&self) -> Option<f64> {
        let newest = self.points.back()?;
        let mut older = self.points.iter().rev().skip(1);
        let since = older
            .find(|point| between(point.at, newest.at) >= PACE_OVER)
            .or_else(|| self.points.front())?;
        let seconds = between(since.at, newest.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a pace is read to two digits")]
        let changes = (newest.changes - since.changes) as f64;
        (seconds > 0.0).then(|| changes / seconds)
    }

    /// How long before the last report the source's log ended where the sink is now.
    pub(crate) fn lag(&self, applied: Option<Lsn>) -> Option<Lag> {
        let (applied, newest) = (applied?, self.points.back()?);
        if newest.lag_bytes == Some(0) {
            return Some(Lag::Exactly(Duration::ZERO));
        }
        let reached = |point: &&Point| point.source_head.is_some_and(|head| head <= applied);
        Some(match self.points.iter().rev().find(reached) {
            Some(point) => Lag::Exactly(between(point.at, newest.at)),
            None => {
                let first = self
                    .points
                    .iter()
                    .find(|point| point.source_head.is_some())?;
                Lag::MoreThan(between(first.at, newest.at))
            }
        })
    }

    /// Lags in bytes, each with its time.
    pub(crate) fn lags(&self) -> Vec<(Timestamp, u64)> {
        let points = self.points.iter();
        points
            .filter_map(|point| Some((point.at, point.lag_bytes?)))
            .collect()
    }
}

/// Time from one moment to a later one.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(points: &[(i64, u64, u64, u64)]) -> History {
        let points = points.iter().map(|&(second, head, lag, changes)| Point {
            at: Timestamp::from_second(second).unwrap(),
            source_head: Some(Lsn(head)),
            lag_bytes: Some(lag),
            changes,
        });
        History {
            points: points.collect(),
        }
    }

    /// The lag in seconds is measured against what the source had written when, not guessed from
    /// bytes: a source that writes nothing does not make a lag grow.
    #[test]
    fn a_lag_in_seconds_is_the_age_of_the_position_that_was_applied() {
        let history = seen(&[(10, 100, 0, 0), (11, 200, 50, 4), (12, 300, 120, 10)]);
        let secs = Duration::from_secs;
        assert_eq!(history.lag(Some(Lsn(180))), Some(Lag::Exactly(secs(2))));
        assert_eq!(history.lag(Some(Lsn(250))), Some(Lag::Exactly(secs(1))));
        assert_eq!(history.lag(Some(Lsn(300))), Some(Lag::Exactly(secs(0))));
        assert_eq!(history.lag(Some(Lsn(50))), Some(Lag::MoreThan(secs(2))));
        assert_eq!(history.lag(None), None);
        let quiet = seen(&[(10, 100, 0, 0), (60, 100, 0, 0)]);
        assert_eq!(quiet.lag(Some(Lsn(99))), Some(Lag::Exactly(secs(0))));
    }

    #[test]
    fn a_pace_is_that_of_the_last_while() {
        let history = seen(&[(0, 1, 0, 0), (100, 1, 0, 1_000), (120, 1, 0, 1_400)]);
        assert_eq!(history.changes_per_second(), Some(20.0));
        assert_eq!(seen(&[(0, 1, 0, 5)]).changes_per_second(), None);
    }
}
