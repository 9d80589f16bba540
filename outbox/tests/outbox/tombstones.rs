//! Tombstones, and what they take with them.

use std::sync::Arc;

use futures::future::BoxFuture;
use monarch_outbox::{
    BoxError, Cascade, Cell, CellName, Delivery, Drain, LookBack, OnDelete, Receiver, Receivers,
    Table, Tombstone, TombstoneService, TombstoneTable, maybe_process_tombstone,
};
use tokio_postgres::Client;

use crate::fixture::{Category, Db, registry};
use crate::replicated::{Calls, Member, database, member, members};

/// Control, reached by a connection.
struct Control(Client);

impl TombstoneService for Control {
    fn record<'a>(
        &'a self,
        cell: Option<&'a CellName>,
        tombstone: &'a Tombstone,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            assert_eq!(cell, None);
            let table = TombstoneTable::<monarch_outbox::Control>::default();
            Ok(table.record(&self.0, tombstone).await?)
        })
    }
}

struct Checking {
    control: Control,
    seen: Arc<Calls>,
}

impl Receiver<Cell> for Checking {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let Some(member) = maybe_process_tombstone::<Member>(delivery, &self.control).await?
            else {
                return Ok(());
            };
            self.seen.lock().unwrap().push(format!("{}", member.id));
            Ok(())
        })
    }
}

/// A receiver of one's own tells a change from a deletion, and a deletion leaves its tombstone.
#[tokio::test]
async fn a_row_that_is_gone_leaves_a_tombstone_on_the_other_side() {
    let mut db = database().await;
    TombstoneTable::<monarch_outbox::Control>::default()
        .create(&db.client)
        .await
        .unwrap();
    let seen = Arc::new(Calls::default());
    let checking = Checking {
        control: Control(db.connect().await),
        seen: Arc::clone(&seen),
    };
    let receivers = Receivers::new().with(Category::Member, checking);
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let mut there = member(1, "a");
    let created = drain.atomic(&mut db.client, async |outbox| {
        outbox.create(&mut there).await
    });
    created.await.unwrap().flushed.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["1"]);
    for _ in 0..2 {
        let deleted = drain.atomic(&mut db.client, async |outbox| outbox.delete(&there).await);
        assert_eq!(deleted.await.unwrap().flushed.unwrap().failed, 0);
    }
    let tombstones = "select count(*) from sentry_controltombstone \
         where table_name = 'sentry_organizationmember' and object_identifier = 1";
    assert_eq!(db.number(tombstones).await, 1);
}

async fn with_tombstones(ids: &[i64]) -> (Db, TombstoneTable<Cell>) {
    let db = database().await;
    db.run(
        "create table note (id bigserial primary key, user_id bigint);
         insert into note (user_id) select n % 10 from generate_series(1, 5000) n;
         insert into sentry_organizationmember (organization_id, email) \
             select n, 'x' from generate_series(1, 10) n;",
    )
    .await;
    let table = TombstoneTable::<Cell>::default();
    table.create(&db.client).await.unwrap();
    for &id in ids {
        let tombstone = Tombstone {
            table_name: "auth_user".to_owned(),
            object_identifier: id,
        };
        table.record(&db.client, &tombstone).await.unwrap();
        table.record(&db.client, &tombstone).await.unwrap();
    }
    (db, table)
}

/// What refers to a tombstone goes, in bounded transactions; what refers to others stays.
#[tokio::test]
async fn a_cascade_removes_what_refers_to_a_tombstone() {
    let (mut db, table) = with_tombstones(&[3, 4]).await;
    let cascade = Cascade::new(table).rows("note", "user_id", "auth_user", OnDelete::Cascade);
    let hour = LookBack::Within(std::time::Duration::from_secs(3600));
    let outbox = Table::default();
    let removed = cascade.run(&mut db.client, &outbox, hour).await.unwrap();
    assert_eq!(removed["note.user_id"], 1_000);
    assert_eq!(
        db.number("select count(*) from note where user_id in (3, 4)")
            .await,
        0
    );
    assert_eq!(db.number("select count(*) from note").await, 4_000);
    // A row that comes later is met again.
    db.run("insert into note (user_id) values (3)").await;
    assert_eq!(
        cascade.run(&mut db.client, &outbox, hour).await.unwrap()["note.user_id"],
        1
    );
}

/// Older tombstones are looked at only when all are asked for.
#[tokio::test]
async fn a_cascade_can_look_at_all_tombstones() {
    let (mut db, table) = with_tombstones(&[3]).await;
    db.run("update sentry_regiontombstone set created_at = now() - interval '1 day'")
        .await;
    let cascade = Cascade::new(table).rows("note", "user_id", "auth_user", OnDelete::SetNull);
    let outbox = Table::default();
    let hour = LookBack::Within(std::time::Duration::from_secs(3600));
    assert_eq!(
        cascade.run(&mut db.client, &outbox, hour).await.unwrap()["note.user_id"],
        0
    );
    let all = cascade
        .run(&mut db.client, &outbox, LookBack::All)
        .await
        .unwrap();
    assert_eq!(all["note.user_id"], 500);
    assert_eq!(
        db.number("select count(*) from note where user_id is null")
            .await,
        500
    );
}

/// A replicated row that a cascade removes tells of it in turn.
#[tokio::test]
async fn a_cascade_of_a_model_writes_its_messages() {
    let (mut db, table) = with_tombstones(&[3, 4]).await;
    let cascade = Cascade::new(table).model::<Member>("organization_id", "auth_user");
    let outbox = Table::default();
    let removed = cascade
        .run(&mut db.client, &outbox, LookBack::All)
        .await
        .unwrap();
    assert_eq!(removed["sentry_organizationmember.organization_id"], 2);
    let calls = Arc::new(Calls::default());
    members(&calls)
        .partition(&mut db.client, monarch_outbox::Partition::ALL)
        .await
        .unwrap();
    assert_eq!(
        *calls.lock().unwrap(),
        ["3 gone: {\"of\":3}", "4 gone: {\"of\":4}"]
    );
}
