//! Comparisons of both sides that are asked for while a unit streams.
//!
//! An operator asks here and not through the workflow, since it is the mover that answers, and it
//! listens to the ledger anyway. No mover takes up what another one took up: one that died over a
//! comparison must not make its successor die over it too, so that one ends the comparison without
//! an answer, and whoever wants to know asks again.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use monarch_model::{Epoch, Lsn, MoveId, Phase, StoreName, UnitStatus};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::types::PgLsn;
use tokio_postgres::{GenericClient, Row, Transaction};

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, lock_move, storable};
use crate::records::{column, parsed, parsed_opt};
use crate::units::{lock_unit, lock_unit_of};

/// What a comparison came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerificationOutcome {
    /// The same rows on both sides.
    Equal,
    /// Not the same rows: the move must not be cut over.
    Differs,
    /// It could not be made, or the mover ended first.
    Unanswered,
}

impl VerificationOutcome {
    /// The word in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            VerificationOutcome::Equal => "equal",
            VerificationOutcome::Differs => "differs",
            VerificationOutcome::Unanswered => "unanswered",
        }
    }
}

impl fmt::Display for VerificationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for VerificationOutcome {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        [
            VerificationOutcome::Equal,
            VerificationOutcome::Differs,
            VerificationOutcome::Unanswered,
        ]
        .into_iter()
        .find(|verdict| verdict.as_str() == word)
        .ok_or_else(|| format!("{word:?} is no outcome of a verification"))
    }
}

/// One comparison of a unit's two sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    /// The unit's store.
    pub store: StoreName,
    /// Counted within the unit, from one.
    pub number: i32,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// When a mover took it up.
    pub begun_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What it came to; none while it is open.
    pub outcome: Option<VerificationOutcome>,
    /// Where in the source's log the state is that was compared.
    pub lsn: Option<Lsn>,
    /// Rows and digests of both sides, and which tables differ; or why there was no answer.
    pub detail: Value,
}

/// What a mover has to say of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What it came to.
    pub outcome: VerificationOutcome,
    /// Where in the source's log the state is that was compared; none if there was no comparison.
    pub lsn: Option<Lsn>,
    /// What belongs to it; of counts, digests and names only.
    pub detail: Value,
}

/// The kinds of the journal's rows.
const ASKED: &str = "verification_asked";
const ENDED: &str = "verification";

impl Ledger {
    /// Asks for a comparison of a unit that streams; its number. If one waits to be taken up, its
    /// number; one that is under way is of an older state, and another follows it.
    pub async fn ask_verification(
        &self,
        move_id: MoveId,
        store: &StoreName,
    ) -> Result<i32, LedgerError> {
        const DOING: &str = "ask for a verification";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        let phase = lock_move(&tx, move_id).await?;
        let status = lock_unit(&tx, move_id, store).await?.status;
        if phase != Phase::Active || status != UnitStatus::Streaming {
            return Err(LedgerError::NotStreaming {
                move_id,
                store: store.clone(),
                phase,
                status,
            });
        }
        let waiting = tx
            .query_opt(WAITING, &[&move_id.0, &store.as_str()])
            .await
            .map_err(LedgerError::database(DOING))?;
        let number = match waiting {
            Some(row) => column(&row, "number")?,
            None => {
                let row = tx
                    .query_one(ASK, &[&move_id.0, &store.as_str()])
                    .await
                    .map_err(LedgerError::database(DOING))?;
                let number = column(&row, "number")?;
                Entry::unchanging(move_id, Some(store), ASKED, json!({ "number": number }))
                    .append(&tx)
                    .await?;
                number
            }
        };
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(number)
    }

    /// Takes up the oldest comparison that is open, for the holder of the unit's newest epoch; none
    /// if none is, or the move is past `active`. One that an older mover took up is ended without an
    /// answer. Asked again by the same holder, it is the same one.
    pub async fn begin_verification(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
    ) -> Result<Option<i32>, LedgerError> {
        const DOING: &str = "take up a verification";
        let mut lease = self.lease().await?;
        // Asked every second by every mover: without a lock, as long as there is nothing to do.
        if open(lease.client(), move_id, store).await?.is_none() {
            lease.give_back();
            return Ok(None);
        }
        let tx = lease.begin(DOING).await?;
        let phase = lock_move(&tx, move_id).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        let taken = match open(&tx, move_id, store).await? {
            _ if phase != Phase::Active => None,
            None => None,
            Some((number, Some(older))) if older < epoch => {
                let answer = Answer {
                    outcome: VerificationOutcome::Unanswered,
                    lsn: None,
                    detail: json!({ "why": format!("the mover of epoch {older} ended over it") }),
                };
                end(&tx, (move_id, store, number), &answer).await?;
                None
            }
            Some((number, _)) => {
                tx.execute(BEGIN, &[&move_id.0, &store.as_str(), &number, &epoch.0])
                    .await
                    .map_err(LedgerError::database(DOING))?;
                Some(number)
            }
        };
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(taken)
    }

