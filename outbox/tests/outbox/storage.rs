//! Tables: ours, and those that others made.

use monarch_outbox::{
    CategoryDef, Cell, Control, Drain, Partition, Receivers, Registry, ScopeDef, Table, TableError,
    TableName,
};

use crate::fixture::{Category, Db, Log, registry};

/// Made twice is made once, and what we make passes our own check.
#[tokio::test]
async fn tables_that_we_make_are_as_they_must_be() {
    let db = Db::new().await;
    db.run("create schema other").await;
    let elsewhere = TableName::new("an \"odd\" name").in_schema("other");
    let table = Table::<Control>::named(elsewhere).target_column("cell");
    table.create(&db.client).await.unwrap();
    table.create(&db.client).await.unwrap();
    table.check(&db.client).await.unwrap();
    Table::<Cell>::default().check(&db.client).await.unwrap();
}

/// As Django makes it: a sequence, text for the payload, checks, indexes of four columns.
const OF_OTHERS: &str = "
    create table sentry_regionoutbox (
        id bigserial primary key,
        shard_scope integer not null check (shard_scope >= 0),
        shard_identifier bigint not null,
        category integer not null check (category >= 0),
        object_identifier bigint not null,
        payload text,
        scheduled_from timestamptz not null,
        scheduled_for timestamptz not null,
        date_added timestamptz not null
    );
    create index a on sentry_regionoutbox
        (shard_scope, shard_identifier, category, object_identifier);
    create index b on sentry_regionoutbox (shard_scope, shard_identifier, scheduled_for);
    create index c on sentry_regionoutbox (shard_scope, shard_identifier, id);";

/// The library can be put beside an application that has its outbox already.
#[tokio::test]
async fn a_table_of_others_is_written_and_drained() {
    let mut db = Db::empty().await;
    db.run(OF_OTHERS).await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier, payload, scheduled_from, scheduled_for, date_added) \
         values (0, 1, 3, 4, '{\"by\": \"others\"}', now(), '2016-08-01', now())",
    )
    .await;
    Table::<Cell>::default().check(&db.client).await.unwrap();
    db.write(&[(Category::Member, 1, 5)]).await;
    let log = Log::<Cell>::new();
    let partitions = log.drain().partitions(&db.client, 5).await.unwrap();
    for partition in partitions {
        log.drain()
            .partition(&mut db.client, partition)
            .await
            .unwrap();
    }
    assert_eq!(log.objects(), [4, 5]);
    assert_eq!(
        log.messages()[0].payload,
        Some(serde_json::json!({"by": "others"}))
    );
    assert_eq!(db.queued().await, 0);
}

/// Columns that others added, and indexes under names of their own, are no hindrance.
#[tokio::test]
async fn a_table_with_columns_of_others_is_written_and_drained() {
    let mut db = Db::empty().await;
    db.run(OF_OTHERS).await;
    db.run(
        "alter table sentry_regionoutbox add tenant text not null default 'ours', add note text, \
         add seen timestamptz generated always as (date_added) stored, add gone integer; \
         alter table sentry_regionoutbox drop gone; \
         alter index a rename to \"quite another name\";",
    )
    .await;
    Table::<Cell>::default().check(&db.client).await.unwrap();
    db.write(&[(Category::Member, 1, 5)]).await;
    let log = Log::<Cell>::new();
    let drained = log.drain().partition(&mut db.client, Partition::ALL).await;
    drained.unwrap();
    assert_eq!((log.objects(), db.queued().await), (vec![5], 0));
}

