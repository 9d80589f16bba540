//! What the holder of a unit's epoch reports while it works.
//!
//! Every report is fenced: it names the epoch it was made under, and is refused as
//! [`LedgerError::Superseded`] once a successor has begun. Counts and positions are absolute, so a
//! report that arrives twice, or after a newer one, changes nothing: who takes over goes on from
//! what it finds in the unit.

use std::collections::BTreeMap;

use jiff::Timestamp;
use monarch_model::{Epoch, Lsn, MoveId, StoreName, TableName, UnitStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, lock_move, storable_text};
use crate::records::{column, counts};
use crate::units::{lock_unit_of, superseded};

/// Which database a unit was copied from or to: what changes when a cluster was restored or failed
/// over, whatever the address says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseIdentity {
    /// `pg_control_system().system_identifier`, as text: it exceeds what JSON numbers hold.
    pub system_identifier: String,
    /// The timeline it was on.
    pub timeline: u32,
    /// The database's name.
    pub database: String,
}

/// Where a copy begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitStart {
    /// The database that is read.
    pub source: DatabaseIdentity,
    /// The database that is written.
    pub sink: DatabaseIdentity,
    /// The slot's consistent point.
    pub consistent_point: Lsn,
}

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CopyProgress {
    /// Rows committed on the sink.
    pub rows_copied: u64,
    /// Bytes of COPY data of these rows.
    pub bytes_copied: u64,
    /// Rows in all, as the planner sees it. May change either way.
    pub rows_estimated: Option<u64>,
    /// Tables whose last row is committed.
    pub tables_done: u32,
    /// Tables in all.
    pub tables_total: Option<u32>,
}

/// A commit on the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SourceCommit {
    /// Where its commit record ends.
    pub lsn: Lsn,
    /// When, by the source's clock.
    pub committed_at: Timestamp,
}

/// How far a stream is. Positions and counts never go back within a copy; `lag_bytes` and
/// `retained_wal_bytes` are what they are now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StreamProgress {
    /// Received from the walsender.
    pub received: Option<Lsn>,
    /// Durable on the sink, with the position that is kept there.
    pub applied: Option<Lsn>,
    /// Confirmed to the slot.
    pub acknowledged: Option<Lsn>,
    /// The source's own end of the log.
    pub source_head: Option<Lsn>,
    /// The last commit that held a change of the organization.
    pub last_change: Option<SourceCommit>,
    /// In-scope changes applied since the copy.
    pub changes_applied: u64,
    /// Source transactions applied that held such a change.
    pub transactions_applied: u64,
    /// Bytes of log between what is applied and the source's head.
    pub lag_bytes: Option<u64>,
    /// Bytes of log that the slot keeps the source from removing.
    pub retained_wal_bytes: Option<u64>,
}

/// A barrier that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Barrier {
    /// Which one.
    pub nonce: Uuid,
    /// Where its transaction was committed on the source.
    pub lsn: Lsn,
}

/// A slot that was read to its head after the flip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// `pg_current_snapshot()` of the source's primary at the head: eviction deletes only row
    /// versions that are visible in it.
    pub snapshot: String,
    /// The head.
    pub lsn: Lsn,
}

impl Ledger {
    /// Records where a copy begins; to be called again with the new facts when a database changed
    /// its timeline and the mover found nothing lost. Journaled.
    pub async fn record_start(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        start: &UnitStart,
    ) -> Result<(), LedgerError> {
        let source = json!(start.source);
        let sink = json!(start.sink);
        let point = pg_lsn(start.consistent_point);
        let detail = json!({
            "epoch": epoch,
            "consistent_point": start.consistent_point,
            "source": source,
            "sink": sink,
        });
        self.record_fact(
            Fact {
                doing: "record where the copy begins",
                kind: "slot",
                sql: "update monarch_ledger.move_unit
                         set source_database = $3, sink_database = $4, consistent_point = $5
                       where move_id = $1 and store = $2
                         and (source_database, sink_database, consistent_point)
                             is distinct from ($3, $4, $5)",
                detail,
            },
            (move_id, store, epoch),
            &[&source, &sink, &point],
        )
        .await
    }

    /// Records how far a snapshot is.
    pub async fn record_copy_progress(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        progress: &CopyProgress,
    ) -> Result<(), LedgerError> {
        self.report(
            "record how far the snapshot is",
            COPY_PROGRESS,
            (move_id, store, epoch),
            &[
                &bigint(progress.rows_copied),
                &bigint(progress.bytes_copied),
                &progress.rows_estimated.map(bigint),
                &integer(progress.tables_done),
                &progress.tables_total.map(integer),
            ],
        )
        .await
    }

