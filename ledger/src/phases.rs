//! How a move goes from phase to phase: a compare-and-swap with its journal row beside it.

use monarch_model::phase::{self, PhaseEvent};
use monarch_model::{MoveId, Phase, UnitStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, lock_move, storable_text};
use crate::records::{Move, column, parsed};

const DOING: &str = "change the move's phase";

/// What became of a request for a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// This request made it.
    Made,
    /// It had been made, by an earlier try of this request or by somebody else.
    AlreadyMade,
}

/// Where the caller believes a move to stand.
///
/// A phase alone cannot tell a late request from a timely one: after `active → draining → active`
/// a forgotten first attempt would drain again. Who knows the number of transitions that were made
/// ([`Move::step`](crate::Move)) says so, and is refused when the move has gone on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The phase.
    pub phase: Phase,
    /// The transitions made so far, when known.
    pub step: Option<i64>,
}

impl From<Phase> for Expected {
    fn from(phase: Phase) -> Self {
        Self { phase, step: None }
    }
}

/// Why a move failed or is given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// A word for programs, for example `slot_lost`.
    pub code: String,
    /// A sentence for people. Kept up to 2,000 characters.
    pub text: String,
}

/// What the journal says beside a transition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Why {
    /// Kept with the move when it fails or is given up; a failure's reason outlives the abort that
    /// follows it.
    pub reason: Option<Reason>,
    /// Ids, positions, counts; never row values.
    pub detail: Value,
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Self {
        Self {
            reason: Some(reason),
            detail: Value::Null,
        }
    }
}

impl From<Value> for Why {
    fn from(detail: Value) -> Self {
        Self {
            reason: None,
            detail,
        }
    }
}

impl Ledger {
    /// Makes the transition that [`phase::next`] has for `event` where the move is expected to
    /// stand, with its journal row in the same transaction.
    ///
    /// Sets what belongs to the event in the same statement: `begin_drain` the time of the fence,
    /// `flipped` the time of the flip and the write pause, `reopen` takes back the fence and every
    /// unit's barrier and seal, an end the time of the end.
    ///
    /// Refused as [`LedgerError::UnitsForbid`] where a unit is not as far as the move would be: none
    /// evicts before every slot is gone, none ends before every unit's rows are.
    ///
    /// A request that finds its own result is [`Transition::AlreadyMade`]; one that finds anything
    /// else is refused with the phase found.
    pub async fn transition(
        &self,
        move_id: MoveId,
        event: PhaseEvent,
        expected: impl Into<Expected>,
        why: impl Into<Why>,
    ) -> Result<Transition, LedgerError> {
        let (expected, why) = (expected.into(), why.into());
        let target = phase::next(expected.phase, event)?;
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        let outcome = transition_in(&tx, move_id, event, expected, target, why).await?;
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(outcome)
    }

    /// Fails a move that nobody drives, where it stands as it was `found`: at the same step, and
    /// under the same run of the same workflow. None if another one was put in its place meanwhile:
    /// an adoption is no transition, so the step alone does not tell of it.
    pub async fn fail_forsaken(
        &self,
        found: &Move,
        why: impl Into<Why>,
    ) -> Result<Option<Transition>, LedgerError> {
        let (expected, event) = (found.expected(), PhaseEvent::Fail);
        let target = phase::next(expected.phase, event)?;
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        // Held until the end, so that nobody adopts the move behind this look.
        lock_move(&tx, found.id).await?;
        let is_same: bool = tx
            .query_one(
                "select (workflow_id, run_id) is not distinct from ($2, $3)
                   from monarch_ledger.move where id = $1",
                &[&found.id.0, &found.workflow_id, &found.run_id],
            )
            .await
            .and_then(|row| row.try_get(0))
            .map_err(LedgerError::database(DOING))?;
        let outcome = match is_same {
            true => Some(transition_in(&tx, found.id, event, expected, target, why.into()).await?),
            false => None,
        };
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(outcome)
    }
}

async fn transition_in(
    tx: &Transaction<'_>,
    move_id: MoveId,
    event: PhaseEvent,
    expected: Expected,
    target: Phase,
    why: Why,
) -> Result<Transition, LedgerError> {
    let made = swap_phase(tx, move_id, event, expected, target, why.reason.as_ref())
        .await
        .map_err(LedgerError::database(DOING))?;
    if !made {
        return found_instead(tx, move_id, event, expected, target).await;
    }
    units_allow(tx, move_id, event).await?;
    if event == PhaseEvent::Reopen {
        void_proofs(tx, move_id)
            .await
            .map_err(LedgerError::database(DOING))?;
    }
    Entry {
        move_id,
        store: None,
        kind: event.as_str(),
        before: Some(expected.phase.as_str()),
        after: Some(target.as_str()),
        detail: told(why),
    }
    .append(tx)
    .await?;
    Ok(Transition::Made)
}

