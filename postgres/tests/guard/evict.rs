//! Eviction takes the organization's rows, what was copied of them, and no others.

use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion, fresh_name};
use monarch_postgres::Session;
use monarch_postgres::evict::{self, Doomed, Error, EvictionPermit, Evidence, Rows};
use tokio::time::Instant;

use crate::cells::{Cell, SCHEMA, doomed, fill, graph, spine, table};

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Everything that an eviction needs, for organization 1, as it is right now.
async fn permitted(session: &Session) -> (Vec<Doomed>, EvictionPermit) {
    let graph = graph();
    let spine = spine(session, &graph, 1).await;
    let doomed = doomed(session, &graph, 1, &spine).await;
    let recorded = evict::record_horizon(session, deadline()).await.unwrap();
    let evidence = Evidence {
        late_changes: 0,
        slot_prefixes: &["monarch_org_1_".to_owned()],
        horizon: &recorded.horizon.to_string(),
    };
    let permit = EvictionPermit::issue(&[&**session], evidence)
        .await
        .unwrap();
    (doomed, permit)
}

async fn evict(
    session: &mut Session,
    doomed: &[Doomed],
    permit: &EvictionPermit,
) -> Result<Rows, Error> {
    evict::evict(session, doomed, permit, &mut |_, _| {}).await
}

fn newer(error: Error) -> Vec<(String, u64)> {
    match error {
        Error::NewerRows(rows) => rows.iter().map(|(t, n)| (t.to_string(), *n)).collect(),
        other => panic!("{other}"),
    }
}

/// Guards promise 7: afterwards the source holds none of the organization's rows, every one of the
/// other's, and no foreign key stood in the way; again is the same.
#[tokio::test]
async fn eviction_takes_the_organization_and_nothing_else() {
    let source = Cell::new(PgVersion::V15).await;
    source.run(&(fill(1, 7, 50) + &fill(2, 3, 20))).await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    let mut told = Rows::new();
    let deleted = evict::evict(&mut session, &doomed, &permit, &mut |table, rows| {
        *told.entry(table.clone()).or_default() += rows;
    })
    .await
    .unwrap();
    assert_eq!(deleted[&table("event")], 50);
    assert_eq!(deleted.values().sum::<u64>(), 1 + 3 + 3 + 7 + 50 + 50);
    assert_eq!(told, deleted);
    for (name, rows) in [
        ("organization", 1),
        ("project", 3),
        ("release", 3),
        ("\"group\"", 3),
        ("event", 20),
        ("tag", 20),
    ] {
        assert_eq!(source.count(name).await, rows, "{name}");
    }
    assert_eq!(
        evict(&mut session, &doomed, &permit).await.unwrap(),
        Rows::new()
    );
}

/// Guards promise 8: what was written after the log had been read stops the eviction before it
/// deletes anything, and is listed by table.
#[tokio::test]
async fn newer_rows_stop_the_eviction_and_nothing_is_deleted() {
    let source = Cell::new(PgVersion::V16).await;
    source.run(&fill(1, 7, 50)).await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    source
        .run(
            "update event set body = 'late' where id = 1000003;
             insert into tag values (1000003, 'late', 'x'), (1000004, 'late', 'x');",
        )
        .await;
    let error = evict(&mut session, &doomed, &permit).await.unwrap_err();
    let shown = error.to_string();
    assert_eq!(
        newer(error),
        [("event".to_owned(), 1), ("tag".to_owned(), 2)]
    );
    assert!(
        shown.contains("event (1)") && !shown.contains("1000003"),
        "{shown}"
    );
    assert_eq!(source.count("event").await, 50);
    assert_eq!(source.count("tag").await, 52);
}

/// Guards promise 8 where a plain snapshot would fail: a row written under a savepoint carries the
/// id of the subtransaction, which no snapshot lists as in progress.
#[tokio::test]
async fn a_row_of_a_savepoint_that_was_open_at_the_horizon_is_waited_for() {
    let source = Cell::new(PgVersion::V16).await;
    source.run(&fill(1, 7, 50)).await;
    let session = source.session().await;
    let mut writing = source.admin().await;
    let mut tx = writing.transaction().await.unwrap();
    tx.batch_execute("update organization set name = 'x' where id = 2")
        .await
        .unwrap();
    let savepoint = tx.savepoint("first").await.unwrap();
    let late = "insert into tag values (1000003, 'late', 'x')";
    savepoint.batch_execute(late).await.unwrap();
    savepoint.commit().await.unwrap();
    // A later transaction ends, so that the subtransaction lies below the newest that ended.
    source
        .run("create table other (id int); insert into other values (1)")
        .await;
    let soon = Instant::now() + Duration::from_millis(300);
    match evict::record_horizon(&session, soon).await.unwrap_err() {
        Error::OpenTransactions(open) => assert!(open[0].pid.is_some(), "{open:?}"),
        other => panic!("{other}"),
    }
    tx.commit().await.unwrap();
    evict::record_horizon(&session, deadline()).await.unwrap();
}

