//! Rows that share statements on the sink, where one could tell if they were not kept apart.
//!
//! Each case is one transaction with enough rows that they are sent together.

use monarch_harness::PgVersion;
use monarch_postgres::stream::{Batching, Reason, StreamError};

use crate::world::{Case, Move, run};

const MANIFEST: &str = "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  parent: {store: default, primary_key: [id], refs: {organization_id: {parent: organization}}}
  child: {store: default, primary_key: [id], refs: {parent_id: {parent: parent}}}
  thing: {store: default, primary_key: [id], refs: {organization_id: {parent: organization}}}
";

const SCHEMA: &str = "
create table organization (id bigint primary key);
create table parent (id bigint primary key, organization_id bigint);
create table child (id bigint primary key, parent_id bigint references parent, body text);
create table thing (id bigint primary key, organization_id bigint, body text)";

const FILL: &str = "
insert into organization values ($ORG);
insert into parent values ($ORG, $ORG);
insert into child select $ORG * 100 + n, $ORG, n from generate_series(1, 40) n;
insert into thing select $ORG * 100 + n, $ORG, n from generate_series(1, 40) n";

const OWNED: &[(&str, &str)] = &[
    ("organization", "id = $ORG"),
    ("parent", "organization_id = $ORG"),
    (
        "child",
        "parent_id in (select id from parent where organization_id = $ORG)",
    ),
    ("thing", "organization_id = $ORG"),
];

const CASE: Case<'static> = Case {
    manifest: MANIFEST,
    schema: SCHEMA,
    fill: FILL,
    owned: OWNED,
    ..Case::EMPTY
};

/// Copied, and about to stream as it does for an operator.
async fn copied(case: &Case<'_>) -> Move {
    let mut it = Move::prepare(case, PgVersion::V15, PgVersion::V14).await;
    it.job.batching = Batching::AsPays;
    it.copy().await.unwrap();
    it
}

