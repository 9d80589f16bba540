//! Rows and parents that enter the organization, of which the log does not hold all.

use monarch_harness::PgVersion;
use monarch_postgres::stream::{Reason, Report};

use crate::world::{LARGE, World, one};

/// Rows on the sink that a condition holds for.
async fn on_sink(world: &World, rows: &str) -> i64 {
    one(&world.sink, &format!("select count(*) from {rows}")).await
}

/// Guards promise 1: a leaf that is moved in comes whole, with the values that the log leaves out,
/// and is changed, moved on and deleted behind that like any other.
#[tokio::test]
async fn a_leaf_that_enters_brings_its_unchanged_values() {
    let world = World::new().await;
    let report = world
        .follows(&[
            "update event set group_id = 101, label = 'in' where id = 2001",
            // A short value is in the log: nothing is fetched for it.
            "update event set group_id = 101, label = 'in too', body = 'short' where id = 2002",
            // Replica identity FULL: the old row has what the new one leaves out.
            "update audit set project_id = 10 where id = 2001",
            "insert into event values (3000, null, 'nobody', 's')",
            "update event set group_id = 102 where id = 3000",
        ])
        .await;
    assert!(report.fetches >= 1, "{report:?}");
    let length: i32 = one(
        &world.sink,
        "select length(body) from event where id = 2001",
    )
    .await;
    assert!(length > 10_000);
    world
        .follows(&[
            "begin; update event set group_id = 102, label = 'a' where id = 2003;
             update event set label = 'b' where id = 2003;
             update event set id = 2903 where id = 2003; commit",
            "update event set group_id = 102, label = 'c' where id = 2004",
            "delete from event where id = 2004",
            "update event set group_id = 102, label = 'd' where id = 2005",
            "update event set group_id = 201 where id = 2005",
            "update event set group_id = 103, label = 'e ' || id where id between 2006 and 2015",
        ])
        .await;
}

/// Guards promise 1: a parent that is moved in brings all that hangs on it, at every depth, though
/// nothing of it changed.
#[tokio::test]
async fn a_parent_that_enters_brings_its_subtree() {
    let world = World::new().await;
    let report = world
        .follows(&["update \"group\" set project_id = 10 where id = 201"])
        .await;
    assert_eq!(report.fetches, 1, "{report:?}");
    assert_eq!(on_sink(&world, "event where group_id = 201").await, 5);
    let replies = "reply r join thread t on r.thread_id = t.id where t.group_id = 201";
    assert!(on_sink(&world, replies).await > 0);
    world
        .follows(&[
            "update event set label = label || ' later' where group_id = 201",
            "delete from reply where thread_id in (select id from thread where group_id = 201)",
            "insert into event values (2900, 201, 'new', 'b')",
        ])
        .await;
}

/// A parent without foreign keys above and below it, and with a value of its own that the log
/// leaves out.
#[tokio::test]
async fn a_parent_that_enters_brings_its_own_unchanged_values() {
    let world = World::new().await;
    world
        .follows(&[
            "update board set project_id = 10, title = 'in' where id in
               (select id from board where project_id in (20, 21) order by id limit 1)",
            "insert into note select 2900 + n, c.id, 'n' from card c, generate_series(1, 2) n
               where c.id = '2-2'",
        ])
        .await;
    let length = "select min(length(body)) from board where title = 'in'";
    assert!(one::<i32>(&world.sink, length).await > 10_000);
    assert!(on_sink(&world, "note where id between 2000 and 2999").await >= 4);
}

/// Guards promise 1: what happens to a subtree while its parent enters is neither lost nor doubled,
/// in the transaction itself and behind it.
#[tokio::test]
async fn a_subtree_may_change_while_its_parent_enters() {
    let world = World::new().await;
    world
        .follows(&[
            "begin;
             update event set label = 'before' where id = 2004;
             update \"group\" set project_id = 11 where id = 201;
             update event set label = 'after', group_id = 101 where id = 2008;
             delete from event where id = 2012;
             insert into event values (2901, 201, 'fresh', 'b');
             update event set body = 'changed' where id = 2901; commit",
            "update event set label = 'moved on', group_id = 102 where group_id = 201 and id < 2010",
            "delete from event where id = 2016",
            "update event set group_id = 202 where id = 2020",
            "update thread set group_id = 104 where group_id = 201",
        ])
        .await;
    // Again, with the parent's own row fetched too, and its children changed before it is there.
    world
        .follows(&[
            "begin; update board set project_id = 10 where project_id = 20;
             insert into card select 'fresh', id, 90 from board where project_id = 10
               and id not in (select board_id from card where id like '1-%') limit 1;
             insert into note values (2950, 'fresh', 'n'), (2951, 'fresh', 'n');
             update note set body = 'changed' where id = 2950; commit",
            "delete from note where id = 2951",
            "update note set body = body || '!' where id >= 2000 and id < 3000",
            "delete from note where id in (select min(id) from note where id >= 2000)",
        ])
        .await;
}

