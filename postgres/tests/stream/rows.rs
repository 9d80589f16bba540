//! Every kind of change, and whose row it is before and after.

use monarch_harness::PgVersion;
use monarch_postgres::stream::{Batching, Reason, StreamError};

use crate::world::{LARGE, World, one};

/// Guards promise 1: what the organization does on the source is on the sink, and only that.
#[tokio::test]
async fn the_organizations_changes_arrive_and_others_do_not() {
    for (source, sink) in [
        (PgVersion::V15, PgVersion::V14),
        (PgVersion::V17, PgVersion::V17),
    ] {
        let world = World::between(source, sink).await;
        let report = world
            .follows(&[
                "insert into \"group\" (id, project_id, title) overriding system value
                   values (150, 10, 'new'), (250, 20, 'foreign')",
                "insert into event values (1500, 150, 'x', 'y'), (2500, 250, 'x', 'y')",
                "update event set label = label || ' changed' where id in (1001, 2001)",
                "update member set role = 'owner'",
                "delete from event where id in (1002, 2002)",
                "delete from reply where id in ('1-1', '2-1')",
                "insert into member values (1, 'new', null), (2, 'new', null)",
                "update organization set name = name || '!'",
                "update project set name = 'renamed'",
            ])
            .await;
        assert!(report.changes >= 10, "{report:?}");
    }
}

/// Guards promise 3: an unchanged value that the log leaves out is kept, under any identity.
#[tokio::test]
async fn an_unchanged_value_out_of_line_is_kept() {
    let world = World::new().await;
    world
        .follows(&[
            "update event set label = 'seen' where id = 1003",
            "update audit set label = 'seen' where id in (1001, 2001)",
        ])
        .await;
    let length: i32 = one(
        &world.sink,
        "select length(body) from event where id = 1003",
    )
    .await;
    assert!(length > 10_000);
}

/// A leaf that leaves is taken away, whether its edge leads elsewhere or nowhere.
#[tokio::test]
async fn a_leaf_that_leaves_is_gone() {
    let world = World::new().await;
    world
        .follows(&[
            "update event set group_id = 201 where id = 1001",
            "update event set group_id = null where id = 1002",
            "update audit set project_id = 20 where id = 1001",
            "update audit set project_id = null where id = 1002",
            "update member set organization_id = 2, email = 'moved' where email = 'a@b.example'
               and organization_id = 1",
        ])
        .await;
    let gone: i64 = one(
        &world.sink,
        "select count(*) from event where id in (1001, 1002)",
    )
    .await;
    assert_eq!(gone, 0);
}

/// Keys change in place, also within one transaction and next to values out of line.
#[tokio::test]
async fn a_changed_key_is_one_row() {
    let world = World::new().await;
    world
        .follows(&[
            "update event set id = 1900 where id = 1001",
            "begin; insert into event values (1901, 101, 'fresh', 'b');
             update event set id = 1902 where id = 1901;
             update event set id = 1903, label = 'third' where id = 1902; commit",
            "update audit set id = 1900 where id = 1001",
            "update reply set id = '1-new' where id = '1-2'",
            "update thread set id = '00000000-0000-4000-8000-00000000aaaa' where id in
               (select t.id from thread t where not exists
                 (select from reply r where r.thread_id = t.id))",
        ])
        .await;
}

/// A parent that is deleted or moved out takes its subtree along; what its children do later is
/// none of ours.
#[tokio::test]
async fn a_parent_that_leaves_takes_its_subtree_along() {
    let world = World::new().await;
    world
        .follows(&[
            "delete from \"group\" where id = 101",
            "update \"group\" set project_id = 20 where id = 102",
            "update event set label = label || ' later' where group_id = 102",
            "delete from reply where thread_id in (select id from thread where group_id = 102)",
            "update \"group\" set project_id = null where id = 103",
            // Without a foreign key the children stay behind.
            "delete from topic where id = 101",
            "update post set body = 'orphan' where topic_id = 101",
        ])
        .await;
    let left: i64 = one(
        &world.sink,
        "select count(*) from event where group_id in (101, 102, 103)",
    )
    .await;
    assert_eq!(left, 0);
    let orphans: i64 = one(
        &world.sink,
        "select count(*) from post where topic_id = 101",
    )
    .await;
    assert_eq!(orphans, 0);
}

