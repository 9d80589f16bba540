//! Backfill: gated, resumable, bounded.

use std::sync::Arc;

use monarch_outbox::{
    Backfills, Cell, Control, Drain, FixedOptions, MappingTables, OptionTable, Receivers, Table,
    Watermark,
};
use serde_json::json;

use crate::fixture::{Db, registry};
use crate::replicated::{Calls, Member, Setting, database, members};

const VERSION: &str = "outbox_replication.sentry_organizationmember.replication_version";

/// With so many members, and the watermark table.
async fn with_members(count: u32) -> (Db, Backfills<Cell>) {
    let db = database().await;
    db.run(&format!(
        "insert into sentry_organizationmember (organization_id) \
         select n % 5 from generate_series(1, {count}) n"
    ))
    .await;
    let backfills = Backfills::default().model::<Member>();
    backfills.create(&db.client).await.unwrap();
    (db, backfills)
}

/// Code that is deployed does not begin by itself: the lower of option and code counts.
#[tokio::test]
async fn a_backfill_waits_for_its_option() {
    let (mut db, backfills) = with_members(2_500).await;
    let options = OptionTable::default();
    options.create(&db.client).await.unwrap();
    let drain = members(&Arc::default()).options(options.clone());
    let none = backfills
        .minute(&drain, &mut db.client, 10_000)
        .await
        .unwrap();
    assert_eq!((none.total(), db.queued().await), (0, 0));
    // Above what the code can, it is the code that counts.
    options.set(&db.client, VERSION, &json!(9)).await.unwrap();
    let all = backfills
        .minute(&drain, &mut db.client, 10_000)
        .await
        .unwrap();
    assert_eq!((all.total(), db.queued().await), (2_500, 2_500));
    let mark = backfills.watermark::<Member>(&db.client).await.unwrap();
    assert_eq!(mark, Watermark { low: 0, version: 3 });
    let again = backfills
        .minute(&drain, &mut db.client, 10_000)
        .await
        .unwrap();
    assert_eq!(again.total(), 0);
}

/// A minute writes what the rate leaves beside the queue, and the next goes on behind it.
#[tokio::test]
async fn the_rate_counts_what_waits_already() {
    let (mut db, backfills) = with_members(2_500).await;
    let drain = members(&Arc::default()).options(FixedOptions::default().set(VERSION, 2));
    let rows = async |db: &mut Db| {
        backfills
            .minute(&drain, &mut db.client, 1_200)
            .await
            .unwrap()
            .total()
    };
    assert_eq!(rows(&mut db).await, 1_200);
    let mark = backfills.watermark::<Member>(&db.client).await.unwrap();
    assert_eq!(
        mark,
        Watermark {
            low: 1_201,
            version: 2
        }
    );
    assert_eq!(rows(&mut db).await, 0);
    db.run("delete from sentry_regionoutbox where object_identifier <= 1000")
        .await;
    assert_eq!(rows(&mut db).await, 1_000);
    db.run("delete from sentry_regionoutbox").await;
    assert_eq!(rows(&mut db).await, 300);
}

/// The watermark is in the transaction of its batch: what fails is not half recorded.
#[tokio::test]
async fn a_batch_that_fails_is_done_again_whole() {
    let (mut db, backfills) = with_members(1_500).await;
    db.run("update sentry_organizationmember set organization_id = null where id = 1400")
        .await;
    let drain = members(&Arc::default()).options(FixedOptions::default().set(VERSION, 2));
    let error = backfills
        .minute(&drain, &mut db.client, 10_000)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "backfill sentry_organizationmember: error deserializing column 1"
    );
    let mark = backfills.watermark::<Member>(&db.client).await.unwrap();
    assert_eq!(
        (mark, db.queued().await),
        (
            Watermark {
                low: 1_001,
                version: 2
            },
            1_000
        )
    );
    db.run("update sentry_organizationmember set organization_id = 1 where id = 1400")
        .await;
    backfills
        .minute(&drain, &mut db.client, 10_000)
        .await
        .unwrap();
    let distinct = "select count(distinct object_identifier) from sentry_regionoutbox";
    assert_eq!(
        (db.queued().await, db.number(distinct).await),
        (1_500, 1_500)
    );
}