/// Guards promise 1: a parent whose own row is still to be fetched goes with what it hangs on, and
/// takes along what came to it meanwhile. Found by random moves (seed 7024).
#[tokio::test]
async fn a_parent_that_enters_goes_with_its_own_parent() {
    let world = World::new().await;
    let board = |n: u32| format!("'00000000-0000-4000-9000-00000000010{n}'");
    let enters_and_goes = |card: &str, note: u32, n: u32| {
        format!(
            "begin; update card set board_id = {}, place = 50 where id = '{card}';
             insert into note values ({note}, '{card}', 'came meanwhile');
             update board set project_id = 20 where id = {}; commit",
            board(n),
            board(n)
        )
    };
    world
        .follows(&[
            &enters_and_goes("2-1", 2990, 1),
            "insert into note values (2991, '2-1', 'foreign')",
        ])
        .await;
    assert_eq!(on_sink(&world, "note where id in (2990, 2991)").await, 0);
    // The same, with an id that another tenant has on the sink: what hangs on it is not touched.
    world
        .on_source(&format!(
            "insert into card values ('9-1', null, 1, {LARGE})"
        ))
        .await;
    assert_eq!(
        world.fails(&[&enters_and_goes("9-1", 2992, 2)]).await,
        ("card".to_owned(), Reason::KeyTakenByOtherTenant)
    );
}

/// A parent that enters and leaves again, or the other way round, before anything is fetched.
#[tokio::test]
async fn a_parent_that_comes_and_goes_leaves_nothing_and_loses_nothing() {
    let world = World::new().await;
    world
        .follows(&[
            "begin; update \"group\" set project_id = 10 where id = 201;
             update \"group\" set project_id = 20 where id = 201; commit",
            "update \"group\" set project_id = 10 where id = 202",
            "update \"group\" set project_id = 20 where id = 202",
            "begin; update \"group\" set project_id = 20 where id = 101;
             update \"group\" set project_id = 11 where id = 101; commit",
            "update \"group\" set project_id = 20 where id = 102",
            "update \"group\" set project_id = 10 where id = 102",
            "update event set label = 'still ' || id where group_id in (101, 102, 201, 202)",
        ])
        .await;
    assert_eq!(on_sink(&world, "event where group_id = 102").await, 5);
    assert_eq!(on_sink(&world, "event where group_id = 201").await, 0);
}

/// Guards promise 1: without a foreign key a child may be committed before its parent, while the
/// mover looks on, before it began, or before the copy; both arrive.
#[tokio::test]
async fn a_child_committed_before_its_parent_arrives_with_it() {
    let early = "insert into post values (1950, 195, 'before the copy');
                 insert into card values ('early', '00000000-0000-4000-9000-00000000aaaa', 1);
                 insert into note values (1950, 'early', 'before the copy')";
    let world = World::with(early).await;
    // Before the mover began.
    world
        .on_source("insert into post values (1960, 196, 'before the start')")
        .await;
    let report = world
        .follows(&[
            "insert into topic values (195, 10, 'late'), (196, 10, 'late')",
            "insert into post values (1970, 197, 'passed over')",
            "insert into topic values (197, 11, 'late')",
            "insert into board values ('00000000-0000-4000-9000-00000000aaaa', 10, 't', 'b')",
        ])
        .await;
    assert!(report.fetches >= 1, "{report:?}");
    let posts = "post where id in (1950, 1960, 1970)";
    assert_eq!(on_sink(&world, posts).await, 3);
    assert_eq!(on_sink(&world, "note where id = 1950").await, 1);
    // And before it began again, the horizon of the copy being long gone.
    world
        .on_source("insert into post values (1980, 198, 'between two movers')")
        .await;
    world
        .follows(&["insert into topic values (198, 10, 'late')"])
        .await;
    assert_eq!(on_sink(&world, "post where id = 1980").await, 1);
}

