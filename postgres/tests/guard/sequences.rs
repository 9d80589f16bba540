//! The sink's sequences are ahead of what moves in, whoever uses them meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use monarch_harness::{PgVersion, fresh_name};
use monarch_postgres::sequences::{self, Fed, Raised, UNLOCKED_HEADROOM};
use monarch_postgres::{Session, sequences::Outcome};

use crate::cells::{Cell, fill, graph, scope, session, spine, store};

async fn raise(source: &Session, sink: &mut Session, headroom: u32) -> Vec<Outcome> {
    let graph = graph();
    let spine = spine(source, &graph, 1).await;
    let scope = scope(source, &graph, 1, &spine).await;
    let walk = graph.walk(&store());
    let predicates: Vec<String> = walk
        .iter()
        .map(|table| scope.predicate(&table.name, "t").unwrap())
        .collect();
    let fed: Vec<Fed<'_>> = walk
        .iter()
        .zip(&predicates)
        .map(|(table, predicate)| Fed { table, predicate })
        .collect();
    sequences::raise(&**source, sink, &fed, headroom, None)
        .await
        .unwrap()
}

async fn next(cell: &Cell<'_>, sequence: &str) -> i64 {
    one(cell, &format!("select nextval('{sequence}')")).await
}

async fn one(cell: &Cell<'_>, sql: &str) -> i64 {
    let row = cell.admin().await.query_one(sql, &[]).await;
    row.unwrap().get(0)
}

fn of<'a>(outcomes: &'a [Outcome], table: &str) -> &'a Raised {
    let found = outcomes
        .iter()
        .find(|outcome| outcome.table.as_str() == table);
    &found.unwrap().raised
}

/// Guards promise 1: the next default id on the sink is none that moved in, nor one that the
/// source gives out meanwhile; serial and identity alike, and again is the same.
#[tokio::test]
async fn the_sinks_next_id_is_past_those_that_move_in() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V14).await,
    );
    source.run(&fill(1, 7, 50)).await;
    source.run("select setval('event_id_seq', 1000400)").await;
    sink.run(&fill(2, 3, 20)).await;
    let (from, mut to) = (source.session().await, sink.session().await);
    let raised = raise(&from, &mut to, 100).await;
    assert_eq!(raised.len(), 3);
    assert_eq!(
        of(&raised, "group"),
        &Raised::Raised {
            from: 1,
            to: 1_000_107,
            locked: true
        }
    );
    assert_eq!(
        of(&raised, "event"),
        &Raised::Raised {
            from: 1,
            to: 1_000_500,
            locked: true
        }
    );
    assert_eq!(next(&sink, "release_id_seq").await, 1_000_104);
    assert_eq!(next(&sink, "event_id_seq").await, 1_000_501);
    let again = raise(&from, &mut to, 100).await;
    assert_eq!(of(&again, "event"), &Raised::Ahead { at: 1_000_501 });
}

/// Guards promise 1: a sequence that is far ahead is never set back.
#[tokio::test]
async fn a_sequence_is_never_set_back() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    sink.run("select setval('event_id_seq', 9000000)").await;
    let raised = raise(&source.session().await, &mut sink.session().await, 100).await;
    assert_eq!(of(&raised, "event"), &Raised::Ahead { at: 9_000_000 });
    assert_eq!(next(&sink, "event_id_seq").await, 9_000_001);
}

/// Cells with ranges of their own stay in them: an id from outside can never be given out.
#[tokio::test]
async fn a_sequence_with_a_range_of_its_own_stays_in_it() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    sink.run("alter sequence event_id_seq minvalue 1 maxvalue 999999")
        .await;
    let raised = raise(&source.session().await, &mut sink.session().await, 100).await;
    assert!(
        matches!(of(&raised, "event"), Raised::Ahead { .. }),
        "{raised:?}"
    );
}