    /// Records what a comparison came to, once, for the holder of the unit's newest epoch.
    pub async fn end_verification(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        number: i32,
        answer: &Answer,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record a verification";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_move(&tx, move_id).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        end(&tx, (move_id, store, number), answer).await?;
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }

    /// What stands of a move's comparisons, by store: of each unit the newest that found both sides
    /// equal or not, and those that are open.
    pub async fn standing_verifications(
        &self,
        move_id: MoveId,
    ) -> Result<Vec<Verification>, LedgerError> {
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(STANDING, &[&move_id.0])
            .await
            .map_err(LedgerError::database("read the verifications"))?;
        lease.give_back();
        rows.iter().map(verification).collect()
    }

    /// One comparison.
    pub async fn verification(
        &self,
        move_id: MoveId,
        store: &StoreName,
        number: i32,
    ) -> Result<Option<Verification>, LedgerError> {
        let lease = self.lease().await?;
        let row = lease
            .client()
            .query_opt(ONE, &[&move_id.0, &store.as_str(), &number])
            .await
            .map_err(LedgerError::database("read a verification"))?;
        lease.give_back();
        row.as_ref().map(verification).transpose()
    }
}

/// The unit's oldest open comparison, with the epoch of the mover that took it up.
async fn open(
    client: &impl GenericClient,
    move_id: MoveId,
    store: &StoreName,
) -> Result<Option<(i32, Option<Epoch>)>, LedgerError> {
    let row = client
        .query_opt(OPEN, &[&move_id.0, &store.as_str()])
        .await
        .map_err(LedgerError::database("look for an open verification"))?;
    row.map(|row| {
        let epoch: Option<i64> = column(&row, "epoch")?;
        Ok((column(&row, "number")?, epoch.map(Epoch)))
    })
    .transpose()
}

/// Ends a comparison that is open, with its journal row; one that has ended is left as it is.
async fn end(
    tx: &Transaction<'_>,
    (move_id, store, number): (MoveId, &StoreName, i32),
    answer: &Answer,
) -> Result<(), LedgerError> {
    let detail = storable(answer.detail.clone());
    let lsn = answer.lsn.map(|lsn| PgLsn::from(lsn.0));
    let outcome = answer.outcome.as_str();
    let ended = tx
        .execute(
            END,
            &[
                &move_id.0,
                &store.as_str(),
                &number,
                &outcome,
                &lsn,
                &detail,
            ],
        )
        .await
        .map_err(LedgerError::database("end a verification"))?;
    if ended == 1 {
        let detail = json!({
            "number": number, "outcome": outcome, "lsn": answer.lsn, "detail": detail,
        });
        Entry::unchanging(move_id, Some(store), ENDED, detail)
            .append(tx)
            .await?;
    }
    Ok(())
}

fn verification(row: &Row) -> Result<Verification, LedgerError> {
    let lsn: Option<PgLsn> = column(row, "lsn")?;
    Ok(Verification {
        store: parsed(row, "store")?,
        number: column(row, "number")?,
        asked_at: column(row, "asked_at")?,
        begun_at: column(row, "begun_at")?,
        ended_at: column(row, "ended_at")?,
        outcome: parsed_opt(row, "outcome")?,
        lsn: lsn.map(|lsn| Lsn(lsn.into())),
        detail: column(row, "detail")?,
    })
}

const ASK: &str = "
    insert into monarch_ledger.verification (move_id, store, number)
    select $1, $2, coalesce(max(number), 0) + 1
      from monarch_ledger.verification
     where move_id = $1 and store = $2
    returning number";

const WAITING: &str = "
    select number
      from monarch_ledger.verification
     where move_id = $1 and store = $2 and begun_at is null and ended_at is null";

const OPEN: &str = "
    select number, epoch
      from monarch_ledger.verification
     where move_id = $1 and store = $2 and ended_at is null
     order by number limit 1";

const BEGIN: &str = "
    update monarch_ledger.verification
       set epoch = $4, begun_at = coalesce(begun_at, clock_timestamp())
     where move_id = $1 and store = $2 and number = $3";

const END: &str = "
    update monarch_ledger.verification
       set ended_at = clock_timestamp(), outcome = $4, lsn = $5, detail = $6
     where move_id = $1 and store = $2 and number = $3 and ended_at is null";

const STANDING: &str = "
    select distinct on (store, standing) *,
           case when ended_at is null then number else 0 end as standing
      from monarch_ledger.verification
     where move_id = $1 and outcome is distinct from 'unanswered'
     order by store, standing, number desc";

const ONE: &str = "
    select * from monarch_ledger.verification
     where move_id = $1 and store = $2 and number = $3";