/// Children that are moved elsewhere in the transaction that deletes their parent keep what the
/// log does not repeat.
#[tokio::test]
async fn a_child_that_is_moved_before_its_parent_goes_is_kept() {
    let world = World::new().await;
    world
        .follows(&[
            "begin; update event set group_id = 102, label = 'moved ' || id where group_id = 101;
             delete from \"group\" where id = 101; commit",
            "begin; alter table \"group\" disable trigger all;
             delete from \"group\" where id = 103;
             update event set group_id = 102, label = 'saved ' || id where group_id = 103;
             delete from thread where group_id = 103;
             alter table \"group\" enable trigger all; commit",
        ])
        .await;
    let saved: i64 = one(
        &world.sink,
        "select count(*) from event where length(body) > 10000 and group_id = 102",
    )
    .await;
    assert_eq!(saved, 15);
}

/// Scope is decided at the commit: a child may come before its parent in one transaction, at any
/// depth, and be changed or deleted meanwhile.
#[tokio::test]
async fn a_child_may_come_before_its_parent_in_one_transaction() {
    let world = World::new().await;
    world
        .follows(&[
            "begin; set constraints all deferred;
             insert into reply values
               ('1-early', '00000000-0000-4000-8000-00000000eeee', 'r'),
               ('1-gone', '00000000-0000-4000-8000-00000000eeee', 'r');
             insert into thread values ('00000000-0000-4000-8000-00000000eeee', 160, 'early');
             insert into event values (1600, 160, 'early', 'b'), (1601, 160, 'gone', 'b');
             update event set label = 'earlier' where id = 1600;
             update reply set body = 'changed' where id = '1-early';
             delete from event where id = 1601;
             delete from reply where id = '1-gone';
             insert into \"group\" (id, project_id, title) overriding system value
               values (160, 11, 'late');
             insert into event values (1602, 160, 'after', 'b'); commit",
            "begin; insert into post values (1900, 190, 'early');
             insert into topic values (190, 10, 'late'); commit",
        ])
        .await;
    let early: i64 = one(
        &world.sink,
        "select count(*) from event where id in (1600, 1602)",
    )
    .await;
    assert_eq!(early, 2);
}

/// Rows of many parents may come before all of these, be changed, moved, rekeyed and deleted meanwhile,
/// and find their rows: more parents than all go along with each statement.
#[tokio::test]
async fn children_of_many_parents_may_come_before_them() {
    let world = World::new().await;
    world
        .follows(&[
            "begin; set constraints all deferred;
             insert into event select 10000 + n, 10000 + n, 'e ' || n, 'b'
               from generate_series(1, 600) n;
             update event set label = label || ' changed' where id > 10000 and id % 3 = 0;
             update event set group_id = group_id - 1 where id > 10001 and id % 5 = 0;
             update event set label = label || ' again' where id > 10000 and id % 5 = 0;
             update event set id = id + 10000 where id > 10000 and id % 7 = 0;
             update event set body = 'c' where id > 20000;
             delete from event where id > 10000 and id % 11 = 0;
             insert into event select 10000 + n, 10000 + n, 'anew', 'b'
               from generate_series(1, 600) n where n % 11 = 10 and n % 7 <> 3 on conflict do nothing;
             insert into \"group\" (id, project_id, title) overriding system value
               select 10000 + n, 10 + n % 2, 'late' from generate_series(1, 600) n;
             update event set label = label || ' last' where id > 10000; commit",
            "begin;
             insert into post select 10000 + n, 10000 + n % 300, 'early' from generate_series(1, 600) n;
             update post set topic_id = 10000 + id % 299 where id > 10000;
             insert into topic select 10000 + n, 10, 'late' from generate_series(0, 299) n; commit",
        ])
        .await;
    let there: i64 = one(&world.sink, "select count(*) from event where id > 10000").await;
    assert!(there > 500, "{there}");
}

