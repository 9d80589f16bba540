//! What the ledger knows of moves and units, as it is read.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use monarch_model::{CellName, Epoch, Lsn, MoveId, OrgId, Phase, StoreName, TableName, UnitStatus};
use monarch_postgres::spine::Spine;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_postgres::types::{FromSqlOwned, PgLsn};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::phases::{Expected, Reason};
use crate::progress::{
    Barrier, CopyProgress, DatabaseIdentity, SourceCommit, StreamProgress, Tail,
};

/// One move.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Move {
    /// Its id.
    pub id: MoveId,
    /// The organization.
    pub org: OrgId,
    /// The cell that it leaves.
    pub source_cell: CellName,
    /// The cell that it goes to.
    pub sink_cell: CellName,
    /// Where it stands.
    pub phase: Phase,
    /// The transitions that were made.
    pub step: i64,
    /// What the control plane compares before it changes the routing.
    pub token: Uuid,
    /// The workflow that drives it.
    pub workflow_id: String,
    /// The workflow's run that registered it.
    pub run_id: String,
    /// What was asked for at the start.
    pub options: Value,
    /// [`Spine::digest`] of the recorded spine.
    pub spine_digest: String,
    /// Why it failed or is given up.
    pub reason: Option<Reason>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When its phase last changed.
    pub updated_at: Timestamp,
    /// When the drain began that is under way or led to the flip.
    pub fenced_at: Option<Timestamp>,
    /// When the routing was read back and named the sink.
    pub flipped_at: Option<Timestamp>,
    /// From the fence to the flip, in milliseconds.
    pub write_pause_ms: Option<i64>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl Move {
    /// Where this reading of the move stands, for a transition that no later one may overtake.
    pub fn expected(&self) -> Expected {
        Expected {
            phase: self.phase,
            step: Some(self.step),
        }
    }
}

/// The last error that a unit met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnitError {
    /// A word for programs.
    pub code: String,
    /// A sentence for people.
    pub text: String,
    /// When it was last met.
    pub at: Timestamp,
}

/// One unit: one store within one move.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unit {
    /// The move.
    pub move_id: MoveId,
    /// The store.
    pub store: StoreName,
    /// Whether it is of objects: then it has no slot, and what is counted as rows are objects.
    pub of_objects: bool,
    /// Where it stands.
    pub status: UnitStatus,
    /// The newest epoch that was handed out.
    pub epoch: Epoch,
    /// How the names of all its slots and publications begin.
    pub slot_prefix: String,
    /// The slot of the copy that counts; none before the first and after it was dropped.
    pub slot: Option<String>,
    /// The source database that the copy was read from.
    pub source_database: Option<DatabaseIdentity>,
    /// The sink database that the copy was written to.
    pub sink_database: Option<DatabaseIdentity>,
    /// Where snapshot and stream meet.
    pub consistent_point: Option<Lsn>,
    /// How far the snapshot is.
    pub copy: CopyProgress,
    /// When the copy that counts began.
    pub copy_started_at: Option<Timestamp>,
    /// When its last row was committed.
    pub copied_at: Option<Timestamp>,
    /// How far the stream is.
    pub stream: StreamProgress,
    /// When progress was last recorded.
    pub heartbeat_at: Option<Timestamp>,
    /// The newest barrier that was applied.
    pub barrier: Option<Barrier>,
    /// When it became read-only.
    pub sealed_at: Option<Timestamp>,
    /// Where its slot was last read to the head after the flip.
    pub tail: Option<Tail>,
    /// In-scope changes behind the barrier, by table, at least. They forbid eviction.
    pub late_changes: BTreeMap<TableName, u64>,
    /// Rows deleted on the losing side, by table.
    pub rows_evicted: BTreeMap<TableName, u64>,
    /// The last error.
    pub last_error: Option<UnitError>,
    /// How many errors were recorded.
    pub error_count: i64,
}

/// A move that `monarch sweep` looks at: it is live, or left a unit behind whose slot was not seen
/// dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepCandidate {
    /// The move, with the workflow that should be driving it.
    pub of: Move,
    /// Its units.
    pub units: Vec<Unit>,
    /// The newest heartbeat of its units.
    pub last_heartbeat_at: Option<Timestamp>,
    /// How long, by the ledger's clock, neither a heartbeat nor a transition was recorded.
    pub silent_for: SignedDuration,
}