    /// Records how far a stream is.
    pub async fn record_stream_progress(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        progress: &StreamProgress,
    ) -> Result<(), LedgerError> {
        self.report(
            "record how far the stream is",
            STREAM_PROGRESS,
            (move_id, store, epoch),
            &[
                &progress.received.map(pg_lsn),
                &progress.applied.map(pg_lsn),
                &progress.acknowledged.map(pg_lsn),
                &progress.source_head.map(pg_lsn),
                &progress.last_change.map(|commit| pg_lsn(commit.lsn)),
                &progress.last_change.map(|commit| commit.committed_at),
                &bigint(progress.changes_applied),
                &bigint(progress.transactions_applied),
                &progress.lag_bytes.map(bigint),
                &progress.retained_wal_bytes.map(bigint),
            ],
        )
        .await
    }

    /// Records that a barrier was applied and flushed. A barrier older than the recorded one is
    /// ignored. Journaled.
    pub async fn record_barrier(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        barrier: Barrier,
    ) -> Result<(), LedgerError> {
        self.record_fact(
            Fact {
                doing: "record the barrier",
                kind: "barrier",
                sql: "update monarch_ledger.move_unit set barrier_nonce = $3, barrier_lsn = $4
                       where move_id = $1 and store = $2
                         and (barrier_lsn is null or barrier_lsn < $4)",
                detail: json!({ "epoch": epoch, "nonce": barrier.nonce, "lsn": barrier.lsn }),
            },
            (move_id, store, epoch),
            &[&barrier.nonce, &pg_lsn(barrier.lsn)],
        )
        .await
    }

    /// Records that a unit is sealed on the sink: from now on no mover gets an epoch. Journaled.
    pub async fn record_seal(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
    ) -> Result<(), LedgerError> {
        self.record_fact(
            Fact {
                doing: "record the seal",
                kind: "sealed",
                sql: "update monarch_ledger.move_unit set sealed_at = clock_timestamp()
                       where move_id = $1 and store = $2 and sealed_at is null",
                detail: json!({ "epoch": epoch }),
            },
            (move_id, store, epoch),
            &[],
        )
        .await
    }

    /// Records that a slot was read to its head, and the in-scope changes met on the way. Allowed
    /// while the slot lives: once it is dropped, nobody can know better. A second reading may see
    /// less, since the slot has moved on; what was seen once is never forgotten. Journaled.
    pub async fn record_tail(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        tail: &Tail,
        late_changes: &BTreeMap<TableName, u64>,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record the tail's head";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_move(&tx, move_id).await?;
        let status = lock_unit_of(&tx, move_id, store, epoch).await?;
        if status >= UnitStatus::SlotDropped {
            return Err(LedgerError::TailClosed {
                store: store.clone(),
                status,
            });
        }
        let late = merged(&tx, move_id, store, "late_changes", late_changes).await?;
        let lsn = pg_lsn(tail.lsn);
        let changed = tx
            .execute(
                "update monarch_ledger.move_unit
                    set tail_snapshot = case when tail_lsn > $4 then tail_snapshot else $3 end,
                        tail_lsn = greatest(tail_lsn, $4), late_changes = $5
                  where move_id = $1 and store = $2
                    and (tail_snapshot, tail_lsn, late_changes) is distinct from ($3, $4, $5)",
                &[&move_id.0, &store.as_str(), &tail.snapshot, &lsn, &late],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        if changed == 1 {
            let detail = json!({ "epoch": epoch, "lsn": tail.lsn, "late_changes": late });
            Entry::unchanging(move_id, Some(store), "tail", detail)
                .append(&tx)
                .await?;
        }
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }

    /// Records the rows deleted on the losing side, by table, all told: whoever takes over adds to
    /// what it finds.
    pub async fn record_eviction(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        rows_evicted: &BTreeMap<TableName, u64>,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record what was evicted";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        let rows = merged(&tx, move_id, store, "rows_evicted", rows_evicted).await?;
        tx.execute(
            "update monarch_ledger.move_unit
                set rows_evicted = $3, heartbeat_at = clock_timestamp()
              where move_id = $1 and store = $2",
            &[&move_id.0, &store.as_str(), &rows],
        )
        .await
        .map_err(LedgerError::database(DOING))?;
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }

    /// Records an error that a unit met. Each is counted; the journal hears of it when it is of
    /// another code than the one before, so that an endless retry does not fill it. The text is the
    /// caller's to keep free of row values, and is kept up to 2,000 characters.
    pub async fn record_error(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        code: &str,
        text: &str,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record an error";
        let (code, text) = (storable_text(code), storable_text(text));
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_move(&tx, move_id).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        let known = tx
            .query_one(
                "select last_error_code from monarch_ledger.move_unit
                  where move_id = $1 and store = $2",
                &[&move_id.0, &store.as_str()],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        tx.execute(
            "update monarch_ledger.move_unit
                set last_error_code = $3, last_error = $4, last_error_at = clock_timestamp(),
                    error_count = error_count + 1
              where move_id = $1 and store = $2",
            &[&move_id.0, &store.as_str(), &code, &text],
        )
        .await
        .map_err(LedgerError::database(DOING))?;
        if column::<Option<String>>(&known, "last_error_code")?.as_ref() != Some(&code) {
            let detail = json!({ "epoch": epoch, "code": code, "text": text });
            Entry::unchanging(move_id, Some(store), "error", detail)
                .append(&tx)
                .await?;
        }
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }

    /// One fenced update. `sql` has the move, the store and the epoch as its first parameters.
    async fn report(
        &self,
        doing: &'static str,
        sql: &str,
        (move_id, store, epoch): Author<'_>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), LedgerError> {
        let lease = self.lease().await?;
        let store_name = store.as_str();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&move_id.0, &store_name, &epoch.0];
        params.extend_from_slice(values);
        let updated = lease
            .client()
            .execute(sql, &params)
            .await
            .map_err(LedgerError::database(doing))?;
        if updated == 0 {
            return Err(refusal(lease.client(), (move_id, store, epoch)).await);
        }
        lease.give_back();
        Ok(())
    }

    /// One fenced update that happens once and is journaled. `fact.sql` has the move and the store
    /// as its first parameters, and changes nothing when the fact is known.
    async fn record_fact(
        &self,
        fact: Fact,
        (move_id, store, epoch): Author<'_>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), LedgerError> {
        let mut lease = self.lease().await?;
        let tx = lease.begin(fact.doing).await?;
        lock_move(&tx, move_id).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        let store_name = store.as_str();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&move_id.0, &store_name];
        params.extend_from_slice(values);
        let changed = tx
            .execute(fact.sql, &params)
            .await
            .map_err(LedgerError::database(fact.doing))?;
        if changed == 1 {
            Entry::unchanging(move_id, Some(store), fact.kind, fact.detail)
                .append(&tx)
                .await?;
        }
        tx.commit()
            .await
            .map_err(LedgerError::database(fact.doing))?;
        lease.give_back();
        Ok(())
    }
}

