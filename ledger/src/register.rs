//! How a move comes to be: its row is the lease.

use monarch_model::{CellName, MoveId, OrgId, Phase, StoreName, names};
use monarch_postgres::spine::Spine;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, storable};
use crate::records::{Move, read_live_move, read_move};

/// A move to be registered.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMove {
    /// Chosen by the caller, the same at every try.
    pub id: MoveId,
    /// The organization.
    pub org: OrgId,
    /// The cell that it leaves.
    pub source_cell: CellName,
    /// The cell that it goes to.
    pub sink_cell: CellName,
    /// The workflow that drives the move.
    pub workflow_id: String,
    /// Its run.
    pub run_id: String,
    /// The stores of rows that move, a unit each.
    pub stores: Vec<StoreName>,
    /// The stores of objects that move, a unit each.
    pub blob_stores: Vec<StoreName>,
    /// The static spine, read once.
    pub spine: Spine,
    /// What was asked for at the start.
    pub options: Value,
    /// What the control plane will compare before it changes the routing.
    pub token: Uuid,
}

/// What became of a registration. The move is the one in the ledger: where a reply was lost, the
/// spine and the token of the first try hold, whatever the second one read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Registration {
    /// This request made it.
    Registered(Move),
    /// An earlier try had made it; it may have gone on since.
    AlreadyRegistered(Move),
    /// Another move holds the fleet's one lease. Nothing was written.
    LiveMove {
        /// The live move.
        id: MoveId,
        /// Whose it is.
        org: OrgId,
        /// Where it stands.
        phase: Phase,
    },
}

impl Ledger {
    /// Registers a move with its units and its spine, and the first row of its journal, in one
    /// transaction. While another move is live it is refused, and that one named.
    pub async fn register(&self, new: &NewMove) -> Result<Registration, LedgerError> {
        const DOING: &str = "register the move";
        loop {
            let mut lease = self.lease().await?;
            let tx = lease.begin(DOING).await?;
            let outcome = if insert_move(&tx, new).await? {
                insert_units(&tx, new).await?;
                insert_spine(&tx, new).await?;
                journal(&tx, new).await?;
                read_move(&tx, new.id).await?.map(Registration::Registered)
            } else {
                found_instead(&tx, new).await?
            };
            tx.commit().await.map_err(LedgerError::database(DOING))?;
            lease.give_back();
            // None: the move that stood in the way ended between two statements.
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }
}

async fn insert_move(tx: &Transaction<'_>, new: &NewMove) -> Result<bool, LedgerError> {
    let spine_tables: Vec<&str> = new.spine.tables().map(|(t, _)| t.as_str()).collect();
    let inserted = tx
        .execute(
            "insert into monarch_ledger.move
                    (id, org_id, source_cell, sink_cell, phase, token, workflow_id, run_id,
                     options, spine_tables, spine_digest)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
                 on conflict do nothing",
            &[
                &new.id.0,
                &new.org.as_str(),
                &new.source_cell.as_str(),
                &new.sink_cell.as_str(),
                &Phase::Active.as_str(),
                &new.token,
                &new.workflow_id,
                &new.run_id,
                &storable(new.options.clone()),
                &spine_tables,
                &new.spine.digest(),
            ],
        )
        .await
        .map_err(LedgerError::database("register the move"))?;
    Ok(inserted == 1)
}

async fn insert_units(tx: &Transaction<'_>, new: &NewMove) -> Result<(), LedgerError> {
    let all = new.stores.iter().chain(&new.blob_stores);
    let stores: Vec<&str> = all.clone().map(StoreName::as_str).collect();
    let of_objects: Vec<bool> = all
        .clone()
        .map(|store| new.blob_stores.contains(store))
        .collect();
    let prefixes: Vec<String> = all
        .map(|store| names::unit_prefix(new.id, &new.org, store))
        .collect();
    tx.execute(
        "insert into monarch_ledger.move_unit (move_id, store, slot_prefix, of_objects)
         select $1, u.* from unnest($2::text[], $3::text[], $4::bool[]) u",
        &[&new.id.0, &stores, &prefixes, &of_objects],
    )
    .await
    .map_err(LedgerError::database("register the move's units"))?;
    Ok(())
}

async fn insert_spine(tx: &Transaction<'_>, new: &NewMove) -> Result<(), LedgerError> {
    for (table, ids) in new.spine.tables() {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        tx.execute(
            "insert into monarch_ledger.move_spine (move_id, table_name, id)
             select $1, $2, id from unnest($3::text[]) s (id)",
            &[&new.id.0, &table.as_str(), &ids],
        )
        .await
        .map_err(LedgerError::database("record the static spine"))?;
    }
    Ok(())
}

async fn journal(tx: &Transaction<'_>, new: &NewMove) -> Result<(), LedgerError> {
    Entry {
        move_id: new.id,
        store: None,
        kind: "registered",
        before: None,
        after: Some(Phase::Active.as_str()),
        detail: json!({
            "org": new.org,
            "source_cell": new.source_cell,
            "sink_cell": new.sink_cell,
            "stores": new.stores,
            "blob_stores": new.blob_stores,
            "spine_digest": new.spine.digest(),
            "workflow_id": new.workflow_id,
        }),
    }
    .append(tx)
    .await
}

async fn found_instead(
    tx: &Transaction<'_>,
    new: &NewMove,
) -> Result<Option<Registration>, LedgerError> {
    let Some(found) = read_move(tx, new.id).await? else {
        return Ok(read_live_move(tx)
            .await?
            .map(|live| Registration::LiveMove {
                id: live.id,
                org: live.org,
                phase: live.phase,
            }));
    };
    let differs = |what| Err(LedgerError::RegisteredOtherwise { id: new.id, what });
    if found.org != new.org {
        return differs("organization");
    }
    if found.source_cell != new.source_cell || found.sink_cell != new.sink_cell {
        return differs("pair of cells");
    }
    if !same_stores(tx, new).await? {
        return differs("set of stores");
    }
    Ok(Some(Registration::AlreadyRegistered(found)))
}

async fn same_stores(tx: &Transaction<'_>, new: &NewMove) -> Result<bool, LedgerError> {
    let rows = tx
        .query(
            "select store from monarch_ledger.move_unit where move_id = $1",
            &[&new.id.0],
        )
        .await
        .map_err(LedgerError::database("read the move's units"))?;
    let mut found = rows
        .iter()
        .map(|row| crate::records::parsed(row, "store"))
        .collect::<Result<Vec<StoreName>, _>>()?;
    let mut wanted = [&new.stores[..], &new.blob_stores].concat();
    found.sort();
    wanted.sort();
    Ok(found == wanted)
}