/// Guards promise 1: whose a row is, is read from its parent on the sink, which must be there by then.
#[tokio::test]
async fn a_row_that_goes_to_a_new_parent_can_be_deleted() {
    let it = copied(&CASE).await;
    it.follows(&["
        begin;
        update child set body = 'seen' where id between 101 and 120;
        delete from child where id = 121;
        insert into parent values (11, 1);
        update child set parent_id = 11 where id = 122;
        delete from child where id = 122;
        commit"])
        .await;
}

/// Guards promise 1: a row is found by the key that it has by then.
#[tokio::test]
async fn a_row_whose_key_has_changed_can_be_deleted() {
    let it = copied(&Case {
        schema: &format!("{SCHEMA}; alter table thing alter body set storage external"),
        fill: &format!("{FILL}; insert into thing values ($ORG * 1000, $ORG, repeat('x', 9000))"),
        ..CASE
    })
    .await;
    it.follows(&["
        begin;
        delete from thing where id between 101 and 120;
        update thing set id = 1001 where id = 1000;
        delete from thing where id = 1001;
        commit"])
        .await;
}

/// Guards promise 1: what is one key to the sink is one row, however it is spelled.
#[tokio::test]
async fn a_key_in_two_spellings_is_one_row() {
    let it = copied(&Case {
        schema: &format!(
            "create extension citext; {}",
            SCHEMA.replace("thing (id bigint", "thing (id citext")
        ),
        fill: &format!("{FILL}; insert into thing values ('A$ORG', $ORG, 'old')"),
        ..CASE
    })
    .await;
    it.follows(&["
        begin;
        update thing set body = 'seen' where id between '101' and '120';
        delete from thing where id = 'A1';
        insert into thing values ('a1', 2, 'new');
        update thing set organization_id = 1 where id = 'a1';
        commit"])
        .await;
}

/// A trigger of the sink that fires in spite of us sees each row, in the log's order.
#[tokio::test]
async fn a_watched_table_is_written_in_the_logs_order() {
    let it = copied(&Case {
        sink: "create table seen (n serial, told text);
            create function tell() returns trigger language plpgsql as $$ begin
              insert into public.seen (told) select tg_op || coalesce(new.id, old.id); return null; end $$;
            create trigger tell after insert or update or delete on thing
              for each row execute function tell();
            alter table thing enable always trigger tell",
        ..CASE
    })
    .await;
    run(&it.sink, "truncate seen").await;
    let pair = |n: i32| {
        let (id, gone) = (100 + n, 120 + n);
        (
            format!(
                "update thing set body = 'seen' where id = {id}; delete from thing where id = {gone};"
            ),
            [format!("UPDATE{id}"), format!("DELETE{gone}")],
        )
    };
    let (sql, told): (Vec<String>, Vec<_>) = (1..=20).map(pair).unzip();
    it.follows(&[&format!("begin; {} commit", sql.concat())])
        .await;
    let rows = it
        .sink
        .query("select told from seen order by n", &[])
        .await
        .unwrap();
    let seen: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, told.concat());
}

/// Guards promise 1, and what an operator reads: what one row meets among many is told as if it had
/// come alone.
#[tokio::test]
async fn what_one_row_meets_is_told_by_its_name() {
    let whole = "alter table thing replica identity full";
    let insert = "begin; insert into thing select n, 1, n from generate_series(1000, 1040) n;
        insert into thing values (999, 1, 'taken'); commit";
    let other = "insert into thing values (999, 9, 'taken')";
    let unique = "create unique index on thing (body)";
    let update = "begin; update thing set body = body || '!' where id between 101 and 139;
        delete from thing where id = 140; commit";
    let rekey = "begin; update thing set id = 999 where id = 101;
        insert into thing select n, 1, n from generate_series(1000, 1040) n; commit";
    for (sink, change, expected) in [
        (other, insert, Ok(Reason::KeyTakenByOtherTenant)),
        (
            &*format!("insert into thing values (998, 9, 'taken'); {unique}"),
            insert,
            Err("23505"),
        ),
        (
            "delete from thing where id = 120",
            update,
            Ok(Reason::RowMissing),
        ),
        (
            "delete from thing where id = 140",
            update,
            Ok(Reason::RowMissing),
        ),
        (other, rekey, Err("23505")),
        (
            "alter table thing add check (body <> '38!')",
            update,
            Err("23514"),
        ),
    ] {
        let it = copied(&Case {
            source: whole,
            fill: &FILL.replace("n from", "$ORG || '-' || n from"),
            ..CASE
        })
        .await;
        run(&it.sink, &sink.replace("'38!'", "'1-38!'")).await;
        match (it.ends(&[change]).await, expected) {
            (StreamError::Fatal(finding), Ok(reason)) => {
                assert_eq!((finding.table.as_str(), finding.reason), ("thing", reason));
            }
            (StreamError::Refused { table, source }, Err(code)) => {
                assert_eq!(table.as_str(), "thing");
                assert_eq!(source.code().unwrap().code(), code);
            }
            (error, _) => panic!("{error:?} after {sink}"),
        }
    }
}

/// What is refused together is written one by one, and the stream goes on with all that was gathered
/// before and behind.
#[tokio::test]
async fn what_is_refused_together_arrives_one_by_one() {
    let mut it = copied(&Case {
        schema: &format!("{SCHEMA}; create unique index on thing (organization_id, body)"),
        ..CASE
    })
    .await;
    for batching in [Batching::AsPays, Batching::Off, Batching::Random(3)] {
        it.job.batching = batching;
        it.follows(&[
            // Values go from row to row, against the order of the keys and along it.
            "begin;
             update thing set body = 'free' where id = 101;
             do $$ begin for n in 102..140 loop
               update thing set body = n - 101 where id = n; end loop; end $$;
             update thing set body = '40' where id = 101;
             do $$ begin for n in reverse 139..101 loop
               delete from thing where id = n + 1; update thing set body = n - 100 where id = n;
               insert into thing values (n + 1, 1, n || '-' || n); end loop; end $$;
             commit",
            "update thing set body = 'x' || id where organization_id = 1",
            "update thing set body = id - 100 where organization_id = 1",
        ])
        .await;
    }
}

/// Guards what an operator waits for: a refusal whose answer comes in pieces ends the move, also where
/// a statement of another form is prepared before it is read. The connection reads no further than
/// answers are taken.
#[tokio::test]
async fn a_refusal_in_pieces_is_told() {
    for _ in 0..5 {
        let mut it = copied(&CASE).await;
        it.job.batching = Batching::Off;
        let refuse = "create function refuse() returns trigger language plpgsql as
              $$ begin raise exception '%', repeat('no ', 1000000); end $$;
            create trigger refuse before update on thing for each row execute function refuse();
            alter table thing enable always trigger refuse";
        run(&it.sink, refuse).await;
        let change = "begin; update thing set body = 'x' where id = 101;
            insert into child values (1000, 1, 'x'); commit";
        match it.ends(&[change]).await {
            StreamError::Refused { table, .. } => assert_eq!(table.as_str(), "thing"),
            error => panic!("{error:?}"),
        }
    }
}
