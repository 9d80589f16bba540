//! The journal: what happened to a move, in order, for ever.

use jiff::Timestamp;
use monarch_model::{Epoch, MoveId, Phase, StoreName};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::records::{column, parsed, parsed_opt};

/// The longest text that is kept of a reason or an error, in characters.
const TEXT_CHARS: usize = 2_000;

/// The kind of the rows that tell of a pause.
const HELD: &str = "held";

const IS_HELD: &str = "
    select exists (
        select from monarch_ledger.move_unit u
          cross join lateral (
              select (e.detail ->> 'epoch')::bigint as epoch
                from monarch_ledger.move_event e
               where e.move_id = u.move_id and e.store = u.store and e.kind = $2
               order by e.id desc limit 1) held
         where u.move_id = $1 and held.epoch = u.epoch)";

/// One row of the journal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Grows within a move in the order in which events were committed.
    pub id: i64,
    /// The move.
    pub move_id: MoveId,
    /// The unit's store; none for the move as a whole.
    pub store: Option<StoreName>,
    /// When, by the ledger's clock.
    pub at: Timestamp,
    /// What: the word of a phase or unit event, or `registered`, `epoch`, `slot`, `barrier`,
    /// `sealed`, `tail`, `verification_asked`, `verification`, `error`, or the kind of a note.
    pub kind: String,
    /// The phase (without a store) or status (with one) before; none for what changed neither.
    pub before: Option<String>,
    /// The phase or status after.
    pub after: Option<String>,
    /// What belongs to it.
    pub detail: Value,
}

/// A row to be.
pub(crate) struct Entry<'a> {
    pub(crate) move_id: MoveId,
    pub(crate) store: Option<&'a StoreName>,
    pub(crate) kind: &'a str,
    pub(crate) before: Option<&'static str>,
    pub(crate) after: Option<&'static str>,
    pub(crate) detail: Value,
}

impl<'a> Entry<'a> {
    /// What changed neither phase nor status.
    pub(crate) fn unchanging(
        move_id: MoveId,
        store: Option<&'a StoreName>,
        kind: &'a str,
        detail: Value,
    ) -> Self {
        Self {
            move_id,
            store,
            kind,
            before: None,
            after: None,
            detail,
        }
    }

    /// Appends the row. The caller holds the lock on the move's row ([`lock_move`], or an update of
    /// it), so that ids of one move are committed in their order.
    pub(crate) async fn append(self, tx: &Transaction<'_>) -> Result<(), LedgerError> {
        tx.execute(
            "insert into monarch_ledger.move_event
                    (move_id, store, kind, before, after, detail)
             values ($1, $2, $3, $4, $5, $6)",
            &[
                &self.move_id.0,
                &self.store.map(StoreName::as_str),
                &self.kind,
                &self.before,
                &self.after,
                &storable(self.detail),
            ],
        )
        .await
        .map_err(LedgerError::database("write the journal"))?;
        Ok(())
    }
}

/// Takes the lock under which a move's journal grows, and says where the move stands. Always taken
/// before the lock on a unit's row.
pub(crate) async fn lock_move(tx: &Transaction<'_>, move_id: MoveId) -> Result<Phase, LedgerError> {
    let row = tx
        .query_opt(
            "select phase from monarch_ledger.move where id = $1 for no key update",
            &[&move_id.0],
        )
        .await
        .map_err(LedgerError::database("lock the move"))?
        .ok_or(LedgerError::NoSuchMove(move_id))?;
    parsed(&row, "phase")
}

impl Ledger {
    /// Puts a note in the journal: what happened but changed neither phase nor status, for example
    /// an abort that came after the flip. A note that repeats the newest one of its kind and
    /// subject is not written again.
    pub async fn note(
        &self,
        move_id: MoveId,
        store: Option<&StoreName>,
        kind: &str,
        detail: Value,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "put a note in the journal";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_move(&tx, move_id).await?;
        let detail = storable(detail);
        let newest: Option<Row> = tx
            .query_opt(
                "select detail from monarch_ledger.move_event
                  where move_id = $1 and store is not distinct from $2 and kind = $3
                  order by id desc limit 1",
                &[&move_id.0, &store.map(StoreName::as_str), &kind],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        let newest: Option<Value> = newest.map(|row| column(&row, "detail")).transpose()?;
        if newest.as_ref() != Some(&detail) {
            Entry::unchanging(move_id, store, kind, detail)
                .append(&tx)
                .await?;
        }
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }

    /// Notes, once for each pause, that a unit's slot is looked after and nobody reads from it: a mover
    /// that is resumed takes another epoch.
    pub async fn note_held(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
    ) -> Result<(), LedgerError> {
        let detail = json!({ "epoch": epoch });
        self.note(move_id, Some(store), HELD, detail).await
    }

    /// Whether a unit of the move was held and had no mover since.
    pub async fn is_held(&self, move_id: MoveId) -> Result<bool, LedgerError> {
        const DOING: &str = "look whether the move is paused";
        let lease = self.lease().await?;
        let row = lease
            .client()
            .query_one(IS_HELD, &[&move_id.0, &HELD])
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        row.try_get(0).map_err(LedgerError::database(DOING))
    }

    /// The events of a move after the one with id `after_id` (zero: from the first), oldest first,
    /// at most `limit`. A reader who goes on from the last id it got misses none.
    pub async fn events(
        &self,
        move_id: MoveId,
        after_id: i64,
        limit: u32,
    ) -> Result<Vec<Event>, LedgerError> {
        const DOING: &str = "read the journal";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select * from monarch_ledger.move_event
                  where move_id = $1 and id > $2
                  order by id limit $3",
                &[&move_id.0, &after_id, &i64::from(limit)],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter().map(event).collect()
    }

    /// The newest events of a move, oldest first, at most `limit`.
    pub async fn newest_events(
        &self,
        move_id: MoveId,
        limit: u32,
    ) -> Result<Vec<Event>, LedgerError> {
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select * from monarch_ledger.move_event
                  where move_id = $1 order by id desc limit $2",
                &[&move_id.0, &i64::from(limit)],
            )
            .await
            .map_err(LedgerError::database("read the end of the journal"))?;
        lease.give_back();
        rows.iter().rev().map(event).collect()
    }
}

fn event(row: &Row) -> Result<Event, LedgerError> {
    Ok(Event {
        id: column(row, "id")?,
        move_id: MoveId(column(row, "move_id")?),
        store: parsed_opt(row, "store")?,
        at: column(row, "at")?,
        kind: column(row, "kind")?,
        before: column(row, "before")?,
        after: column(row, "after")?,
        detail: column(row, "detail")?,
    })
}

/// A text as Postgres can keep it: without NUL, and not endless.
pub(crate) fn storable_text(text: &str) -> String {
    text.chars()
        .take(TEXT_CHARS)
        .map(|c| if c == '\0' { '\u{FFFD}' } else { c })
        .collect()
}

/// The same for a document: `jsonb` cannot hold a NUL either, and an abort must not fail for what
/// its reason says.
pub(crate) fn storable(value: Value) -> Value {
    match value {
        Value::Null => Value::Object(serde_json::Map::new()),
        value => without_nul(value),
    }
}

fn without_nul(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace('\0', "\u{FFFD}")),
        Value::Array(items) => items.into_iter().map(without_nul).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (key.replace('\0', "\u{FFFD}"), without_nul(value)))
            .collect(),
        value => value,
    }
}