/// Whose report it is.
type Author<'a> = (MoveId, &'a StoreName, Epoch);

/// Something about a unit that is recorded once.
struct Fact {
    doing: &'static str,
    kind: &'static str,
    sql: &'static str,
    detail: Value,
}

const COPY_PROGRESS: &str = "
    update monarch_ledger.move_unit
       set rows_copied = greatest(rows_copied, $4), bytes_copied = greatest(bytes_copied, $5),
           rows_estimated = coalesce($6, rows_estimated),
           tables_done = greatest(tables_done, $7), tables_total = coalesce($8, tables_total),
           heartbeat_at = clock_timestamp()
     where move_id = $1 and store = $2 and epoch = $3";

const STREAM_PROGRESS: &str = "
    update monarch_ledger.move_unit
       set received_lsn = greatest(received_lsn, $4), applied_lsn = greatest(applied_lsn, $5),
           acknowledged_lsn = greatest(acknowledged_lsn, $6),
           source_head_lsn = greatest(source_head_lsn, $7),
           last_change_commit_at = case when last_change_lsn >= $8
                                        then last_change_commit_at
                                        else coalesce($9, last_change_commit_at) end,
           last_change_lsn = greatest(last_change_lsn, $8),
           changes_applied = greatest(changes_applied, $10),
           transactions_applied = greatest(transactions_applied, $11),
           lag_bytes = coalesce($12, lag_bytes),
           retained_wal_bytes = coalesce($13, retained_wal_bytes),
           heartbeat_at = clock_timestamp()
     where move_id = $1 and store = $2 and epoch = $3";

/// Why a fenced update found no row.
async fn refusal(client: &impl GenericClient, (move_id, store, epoch): Author<'_>) -> LedgerError {
    const DOING: &str = "look who holds the unit";
    let row = client
        .query_opt(
            "select epoch from monarch_ledger.move_unit where move_id = $1 and store = $2",
            &[&move_id.0, &store.as_str()],
        )
        .await;
    match row {
        Ok(Some(row)) => match column(&row, "epoch") {
            Ok(current) => superseded(store, epoch, Epoch(current)),
            Err(unreadable) => unreadable,
        },
        Ok(None) => LedgerError::NoSuchUnit {
            move_id,
            store: store.clone(),
        },
        Err(error) => LedgerError::database(DOING)(error),
    }
}

/// The counts of a locked unit, each raised to the one given.
async fn merged(
    tx: &Transaction<'_>,
    move_id: MoveId,
    store: &StoreName,
    name: &'static str,
    given: &BTreeMap<TableName, u64>,
) -> Result<Value, LedgerError> {
    let row = tx
        .query_one(
            "select late_changes, rows_evicted from monarch_ledger.move_unit
              where move_id = $1 and store = $2",
            &[&move_id.0, &store.as_str()],
        )
        .await
        .map_err(LedgerError::database("read the unit's counts"))?;
    let mut known = counts(&row, name)?;
    for (table, &rows) in given {
        let count = known.entry(table.clone()).or_default();
        *count = rows.max(*count);
    }
    Ok(json!(known))
}

fn pg_lsn(lsn: Lsn) -> PgLsn {
    PgLsn::from(lsn.0)
}

/// A count as Postgres can keep it.
fn bigint(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The same for a small one.
fn integer(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
