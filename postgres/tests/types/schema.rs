//! Schemas that change while a unit streams: noticed by the log with the next change, and by the
//! catalog's fingerprint without any.

use monarch_harness::PgVersion;
use monarch_postgres::catalog::{self, Fingerprint};
use monarch_postgres::stream::{Reason, StreamError};

use crate::world::{Case, Move, run};

const CASE: Case<'static> = Case {
    manifest: "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  thing:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}}
  entry:
    store: default
    primary_key: [organization_id, at]
    refs: {organization_id: {parent: organization}}
  board: {store: default, primary_key: [id], refs: {organization_id: {parent: organization}}}
  card: {store: default, primary_key: [id], refs: {board_id: {parent: board}}}
  pin: {store: default, primary_key: [board_id, n], refs: {board_id: {parent: board}}}
",
    schema: "
create type mood as enum ('sad', 'ok');
create domain small as int check (value < 10);
create table organization (id bigint primary key);
create table thing (id bigint primary key, organization_id bigint, name varchar(5),
  price numeric(6,2), mood mood, small small, extra text);
create table entry (organization_id bigint, at date, body text, primary key (organization_id, at))
  partition by range (at);
create table entry_old partition of entry for values from (minvalue) to ('2020-01-01');
create table entry_new partition of entry for values from ('2020-01-01') to ('2030-01-01');
create table loose (like entry including all);
create table board (id bigint primary key, organization_id bigint);
create table card (id bigint primary key, board_id bigint references board);
create table pin (board_id bigint references board, n int, primary key (board_id, n))
  partition by hash (n);
create table pin_0 partition of pin for values with (modulus 2, remainder 0);
create table pin_1 partition of pin for values with (modulus 2, remainder 1)",
    fill: "insert into organization values ($ORG);
        insert into thing values ($ORG * 10, $ORG, 'name', 1.25, 'ok', 3, 'x');
        insert into entry values ($ORG, '2019-01-01', 'old'), ($ORG, '2029-01-01', 'new')",
    owned: &[
        ("organization", "id = $ORG"),
        ("thing", "organization_id = $ORG"),
        ("entry", "organization_id = $ORG"),
    ],
    ..Case::EMPTY
};

async fn fingerprint(it: &Move) -> Fingerprint {
    let tables = it.job.graph.walk(&it.job.unit.store);
    let seen = catalog::load(&it.source, &tables).await.unwrap();
    seen.fingerprint()
}

/// A change, the table that it is told of, and lines of the difference.
const CHANGES: &[(&str, &str, &[&str])] = &[
    (
        "alter table thing add more text default 'x'",
        "thing",
        &["+ column 8 more: text"],
    ),
    (
        "alter table thing add more text",
        "thing",
        &["+ column 8 more: text"],
    ),
    (
        "alter table thing drop extra",
        "thing",
        &["- column 7 extra: text"],
    ),
    (
        "alter table thing rename extra to other",
        "thing",
        &["- column 7 extra: text", "+ column 7 other: text"],
    ),
    (
        "alter table thing alter name type varchar(50)",
        "thing",
        &[
            "- column 3 name: character varying(5)",
            "+ column 3 name: character varying(50)",
        ],
    ),
    (
        "alter table thing alter price type numeric(9,4)",
        "thing",
        &["+ column 4 price: numeric(9,4)"],
    ),
    (
        "alter table thing alter small type bigint",
        "thing",
        &["- column 6 small: public.small", "+ column 6 small: bigint"],
    ),
    (
        "alter table thing replica identity full",
        "thing",
        &["- identity default(id)", "+ identity full"],
    ),
    (
        "alter type mood add value 'odd'",
        "thing",
        &[
            "- type public.mood:  [sad, ok]",
            "+ type public.mood:  [sad, ok, odd]",
        ],
    ),
    (
        "alter domain small drop constraint small_check",
        "thing",
        &[
            "- type public.small: integer CHECK ((VALUE < 10)) []",
            "+ type public.small: integer []",
        ],
    ),
    (
        "alter table loose add check (at >= '2030-01-01' and at < '2040-01-01');
         insert into loose values (1, '2031-01-01', 'attached');
         alter table entry attach partition loose for values from ('2030-01-01') to ('2040-01-01')",
        "entry",
        &["+ leaf loose"],
    ),
    (
        "alter table entry detach partition entry_old",
        "entry",
        &["- leaf entry_old"],
    ),
    (
        "truncate entry_new",
        "entry",
        &["- leaf entry_new", "+ leaf entry_new"],
    ),
    (
        "alter table thing rename to things",
        "thing",
        &["- column 1 id: bigint", "+ missing"],
    ),
    (
        "drop table thing",
        "thing",
        &["- column 1 id: bigint", "+ missing"],
    ),
    // What the mover relies on: that no child comes before its parent, or outlives it.
    (
        "alter table card drop constraint card_board_id_fkey",
        "card",
        &[
            "- edge board_id to board, held",
            "+ edge board_id to board, not held",
        ],
    ),
    (
        "alter table card disable trigger all",
        "card",
        &["+ edge board_id to board, not held"],
    ),
    (
        "alter table pin_1 disable trigger all",
        "pin",
        &["+ edge board_id to board, not held"],
    ),
    (
        "alter table thing set unlogged",
        "thing",
        &["+ kind Ordinary, unlogged true"],
    ),
];