/// The same after the fact: a horizon that was taken as a plain snapshot trusts only what is below
/// all transactions that were in progress.
#[tokio::test]
async fn of_a_plain_snapshot_only_what_is_certain_is_trusted() {
    // On a server of its own: other tests' transactions would make more of it uncertain.
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let source = Cell::empty_on(&cluster).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 7, 50)).await;
    let mut session = source.session().await;
    let (doomed, _) = permitted(&session).await;
    let mut writing = source.admin().await;
    let mut tx = writing.transaction().await.unwrap();
    tx.batch_execute("create table mine (id int)")
        .await
        .unwrap();
    let savepoint = tx.savepoint("first").await.unwrap();
    savepoint
        .batch_execute("insert into tag values (1000003, 'late', 'x')")
        .await
        .unwrap();
    savepoint.commit().await.unwrap();
    source.run("create table other (id int)").await;
    let row = session
        .query_one("select pg_current_snapshot()::text", &[])
        .await
        .unwrap();
    let snapshot: String = row.get(0);
    tx.commit().await.unwrap();
    let evidence = Evidence {
        late_changes: 0,
        slot_prefixes: &[],
        horizon: &snapshot,
    };
    let permit = EvictionPermit::issue(&[&*session], evidence).await.unwrap();
    let error = evict(&mut session, &doomed, &permit).await.unwrap_err();
    assert_eq!(newer(error), [("tag".to_owned(), 1)]);
}

/// A transaction in another database of the server cannot have written here.
#[tokio::test]
async fn an_open_transaction_of_another_database_is_not_waited_for() {
    let (source, other) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    let mut writing = other.admin().await;
    let tx = writing.transaction().await.unwrap();
    tx.batch_execute("insert into organization values (9, 'nine')")
        .await
        .unwrap();
    source.run(&fill(1, 2, 2)).await;
    let session = source.session().await;
    let recorded = evict::record_horizon(&session, deadline()).await.unwrap();
    assert!(recorded.read_to.0 > 0);
    drop(tx);
}

/// Guards promise 8: whoever moves a parent of another organization in after the flip does not
/// get its children deleted.
#[tokio::test]
async fn a_parent_that_moved_in_late_stops_the_eviction() {
    let source = Cell::new(PgVersion::V16).await;
    source.run(&(fill(1, 7, 50) + &fill(2, 3, 20))).await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    source
        .run("update \"group\" set project_id = 1000001 where id = 2000001")
        .await;
    let error = evict(&mut session, &doomed, &permit).await.unwrap_err();
    assert_eq!(newer(error), [("group".to_owned(), 1)]);
    assert_eq!(source.count("event").await, 70);
}

/// Guards promise 8: no permit while a slot of the organization lives, nor after a late change,
/// nor without a horizon.
#[tokio::test]
async fn a_permit_is_refused_by_name() {
    let source = Cell::new(PgVersion::V16).await;
    let session = source.session().await;
    let slot = fresh_name("monarch_org_77_default");
    let prefixes = ["monarch_org_77_".to_owned()];
    let evidence = |late_changes, horizon| Evidence {
        late_changes,
        slot_prefixes: &prefixes,
        horizon,
    };
    let servers = [&*session];
    let make = "select pg_create_logical_replication_slot($1, 'pgoutput')";
    session.execute(make, &[&slot]).await.unwrap();
    let refused = EvictionPermit::issue(&servers, evidence(0, "900:900:"))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::SlotsAlive(slots) if slots == [slot.clone()]));
    session
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await
        .unwrap();

    let refused = EvictionPermit::issue(&servers, evidence(3, "900:900:"))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::LateChanges(3)));
    let refused = EvictionPermit::issue(&servers, evidence(0, ""))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Horizon(_)));
    assert!(
        EvictionPermit::issue(&servers, evidence(0, "900:900:"))
            .await
            .is_ok()
    );
}

/// Guards promise 8: a slot that appeared after the permit was handed out stops the eviction too.
#[tokio::test]
async fn a_slot_that_appears_after_the_permit_stops_the_eviction() {
    let source = Cell::new(PgVersion::V15).await;
    source.run(&fill(1, 2, 2)).await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    let slot = fresh_name("monarch_org_1_default");
    let make = "select pg_create_logical_replication_slot($1, 'pgoutput')";
    session.execute(make, &[&slot]).await.unwrap();
    let refused = evict(&mut session, &doomed, &permit).await;
    session
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await
        .unwrap();
    assert!(matches!(refused, Err(Error::SlotsAlive(_))));
    assert_eq!(source.count("event").await, 2);
}