/// The same where the messages are refused: the watermark has not moved without them.
#[tokio::test]
async fn a_watermark_does_not_move_without_its_messages() {
    let (mut db, backfills) = with_members(1_500).await;
    db.run(
        "alter table sentry_regionoutbox add constraint broken check (object_identifier < 1400)",
    )
    .await;
    let drain = members(&Arc::default()).options(FixedOptions::default().set(VERSION, 2));
    let refused = backfills.minute(&drain, &mut db.client, 10_000).await;
    assert!(matches!(
        refused.unwrap_err(),
        monarch_outbox::BackfillError::Write { .. }
    ));
    let mark = backfills.watermark::<Member>(&db.client).await.unwrap();
    assert_eq!(
        (mark.low, mark.version, db.queued().await),
        (1_001, 2, 1_000)
    );
    db.run("alter table sentry_regionoutbox drop constraint broken")
        .await;
    let rest = backfills.minute(&drain, &mut db.client, 10_000).await;
    assert_eq!((rest.unwrap().total(), db.queued().await), (500, 1_500));
}

/// Two at once take turns at the watermark, and no row is told twice.
#[tokio::test]
async fn backfills_beside_each_other_do_not_repeat() {
    let (mut db, backfills) = with_members(3_000).await;
    let drain = members(&Arc::default()).options(FixedOptions::default().set(VERSION, 2));
    let mut other = db.connect().await;
    let (one, two) = tokio::join!(
        backfills.minute(&drain, &mut db.client, 10_000),
        backfills.minute(&drain, &mut other, 10_000),
    );
    assert_eq!(one.unwrap().total() + two.unwrap().total(), 3_000);
    assert_eq!(db.queued().await, 3_000);
}

/// An installation of one node is caught up after its upgrade, whatever options say.
#[tokio::test]
async fn a_synchronous_backfill_needs_no_option_and_delivers() {
    let (mut db, backfills) = with_members(1_100).await;
    let calls = Arc::new(Calls::default());
    let drain = members(&calls);
    let (done, report) = backfills.synchronous(&drain, &mut db.client).await.unwrap();
    assert_eq!(
        (done.total(), report.delivered, db.queued().await),
        (1_100, 1_100, 0)
    );
    assert_eq!(calls.lock().unwrap().len(), 1_100);
}

/// A new version begins at the first row again.
#[tokio::test]
async fn a_new_version_starts_over() {
    let (mut db, backfills) = with_members(10).await;
    db.run("insert into monarch_outbox_watermark values ('sentry_organizationmember', 8, 1)")
        .await;
    let drain = members(&Arc::default());
    let first = drain.options(FixedOptions::default().set(VERSION, 1));
    assert_eq!(
        backfills
            .minute(&first, &mut db.client, 100)
            .await
            .unwrap()
            .total(),
        3
    );
    let second = members(&Arc::default()).options(FixedOptions::default().set(VERSION, 2));
    assert_eq!(
        backfills
            .minute(&second, &mut db.client, 100)
            .await
            .unwrap()
            .total(),
        10
    );
}

/// An option that is no number is named; nothing is written.
#[tokio::test]
async fn an_option_that_is_not_a_number_is_named() {
    let (mut db, backfills) = with_members(10).await;
    for (value, found) in [
        (json!("two"), "a text"),
        (json!(1.5), "a number with a fraction or out of range"),
    ] {
        let drain = members(&Arc::default()).options(FixedOptions::default().set(VERSION, value));
        let error = backfills
            .minute(&drain, &mut db.client, 100)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the option {VERSION} must be a whole number, and is {found}")
        );
    }
    assert_eq!(db.queued().await, 0);
}

/// Control's rows go to their cells, or to those that an option names.
#[tokio::test]
async fn an_option_may_name_the_target_cells() {
    let mut db = database().await;
    db.run("insert into sentry_setting (user_id, everywhere) values (7, false), (7, false)")
        .await;
    let backfills = Backfills::default().model::<Setting>();
    backfills.create(&db.client).await.unwrap();
    let settings = |options: FixedOptions| {
        let receivers = Receivers::new().replicated::<Setting>(Calls::default());
        let table = Table::<Control>::default().cells(MappingTables);
        Drain::new(table, registry(), receivers)
            .unwrap()
            .options(options)
    };
    let version = "outbox_replication.sentry_setting.replication_version";
    let cells = "outbox_replication.sentry_setting.target_cells";
    let named = FixedOptions::default()
        .set(version, 1)
        .set(cells, json!(["jp"]));
    backfills
        .minute(&settings(named.clone()), &mut db.client, 100)
        .await
        .unwrap();
    let told = "select count(*) from sentry_controloutbox where region_name = 'jp'";
    assert_eq!(db.number(told).await, 2);
    let bad = named.set(cells, json!(["jp", ""]));
    let error = backfills
        .minute(&settings(bad), &mut db.client, 100)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the option {cells} must be a list of cells, and entry 2 is none")
    );
}
