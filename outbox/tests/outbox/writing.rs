//! Writing: with the transaction, or not at all.

use monarch_outbox::{Cell, CellName, CellOutbox, Control, ControlOutbox, Table, WriteError};
use serde_json::json;

use crate::fixture::{Category, Db, Log};

/// A message tells of a transaction: without its commit there is none.
#[tokio::test]
async fn a_rolled_back_transaction_leaves_no_message() {
    let mut db = Db::new().await;
    let table = Table::<Cell>::default();
    let transaction = db.client.transaction().await.unwrap();
    let writer = table.writer(&transaction);
    writer
        .write(&CellOutbox::new(Category::Member, 1, 2))
        .await
        .unwrap();
    drop(writer);
    transaction.rollback().await.unwrap();
    assert_eq!(db.queued().await, 0);
}

/// The columns mean what they mean to Sentry; a new message is due at once.
#[tokio::test]
async fn a_message_is_written_as_sentry_has_it() {
    let mut db = Db::new().await;
    let table = Table::<Control>::default();
    let transaction = db.client.transaction().await.unwrap();
    let writer = table.writer(&transaction);
    let cell = CellName::new("de").unwrap();
    let outbox = ControlOutbox::new(cell, Category::UserUpdate, 7, 9).payload(json!({"a": 1}));
    writer.write(&outbox).await.unwrap();
    let _ = writer.finish();
    transaction.commit().await.unwrap();
    let same = db
        .number(
            "select count(*) from sentry_controloutbox where region_name = 'de' \
             and shard_scope = 1 and shard_identifier = 7 and category = 0 \
             and object_identifier = 9 and payload = '{\"a\": 1}' \
             and scheduled_for = '2016-08-01' and date_added <= now() \
             and scheduled_from <= now() and date_added > now() - interval '1 hour'",
        )
        .await;
    assert_eq!(same, 1);
}

/// A retired category is refused before the server hears of it, so the caller's transaction lives.
#[tokio::test]
async fn a_retired_category_is_refused_and_the_transaction_goes_on() {
    let mut db = Db::new().await;
    let table = Table::<Cell>::default();
    let transaction = db.client.transaction().await.unwrap();
    let writer = table.writer(&transaction);
    let some = [
        CellOutbox::new(Category::Member, 1, 1),
        CellOutbox::new(Category::Retired, 1, 2),
    ];
    let refused = writer.write_all(&some).await.unwrap_err();
    assert!(matches!(refused, WriteError::Retired { .. }));
    assert_eq!(
        refused.to_string(),
        "write an outbox of category Retired (20) (scope Organization (0), shard 1, object 2): \
         the category is retired"
    );
    writer.write(&some[0]).await.unwrap();
    let _ = writer.finish();
    transaction.commit().await.unwrap();
    assert_eq!(db.queued().await, 1);
}

/// Work that fails is rolled back with its messages, and nothing is delivered.
#[tokio::test]
async fn atomic_work_that_fails_leaves_nothing() {
    let mut db = Db::new().await;
    let log = Log::<Cell>::new();
    let failed = log
        .drain()
        .atomic(&mut db.client, async |outbox| {
            outbox
                .write(&CellOutbox::new(Category::Member, 1, 1))
                .await
                .unwrap();
            Err::<(), _>("no")
        })
        .await
        .unwrap_err();
    assert_eq!(failed.to_string(), "no");
    assert_eq!((db.queued().await, log.objects()), (0, vec![]));
}

/// Messages are delivered at commit, with payload, before the call returns; and a task can do it.
#[tokio::test]
async fn atomic_work_is_delivered_at_commit() {
    let db = Db::new().await;
    let log = Log::<Cell>::new();
    let drain = log.drain();
    let mut client = db.connect().await;
    let task = tokio::spawn(async move {
        let committed = drain
            .atomic(&mut client, async |outbox| {
                let payload = json!({"name": "new"});
                let message = CellOutbox::new(Category::Member, 1, 2).payload(payload);
                outbox.write(&message).await?;
                Ok::<_, WriteError>(42)
            })
            .await
            .unwrap();
        (committed.value, committed.flushed.unwrap().delivered)
    });
    assert_eq!(task.await.unwrap(), (42, 1));
    assert_eq!(log.messages()[0].payload, Some(json!({"name": "new"})));
    assert_eq!(db.queued().await, 0);
}

/// Without a flush the messages stay for the schedule.
#[tokio::test]
async fn a_flush_can_be_left_out() {
    let mut db = Db::new().await;
    let log = Log::<Cell>::new();
    let drain = log.drain();
    let ((), touched) = drain
        .atomic_without_flush(&mut db.client, async |outbox| {
            outbox.write(&CellOutbox::new(Category::Member, 1, 2)).await
        })
        .await
        .unwrap();
    assert_eq!((db.queued().await, log.objects()), (1, vec![]));
    drain.flush(&mut db.client, touched).await.unwrap();
    assert_eq!((db.queued().await, log.objects()), (0, vec![2]));
}