/// A parent may be moved under one that comes later in its transaction, and what hangs on it be changed,
/// deleted and added meanwhile, at any depth.
#[tokio::test]
async fn a_parent_may_be_moved_under_one_that_comes_later() {
    for plain in [false, true] {
        let mut world = World::new().await;
        if plain {
            world.as_plain_role().await;
        }
        world
            .follows(&[
                "begin; set constraints all deferred;
                 update thread set group_id = 160 where group_id = 101;
                 update reply set body = 'changed' where id = '1-3';
                 delete from reply where id = '1-6';
                 insert into reply select '1-new', id, 'r' from thread where group_id = 160;
                 insert into \"group\" (id, project_id, title) overriding system value
                   values (160, 11, 'late'); commit",
                "begin; update card set board_id = '00000000-0000-4000-9000-00000000aaaa'
                   where id in ('1-1', '1-2');
                 update note set body = 'changed' where card_id = '1-1' and id = 1004;
                 update note set id = 1900 where id = 1001;
                 delete from note where card_id = '1-2' and id = 1005;
                 insert into board values ('00000000-0000-4000-9000-00000000aaaa', 10, 'late', 'b');
                 update note set body = 'later' where card_id = '1-2'; commit",
            ])
            .await;
    }
}

/// What a savepoint took back is never seen, in a small and in a streamed transaction.
#[tokio::test]
async fn what_a_savepoint_took_back_is_never_seen() {
    let world = World::new().await;
    world
        .on_source("set logical_decoding_work_mem = '64kB'")
        .await;
    world
        .follows(&[
            "begin; insert into event values (1800, 101, 'kept', 'b'); savepoint a;
             insert into event values (1801, 101, 'lost', 'b'); rollback to a;
             insert into event values (1802, 101, 'kept too', 'b'); commit",
        ])
        .await;
}

/// The static spine does not change during a move; what another tenant does with theirs is fine.
#[tokio::test]
async fn a_change_of_the_static_spine_fails_the_move() {
    let fatal = |table: &str| (table.to_owned(), Reason::StaticSpineChanged);
    let world = World::new().await;
    world
        .follows(&[
            "insert into project values (29, 2, 'foreign')",
            "update project set organization_id = null where id = 29",
            "delete from project where id = 29",
        ])
        .await;
    for sql in [
        "insert into project values (12, 1, 'third')",
        "update project set organization_id = 1 where id = 21",
        "update project set organization_id = 2 where id = 11",
        "delete from project where id = 12",
    ] {
        let world = World::new().await;
        if sql.starts_with("delete") {
            world
                .on_source("alter table \"group\" drop constraint group_project_id_fkey")
                .await;
            let failed = world.fails(&["delete from project where id = 10"]).await;
            assert_eq!(failed, fatal("project"));
        } else {
            assert_eq!(world.fails(&[sql]).await, fatal("project"), "{sql}");
        }
    }
}

/// A TRUNCATE does not say whose rows it takes: it fails the move even if none were the
/// organization's.
#[tokio::test]
async fn a_truncate_fails_the_move() {
    for before in ["", "delete from post where topic_id in (101, 102)"] {
        let world = World::new().await;
        world.on_source(before).await;
        assert_eq!(
            world.fails(&["truncate post"]).await,
            ("post".to_owned(), Reason::Truncated)
        );
    }
}