/// Guards promise 7 for a large organization: in chunks of keys, across tables whose rows
/// reference each other, and with what a killed eviction left half done.
#[tokio::test]
async fn a_large_organization_goes_in_chunks_and_goes_on_after_a_crash() {
    let source = Cell::new(PgVersion::V16).await;
    // A group may have been merged into another: the table references itself.
    source
        .run("alter table \"group\" add merged_into bigint references \"group\"")
        .await;
    source.run(&(fill(1, 1200, 30_000) + &fill(2, 3, 20))).await;
    source
        .run("update \"group\" set merged_into = id - 1 where id > 1000001 and id < 2000000")
        .await;
    // Without it, each deleted row would look through its referencing tables.
    source
        .run("create index on event (group_id); create index on \"group\" (merged_into); analyze")
        .await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    let pid: i32 = session
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);

    // The session is ended at the first chunk of the second table.
    let killer = source.admin().await;
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let mut tell = Some(tell);
    let kill = tokio::spawn(async move {
        told.await.unwrap();
        killer
            .execute("select pg_terminate_backend($1)", &[&pid])
            .await
            .unwrap();
    });
    let mut chunks = Vec::new();
    let crashed = evict::evict(&mut session, &doomed, &permit, &mut |table, rows| {
        chunks.push((table.to_string(), rows));
        if table.as_str() == "event"
            && let Some(tell) = tell.take()
        {
            tell.send(()).unwrap();
        }
    })
    .await;
    kill.await.unwrap();
    // It may have been quicker than its killer; then there is nothing left to do, which is fine.
    if let Err(error) = crashed {
        assert!(matches!(error, Error::Asked(_)), "{error}");
    }
    assert!(chunks.iter().all(|(_, rows)| *rows <= 10_000), "{chunks:?}");
    assert_eq!(chunks.iter().filter(|(table, _)| table == "tag").count(), 3);

    let mut session = source.session().await;
    evict(&mut session, &doomed, &permit).await.unwrap();
    assert_eq!(source.count("organization").await, 1);
    assert_eq!(source.count("event").await, 20);
    assert_eq!(source.count("tag").await, 20);
}

/// Guards promise 8 in chunks: a row that is written while the eviction runs stays and is listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_written_during_a_large_eviction_stays_and_is_listed() {
    let source = Cell::new(PgVersion::V16).await;
    source.run(&fill(1, 10, 30_000)).await;
    source
        .run("create index on event (group_id); analyze")
        .await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    let writer = source.admin().await;
    let handle = tokio::runtime::Handle::current();
    let mut wrote = false;
    let result = evict::evict(&mut session, &doomed, &permit, &mut |_, _| {
        if !wrote {
            wrote = true;
            tokio::task::block_in_place(|| {
                handle.block_on(writer.batch_execute(
                    "update organization set name = 'late' where id = 1;
                     update event set body = 'late' where id = 1000007",
                ))
            })
            .unwrap();
        }
    })
    .await;
    assert_eq!(newer(result.unwrap_err())[0], ("event".to_owned(), 1));
    assert_eq!(source.count("organization where name = 'late'").await, 1);
    assert_eq!(source.count("event where body = 'late'").await, 1);
}

/// Guards promise 7: a row outside the graph that still needs one of ours stops the eviction by
/// the name of its constraint, and all of it is rolled back.
#[tokio::test]
async fn a_foreign_key_from_outside_stops_the_eviction_by_name() {
    let source = Cell::new(PgVersion::V16).await;
    source.run(&fill(1, 2, 2)).await;
    source
        .run(
            "create table audit (id int primary key, event_id bigint,
                 constraint audit_event foreign key (event_id) references event);
             insert into audit values (1, 1000001);",
        )
        .await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    match evict(&mut session, &doomed, &permit).await.unwrap_err() {
        Error::Asked(error) => {
            let shown = format!("{error}: {}", std::error::Error::source(&error).unwrap());
            assert!(
                shown.contains("23503") && shown.contains("audit_event"),
                "{shown}"
            );
            assert!(!shown.contains("1000001"), "{shown}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(source.count("tag").await, 2);
}

/// Guards promise 8 on partitions: a row version tells its age in whichever leaf it lies.
#[tokio::test]
async fn a_partitioned_table_is_evicted_leaf_by_leaf_and_its_newer_rows_are_seen() {
    let source = Cell::new(PgVersion::V15).await;
    source
        .run(
            "drop table tag;
             create table tag (event_id bigint references event, key text, value text,
                 primary key (event_id, key)) partition by hash (event_id);
             create table tag_0 partition of tag for values with (modulus 2, remainder 0);
             create table tag_1 partition of tag for values with (modulus 2, remainder 1);",
        )
        .await;
    source.run(&(fill(1, 7, 50) + &fill(2, 3, 20))).await;
    let mut session = source.session().await;
    let (doomed, permit) = permitted(&session).await;
    source
        .run("update tag set value = 'late' where event_id in (1000001, 1000002, 1000003)")
        .await;
    let error = evict(&mut session, &doomed, &permit).await.unwrap_err();
    assert_eq!(newer(error), [("tag".to_owned(), 3)]);
    assert_eq!(source.count("tag").await, 70);

    let (doomed, permit) = permitted(&session).await;
    evict(&mut session, &doomed, &permit).await.unwrap();
    assert_eq!(source.count("tag").await, 20);
    assert_eq!(source.count("event").await, 20);
}
