//! Puts the keys of objects that rows name into the ledger, for the movers of rows.

use std::fmt;

use futures::future::BoxFuture;
use monarch_ledger::Ledger;
use monarch_model::MoveId;
use monarch_postgres::keys::{KeyRecorder, KeysNotRecorded, NamedKeys};

/// The keys of one move. Whoever records holds no epoch: what is recorded too much does no harm.
pub struct KeysOfMove {
    /// The ledger.
    pub ledger: Ledger,
    /// The move.
    pub move_id: MoveId,
}

impl fmt::Debug for KeysOfMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysOfMove")
            .field("move_id", &self.move_id)
            .finish_non_exhaustive()
    }
}

impl KeyRecorder for KeysOfMove {
    fn record(&self, named: NamedKeys) -> BoxFuture<'_, Result<(), KeysNotRecorded>> {
        Box::pin(async move {
            let NamedKeys { store, table, keys } = named;
            let recorded = self
                .ledger
                .record_blob_keys(self.move_id, &store, &table, &keys)
                .await;
            match recorded {
                Ok(_) => Ok(()),
                Err(source) => Err(KeysNotRecorded {
                    store,
                    table,
                    source: source.into(),
                }),
            }
        })
    }
}
