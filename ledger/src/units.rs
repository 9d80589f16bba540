//! Who may write for a unit, and how a unit goes from status to status.

use std::fmt;

use monarch_model::unit::{self, UnitEvent};
use monarch_model::{Epoch, MoveId, Phase, StoreName, UnitStatus, names};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::Transaction;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, lock_move};
use crate::phases::Transition;
use crate::records::{column, parsed};

/// What an epoch is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To copy and stream.
    Mover,
    /// To make the unit read-only before the flip.
    Seal,
    /// To read the slot to its head after the seal, and drop it.
    Tail,
    /// To delete the rows on the source after the flip.
    Evict,
    /// To delete the rows on the sink of a move that is given up or failed.
    Scrub,
    /// To drop what a move that nobody drives left behind.
    Sweep,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 6] = [
        Purpose::Mover,
        Purpose::Seal,
        Purpose::Tail,
        Purpose::Evict,
        Purpose::Scrub,
        Purpose::Sweep,
    ];

    /// Whether an epoch is handed out to this end while the move is in `phase`. A mover that was
    /// asked for before an abort and starts after it must not supersede the scrub.
    pub fn is_allowed_in(self, phase: Phase) -> bool {
        use Phase as P;
        match self {
            Purpose::Mover => matches!(phase, P::Active | P::Draining),
            Purpose::Seal => matches!(phase, P::Draining),
            Purpose::Tail => matches!(phase, P::Flipping | P::CutOver | P::Evicting),
            Purpose::Evict => matches!(phase, P::CutOver | P::Evicting),
            Purpose::Scrub => matches!(phase, P::Aborting | P::Failed),
            Purpose::Sweep => phase.is_live(),
        }
    }

    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Mover => "mover",
            Purpose::Seal => "seal",
            Purpose::Tail => "tail",
            Purpose::Evict => "evict",
            Purpose::Scrub => "scrub",
            Purpose::Sweep => "sweep",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A unit whose row is locked.
pub(crate) struct Held {
    pub(crate) status: UnitStatus,
    epoch: Epoch,
    slot_prefix: String,
    slot: Option<String>,
    sealed: bool,
}

impl Ledger {
    /// Hands out the unit's next epoch: greater than every one before it, and nobody else's. From
    /// now on the ledger refuses what older epochs have to say. A reply that is lost costs an
    /// epoch and nothing else.
    ///
    /// Refused where [`Purpose::is_allowed_in`] says so, and to a mover once the unit is sealed.
    pub async fn next_epoch(
        &self,
        move_id: MoveId,
        store: &StoreName,
        purpose: Purpose,
    ) -> Result<Epoch, LedgerError> {
        const DOING: &str = "take the unit's next epoch";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        let phase = lock_move(&tx, move_id).await?;
        let unit = lock_unit(&tx, move_id, store).await?;
        // Said before the phase is: a mover that tries again after the seal has ended well.
        if unit.sealed && purpose == Purpose::Mover {
            return Err(LedgerError::Sealed {
                move_id,
                store: store.clone(),
            });
        }
        if !purpose.is_allowed_in(phase) {
            return Err(LedgerError::NoEpoch {
                move_id,
                store: store.clone(),
                purpose,
                phase,
            });
        }
        let next = Epoch(unit.epoch.0 + 1);
        tx.execute(
            "update monarch_ledger.move_unit set epoch = $4
              where move_id = $1 and store = $2 and epoch = $3",
            &[&move_id.0, &store.as_str(), &unit.epoch.0, &next.0],
        )
        .await
        .map_err(LedgerError::database(DOING))?;
        let detail = json!({ "epoch": next, "purpose": purpose });
        Entry::unchanging(move_id, Some(store), "epoch", detail)
            .append(&tx)
            .await?;
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(next)
    }

    /// Makes the transition that [`unit::next`] has for `event`, for the holder of the unit's
    /// newest epoch, with its journal row in the same transaction.
    ///
    /// `begin_copy` names the slot after the epoch and forgets the progress of the copy before it;
    /// within one epoch there is one copy. `slot_dropped` forgets the slot's name. Nothing is
    /// copied or streamed for a move that is being given up, failed or ended.
    pub async fn unit_transition(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        event: UnitEvent,
        detail: Value,
    ) -> Result<Transition, LedgerError> {
        const DOING: &str = "change the unit's status";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        let phase = lock_move(&tx, move_id).await?;
        let unit = lock_unit(&tx, move_id, store).await?;
        if unit.epoch != epoch {
            return Err(superseded(store, epoch, unit.epoch));
        }
        let after = unit::next(unit.status, event).map_err(|source| {
            LedgerError::IllegalUnitTransition {
                store: store.clone(),
                source,
            }
        })?;
        let slot = names::slot(&unit.slot_prefix, epoch);
        let outcome = match repeats(&unit, event, after, &slot) {
            Repeat::Again => Transition::AlreadyMade,
            Repeat::SameSlot => {
                return Err(LedgerError::CopyNeedsEpoch {
                    store: store.clone(),
                    status: unit.status,
                    slot,
                });
            }
            Repeat::No if !is_allowed_in(event, phase) => {
                return Err(LedgerError::UnitHeldByPhase {
                    move_id,
                    store: store.clone(),
                    event,
                    phase,
                });
            }
            Repeat::No => {
                set_status(&tx, move_id, store, event, after, &slot)
                    .await
                    .map_err(LedgerError::database(DOING))?;
                Entry {
                    move_id,
                    store: Some(store),
                    kind: event.as_str(),
                    before: Some(unit.status.as_str()),
                    after: Some(after.as_str()),
                    detail,
                }
                .append(&tx)
                .await?;
                Transition::Made
            }
        };
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(outcome)
    }
}

