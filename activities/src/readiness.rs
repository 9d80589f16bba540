//! Says whether a cut-over may begin: every reason why not, from the ledger and the cells, before
//! anything changes.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use monarch_ledger::{Unit, Verification, VerificationOutcome};
use monarch_model::{Phase, UnitStatus, binary_size};
use monarch_postgres::drain;
use monarch_workflows::contract::{ReadinessInput, ReadinessOutput};
use tokio::time::Instant;

use crate::blobs;
use crate::failure::Fault;
use crate::vitals::Vitals;
use crate::world::{Caller, Case, World};

/// A mover whose last report is older is stale. Movers report every second.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// How long the objects that rows have just named may take to be copied.
const OBJECTS_WITHIN: Duration = Duration::from_secs(5);

/// More log than this between source and sink would make the write pause long.
const LAG_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: ReadinessInput,
) -> Result<ReadinessOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let mut refusals = Vec::new();
    if case.of.phase != Phase::Active {
        refusals.push(format!("the move is {}", case.of.phase));
    }
    if case.world.config.fleet.control.is_none() && !input.writes_stopped {
        refusals.push(
            "fleet.yaml names no `control`, so nobody fences by machine: stop the organization's \
             writes and say so with --writes-stopped"
                .to_owned(),
        );
    }
    let now = Timestamp::now();
    let verifications = world.ledger.standing_verifications(case.of.id).await?;
    for unit in case.row_units().await? {
        let store = &unit.store;
        let of_unit = verifications.iter().filter(|one| one.store == *store);
        refusals.extend(of_unit.filter_map(|one| objection(one, &unit)));
        let reasons = judge(unit.status, unit.heartbeat_at, unit.stream.lag_bytes, now);
        refusals.extend(reasons.into_iter().map(|why| format!("{store}: {why}")));
        let slot = vitals.during("the slots", slot_fault(&case, &unit)).await?;
        refusals.extend(slot.map(|why| format!("{store}: {why}")));
    }
    for unit in case.blob_units().await? {
        let stale = blobs::judge(&unit, now);
        refusals.extend(stale.map(|why| format!("{}: {why}", unit.store)));
    }
    let deadline = Instant::now() + OBJECTS_WITHIN;
    let objects = vitals
        .during("objects to be copied", blobs::blockers(&case, deadline))
        .await?;
    refusals.extend(objects);
    Ok(ReadinessOutput {
        step: case.of.step,
        refusals,
    })
}

/// Why a unit is not ready, as the ledger knows it.
fn judge(
    status: UnitStatus,
    heartbeat_at: Option<Timestamp>,
    lag_bytes: Option<u64>,
    now: Timestamp,
) -> Vec<String> {
    let mut reasons = Vec::new();
    if status != UnitStatus::Streaming {
        reasons.push(format!("it is {status}, not streaming"));
        return reasons;
    }
    match heartbeat_at.map(|at| now.duration_since(at)) {
        None => reasons.push("its mover has reported nothing yet".to_owned()),
        Some(silence) if silence > STALE_AFTER => reasons.push(format!(
            "its mover is stale: it last reported {} s ago; see whether its worker runs and reaches \
             both cells",
            silence.as_secs()
        )),
        Some(_) => {}
    }
    match lag_bytes {
        None => reasons.push("how far it lags is not known yet".to_owned()),
        Some(lag) if lag > LAG_BYTES_MAX => {
            reasons.push(format!(
                "it lags {} behind, and {} would make the write pause long; wait until it has caught \
                 up (`monarch move watch`), then ask again",
                binary_size(lag),
                binary_size(LAG_BYTES_MAX)
            ));
        }
        Some(_) => {}
    }
    reasons
}

/// What a verification has against a cut-over: it found the copy that counts to differ, or it reads
/// both sides now, and would make the write pause longer.
fn objection(of: &Verification, unit: &Unit) -> Option<String> {
    let (store, number) = (&unit.store, of.number);
    let of_this_copy = of.ended_at > unit.copied_at;
    match of.outcome {
        None => Some(format!("{store}: verification {number} is under way")),
        Some(VerificationOutcome::Differs) if of_this_copy => Some(format!(
            "{store}: verification {number} found that both sides differ; see `monarch move \
             events`, and verify again when that is explained"
        )),
        Some(_) => None,
    }
}

/// Why the unit's slot cannot be relied on, as its server knows it.
async fn slot_fault(case: &Case<'_>, unit: &Unit) -> Result<Option<String>, Fault> {
    let Some(slot) = &unit.slot else {
        return Ok(Some("it has no slot".to_owned()));
    };
    let session = case
        .place(&unit.store)?
        .decode_session(Caller::Watcher)
        .await?;
    Ok(match drain::retained_wal(&session, slot).await? {
        None => Some(format!("slot {slot} does not exist")),
        Some(kept) if kept.status == "lost" => Some(format!("slot {slot} is lost")),
        Some(_) => None,
    })
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