/// The compare-and-swap; false when the move stands elsewhere or is not there.
async fn swap_phase(
    tx: &Transaction<'_>,
    move_id: MoveId,
    event: PhaseEvent,
    expected: Expected,
    target: Phase,
    reason: Option<&Reason>,
) -> Result<bool, tokio_postgres::Error> {
    let fails = event == PhaseEvent::Fail;
    let reason = reason.filter(|_| fails || event == PhaseEvent::BeginAbort);
    let code = reason.map(|reason| storable_text(&reason.code));
    let text = reason.map(|reason| storable_text(&reason.text));
    let swapped = tx
        .execute(
            "update monarch_ledger.move
                set phase = $4, step = step + 1, updated_at = clock_timestamp(),
                    fenced_at = case when $5 then clock_timestamp()
                                     when $6 then null else fenced_at end,
                    flipped_at = case when $7 then clock_timestamp() else flipped_at end,
                    write_pause_ms = case
                        when $7 then (extract(epoch from clock_timestamp() - fenced_at)
                                      * 1000)::bigint
                        else write_pause_ms end,
                    ended_at = case when $8 then clock_timestamp() end,
                    reason_code = case when $9 then coalesce($10, reason_code)
                                       else coalesce(reason_code, $10) end,
                    reason = case when $9 then coalesce($11, reason)
                                  else coalesce(reason, $11) end
              where id = $1 and phase = $2 and ($3::bigint is null or step = $3)",
            &[
                &move_id.0,
                &expected.phase.as_str(),
                &expected.step,
                &target.as_str(),
                &(event == PhaseEvent::BeginDrain),
                &(event == PhaseEvent::Reopen),
                &(event == PhaseEvent::Flipped),
                &!target.is_live(),
                &fails,
                &code,
                &text,
            ],
        )
        .await?;
    Ok(swapped == 1)
}

/// How far every unit must be before a move makes a transition.
fn required_of_units(event: PhaseEvent) -> UnitStatus {
    use PhaseEvent as E;
    match event {
        E::BeginEvict => UnitStatus::SlotDropped,
        E::Finalize | E::Aborted => UnitStatus::Evicted,
        E::BeginDrain
        | E::Reopen
        | E::BeginFlip
        | E::Flipped
        | E::FlipRefused
        | E::BeginAbort
        | E::Fail => UnitStatus::Pending,
    }
}

/// Refuses where a unit is not so far yet. The move's row is locked, so none goes back meanwhile.
async fn units_allow(
    tx: &Transaction<'_>,
    move_id: MoveId,
    event: PhaseEvent,
) -> Result<(), LedgerError> {
    let required = required_of_units(event);
    let rows = tx
        .query(
            "select store, status from monarch_ledger.move_unit where move_id = $1 order by store",
            &[&move_id.0],
        )
        .await
        .map_err(LedgerError::database("look how far the units are"))?;
    let mut behind = Vec::new();
    for row in rows {
        let status: UnitStatus = parsed(&row, "status")?;
        if status < required {
            behind.push((parsed(&row, "store")?, status));
        }
    }
    if behind.is_empty() {
        return Ok(());
    }
    Err(LedgerError::UnitsForbid {
        move_id,
        event,
        behind,
    })
}

/// The organization writes on the source again: what was proved of the units holds no more.
async fn void_proofs(tx: &Transaction<'_>, move_id: MoveId) -> Result<(), tokio_postgres::Error> {
    tx.execute(
        "update monarch_ledger.move_unit
            set barrier_nonce = null, barrier_lsn = null, sealed_at = null
          where move_id = $1",
        &[&move_id.0],
    )
    .await?;
    Ok(())
}

async fn found_instead(
    tx: &Transaction<'_>,
    move_id: MoveId,
    event: PhaseEvent,
    expected: Expected,
    target: Phase,
) -> Result<Transition, LedgerError> {
    let row: Row = tx
        .query_opt(
            "select phase, step from monarch_ledger.move where id = $1",
            &[&move_id.0],
        )
        .await
        .map_err(LedgerError::database("look where the move stands"))?
        .ok_or(LedgerError::NoSuchMove(move_id))?;
    let found: Phase = parsed(&row, "phase")?;
    let found_step: i64 = column(&row, "step")?;
    match expected.step {
        Some(step) if found_step != step && (found, found_step) != (target, step + 1) => {
            Err(LedgerError::StepFound {
                move_id,
                event,
                expected: step,
                found: found_step,
                found_phase: found,
            })
        }
        _ if found == target => Ok(Transition::AlreadyMade),
        _ => Err(LedgerError::PhaseFound {
            move_id,
            event,
            expected: expected.phase,
            found,
        }),
    }
}

/// The journal's detail: what was given, with the reason beside it.
fn told(why: Why) -> Value {
    let Some(reason) = why.reason else {
        return why.detail;
    };
    let reason = json!({ "code": reason.code, "text": storable_text(&reason.text) });
    match why.detail {
        Value::Null => json!({ "reason": reason }),
        Value::Object(mut fields) => {
            fields.insert("reason".to_owned(), reason);
            Value::Object(fields)
        }
        other => json!({ "reason": reason, "detail": other }),
    }
}