/// Guards promise 1: what hangs on a parent farther up left with it, and is changed, or moved to
/// another, by the same transaction.
#[tokio::test]
async fn a_row_whose_grandparent_left_may_still_be_changed_in_the_same_transaction() {
    const OF_101: &str = "thread_id in (select id from thread where group_id = 101)";
    let world = World::new().await;
    world
        .on_source("alter table reply replica identity full")
        .await;
    world
        .follows(&[&format!(
            "begin;
             update \"group\" set project_id = 20 where id = 101;
             update reply set body = 'after it left' where {OF_101};
             update reply set thread_id = (select id from thread where group_id = 102 limit 1)
               where id = (select min(id) from reply where {OF_101});
             commit"
        )])
        .await;
    assert_eq!(on_sink(&world, &format!("reply where {OF_101}")).await, 0);
    assert!(on_sink(&world, "reply where body = 'after it left'").await > 0);
}

/// Guards promise 1: children that a changed key left behind are there again when the key comes back,
/// also those that came while this mover was there.
#[tokio::test]
async fn a_key_that_comes_back_finds_the_children_that_it_left() {
    let world = World::new().await;
    world
        .follows(&[
            "insert into topic values (190, 10, 't')",
            "insert into post values (9190, 190, 'stays behind')",
            "update topic set id = 191 where id = 190",
            "update topic set id = 190 where id = 191",
        ])
        .await;
    assert_eq!(on_sink(&world, "post where topic_id = 190").await, 1);
}

/// Guards the source: a new parent that has no older children is not fetched, whether a foreign key
/// says so or not. Schemas without foreign keys make such parents every second.
#[tokio::test]
async fn a_new_parent_without_older_children_costs_no_fetch() {
    let world = World::new().await;
    // Behind the copy's position, and read when it is long there.
    for n in 0..20 {
        world
            .on_source(&format!(
                "insert into topic values (1000 + {n}, 10, 't'), (3000 + {n}, 20, 'foreign');
                 insert into post values (5000 + {n}, 1000 + {n}, 'p')"
            ))
            .await;
    }
    let report = world
        .follows(&[
            "insert into \"group\" (id, project_id) overriding system value values (190, 10)",
            "insert into event values (1900, 190, 'e', 'b')",
            "begin; insert into post values (6000, 2000, 'early');
             insert into topic values (2000, 10, 'late'); commit",
            "insert into topic values (2001, 10, 't')",
            "begin; insert into topic values (2002, 10, 't'); savepoint a;
             insert into post values (6002, 2002, 'in a savepoint'); commit",
        ])
        .await;
    assert_eq!(report.fetches, 0, "{report:?}");
    assert_eq!(
        on_sink(&world, "post where id between 5000 and 6999").await,
        22
    );
}

/// A parent that is deleted where no foreign key forbids it leaves its children behind on the
/// source; they are gone from the sink, and come back with it.
#[tokio::test]
async fn a_deleted_parents_children_are_gone_and_come_back_with_it() {
    let world = World::new().await;
    world
        .follows(&[
            "delete from topic where id = 101",
            "update post set body = 'orphan' where topic_id = 101",
        ])
        .await;
    assert_eq!(on_sink(&world, "post where topic_id = 101").await, 0);
    world
        .follows(&["insert into topic values (101, 11, 'again')"])
        .await;
    assert!(on_sink(&world, "post where topic_id = 101").await > 0);
    // The same within one run, two levels deep.
    world
        .follows(&[
            "delete from board where id in (select board_id from card where id = '1-1')",
            "update note set body = 'orphan' where card_id = '1-1'",
            "update card set place = 99 where id = '1-3'",
            "insert into board select board_id, 10, 'again', 'b' from card where id = '1-1'",
        ])
        .await;
}

