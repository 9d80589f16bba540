//! The comparison of both sides finds what a count alone would miss, and nothing else.

use monarch_harness::{PgVersion, fresh_name};
use monarch_postgres::Session;
use monarch_postgres::verify::{self, Digests, Outcome, Subject};

use crate::cells::{Cell, fill, graph, load, scope, session, spine, store, table};

/// Subjects of the whole store for organization 1, as both cells have it.
async fn subjects(source: &Session, sink: &Session) -> Vec<Subject> {
    let graph = graph();
    let spine = spine(source, &graph, 1).await;
    let scope = scope(source, &graph, 1, &spine).await;
    let (theirs, ours) = (load(source, &graph).await, load(sink, &graph).await);
    graph
        .walk(&store())
        .into_iter()
        .map(|table| Subject {
            table: table.name.clone(),
            columns: verify::shared_columns(
                theirs.relation(&table.name).unwrap(),
                ours.relation(&table.name).unwrap(),
            ),
            predicate: scope.predicate(&table.name, "t").unwrap(),
        })
        .collect()
}

async fn digest(session: &mut Session, subjects: &[Subject]) -> Digests {
    verify::digest(&**session, subjects).await.unwrap()
}

/// Guards promise 1 and the comparison itself: neither version, nor order of columns or rows, nor
/// settings of the database, nor other tenants make equal rows differ.
#[tokio::test]
async fn equal_rows_are_equal_however_their_databases_are_set_up() {
    let (source, sink) = (
        Cell::new(PgVersion::V15).await,
        Cell::new(PgVersion::V14).await,
    );
    sink.run(&format!(
        "drop table tag, event;
         create table event (body text, at timestamptz not null default '2024-05-01 12:00+00',
             gone int, group_id bigint, id bigserial primary key);
         alter table event drop column gone;
         create table tag (value text, key text, event_id bigint, primary key (key, event_id));
         alter database \"{0}\" set datestyle = 'German';
         alter database \"{0}\" set timezone = 'Asia/Tokyo';
         alter database \"{0}\" set bytea_output = 'escape';",
        sink.database
    ))
    .await;
    source.run(&(fill(1, 7, 50) + &fill(2, 3, 20))).await;
    sink.run(&(fill(3, 3, 20) + &fill(1, 7, 50))).await;
    sink.run("update event set body = body || '' where id % 2 = 0")
        .await;
    let (mut from, mut to) = (source.session().await, sink.session().await);
    let subjects = subjects(&from, &to).await;
    let (theirs, ours) = (
        digest(&mut from, &subjects).await,
        digest(&mut to, &subjects).await,
    );
    let comparison = verify::compare(&theirs, &ours);
    assert!(comparison.is_equal(), "{comparison:?}");
    assert_eq!(comparison.0[&table("event")], Outcome::Equal { rows: 50 });
    assert_eq!(theirs.sha256(), ours.sha256());
    assert_eq!(theirs.rows(), 1 + 3 + 3 + 7 + 50 + 50);
}