/// Guards promise 1: a change that the log may never tell of shows in the fingerprint, line by
/// line, though no row changes afterwards.
#[tokio::test]
async fn a_changed_schema_shows_what_changed_without_a_change_of_rows() {
    let it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
    it.on_source("set search_path = pg_catalog").await;
    let before = fingerprint(&it).await;
    // It is noted when the copy begins and read back to be compared.
    let noted = serde_json::to_value(&before).unwrap();
    assert_eq!(
        serde_json::from_value::<Fingerprint>(noted).unwrap(),
        before
    );
    // One that an earlier version noted says nothing of edges, and is no change.
    let mut noted = serde_json::to_value(&before).unwrap();
    for text in noted.as_object_mut().unwrap().values_mut() {
        let lines = text.as_str().unwrap().lines();
        let kept: Vec<&str> = lines.filter(|line| !line.starts_with("edge ")).collect();
        *text = kept.join("\n").into();
    }
    let earlier: Fingerprint = serde_json::from_value(noted).unwrap();
    assert_ne!(earlier, before);
    assert_eq!(Fingerprint::changes(&earlier, &before), []);
    for (sql, table, lines) in CHANGES {
        it.on_source("begin; set local search_path = public").await;
        it.on_source(sql).await;
        it.on_source("set local search_path = pg_catalog").await;
        let after = fingerprint(&it).await;
        it.on_source("rollback").await;
        assert_eq!(before.digest(), fingerprint(&it).await.digest());
        assert_ne!(before.digest(), after.digest(), "{sql}");
        let changes = Fingerprint::changes(&before, &after);
        assert!(
            changes.iter().all(|(of, _)| of.as_str() == *table),
            "{changes:#?}"
        );
        for line in *lines {
            let shown = changes.iter().any(|(_, change)| change.starts_with(line));
            assert!(shown, "{sql}: {line} in {changes:#?}");
        }
    }
}

/// Guards promise 1: with the next change of the table the log tells, and no row is written by a
/// shape that is no longer the source's.
#[tokio::test]
async fn the_next_change_of_a_changed_table_ends_the_move_before_a_wrong_row_lands() {
    for (change, row, table) in [
        (
            "alter table thing add more text default 'x'",
            "insert into thing (id, organization_id) values (77, 1)",
            "thing",
        ),
        (
            "alter table thing drop extra",
            "update thing set name = 'new'",
            "thing",
        ),
        (
            "alter table thing rename extra to other",
            "update thing set name = 'new'",
            "thing",
        ),
        (
            "alter table thing rename to things",
            "update things set name = 'new'",
            "things",
        ),
        // The same type, and a value that would be cut short or rounded by the old one.
        (
            "alter table thing alter name type varchar(50)",
            "update thing set name = 'longer than before'",
            "thing",
        ),
        (
            "alter table thing alter price type numeric(9,4)",
            "update thing set price = 1.2345",
            "thing",
        ),
        (
            "alter table thing alter small type bigint",
            "update thing set small = 70",
            "thing",
        ),
        (
            "alter table thing replica identity full",
            "update thing set name = 'new'",
            "thing",
        ),
        (
            "create table entry_next partition of entry for values from ('2030-01-01') to (maxvalue)",
            "insert into entry values (1, '2031-01-01', 'new')",
            "entry_next",
        ),
    ] {
        let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
        let count = "select count(*), min(name), min(price), min(small) from thing \
                     where organization_id = 1";
        let before = it.sink.query_one(count, &[]).await.unwrap();
        let error = it.ends(&[change, row]).await;
        let StreamError::Fatal(finding) = &error else {
            panic!("{change}: {error:?}");
        };
        assert_eq!(finding.reason, Reason::SchemaChanged, "{change}");
        assert_eq!(
            finding.table.as_str(),
            if table == "things" { "thing" } else { table }
        );
        let after = it.sink.query_one(count, &[]).await.unwrap();
        assert_eq!(after.get::<_, i64>(0), before.get::<_, i64>(0));
        assert_eq!(after.get::<_, &str>(1), before.get::<_, &str>(1));
    }
}

/// A value that the sink's type does not know yet is refused by table, not bent.
#[tokio::test]
async fn a_label_that_the_sink_lacks_ends_the_move_by_table() {
    let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
    let error = it
        .ends(&[
            "alter type mood add value 'odd'",
            "update thing set mood = 'odd'",
        ])
        .await;
    assert!(matches!(&error, StreamError::Refused { table, .. } if table.as_str() == "thing"));
}

/// Guards promise 1: a sink whose types are no longer the source's is not written to: a cast to a
/// narrower type says nothing.
#[tokio::test]
async fn a_sink_of_other_types_is_refused_at_the_start() {
    let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
    run(&it.sink, "alter table thing alter name type varchar(4)").await;
    let mut mover = it.start();
    let Err(StreamError::Fatal(finding)) = it.settle(&mut mover).await else {
        panic!("the mover goes on");
    };
    assert_eq!(
        finding.detail.as_deref(),
        Some(
            "column name is character varying(4) on the sink and character varying(5) on the \
             source"
        )
    );
}