/// Values that trade places under a unique index within one transaction, by way of a third or of a row
/// that the index does not hold, or at once where the constraint is deferrable.
#[tokio::test]
async fn values_swapped_across_a_unique_index_are_applied() {
    let world = World::new().await;
    for side in [&world.source, &world.sink] {
        let sql = "
            alter table reply add constraint told_once unique (thread_id, body) deferrable;
            alter table reply add constraint apart
              exclude using btree (thread_id with =, lower(body) with =) where (body <> '') deferrable;
            create unique index shown_once on card (board_id, (place * 2)) where place > 0;
            create unique index named_once on event (group_id, lower(label)) where label <> ''";
        side.batch_execute(sql).await.unwrap();
    }
    // As preflight asks of a sink.
    world
        .sink
        .batch_execute(
            "do $$ declare one text; begin
               for one in select format('alter table reply enable always trigger %I', tgname)
                            from pg_trigger where tgfoid = 'unique_key_recheck'::regproc
               loop execute one; end loop; end $$",
        )
        .await
        .unwrap();
    world
        .follows(&[
            "begin; update card set place = -1 where id = '1-1';
             update card set place = 1 where id = '1-3';
             update card set place = 3 where id = '1-1'; commit",
            "update reply set body = case body when 'r 1' then 'r 4' else 'r 1' end
               where id in ('1-1', '1-4')",
            "begin; update event set label = 'third' where id = 1001;
             update event set label = 'event 1' where id = 1005;
             update event set id = 1991, label = 'event 5' where id = 1001; commit",
        ])
        .await;
}

/// Guards promises 1 and 3: where the sink is stricter than the source, what the source could do at once
/// fails the move by name, and nothing of it stands.
#[tokio::test]
async fn a_swap_that_only_the_source_allows_fails_by_name() {
    let deferrable = "alter table reply add constraint told unique (thread_id, body) deferrable";
    for index in [
        "create unique index strict on reply (thread_id, body)",
        "create unique index strict on reply (thread_id, body) where body <> ''",
        "create unique index strict on reply (thread_id, upper(body))",
        "alter table reply add constraint strict
           exclude using btree (thread_id with =, body with =) where (body <> '')",
    ] {
        let world = World::with(deferrable).await;
        world.sink.batch_execute(index).await.unwrap();
        let mover = world.start();
        world
            .on_source(
                "update reply set body = case body when 'r 1' then 'r 4' else 'r 1' end
                   where id in ('1-1', '1-4')",
            )
            .await;
        let ended = mover.ended().await;
        let StreamError::Refused { table, source } = &ended else {
            panic!("{index}: {ended:?}");
        };
        assert_eq!(table.to_string(), "reply");
        assert!(!ended.is_transient());
        assert!(format!("{source:?}").contains("strict"), "{source:?}");
        let body: String = one(&world.sink, "select body from reply where id = '1-1'").await;
        assert_eq!(body, "r 1");
    }
}

/// A changed table is noticed before a row of it lands.
#[tokio::test]
async fn a_changed_table_fails_the_move() {
    for sql in [
        "alter table post add extra text default 'x'; insert into post values (1901, 101, 'b')",
        "alter table post drop body; insert into post values (1901, 101)",
        "alter table post rename body to text; insert into post values (1901, 101, 'b')",
        "alter table post alter body type varchar; insert into post values (1901, 101, 'b')",
        "alter table post replica identity full; insert into post values (1901, 101, 'b')",
    ] {
        let world = World::new().await;
        let mut mover = world.start();
        world.settle(&mut mover).await;
        world.on_source(sql).await;
        let ended = mover.ended().await;
        assert!(ended.to_string().starts_with("post: "), "{sql}: {ended}");
        let landed: i64 = one(&world.sink, "select count(*) from post where id = 1901").await;
        assert_eq!(landed, 0);
    }
}

/// Guards promise 1: a key that another tenant holds on the sink fails the move, and stays theirs.
#[tokio::test]
async fn another_tenants_key_is_never_overwritten() {
    let world = World::new().await;
    let before: String = one(&world.sink, "select label from event where id = 9001").await;
    assert_eq!(
        world
            .fails(&["insert into event values (9001, 101, 'ours', 'b')"])
            .await,
        ("event".to_owned(), Reason::KeyTakenByOtherTenant)
    );
    let after: String = one(&world.sink, "select label from event where id = 9001").await;
    assert_eq!(after, before);
}

/// Guards promise 1: a foreign row with a key that another tenant holds on the sink is not ours to
/// delete there.
#[tokio::test]
async fn a_foreign_delete_deletes_nothing() {
    let world = World::new().await;
    world
        .follows(&[
            "insert into event values (9001, 201, 'theirs', 'b')",
            "update event set group_id = 202 where id = 9001",
            "delete from event where id = 9001",
        ])
        .await;
}