/// Every faulty column is named at once, with what is expected of it.
#[tokio::test]
async fn a_table_with_missing_columns_does_not_start() {
    let db = Db::empty().await;
    let table = Table::<Control>::default();
    let missing = table.check(&db.client).await.unwrap_err();
    assert_eq!(
        missing.to_string(),
        "there is no table sentry_controloutbox"
    );
    db.run(
        "create table sentry_controloutbox (id bigint, shard_scope text, tenant text not null, \
         shard_identifier bigint, category int not null, object_identifier bigint, \
         scheduled_from timestamptz, scheduled_for timestamp, date_added timestamptz)",
    )
    .await;
    let faults = table.check(&db.client).await.unwrap_err();
    assert_eq!(
        faults.to_string(),
        "table sentry_controloutbox: column shard_scope is text, not smallint or integer or \
         bigint; column payload (jsonb or json or text) is missing; column scheduled_for is \
         timestamp without time zone, not timestamp with time zone; column region_name (text or \
         character varying) is missing; column id has no default and is no identity; column tenant \
         is not one of an outbox's, is not null and has no default"
    );
}

/// A queue that grows without the indexes would be read whole for every message.
#[tokio::test]
async fn a_table_without_the_indexes_does_not_start() {
    let db = Db::new().await;
    db.run("drop index sentry_regionoutbox_shard_object").await;
    let fault = Table::<Cell>::default()
        .check(&db.client)
        .await
        .unwrap_err();
    assert!(matches!(fault, TableError::Index { .. }));
    assert_eq!(
        fault.to_string(),
        "table sentry_regionoutbox has no index that begins with (shard_scope, shard_identifier, \
         category, object_identifier)"
    );
    db.run("alter table sentry_regionoutbox drop constraint sentry_regionoutbox_pkey")
        .await;
    let fault = Table::<Cell>::default().check(&db.client).await;
    assert_eq!(
        fault.unwrap_err().to_string(),
        "table sentry_regionoutbox has no index that begins with (id)"
    );
}

const ONE: ScopeDef = ScopeDef {
    number: 0,
    name: "one",
    shard_column: None,
    switch: None,
    retired: false,
};

const THIS: CategoryDef = CategoryDef {
    number: 1,
    name: "this",
    scope: ONE,
    retired: false,
};

/// What the compiler cannot see, since two crates declare it, does not start.
#[test]
fn a_category_in_two_scopes_does_not_start() {
    let two = ScopeDef {
        number: 1,
        name: "two",
        ..ONE
    };
    let twice = CategoryDef { scope: two, ..THIS };
    let same_number = CategoryDef {
        name: "that",
        ..THIS
    };
    let same_scope = CategoryDef {
        number: 2,
        name: "other",
        scope: ScopeDef { name: "uno", ..ONE },
        ..THIS
    };
    let in_retired_scope = CategoryDef {
        number: 3,
        name: "late",
        scope: ScopeDef {
            number: 2,
            name: "old",
            retired: true,
            ..ONE
        },
        ..THIS
    };
    let all = [THIS, twice, same_number, same_scope, in_retired_scope];
    let faults = Registry::new(all).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "the outbox's categories: category this (1) is in scope two (1) and in scope one (0); \
         category that (1) is also category this (1); scope uno (0) is also scope one (0); \
         category late (3) is in use in scope old (2), which is retired"
    );
    assert!(Registry::new([THIS, THIS]).is_ok());
}

/// A receiver that would be called for another's messages, or never, does not start.
#[test]
fn receivers_that_do_not_fit_do_not_start() {
    let receivers = Receivers::<Cell>::new()
        .ignore(Category::Member)
        .ignore(Category::Member)
        .ignore(THIS);
    let faults = Drain::new(Table::default(), registry(), receivers).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "the outbox's receivers: category Member (3) has two receivers; category this (1) has a \
         receiver and is not registered"
    );
}

/// Whoever writes and whoever drains may have clocks that differ: every instant is the database's.
#[test]
fn no_instant_is_read_from_the_programs_clock() {
    fn look(folder: &std::path::Path) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                look(&path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for clock in ["SystemTime", "Timestamp::now", "Zoned::now"] {
                assert!(!text.contains(clock), "{clock} in {}", path.display());
            }
        }
    }
    look(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}