/// A parent's key changes: with its children by the foreign key, and without one its children stay
/// behind, while those that wait under the new key come.
#[tokio::test]
async fn a_parents_changed_key_takes_the_children_that_hang_on_it() {
    let world = World::new().await;
    world
        .follows(&[
            "insert into thread values ('00000000-0000-4000-8000-00000000bbbb', 104, 'lone')",
            "update thread set id = '00000000-0000-4000-8000-00000000cccc'
               where id = '00000000-0000-4000-8000-00000000bbbb'",
            "insert into reply values ('1-cc', '00000000-0000-4000-8000-00000000cccc', 'r')",
            "insert into post values (1990, 199, 'waits')",
            "update topic set id = 199 where id = 101",
            "update post set body = 'orphan' where topic_id = 101",
            "begin; update topic set id = 198 where id = 102;
             update post set topic_id = 198 where topic_id = 102; commit",
            "update board set id = '00000000-0000-4000-9000-00000000bbbb', title = 'rekeyed'
               where id in (select board_id from card where id = '1-1')",
        ])
        .await;
    assert_eq!(on_sink(&world, "post where topic_id = 101").await, 0);
    assert_eq!(on_sink(&world, "post where id = 1990").await, 1);
}

/// Guards promise 1: a parent's key leaves and is used again in one transaction, while a deferrable
/// foreign key lets children wait for it. They stay on the source, and so on the sink.
#[tokio::test]
async fn children_that_wait_for_a_key_to_come_back_stay() {
    let world = World::new().await;
    let (a, b, c) = (
        "'00000000-0000-4000-8000-00000000aaaa'",
        "'00000000-0000-4000-8000-00000000bbbb'",
        "'00000000-0000-4000-8000-00000000cccc'",
    );
    world
        .on_source(
            "alter table reply drop constraint reply_thread_id_fkey;
             alter table reply add foreign key (thread_id) references thread
               deferrable initially deferred",
        )
        .await;
    world
        .follows(&[
            &format!(
                "insert into thread values ({a}, 104, 'a'), ({b}, 104, 'b');
                 insert into reply values ('1-a', {a}, 'of a'), ('1-b', {b}, 'of b')"
            ),
            &format!(
                "begin; delete from thread where id = {a};
                 insert into thread values ({a}, 104, 'again'); commit"
            ),
            &format!(
                "begin; update thread set id = {c} where id = {a};
                 update thread set id = {a} where id = {b};
                 update reply set thread_id = {c} where thread_id = {b}; commit"
            ),
        ])
        .await;
    assert_eq!(
        on_sink(&world, &format!("reply where thread_id = {a}")).await,
        1
    );
}

