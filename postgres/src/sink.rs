//! The sink's own record of a unit: who may write, how far it is, whether it is closed.
//!
//! One row per unit, in the database that is written, because nothing else can be in the same
//! transaction. Every transaction of a mover begins by locking that row under its epoch, shared
//! ([`hold`]), and one that moves the position on ends with that ([`advance`]). A successor writes a
//! higher epoch ([`take_over`]), for which it must wait until the transaction in flight has ended; so
//! from then on nothing of the old mover can land. A position is therefore as durable as the rows
//! that it speaks of, and no replication origin, which not every role may use, is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use monarch_model::{Epoch, Lsn, StoreName, TableName};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, GenericClient, Row, Transaction};
use uuid::Uuid;

use crate::sessions;
use crate::{Doing, Error, Unit};

/// Serializes the making of the schema: `create … if not exists` alone fails when two race.
const SCHEMA_LOCK: i64 = 0x006d_6f6e_6172_6368;

/// How long one try to take a unit over waits for the transaction in flight.
const TAKE_OVER_WAIT: Duration = Duration::from_secs(1);

const SCHEMA: &str = "
create schema if not exists monarch;
create table if not exists monarch.unit (
  move_id uuid not null,
  store text not null,
  epoch bigint not null,
  position pg_lsn,
  last_change_lsn pg_lsn,
  last_change_commit_at timestamptz,
  barrier_nonce uuid,
  barrier_lsn pg_lsn,
  sealed boolean not null default false,
  horizon bigint,
  primary key (move_id, store)
);
alter table monarch.unit add column if not exists horizon bigint;
create table if not exists monarch.sealed_membership (
  move_id uuid not null,
  store text not null,
  table_name text not null,
  id text not null,
  primary key (move_id, store, table_name, id),
  foreign key (move_id, store) references monarch.unit on delete cascade
);";

/// What the sink has of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The newest epoch: who may write.
    pub epoch: Epoch,
    /// Every transaction of the source that ends at or before it is on the sink. None until the
    /// copy is complete.
    pub position: Option<Lsn>,
    /// The last change of the organization that was applied.
    pub last_change: Option<LastChange>,
    /// The last barrier that was met.
    pub barrier: Option<Barrier>,
    /// Whether the unit takes no more writes.
    pub sealed: bool,
    /// While the position is the copy's: every transaction of the source that it covers has a
    /// lower id. None once the unit has moved on.
    pub horizon: Option<u64>,
}

/// The last change of the organization that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastChange {
    /// Where its transaction ends in the source's log.
    pub lsn: Lsn,
    /// When its transaction committed, by the source's clock.
    pub committed_at: Timestamp,
}

/// A barrier that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Barrier {
    /// The nonce that it carried.
    pub nonce: Uuid,
    /// Where its transaction ends in the source's log.
    pub lsn: Lsn,
}

/// How far a sink transaction brings its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Every source transaction that ends at or before it is applied with this one.
    pub position: Lsn,
    /// The last change of the organization among them, if there was one.
    pub last_change: Option<LastChange>,
    /// The last barrier among them, if there was one.
    pub barrier: Option<Barrier>,
    /// An id above those of all of them, where one is known: at the end of a copy.
    pub horizon: Option<u64>,
}

/// What came of taking a unit over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeOver {
    /// The unit is the caller's: no older writer can commit any more.
    Held(State),
    /// A newer writer has it.
    Superseded {
        /// The newer writer.
        by: Epoch,
    },
}

/// A write for a unit was not made.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A newer writer has the unit, or the unit is gone: stop, and touch nothing.
    #[error("store {store}: the mover of epoch {epoch} was superseded")]
    Superseded {
        /// The store.
        store: StoreName,
        /// The epoch that no longer counts.
        epoch: Epoch,
    },
    /// The unit takes no more writes.
    #[error("store {store} is sealed on the sink")]
    Sealed {
        /// The store.
        store: StoreName,
    },
    /// The transaction of an older writer does not end.
    #[error("take over store {store}: an older writer's transaction is still open, pids {pids:?}")]
    StillHeld {
        /// The store.
        store: StoreName,
        /// The sessions that hold the unit's row.
        pids: Vec<i32>,
    },
    /// The database did not do what it was asked.
    #[error(transparent)]
    Asked(#[from] Error),
}

