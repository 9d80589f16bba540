//! Messages of control whose organization has moved to another cell.

use std::sync::Arc;

use monarch_outbox::{
    BoxError, CellName, Control, Drain, Partition, Receivers, ServerError, Shard, Table,
};
use tokio::sync::Notify;
use tokio_postgres::Client;

use crate::fixture::{Category, Db, Log, Scope, registry};

async fn retarget(client: &mut Client) -> Result<u64, ServerError> {
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute("set local lock_timeout = '200ms'")
        .await
        .unwrap();
    let [de, us] = ["de", "us"].map(|name| CellName::new(name).unwrap());
    let table = Table::<Control>::default();
    let shard = Shard::control(de, Scope::Organization, 1);
    let messages = table.retarget(&transaction, &shard, &us).await?;
    transaction.commit().await.unwrap();
    Ok(messages)
}

/// The shard's messages go, in their order and once; no other's do.
#[tokio::test]
async fn a_shard_goes_to_another_cell_whole() {
    let mut db = Db::new().await;
    db.write_control(&[
        ("de", Category::Member, 1, 1),
        ("de", Category::OrganizationUpdate, 1, 2),
        ("de", Category::Member, 2, 3),
        ("de", Category::UserUpdate, 1, 4),
        ("us", Category::Member, 1, 5),
    ])
    .await;
    assert_eq!(retarget(&mut db.client).await.unwrap(), 2);
    assert_eq!(retarget(&mut db.client).await.unwrap(), 0);
    let log = Log::<Control>::new();
    let drain = log.drain();
    drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    let mut delivered: Vec<_> = log
        .messages()
        .iter()
        .map(|m| (m.cell_name().as_str().to_owned(), m.object_identifier))
        .collect();
    delivered.sort();
    let expected = [("de", 3), ("de", 4), ("us", 1), ("us", 2), ("us", 5)];
    assert_eq!(
        delivered,
        expected.map(|(cell, object)| (cell.to_owned(), object))
    );
}

/// What is being delivered to the one cell is not handed to the other: the drain's locks are waited
/// for.
#[tokio::test]
async fn a_shard_that_is_being_drained_is_waited_for() {
    let mut db = Db::new().await;
    db.write_control(&[
        ("de", Category::Member, 1, 1),
        ("de", Category::Member, 1, 2),
    ])
    .await;
    let (entered, let_go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let gate = (Arc::clone(&entered), Arc::clone(&let_go));
    let receivers = Receivers::<Control>::new().on(Category::Member, move |message| {
        let (entered, let_go) = (Arc::clone(&gate.0), Arc::clone(&gate.1));
        async move {
            if message.object_identifier == 1 {
                entered.notify_one();
                let_go.notified().await;
            }
            Ok::<(), BoxError>(())
        }
    });
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let mut other = db.connect().await;
    let meanwhile = async {
        entered.notified().await;
        let refused = retarget(&mut other).await.unwrap_err();
        let_go.notify_one();
        assert_eq!(refused.code().unwrap().code(), "55P03");
    };
    let (report, ()) = tokio::join!(drain.partition(&mut db.client, Partition::ALL), meanwhile);
    assert_eq!(report.unwrap().delivered, 2);
    assert_eq!(retarget(&mut db.client).await.unwrap(), 0);
}

/// A drain of another make holds the row of the head alone.
#[tokio::test]
async fn a_head_that_somebody_holds_is_waited_for() {
    let mut db = Db::new().await;
    db.write_control(&[
        ("de", Category::Member, 1, 1),
        ("de", Category::Member, 1, 2),
    ])
    .await;
    let mut theirs = db.connect().await;
    let held = theirs.transaction().await.unwrap();
    held.batch_execute("select from sentry_controloutbox where object_identifier = 1 for update")
        .await
        .unwrap();
    let refused = retarget(&mut db.client).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55P03");
    held.batch_execute("delete from sentry_controloutbox where object_identifier = 1")
        .await
        .unwrap();
    let waits = retarget(&mut db.client);
    let (moved, ended) = tokio::join!(waits, held.commit());
    ended.unwrap();
    assert_eq!(moved.unwrap(), 1);
}