enum Repeat {
    No,
    Again,
    SameSlot,
}

/// Whether a request finds its own result.
fn repeats(unit: &Held, event: UnitEvent, after: UnitStatus, slot: &str) -> Repeat {
    let same_slot = unit.slot.as_deref() == Some(slot);
    match event {
        UnitEvent::BeginCopy if same_slot && unit.status == UnitStatus::Copying => Repeat::Again,
        UnitEvent::BeginCopy if same_slot => Repeat::SameSlot,
        UnitEvent::BeginCopy => Repeat::No,
        _ if after == unit.status => Repeat::Again,
        _ => Repeat::No,
    }
}

/// Whether a unit may do this while its move is in `phase`. Dropping slots is always right;
/// deleting is for whoever loses, and stopped by the epochs.
fn is_allowed_in(event: UnitEvent, phase: Phase) -> bool {
    use Phase as P;
    match event {
        UnitEvent::BeginCopy | UnitEvent::CopyDone | UnitEvent::BeginStream => {
            matches!(phase, P::Active | P::Draining)
        }
        UnitEvent::SlotDropped => true,
        UnitEvent::BeginEvict | UnitEvent::Evicted => {
            matches!(phase, P::CutOver | P::Evicting | P::Aborting | P::Failed)
        }
    }
}

async fn set_status(
    tx: &Transaction<'_>,
    move_id: MoveId,
    store: &StoreName,
    event: UnitEvent,
    after: UnitStatus,
    slot: &str,
) -> Result<(), tokio_postgres::Error> {
    let (store, after) = (store.as_str(), after.as_str());
    match event {
        UnitEvent::BeginCopy => {
            tx.execute(BEGIN_COPY, &[&move_id.0, &store, &after, &slot])
                .await?
        }
        UnitEvent::CopyDone => {
            tx.execute(
                "update monarch_ledger.move_unit set status = $3, copied_at = clock_timestamp()
                  where move_id = $1 and store = $2",
                &[&move_id.0, &store, &after],
            )
            .await?
        }
        UnitEvent::SlotDropped => {
            tx.execute(
                "update monarch_ledger.move_unit set status = $3, slot = null
                  where move_id = $1 and store = $2",
                &[&move_id.0, &store, &after],
            )
            .await?
        }
        UnitEvent::BeginStream | UnitEvent::BeginEvict | UnitEvent::Evicted => {
            tx.execute(
                "update monarch_ledger.move_unit set status = $3
                  where move_id = $1 and store = $2",
                &[&move_id.0, &store, &after],
            )
            .await?
        }
    };
    Ok(())
}

/// Errors and their count outlive the copy that met them; everything else is about one slot.
const BEGIN_COPY: &str = "
    update monarch_ledger.move_unit
       set status = $3, slot = case when not of_objects then $4 end, copy_started_at = clock_timestamp(), copied_at = null,
           source_database = null, sink_database = null, consistent_point = null,
           rows_copied = 0, bytes_copied = 0, rows_estimated = null,
           tables_done = 0, tables_total = null,
           received_lsn = null, applied_lsn = null, acknowledged_lsn = null,
           source_head_lsn = null, last_change_lsn = null, last_change_commit_at = null,
           changes_applied = 0, transactions_applied = 0,
           lag_bytes = null, retained_wal_bytes = null, heartbeat_at = clock_timestamp(),
           barrier_nonce = null, barrier_lsn = null
     where move_id = $1 and store = $2";

pub(crate) async fn lock_unit(
    tx: &Transaction<'_>,
    move_id: MoveId,
    store: &StoreName,
) -> Result<Held, LedgerError> {
    let row = tx
        .query_opt(
            "select status, epoch, slot_prefix, slot, sealed_at is not null as sealed
               from monarch_ledger.move_unit
              where move_id = $1 and store = $2
                for no key update",
            &[&move_id.0, &store.as_str()],
        )
        .await
        .map_err(LedgerError::database("lock the unit"))?
        .ok_or_else(|| LedgerError::NoSuchUnit {
            move_id,
            store: store.clone(),
        })?;
    Ok(Held {
        status: parsed(&row, "status")?,
        epoch: Epoch(column(&row, "epoch")?),
        slot_prefix: column(&row, "slot_prefix")?,
        slot: column(&row, "slot")?,
        sealed: column(&row, "sealed")?,
    })
}

/// Locks a unit's row for the holder of its newest epoch; anybody else is refused.
pub(crate) async fn lock_unit_of(
    tx: &Transaction<'_>,
    move_id: MoveId,
    store: &StoreName,
    epoch: Epoch,
) -> Result<UnitStatus, LedgerError> {
    let unit = lock_unit(tx, move_id, store).await?;
    if unit.epoch == epoch {
        Ok(unit.status)
    } else {
        Err(superseded(store, epoch, unit.epoch))
    }
}

pub(crate) fn superseded(store: &StoreName, epoch: Epoch, current: Epoch) -> LedgerError {
    LedgerError::Superseded {
        store: store.clone(),
        epoch,
        current,
    }
}