/// Makes the schema `monarch` with its tables where they are missing.
pub async fn ensure_schema(client: &mut Client) -> Result<(), Error> {
    let doing = "make the schema monarch on the sink";
    let tx = client.transaction().await.doing(doing)?;
    tx.execute("select pg_advisory_xact_lock($1)", &[&SCHEMA_LOCK])
        .await
        .doing(doing)?;
    // Looked for first: a role that may not create it can still use it.
    let there: bool = tx
        .query_one(
            "select to_regclass('monarch.unit') is not null
                and to_regclass('monarch.sealed_membership') is not null
                and exists (select from pg_catalog.pg_attribute
                            where attrelid = to_regclass('monarch.unit')
                              and attname = 'horizon')",
            &[],
        )
        .await
        .and_then(|row| row.try_get(0))
        .doing(doing)?;
    if !there {
        tx.batch_execute(SCHEMA).await.doing(doing)?;
    }
    tx.commit().await.doing(doing)
}

/// Makes `epoch` the unit's writer: ends the sessions of older ones, waits until their transaction
/// in flight has ended, and writes the epoch. Afterwards no older writer can commit anything.
/// Doing it again with the same epoch is the same. Gives up after `timeout`.
pub async fn take_over(
    client: &mut Client,
    unit: &Unit,
    epoch: Epoch,
    timeout: Duration,
) -> Result<TakeOver, SinkError> {
    let deadline = Instant::now() + timeout;
    loop {
        sessions::end_older(client, unit, epoch).await?;
        match write_epoch(client, unit, epoch).await {
            Err(error) if error.is(&SqlState::LOCK_NOT_AVAILABLE) => {
                if Instant::now() >= deadline {
                    return Err(SinkError::StillHeld {
                        store: unit.store.clone(),
                        pids: holders(client).await?,
                    });
                }
            }
            result => return Ok(result?),
        }
    }
}

async fn write_epoch(client: &mut Client, unit: &Unit, epoch: Epoch) -> Result<TakeOver, Error> {
    let doing = "write the epoch on the sink";
    let tx = client.transaction().await.doing(doing)?;
    tx.batch_execute(&format!(
        "set local lock_timeout = {}; set local synchronous_commit = on",
        TAKE_OVER_WAIT.as_millis()
    ))
    .await
    .doing(doing)?;
    let row = tx
        .query_one(
            "insert into monarch.unit as u (move_id, store, epoch) values ($1, $2, $3)
             on conflict (move_id, store) do update set epoch = greatest(u.epoch, excluded.epoch)
             returning epoch, position, last_change_lsn, last_change_commit_at,
                       barrier_nonce, barrier_lsn, sealed, horizon",
            &[&unit.move_id.0, &unit.store.as_str(), &epoch.0],
        )
        .await
        .doing(doing)?;
    tx.commit().await.doing(doing)?;
    let state = state(&row).doing(doing)?;
    Ok(if state.epoch == epoch {
        TakeOver::Held(state)
    } else {
        TakeOver::Superseded { by: state.epoch }
    })
}

/// The sessions that hold a lock that writes on the table of units.
async fn holders(client: &Client) -> Result<Vec<i32>, Error> {
    let doing = "look for who holds the unit";
    let rows = client
        .query(
            "select distinct pid from pg_catalog.pg_locks
             where relation = to_regclass('monarch.unit') and granted and pid <> pg_backend_pid()
               and mode in ('RowShareLock', 'RowExclusiveLock')
               and database = (select oid from pg_catalog.pg_database
                               where datname = current_database())
             order by pid",
            &[],
        )
        .await
        .doing(doing)?;
    rows.iter().map(|row| row.try_get(0).doing(doing)).collect()
}

/// Holds the unit under `epoch` until the transaction ends: nobody can take it over or seal it
/// meanwhile. The first statement of a transaction that writes rows.
pub async fn hold(tx: &Transaction<'_>, unit: &Unit, epoch: Epoch) -> Result<(), SinkError> {
    let rows = tx
        .query_opt(
            "select epoch, sealed from monarch.unit where move_id = $1 and store = $2 for share",
            &[&unit.move_id.0, &unit.store.as_str()],
        )
        .await
        .doing("hold the unit on the sink")?;
    judge(rows.as_ref(), unit, epoch)
}

/// Moves the unit on under `epoch`, and holds it until the transaction ends. The last statement of
/// a transaction that applies changes. Nothing ever moves back: what is behind is ignored.
pub async fn advance(
    tx: &Transaction<'_>,
    unit: &Unit,
    epoch: Epoch,
    progress: &Progress,
) -> Result<(), SinkError> {
    let doing = "record the position on the sink";
    let last = progress.last_change;
    let barrier = progress.barrier;
    let moved = tx
        .execute(
            "update monarch.unit
             set position = greatest(position, $4),
                 last_change_lsn = greatest(last_change_lsn, $5),
                 last_change_commit_at = greatest(last_change_commit_at, $6),
                 barrier_nonce = coalesce($7, barrier_nonce),
                 barrier_lsn = greatest(barrier_lsn, $8),
                 horizon = $9
             where move_id = $1 and store = $2 and epoch = $3 and not sealed",
            &[
                &unit.move_id.0,
                &unit.store.as_str(),
                &epoch.0,
                &PgLsn::from(progress.position.0),
                &last.map(|change| PgLsn::from(change.lsn.0)),
                &last.map(|change| change.committed_at),
                &barrier.map(|barrier| barrier.nonce),
                &barrier.map(|barrier| PgLsn::from(barrier.lsn.0)),
                &progress
                    .horizon
                    .and_then(|horizon| i64::try_from(horizon).ok()),
            ],
        )
        .await
        .doing(doing)?;
    held(moved, tx, unit, epoch).await
}