const LIVE_MOVE: &str = "select * from monarch_ledger.move
      where phase not in ('finalized', 'aborted')";

/// Reads one move inside the caller's transaction.
pub(crate) async fn read_move(
    client: &impl GenericClient,
    id: MoveId,
) -> Result<Option<Move>, LedgerError> {
    client
        .query_opt("select * from monarch_ledger.move where id = $1", &[&id.0])
        .await
        .map_err(LedgerError::database("read the move"))?
        .as_ref()
        .map(read)
        .transpose()
}

/// Reads the live move inside the caller's transaction.
pub(crate) async fn read_live_move(
    client: &impl GenericClient,
) -> Result<Option<Move>, LedgerError> {
    client
        .query_opt(LIVE_MOVE, &[])
        .await
        .map_err(LedgerError::database("read the live move"))?
        .as_ref()
        .map(read)
        .transpose()
}

impl Ledger {
    /// The fleet's one live move.
    pub async fn live_move(&self) -> Result<Option<Move>, LedgerError> {
        let lease = self.lease().await?;
        let found = read_live_move(lease.client()).await?;
        lease.give_back();
        Ok(found)
    }

    /// The move of this id.
    pub async fn move_by_id(&self, id: MoveId) -> Result<Option<Move>, LedgerError> {
        let lease = self.lease().await?;
        let found = read_move(lease.client(), id).await?;
        lease.give_back();
        Ok(found)
    }

