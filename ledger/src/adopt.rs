//! Another workflow in the place of one that is gone.

use monarch_model::MoveId;
use serde_json::json;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::journal::{Entry, lock_move};

impl Ledger {
    /// Records that another workflow drives the move from now on, so that the sweep asks after that
    /// one. Again is the same. Journaled.
    pub async fn adopt(
        &self,
        move_id: MoveId,
        workflow_id: &str,
        run_id: &str,
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record the move's new workflow";
        let mut lease = self.lease().await?;
        let tx = lease.begin(DOING).await?;
        lock_move(&tx, move_id).await?;
        let adopted = tx
            .execute(
                "update monarch_ledger.move set workflow_id = $2, run_id = $3
                  where id = $1 and (workflow_id, run_id) is distinct from ($2, $3)",
                &[&move_id.0, &workflow_id, &run_id],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        if adopted == 1 {
            let detail = json!({ "workflow_id": workflow_id, "run_id": run_id });
            Entry::unchanging(move_id, None, "adopted", detail)
                .append(&tx)
                .await?;
        }
        tx.commit().await.map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(())
    }
}