/// Forgets what the unit had, so that a copy can begin: without a position no stream can start.
pub async fn begin_copy<C: GenericClient + Sync>(
    client: &C,
    unit: &Unit,
    epoch: Epoch,
) -> Result<(), SinkError> {
    let reset = client
        .execute(
            "update monarch.unit
             set position = null, last_change_lsn = null, last_change_commit_at = null,
                 barrier_nonce = null, barrier_lsn = null, horizon = null
             where move_id = $1 and store = $2 and epoch = $3 and not sealed",
            &[&unit.move_id.0, &unit.store.as_str(), &epoch.0],
        )
        .await
        .doing("begin the copy on the sink")?;
    held(reset, client, unit, epoch).await
}

/// Closes the unit for all writes, with the membership of its dynamic parents as it is now. The
/// caller has taken the unit over with `epoch`.
pub async fn seal(
    tx: &Transaction<'_>,
    unit: &Unit,
    epoch: Epoch,
    membership: &BTreeMap<TableName, Vec<String>>,
) -> Result<(), SinkError> {
    hold(tx, unit, epoch).await.or_else(|error| match error {
        // Sealing again is the same.
        SinkError::Sealed { .. } => Ok(()),
        other => Err(other),
    })?;
    let doing = "seal the unit on the sink";
    forget_membership(tx, unit).await?;
    for (table, ids) in membership {
        tx.execute(
            "insert into monarch.sealed_membership (move_id, store, table_name, id)
             select $1, $2, $3, id from unnest($4::text[]) as ids(id)
             on conflict do nothing",
            &[&unit.move_id.0, &unit.store.as_str(), &table.as_str(), ids],
        )
        .await
        .doing(doing)?;
    }
    let sealed = tx
        .execute(
            "update monarch.unit set sealed = true
             where move_id = $1 and store = $2 and epoch = $3",
            &[&unit.move_id.0, &unit.store.as_str(), &epoch.0],
        )
        .await
        .doing(doing)?;
    held(sealed, tx, unit, epoch).await
}

/// Opens a sealed unit again, for a move whose flip was refused.
pub async fn unseal(tx: &Transaction<'_>, unit: &Unit, epoch: Epoch) -> Result<(), SinkError> {
    let doing = "open the unit on the sink";
    let opened = tx
        .execute(
            "update monarch.unit set sealed = false
             where move_id = $1 and store = $2 and epoch = $3",
            &[&unit.move_id.0, &unit.store.as_str(), &epoch.0],
        )
        .await
        .doing(doing)?;
    held(opened, tx, unit, epoch).await?;
    Ok(forget_membership(tx, unit).await?)
}

async fn forget_membership(tx: &Transaction<'_>, unit: &Unit) -> Result<(), Error> {
    tx.execute(
        "delete from monarch.sealed_membership where move_id = $1 and store = $2",
        &[&unit.move_id.0, &unit.store.as_str()],
    )
    .await
    .doing("forget the sealed membership")?;
    Ok(())
}

/// The membership that was written when the unit was sealed.
pub async fn sealed_membership<C: GenericClient + Sync>(
    client: &C,
    unit: &Unit,
) -> Result<BTreeMap<TableName, Vec<String>>, Error> {
    let doing = "read the sealed membership";
    let rows = client
        .query(
            "select table_name, id from monarch.sealed_membership
             where move_id = $1 and store = $2",
            &[&unit.move_id.0, &unit.store.as_str()],
        )
        .await
        .doing(doing)?;
    let mut membership: BTreeMap<TableName, Vec<String>> = BTreeMap::new();
    for row in rows {
        let table: String = row.try_get(0).doing(doing)?;
        // Only `seal` writes here, and it writes what parses.
        let Ok(table) = table.parse() else { continue };
        let id: String = row.try_get(1).doing(doing)?;
        membership.entry(table).or_default().push(id);
    }
    Ok(membership)
}