/// Guards promise 1: each kind of damage shows, in the table that has it and in no other.
#[tokio::test]
async fn every_kind_of_difference_shows() {
    let (source, sink) = (
        Cell::new(PgVersion::V16).await,
        Cell::new(PgVersion::V16).await,
    );
    for cell in [&source, &sink] {
        cell.run(&fill(1, 7, 50)).await;
        cell.run("update event set body = '' where id = 1000001")
            .await;
    }
    let (mut from, mut to) = (source.session().await, sink.session().await);
    let subjects = subjects(&from, &to).await;
    let theirs = digest(&mut from, &subjects).await;
    let damages = [
        (
            "a lost update",
            "event",
            "update event set body = 'x' where id = 1000002",
        ),
        (
            "an empty text for a null",
            "event",
            "update event set body = null where id = 1000001",
        ),
        (
            "a trailing space",
            "tag",
            "update tag set value = 'error ' where event_id = 1000003",
        ),
        (
            "a lost row",
            "tag",
            "delete from tag where event_id = 1000004",
        ),
        (
            "a row too many",
            "tag",
            "insert into tag values (1000004, 'extra', 'x')",
        ),
        (
            "two values swapped",
            "event",
            "update event set body = case id when 1000005 then 'event 6' else 'event 5' end
              where id in (1000005, 1000006)",
        ),
    ];
    for (what, damaged, sql) in damages {
        sink.run(sql).await;
        let comparison = verify::compare(&theirs, &digest(&mut to, &subjects).await);
        let differing: Vec<String> = comparison.differing().map(|(t, _)| t.to_string()).collect();
        assert_eq!(differing, [damaged], "{what}");
        sink.run(
            "delete from tag; delete from event; delete from \"group\"; delete from release; \
                  delete from project; delete from organization",
        )
        .await;
        sink.run(&fill(1, 7, 50)).await;
        sink.run("update event set body = '' where id = 1000001")
            .await;
    }
}

/// Two columns whose texts run together differently must not look alike.
#[tokio::test]
async fn what_could_be_taken_for_a_separator_is_not() {
    let cell = Cell::empty(PgVersion::V16).await;
    cell.run(
        r#"create table a (x text, y text);
           insert into a values ('p,', 'q'), (null, 'null'), ('"', '\');
           create table b (x text, y text);
           insert into b values ('p', ',q'), ('null', null), ('\', '"');"#,
    )
    .await;
    let mut session = cell.session().await;
    let subject = |name: &str| Subject {
        table: table(name),
        columns: vec!["x".to_owned(), "y".to_owned()],
        predicate: "true".to_owned(),
    };
    let digests = digest(&mut session, &[subject("a"), subject("b")]).await;
    assert_ne!(digests.0[&table("a")], digests.0[&table("b")]);
    assert_eq!(digests.0[&table("a")].rows, digests.0[&table("b")].rows);
}

/// The same characters are the same rows, whatever bytes a server keeps them in.
#[tokio::test]
async fn a_server_with_another_encoding_digests_the_same() {
    let cell = Cell::empty(PgVersion::V16).await;
    let latin = fresh_name("latin");
    cell.run(&format!(
        "create database \"{latin}\" encoding 'LATIN1' template template0
             lc_collate 'C' lc_ctype 'C'"
    ))
    .await;
    let latin_dsn = cell.cluster.dsn(&latin);
    let subject = Subject {
        table: table("word"),
        columns: vec!["text".to_owned()],
        predicate: "true".to_owned(),
    };
    let mut digests = Vec::new();
    for dsn in [&cell.dsn, &latin_dsn] {
        let mut session = session(dsn).await;
        let sql =
            "create table public.word (text text); insert into public.word values ('Zoë été')";
        session.batch_execute(sql).await.unwrap();
        digests.push(digest(&mut session, std::slice::from_ref(&subject)).await);
    }
    assert_eq!(digests[0], digests[1]);
}

/// Guards promise 1: rows that a policy hides are an error, never an equal count of fewer rows.
#[tokio::test]
async fn hidden_rows_are_an_error() {
    let cell = Cell::new(PgVersion::V16).await;
    cell.run(&fill(1, 3, 5)).await;
    let role = fresh_name("role");
    cell.run(&format!(
        "create role {role} login password 'x'; grant select on all tables in schema public to {role};
         alter table event enable row level security;
         create policy even on event using (id % 2 = 0);"
    ))
    .await;
    let dsn = cell.dsn.replace("user=postgres", &format!("user={role}"));
    let dsn = dsn.replace(monarch_harness::PASSWORD, "x");
    let session = session(&dsn).await;
    let subject = Subject {
        table: table("event"),
        columns: vec!["id".to_owned()],
        predicate: "true".to_owned(),
    };
    let error = verify::digest(&*session, &[subject]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501");
}