/// Guards promise 1: the same where a change further down comes in between.
#[tokio::test]
async fn a_subtree_that_waits_for_a_key_to_come_back_stays() {
    let world = World::new().await;
    world
        .on_source(
            "alter table event drop constraint event_group_id_fkey;
             alter table event add foreign key (group_id) references \"group\"
               deferrable initially deferred;
             alter table thread drop constraint thread_group_id_fkey;
             alter table thread add foreign key (group_id) references \"group\"
               deferrable initially deferred",
        )
        .await;
    let below = "reply r join thread t on r.thread_id = t.id where t.group_id = 104";
    let thread = "'00000000-0000-4000-8000-00000000aaaa'";
    world
        .follows(&[&format!(
            "insert into thread values ({thread}, 104, 't');
             insert into reply values ('1-a', {thread}, 'stays')"
        )])
        .await;
    let stay = on_sink(&world, below).await;
    assert!(stay > 0);
    world
        .follows(&["begin; delete from \"group\" where id = 104;
             update reply set body = 'in between'
               where thread_id in (select id from thread where group_id = 104);
             insert into \"group\" (id, project_id, title) overriding system value
               values (104, 10, 'again'); commit"])
        .await;
    assert_eq!(on_sink(&world, below).await, stay);
}

/// Guards promise 1: keys handed on in one transaction take along the children that cascade.
#[tokio::test]
async fn keys_that_are_handed_on_take_their_children_along() {
    let world = World::new().await;
    world
        .on_source("alter table \"group\" alter id set generated by default")
        .await;
    world
        .follows(&[
            "insert into \"group\" (id, project_id, title) values (981, 10, 'x'), (982, 10, 'y')",
            "insert into event values (9811, 981, 'of x', 's'), (9821, 982, 'of y', 's')",
            "begin; update \"group\" set id = 983 where id = 982;
             update \"group\" set id = 982 where id = 981; commit",
        ])
        .await;
    let handed_on = "event where group_id in (982, 983)";
    assert_eq!(on_sink(&world, handed_on).await, 2);
}

/// Guards promise 1: a leaf that left for a parent that is not there is the organization's again
/// once that parent is.
#[tokio::test]
async fn a_leaf_that_waits_for_its_parent_comes_back_with_it() {
    let world = World::new().await;
    world
        .follows(&[
            "update post set topic_id = 777 where id = 1001",
            "update note set card_id = 'none yet' where id = 1001",
            "insert into topic values (777, 10, 'late')",
            "insert into card select 'none yet', board_id, 77 from card where id = '1-1'",
        ])
        .await;
    assert_eq!(on_sink(&world, "post where id = 1001").await, 1);
    assert_eq!(on_sink(&world, "note where id = 1001").await, 1);
}

/// Guards promise 1: a key of what is fetched that another tenant holds on the sink fails the move,
/// and stays theirs.
#[tokio::test]
async fn another_tenants_key_in_a_subtree_fails_the_move() {
    let world = World::new().await;
    world
        .on_source("insert into event values (9001, 201, 'theirs here', 'b')")
        .await;
    assert_eq!(
        world
            .fails(&["update \"group\" set project_id = 10 where id = 201"])
            .await,
        ("event".to_owned(), Reason::KeyTakenByOtherTenant)
    );
    assert_eq!(on_sink(&world, "\"group\" where id = 201").await, 0);
}

/// Guards promise 3: a mover that dies while it fetches leaves nothing of it, and the next one
/// brings all of it.
#[tokio::test]
async fn a_fetch_is_whole_or_not_there() {
    let world = World::new().await;
    let mut mover = world.start();
    world.settle(&mut mover).await;
    let before = world.state().await;
    let blocker = world.source_client().await;
    blocker
        .batch_execute("begin; lock table thread in access exclusive mode")
        .await
        .unwrap();
    world
        .on_source("update \"group\" set project_id = 10 where id = 201")
        .await;
    world.waits_on_source("Lock").await;
    mover.kill().await;
    assert_eq!(on_sink(&world, "\"group\" where id = 201").await, 0);
    assert_eq!(world.state().await.last_change, before.last_change);
    blocker.batch_execute("rollback").await.unwrap();
    world.follows(&[]).await;
    assert_eq!(on_sink(&world, "event where group_id = 201").await, 5);
}

/// Guards promise 5: a mover that is superseded while it fetches lands nothing.
#[tokio::test]
async fn a_superseded_mover_does_not_land_what_it_fetched() {
    let mut world = World::new().await;
    let mut mover = world.start();
    world.settle(&mut mover).await;
    let blocker = world.source_client().await;
    blocker
        .batch_execute("begin; lock table thread in access exclusive mode")
        .await
        .unwrap();
    world
        .on_source("update \"group\" set project_id = 10 where id = 201")
        .await;
    world.waits_on_source("Lock").await;
    world.take_over(2).await;
    blocker.batch_execute("rollback").await.unwrap();
    mover.ended().await;
    assert_eq!(on_sink(&world, "\"group\" where id = 201").await, 0);
    world.job.epoch = monarch_model::Epoch(2);
    world.follows(&[]).await;
}

/// Guards promise 1 on a busy source: sessions side by side move parents and leaves between
/// tenants, make children before parents and after them, and the sink ends as the source.
#[tokio::test]
async fn what_enters_on_a_busy_source_is_as_on_the_source() {
    let world = World::between(PgVersion::V17, PgVersion::V17).await;
    let mut mover = world.start();
    let busy = (0..4).map(|worker| {
        let source = world.source_client();
        async move {
            let source = source.await;
            for round in 0..40 {
                let sql = busy_statements(worker, round);
                // Two sessions may change one row; that one waits or fails matters to neither.
                let _ = source.batch_execute(&sql).await;
            }
        }
    });
    futures::future::join_all(busy).await;
    let report = world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    assert!(report.fetches > 0, "{report:?}");
    world.assert_same().await;
}

fn busy_statements(worker: i64, round: i64) -> String {
    let id = 10_000 + worker * 1000 + round * 10;
    let group = 201 + (round + worker) % 4;
    let project = [10, 20][usize::try_from(round % 2).unwrap()];
    format!(
        "insert into post values ({id}, {id}, 'early');
         begin; update event set group_id = {group}, label = label || '{worker}.{round}'
           where id = {} + {round} % 20; commit;
         begin; insert into topic values ({id}, {project}, 't');
         insert into post values ({id} + 1, {id}, 'with'); commit;
         insert into post values ({id} + 2, {id}, 'after');
         update \"group\" set project_id = {project} where id = {group};
         insert into event values ({id}, {group}, 'e {id}', {LARGE});
         update event set label = label || '+' where id = {id};
         update topic set project_id = {} where id = {id} - 10",
        1001 + (worker % 2) * 1000,
        30 - project,
    )
}

/// Guards promise 1 where commits wait for a synchronous standby: a transaction is in the log before
/// others can see it, and a snapshot without it is not read from.
#[tokio::test]
async fn a_snapshot_that_lacks_what_the_log_has_is_not_read() {
    let label = "update event set label = 'not visible yet' where id = 2001";
    no_snapshot_is_read_before(&World::on_its_own(PgVersion::V15, &[]).await, label).await;
}

/// The same for a role that is not told which transactions wait.
#[tokio::test]
async fn a_snapshot_that_lacks_what_our_role_may_not_see_is_not_read() {
    let mut world = World::on_its_own(PgVersion::V15, &[]).await;
    world.read_as_plain_role().await;
    let label = "update event set label = 'not visible yet' where id = 2001";
    no_snapshot_is_read_before(&world, label).await;
}

/// The same for a prepared transaction: whoever commits it has no transaction of its own.
#[tokio::test]
async fn a_snapshot_that_lacks_a_prepared_transaction_is_not_read() {
    let world = World::on_its_own(PgVersion::V15, &[]).await;
    world
        .on_source(
            "begin; update event set label = 'not visible yet' where id = 2001;
             prepare transaction 'waits'",
        )
        .await;
    no_snapshot_is_read_before(&world, "commit prepared 'waits'").await;
}

/// `commit` ends a transaction that relabels event 2001, and is made to wait.
async fn no_snapshot_is_read_before(world: &World, commit: &'static str) {
    let mut mover = world.start();
    world.settle(&mut mover).await;
    world
        .on_source("alter system set synchronous_standby_names = 'nobody'")
        .await;
    world.on_source("select pg_reload_conf()").await;
    let waits = world.source_client().await;
    let waiting = tokio::spawn(async move { waits.batch_execute(commit).await });
    world.waits_on_source("IPC").await;
    mover.until(|report| report.rows_read >= 1).await.unwrap();
    // Behind it, so that the log begins after both for whoever comes next.
    world
        .on_source(
            "set synchronous_commit = local;
             update event set label = 'applied' where id = 1001",
        )
        .await;
    mover.until(|report| report.changes >= 1).await.unwrap();
    mover.kill().await;
    let mut mover = world.start();
    world
        .on_source("update \"group\" set project_id = 10 where id in (201, 202, 203, 204)")
        .await;
    let seen = |report: &Report| report.rows_read >= 4;
    mover.until(seen).await.unwrap();
    // It knows of it though another has applied it; and the next one does, to which the log brings
    // the groups only.
    mover.kill().await;
    let mut mover = world.start();
    mover.until(seen).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(on_sink(world, "\"group\" where id = 201").await, 0);
    world
        .on_source("alter system reset synchronous_standby_names")
        .await;
    world.on_source("select pg_reload_conf()").await;
    waiting.await.unwrap().unwrap();
    world.settle(&mut mover).await;
    mover.stop().await.unwrap();
    world.assert_same().await;
    let label = "event where id = 2001 and label = 'not visible yet'";
    assert_eq!(on_sink(world, label).await, 1);
}

/// Decoding on a standby: what the log lacks is fetched all the same.
#[tokio::test]
async fn a_standby_that_decodes_does_not_stand_in_the_way() {
    let world = World::decoded_on_a_standby(PgVersion::V17).await;
    let report = world
        .follows(&[
            "update \"group\" set project_id = 10 where id = 201",
            "update event set group_id = 101, label = 'in' where id = 2001",
            "insert into post values (1970, 197, 'passed over')",
            "insert into topic values (197, 11, 'late')",
        ])
        .await;
    assert!(report.fetches >= 1, "{report:?}");
    assert_eq!(on_sink(&world, "post where id = 1970").await, 1);
}