/// A sequence whose end is nearer than the goal is a finding, and is not touched.
#[tokio::test]
async fn a_sequence_that_ends_before_its_goal_is_reported() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    sink.run("alter sequence event_id_seq maxvalue 1000060")
        .await;
    let raised = raise(&source.session().await, &mut sink.session().await, 100).await;
    let expected = Raised::Exhausted {
        goal: 1_000_150,
        end: 1_000_060,
    };
    assert_eq!(of(&raised, "event"), &expected);
    assert_eq!(next(&sink, "event_id_seq").await, 1);
}

/// What tenants of the sink are given who ask for ids all the while that `raising` runs.
async fn ids_given_out(sink: &Cell<'_>, raising: impl Future<Output = ()>) -> Vec<i64> {
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (dsn, stop) = (sink.dsn.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let session = session(&dsn).await;
                let mut ids = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let sql = "select nextval('public.event_id_seq')::bigint";
                    ids.push(session.query_one(sql, &[]).await.unwrap().get::<_, i64>(0));
                }
                ids
            })
        })
        .collect();
    raising.await;
    stop.store(true, Ordering::Relaxed);
    let mut ids = Vec::new();
    for worker in busy {
        ids.extend(worker.await.unwrap());
    }
    ids
}

fn assert_all_different(ids: &[i64]) {
    let distinct: std::collections::BTreeSet<i64> = ids.iter().copied().collect();
    assert!(!ids.is_empty());
    assert_eq!(distinct.len(), ids.len());
}

/// Guards promise 1 under load: with inserts running beside it, no id is ever given out twice.
#[tokio::test]
async fn ids_given_out_while_a_sequence_is_raised_are_all_different() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    let (from, mut to) = (source.session().await, sink.session().await);
    let raising = async {
        for headroom in 0..20 {
            source.run("select nextval('event_id_seq')").await;
            raise(&from, &mut to, headroom * 7).await;
        }
    };
    assert_all_different(&ids_given_out(&sink, raising).await);
}

/// Guards the same where the sequence cannot be locked, and where few ids are left, so that the
/// headroom is a small share of them: each raise comes while the sequence stands just short of it.
#[tokio::test]
async fn ids_of_a_small_range_are_all_different_though_nobody_can_lock() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    sink.run("alter sequence event_id_seq as integer").await;
    let (from, mut to) = (source.session().await, of_no_owner(&sink).await);
    let mut raised = 0;
    let raising = async {
        for _ in 0..60 {
            // So that the goal lies a little ahead of where the sink's sequence stands.
            let stands = one(&sink, "select last_value from event_id_seq").await;
            let share = (i64::from(i32::MAX) - stands) / 255;
            let used = (stands - share + 2000).max(1_000_400);
            source
                .run(&format!("select setval('event_id_seq', {used})"))
                .await;
            let outcomes = raise(&from, &mut to, u32::MAX).await;
            if let Raised::Raised { from, to, locked } = of(&outcomes, "event") {
                assert!(!locked && to - from >= UNLOCKED_HEADROOM, "{from} {to}");
                raised += 1;
            }
        }
    };
    assert_all_different(&ids_given_out(&sink, raising).await);
    assert!(raised > 10, "{raised}");
}

/// A session of a role that may raise every sequence and owns none.
async fn of_no_owner(sink: &Cell<'_>) -> Session {
    let role = fresh_name("role");
    sink.run(&format!(
        "create role {role} login password 'x';
         grant select, update, usage on all sequences in schema public to {role};"
    ))
    .await;
    let dsn = sink.dsn.replace("user=postgres", &format!("user={role}"));
    session(&dsn.replace(monarch_harness::PASSWORD, "x")).await
}

/// A role that may update a sequence but does not own it raises it by far more, and says so.
#[tokio::test]
async fn without_ownership_a_sequence_is_raised_unlocked_and_further() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 7, 50)).await;
    let mut to = of_no_owner(&sink).await;
    let raised = raise(&source.session().await, &mut to, 100).await;
    let expected = Raised::Raised {
        from: 1,
        to: 1_010_150,
        locked: false,
    };
    assert_eq!(of(&raised, "event"), &expected);
}