/// A row that must be there and is not ends the move: the sink is not what it seems.
#[tokio::test]
async fn a_row_that_is_missing_on_the_sink_fails_the_move() {
    let world = World::new().await;
    world
        .sink
        .batch_execute("delete from audit where id = 1003")
        .await
        .unwrap();
    assert_eq!(
        world.fails(&["delete from audit where id = 1003"]).await,
        ("audit".to_owned(), Reason::RowMissing)
    );
}

/// A partition that was not there at the start is a changed table.
#[tokio::test]
async fn an_attached_partition_fails_the_move() {
    let world = World::new().await;
    let (table, reason) = world
        .fails(&[
            "create table log_next (like log including all);
             alter table log_new rename to log_now;
             alter table log detach partition log_now;
             alter table log attach partition log_next for values from ('2020-01-01') to (maxvalue)",
            "insert into log values (1, '2026-06-06', 'x')",
        ])
        .await;
    assert_eq!(
        (table.as_str(), reason),
        ("log_next", Reason::SchemaChanged)
    );
}

/// A partitioned table is one table, whatever its leaves are on either side.
#[tokio::test]
async fn a_row_moves_between_partitions() {
    let world = World::new().await;
    world
        .follows(&[
            "insert into log values (1, '2019-01-01', 'a'), (1, '2025-01-01', 'b'),
                                    (2, '2025-01-01', 'foreign')",
            "update log set at = '2026-01-01' where note = 'a'",
            "update log set note = 'changed' where note = 'b'",
            "delete from log where note = 'old'",
            "update log set organization_id = 2, note = 'moved' where note = 'new' and organization_id = 1",
        ])
        .await;
}

/// A role that may not keep triggers and foreign keys from firing has the deferrable ones deferred.
#[tokio::test]
async fn a_plain_role_streams_too() {
    let mut world = World::new().await;
    world.as_plain_role().await;
    world
        .follows(&[
            "begin; set constraints all deferred;
             insert into event values (1600, 160, 'early', 'b');
             insert into \"group\" (id, project_id, title) overriding system value
               values (160, 11, 'late'); commit",
            "update event set label = 'changed' where id = 1001",
            "delete from \"group\" where id = 102",
        ])
        .await;
}

/// Where foreign keys of the sink act, each does nothing to what a parent leaves behind: it is gone
/// before the parent is, and comes again if the transaction moved it elsewhere. Guards promise 1
/// against keys that refuse, delete, or set to null, and against a membership that does not hear of
/// it.
#[tokio::test]
async fn what_hangs_on_a_parent_goes_before_a_foreign_key_can_act() {
    for action in [
        "",
        "on delete cascade on update cascade",
        "on delete set null on update set null",
        "on delete restrict on update restrict",
    ] {
        let mut world = World::new().await;
        for (table, column, parent) in [
            ("event", "group_id", "\"group\""),
            ("thread", "group_id", "\"group\""),
            ("reply", "thread_id", "thread"),
        ] {
            let sql = format!(
                "alter table {table} drop constraint {table}_{column}_fkey,
                 add foreign key ({column}) references {parent} {action}"
            );
            world.sink.batch_execute(&sql).await.unwrap();
        }
        world.as_plain_role().await;
        world
            .follows(&[
                // A parent leaves, and what is halfway down is moved elsewhere behind it.
                "begin; update \"group\" set project_id = 20 where id = 101;
                 update thread set group_id = 102, title = 'moved' where group_id = 101;
                 update event set group_id = 102, label = 'moved ' || id where id % 4 = 0
                   and group_id = 101; commit",
                // One leaves, and what is halfway down is changed later.
                "update \"group\" set project_id = 20 where id = 103",
                "update thread set title = 'not ours' where group_id = 103",
                "update reply set body = 'not ours' where thread_id in
                   (select id from thread where group_id = 103)",
                // A key changes, and what hangs on it follows.
                "begin; set constraints all deferred;
                 update thread set id = '00000000-0000-4000-8000-00000000bbbb'
                   where id = '00000000-0000-4000-8000-000000000102';
                 update reply set thread_id = '00000000-0000-4000-8000-00000000bbbb'
                   where thread_id = '00000000-0000-4000-8000-000000000102'; commit",
                "delete from \"group\" where id = 104",
            ])
            .await;
        let moved: i64 = one(
            &world.sink,
            "select count(*) from event where group_id is null",
        )
        .await;
        assert_eq!(moved, 0, "{action}");
    }
}