    /// The newest move of an organization, live or ended.
    pub async fn latest_move_of(&self, org: &OrgId) -> Result<Option<Move>, LedgerError> {
        const DOING: &str = "read the organization's newest move";
        let lease = self.lease().await?;
        let found = lease
            .client()
            .query_opt(
                "select * from monarch_ledger.move
                  where org_id = $1 order by created_at desc limit 1",
                &[&org.as_str()],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        found.as_ref().map(read).transpose()
    }

    /// The newest moves, at most `limit`.
    pub async fn moves(&self, limit: u32) -> Result<Vec<Move>, LedgerError> {
        const DOING: &str = "list the moves";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select * from monarch_ledger.move order by created_at desc limit $1",
                &[&i64::from(limit)],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter().map(read).collect()
    }

    /// The units of a move, by store; none if there is no such move.
    pub async fn units(&self, move_id: MoveId) -> Result<Vec<Unit>, LedgerError> {
        const DOING: &str = "read the move's units";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select * from monarch_ledger.move_unit where move_id = $1 order by store",
                &[&move_id.0],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter().map(read_unit).collect()
    }

    /// One unit of a move.
    pub async fn unit(&self, move_id: MoveId, store: &StoreName) -> Result<Unit, LedgerError> {
        const DOING: &str = "read the unit";
        let lease = self.lease().await?;
        let row = lease
            .client()
            .query_opt(
                "select * from monarch_ledger.move_unit where move_id = $1 and store = $2",
                &[&move_id.0, &store.as_str()],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        let row = row.ok_or_else(|| LedgerError::NoSuchUnit {
            move_id,
            store: store.clone(),
        })?;
        read_unit(&row)
    }

    /// The recorded ids of one table of the spine, in order of their bytes.
    pub async fn spine(
        &self,
        move_id: MoveId,
        table: &TableName,
    ) -> Result<Vec<String>, LedgerError> {
        const DOING: &str = "read the static spine";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select id from monarch_ledger.move_spine
                  where move_id = $1 and table_name = $2 order by id",
                &[&move_id.0, &table.as_str()],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter().map(|row| column(row, "id")).collect()
    }

    /// The whole recorded spine, for which [`Move::spine_digest`] was made; empty if there is no
    /// such move.
    pub async fn whole_spine(&self, move_id: MoveId) -> Result<Spine, LedgerError> {
        const DOING: &str = "read the static spine";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                "select t.table_name, array_remove(array_agg(s.id), null) as ids
                   from monarch_ledger.move m
                        cross join unnest(m.spine_tables) t (table_name)
                        left join monarch_ledger.move_spine s
                               on s.move_id = m.id and s.table_name = t.table_name
                  where m.id = $1 group by t.table_name",
                &[&move_id.0],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        let mut tables = BTreeMap::new();
        for row in &rows {
            let ids: Vec<String> = column(row, "ids")?;
            tables.insert(parsed(row, "table_name")?, ids.into_iter().collect());
        }
        Ok(Spine::from_ids(tables))
    }

    /// The moves that a sweep has to look at, oldest first.
    pub async fn sweep_candidates(&self) -> Result<Vec<SweepCandidate>, LedgerError> {
        const DOING: &str = "look for moves that nobody ends";
        let lease = self.lease().await?;
        let moves = lease
            .client()
            .query(SWEEP_MOVES, &[])
            .await
            .map_err(LedgerError::database(DOING))?;
        let ids: Vec<Uuid> = moves
            .iter()
            .map(|row| column(row, "id"))
            .collect::<Result<_, _>>()?;
        let units = lease
            .client()
            .query(
                "select * from monarch_ledger.move_unit where move_id = any($1) order by store",
                &[&ids],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        let mut by_move: BTreeMap<MoveId, Vec<Unit>> = BTreeMap::new();
        for row in &units {
            let unit = read_unit(row)?;
            by_move.entry(unit.move_id).or_default().push(unit);
        }
        moves
            .iter()
            .map(|row| {
                let of = read(row)?;
                Ok(SweepCandidate {
                    units: by_move.remove(&of.id).unwrap_or_default(),
                    last_heartbeat_at: column(row, "last_heartbeat_at")?,
                    silent_for: SignedDuration::from_millis(column(row, "silent_ms")?),
                    of,
                })
            })
            .collect()
    }
}

const SWEEP_MOVES: &str = "
    select m.*, u.last_heartbeat_at,
           (extract(epoch from clock_timestamp() - greatest(m.updated_at, u.last_heartbeat_at))
            * 1000)::bigint as silent_ms
      from monarch_ledger.move m
      left join lateral (
            select max(heartbeat_at) as last_heartbeat_at,
                   bool_or(status in ('pending', 'copying', 'copied', 'streaming')) as has_slot
              from monarch_ledger.move_unit where move_id = m.id) u on true
     where m.phase not in ('finalized', 'aborted') or u.has_slot
     order by m.created_at";

fn read(row: &Row) -> Result<Move, LedgerError> {
    let code: Option<String> = column(row, "reason_code")?;
    let text: Option<String> = column(row, "reason")?;
    Ok(Move {
        id: MoveId(column(row, "id")?),
        org: parsed(row, "org_id")?,
        source_cell: parsed(row, "source_cell")?,
        sink_cell: parsed(row, "sink_cell")?,
        phase: parsed(row, "phase")?,
        step: column(row, "step")?,
        token: column(row, "token")?,
        workflow_id: column(row, "workflow_id")?,
        run_id: column(row, "run_id")?,
        options: column(row, "options")?,
        spine_digest: column(row, "spine_digest")?,
        reason: code.zip(text).map(|(code, text)| Reason { code, text }),
        created_at: column(row, "created_at")?,
        updated_at: column(row, "updated_at")?,
        fenced_at: column(row, "fenced_at")?,
        flipped_at: column(row, "flipped_at")?,
        write_pause_ms: column(row, "write_pause_ms")?,
        ended_at: column(row, "ended_at")?,
    })
}

fn read_unit(row: &Row) -> Result<Unit, LedgerError> {
    let nonce: Option<Uuid> = column(row, "barrier_nonce")?;
    let snapshot: Option<String> = column(row, "tail_snapshot")?;
    let error: Option<String> = column(row, "last_error_code")?;
    Ok(Unit {
        move_id: MoveId(column(row, "move_id")?),
        store: parsed(row, "store")?,
        of_objects: column(row, "of_objects")?,
        status: parsed(row, "status")?,
        epoch: Epoch(column(row, "epoch")?),
        slot_prefix: column(row, "slot_prefix")?,
        slot: column(row, "slot")?,
        source_database: document(row, "source_database")?,
        sink_database: document(row, "sink_database")?,
        consistent_point: lsn(row, "consistent_point")?,
        copy: read_copy(row)?,
        copy_started_at: column(row, "copy_started_at")?,
        copied_at: column(row, "copied_at")?,
        stream: read_stream(row)?,
        heartbeat_at: column(row, "heartbeat_at")?,
        barrier: nonce
            .zip(lsn(row, "barrier_lsn")?)
            .map(|(nonce, lsn)| Barrier { nonce, lsn }),
        sealed_at: column(row, "sealed_at")?,
        tail: snapshot
            .zip(lsn(row, "tail_lsn")?)
            .map(|(snapshot, lsn)| Tail { snapshot, lsn }),
        late_changes: counts(row, "late_changes")?,
        rows_evicted: counts(row, "rows_evicted")?,
        last_error: match error {
            Some(code) => Some(UnitError {
                code,
                text: column(row, "last_error")?,
                at: column(row, "last_error_at")?,
            }),
            None => None,
        },
        error_count: column(row, "error_count")?,
    })
}

fn read_copy(row: &Row) -> Result<CopyProgress, LedgerError> {
    Ok(CopyProgress {
        rows_copied: count(row, "rows_copied")?.unwrap_or(0),
        bytes_copied: count(row, "bytes_copied")?.unwrap_or(0),
        rows_estimated: count(row, "rows_estimated")?,
        tables_done: unsigned(column::<i32>(row, "tables_done")?, "tables_done")?,
        tables_total: column::<Option<i32>>(row, "tables_total")?
            .map(|n| unsigned(n, "tables_total"))
            .transpose()?,
    })
}

fn read_stream(row: &Row) -> Result<StreamProgress, LedgerError> {
    let change_at: Option<Timestamp> = column(row, "last_change_commit_at")?;
    Ok(StreamProgress {
        received: lsn(row, "received_lsn")?,
        applied: lsn(row, "applied_lsn")?,
        acknowledged: lsn(row, "acknowledged_lsn")?,
        source_head: lsn(row, "source_head_lsn")?,
        last_change: lsn(row, "last_change_lsn")?
            .zip(change_at)
            .map(|(lsn, committed_at)| SourceCommit { lsn, committed_at }),
        changes_applied: count(row, "changes_applied")?.unwrap_or(0),
        transactions_applied: count(row, "transactions_applied")?.unwrap_or(0),
        lag_bytes: count(row, "lag_bytes")?,
        retained_wal_bytes: count(row, "retained_wal_bytes")?,
    })
}

/// A column as its Rust type.
pub(crate) fn column<T: FromSqlOwned>(row: &Row, name: &'static str) -> Result<T, LedgerError> {
    row.try_get(name)
        .map_err(|_| LedgerError::Unreadable { column: name })
}

/// A text column as the type that its text names.
pub(crate) fn parsed<T: FromStr>(row: &Row, name: &'static str) -> Result<T, LedgerError> {
    column::<String>(row, name)?
        .parse()
        .map_err(|_| LedgerError::Unreadable { column: name })
}

/// The same for a column that may be null.
pub(crate) fn parsed_opt<T: FromStr>(
    row: &Row,
    name: &'static str,
) -> Result<Option<T>, LedgerError> {
    column::<Option<String>>(row, name)?
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| LedgerError::Unreadable { column: name })
}

/// Counts by table.
pub(crate) fn counts(
    row: &Row,
    name: &'static str,
) -> Result<BTreeMap<TableName, u64>, LedgerError> {
    document(row, name)?.ok_or(LedgerError::Unreadable { column: name })
}

fn document<T: DeserializeOwned>(row: &Row, name: &'static str) -> Result<Option<T>, LedgerError> {
    column::<Option<Value>>(row, name)?
        .map(serde_json::from_value)
        .transpose()
        .map_err(|_| LedgerError::Unreadable { column: name })
}

fn lsn(row: &Row, name: &'static str) -> Result<Option<Lsn>, LedgerError> {
    let lsn: Option<PgLsn> = column(row, name)?;
    Ok(lsn.map(|lsn| Lsn(u64::from(lsn))))
}

fn count(row: &Row, name: &'static str) -> Result<Option<u64>, LedgerError> {
    column::<Option<i64>>(row, name)?
        .map(|n| unsigned(n, name))
        .transpose()
}

fn unsigned<N, U: TryFrom<N>>(n: N, name: &'static str) -> Result<U, LedgerError> {
    U::try_from(n).map_err(|_| LedgerError::Unreadable { column: name })
}
