//! Where the keys of objects go that streamed rows name: a ledger on a server of its own, as in a
//! fleet.

use anyhow::{Context as _, Result, ensure};
use monarch_blobs::KeysOfMove;
use monarch_config::Dsn;
use monarch_harness::{Cluster, fresh_name};
use monarch_ledger::{Ledger, NewMove};
use monarch_model::{MoveId, StoreName};
use monarch_postgres::spine::Spine;
use uuid::Uuid;

/// The blob store of the organization's objects.
pub(crate) const STORE: &str = "files";

/// A recorder for a move in a ledger that nobody else uses.
pub(crate) async fn recorder(cluster: &Cluster) -> Result<KeysOfMove> {
    let dsn = cluster.create_database(&fresh_name("ledger")).await?;
    let ledger = Ledger::connect(&Dsn::new(dsn)).await?;
    ledger.init().await?;
    let move_id = MoveId(Uuid::new_v4());
    let new = NewMove {
        id: move_id,
        org: "1".parse()?,
        source_cell: "a".parse()?,
        sink_cell: "b".parse()?,
        workflow_id: "bench".to_owned(),
        run_id: "bench".to_owned(),
        stores: Vec::new(),
        blob_stores: vec![STORE.parse()?],
        spine: Spine::from_ids([].into()),
        options: serde_json::json!({}),
        token: Uuid::new_v4(),
    };
    ledger.register(&new).await?;
    Ok(KeysOfMove { ledger, move_id })
}

/// A stream that forgets a key is not fast.
pub(crate) async fn assert_recorded(keys: &KeysOfMove, expected: u64) -> Result<()> {
    let counts = keys.ledger.blob_counts(keys.move_id).await?;
    let store: StoreName = STORE.parse()?;
    let counts = counts.get(&store).context("no key is recorded")?;
    ensure!(
        counts.recorded == expected,
        "{} keys are recorded, not {expected}",
        counts.recorded
    );
    Ok(())
}
