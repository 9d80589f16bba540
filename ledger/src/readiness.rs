//! What the ledger has against a cut-over, a unit at a time. The activity that decides asks here
//! first and then the cells; a page that only shows it asks here alone.

use jiff::{SignedDuration, Timestamp};
use monarch_model::{UnitStatus, binary_size};

use crate::records::Unit;
use crate::verifications::{Verification, VerificationOutcome};

/// A mover whose last report is older is stale. Movers report every second.
pub const STALE_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// More log than this between source and sink would make the write pause long.
const LAG_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl Unit {
    /// Every reason why the unit is not ready for a cut-over, as the ledger knows it. `standing` are
    /// the move's comparisons, of all its units.
    pub fn objections(&self, standing: &[Verification], now: Timestamp) -> Vec<String> {
        if self.of_objects {
            return silence(self.heartbeat_at, now).into_iter().collect();
        }
        let of_unit = standing.iter().filter(|one| one.store == self.store);
        let mut reasons: Vec<String> = of_unit.filter_map(|one| objection(one, self)).collect();
        let lag_bytes = self.stream.lag_bytes;
        reasons.extend(judge(self.status, self.heartbeat_at, lag_bytes, now));
        reasons
    }
}

/// Why a stream of rows is not ready.
fn judge(
    status: UnitStatus,
    heartbeat_at: Option<Timestamp>,
    lag_bytes: Option<u64>,
    now: Timestamp,
) -> Vec<String> {
    if status != UnitStatus::Streaming {
        return vec![format!("it is {status}, not streaming")];
    }
    let mut reasons: Vec<String> = silence(heartbeat_at, now).into_iter().collect();
    match lag_bytes {
        None => reasons.push("how far it lags is not known yet".to_owned()),
        Some(lag) if lag > LAG_BYTES_MAX => reasons.push(format!(
            "it lags {} behind, and {} would make the write pause long; wait until it has caught \
             up (`monarch move watch`), then ask again",
            binary_size(lag),
            binary_size(LAG_BYTES_MAX)
        )),
        Some(_) => {}
    }
    reasons
}

/// Why a mover is not to be relied on.
fn silence(heartbeat_at: Option<Timestamp>, now: Timestamp) -> Option<String> {
    match heartbeat_at.map(|at| now.duration_since(at)) {
        None => Some("its mover has reported nothing yet".to_owned()),
        Some(silence) if silence > STALE_AFTER => Some(format!(
            "its mover is stale: it last reported {} s ago; see whether its worker runs and reaches \
             both cells",
            silence.as_secs()
        )),
        Some(_) => None,
    }
}

/// What a verification has against a cut-over: it found the copy that counts to differ, or it reads
/// both sides now, and would make the write pause longer.
fn objection(of: &Verification, unit: &Unit) -> Option<String> {
    let number = of.number;
    let of_this_copy = of.ended_at > unit.copied_at;
    match of.outcome {
        None => Some(format!("verification {number} is under way")),
        Some(VerificationOutcome::Differs) if of_this_copy => Some(format!(
            "verification {number} found that both sides differ; see `monarch move events`, and \
             verify again when that is explained"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards the cut-over against a mover that is dead while its last word was good.
    #[test]
    fn a_silent_or_lagging_mover_is_not_ready() {
        let now = Timestamp::now();
        let long_ago = now - SignedDuration::from_secs(60);
        let streaming = UnitStatus::Streaming;
        let reasons = |status, at, lag| judge(status, at, lag, now).len();
        assert_eq!(reasons(streaming, Some(now), Some(0)), 0);
        assert_eq!(reasons(UnitStatus::Copying, Some(now), Some(0)), 1);
        assert_eq!(reasons(streaming, None, None), 2);
        assert_eq!(reasons(streaming, Some(long_ago), Some(0)), 1);
        assert_eq!(reasons(streaming, Some(now), Some(1 << 40)), 1);
    }
}