/// What the sink has of the unit; none if it has nothing, or not even the schema.
pub async fn read<C: GenericClient + Sync>(
    client: &C,
    unit: &Unit,
) -> Result<Option<State>, Error> {
    let doing = "read the unit on the sink";
    if !schema_there(client).await? {
        return Ok(None);
    }
    let row = client
        .query_opt(
            "select epoch, position, last_change_lsn, last_change_commit_at,
                    barrier_nonce, barrier_lsn, sealed, horizon
             from monarch.unit where move_id = $1 and store = $2",
            &[&unit.move_id.0, &unit.store.as_str()],
        )
        .await
        .doing(doing)?;
    row.as_ref().map(state).transpose().doing(doing)
}

/// Forgets the unit. An older writer finds itself superseded. Doing it again is the same.
pub async fn remove<C: GenericClient + Sync>(client: &C, unit: &Unit) -> Result<(), Error> {
    if !schema_there(client).await? {
        return Ok(());
    }
    client
        .execute(
            "delete from monarch.unit where move_id = $1 and store = $2",
            &[&unit.move_id.0, &unit.store.as_str()],
        )
        .await
        .doing("forget the unit on the sink")?;
    Ok(())
}

/// Forgets the unit if it is still held by `epoch` and has no position: for a holder that finds itself
/// superseded after its successor had already removed the row, and has made it again by taking over.
/// A row with a position is the unit's own: its successor has begun in the ledger and is about to take
/// it over.
pub async fn remove_own<C: GenericClient + Sync>(
    client: &C,
    unit: &Unit,
    epoch: Epoch,
) -> Result<(), Error> {
    client
        .execute(
            "delete from monarch.unit
              where move_id = $1 and store = $2 and epoch = $3 and position is null",
            &[&unit.move_id.0, &unit.store.as_str(), &epoch.0],
        )
        .await
        .doing("forget the superseded unit on the sink")?;
    Ok(())
}

async fn schema_there<C: GenericClient + Sync>(client: &C) -> Result<bool, Error> {
    client
        .query_one("select to_regclass('monarch.unit') is not null", &[])
        .await
        .and_then(|row| row.try_get(0))
        .doing("look for the schema monarch on the sink")
}

/// Says why a write under `epoch` touched no row.
async fn held<C: GenericClient + Sync>(
    rows: u64,
    client: &C,
    unit: &Unit,
    epoch: Epoch,
) -> Result<(), SinkError> {
    if rows > 0 {
        return Ok(());
    }
    let row = client
        .query_opt(
            "select epoch, sealed from monarch.unit where move_id = $1 and store = $2",
            &[&unit.move_id.0, &unit.store.as_str()],
        )
        .await
        .doing("read the unit's epoch on the sink")?;
    judge(row.as_ref(), unit, epoch)?;
    // The row changed between the two looks: somebody else is at work on it.
    Err(superseded(unit, epoch))
}

fn judge(row: Option<&Row>, unit: &Unit, epoch: Epoch) -> Result<(), SinkError> {
    let doing = "read the unit's epoch on the sink";
    let Some(row) = row else {
        return Err(superseded(unit, epoch));
    };
    if row.try_get::<_, i64>("epoch").doing(doing)? != epoch.0 {
        return Err(superseded(unit, epoch));
    }
    if row.try_get("sealed").doing(doing)? {
        return Err(SinkError::Sealed {
            store: unit.store.clone(),
        });
    }
    Ok(())
}

fn superseded(unit: &Unit, epoch: Epoch) -> SinkError {
    SinkError::Superseded {
        store: unit.store.clone(),
        epoch,
    }
}

fn state(row: &Row) -> Result<State, tokio_postgres::Error> {
    let lsn = |column: &str| -> Result<Option<Lsn>, tokio_postgres::Error> {
        let lsn: Option<PgLsn> = row.try_get(column)?;
        Ok(lsn.map(|lsn| Lsn(lsn.into())))
    };
    let committed_at: Option<Timestamp> = row.try_get("last_change_commit_at")?;
    let nonce: Option<Uuid> = row.try_get("barrier_nonce")?;
    let horizon: Option<i64> = row.try_get("horizon")?;
    Ok(State {
        epoch: Epoch(row.try_get("epoch")?),
        position: lsn("position")?,
        last_change: lsn("last_change_lsn")?
            .zip(committed_at)
            .map(|(lsn, committed_at)| LastChange { lsn, committed_at }),
        barrier: nonce
            .zip(lsn("barrier_lsn")?)
            .map(|(nonce, lsn)| Barrier { nonce, lsn }),
        sealed: row.try_get("sealed")?,
        horizon: horizon.and_then(|horizon| u64::try_from(horizon).ok()),
    })
}