/// A parent goes with what it hangs on and comes again elsewhere in the same transaction; what hangs on
/// it has waited, as a deferrable foreign key allows, and the log says nothing of it.
#[tokio::test]
async fn what_waits_for_a_parent_that_comes_again_is_kept() {
    for plain in [false, true] {
        let mut world = World::with(
            "alter table reply drop constraint reply_thread_id_fkey,
             add foreign key (thread_id) references thread deferrable",
        )
        .await;
        if plain {
            world.as_plain_role().await;
        }
        world
            .follows(&["begin; set constraints all deferred;
                 create temporary table kept on commit drop as
                   select * from thread where group_id = 101;
                 update \"group\" set project_id = 20 where id = 101;
                 insert into reply select '1-more', id, 'r' from thread where group_id = 102;
                 delete from thread where group_id = 101;
                 insert into thread select id, 102, title from kept; commit"])
            .await;
        let kept = "select count(*) from reply r join thread t on t.id = r.thread_id
                    where t.group_id = 102";
        assert_eq!(one::<i64>(&world.sink, kept).await, 7);
    }
}

/// Values keep their text through every type that Postgres prints.
#[tokio::test]
async fn odd_texts_arrive_as_they_are() {
    let world = World::new().await;
    world
        .follows(&[
            r"insert into reply values (E'1-\\ ''q'' \u00e4 \U0001F600',
                '00000000-0000-4000-8000-000000000101', E'tab\tline\n\\.\nback\\slash')",
            "insert into reply values ('1-empty', '00000000-0000-4000-8000-000000000101', '')",
            &format!(
                "insert into reply values ('1-large', '00000000-0000-4000-8000-000000000101',
                   {LARGE} || {LARGE})"
            ),
        ])
        .await;
}

/// Guards promise 1: how many rows share a statement cannot be seen in what arrives, nor in what is
/// counted.
#[tokio::test]
async fn rows_that_share_statements_arrive_as_by_themselves() {
    let script = [
        "begin;
         insert into \"group\" (id, project_id, title) overriding system value
           select 110 + n, 10 + n % 2, 'new' from generate_series(1, 20) n;
         insert into event select 1100 + n, 111 + n % 20, 'e' || n, 'b' from generate_series(1, 60) n;
         update \"group\" set title = title || '!' where id between 101 and 120;
         update event set label = label || '!' where id % 2 = 0;
         update event set group_id = 112, label = 'moved ' || id where id between 1103 and 1109;
         delete from event where id between 1107 and 1125;
         insert into event select 1100 + n, 111, 'again ' || n, 'b' from generate_series(10, 20) n;
         update event set label = 'last ' || id where id between 1108 and 1130;
         update audit set label = label || '!'; update audit set label = label || '?';
         delete from audit where id in (1004, 2004);
         commit",
        "update event set id = id + 500 where id between 1101 and 1110",
        "delete from \"group\" where id = 119; update topic set id = 119 where id = 101",
        "update event set label = label || '.'; delete from event where id > 1700",
        "update \"group\" set project_id = 20 where id = 117",
        "insert into member select 1, 'm' || n, 'x' from generate_series(1, 40) n",
        "update member set role = 'y' where organization_id = 1; delete from member where email like 'm1%'",
    ];
    let mut counted = Vec::new();
    let random = (1..4).map(Batching::Random);
    for batching in [Batching::Off, Batching::AsPays].into_iter().chain(random) {
        let mut world = World::new().await;
        world.job.batching = batching;
        counted.push(world.follows(&script).await.changes);
    }
    assert!(
        counted.iter().all(|changes| *changes == counted[0]),
        "{counted:?}"
    );
}
