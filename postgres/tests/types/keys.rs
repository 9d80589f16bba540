//! Keys of every kind: those that scope others, and those of leaves.

use monarch_harness::PgVersion;
use monarch_postgres::verify::Outcome;

use crate::world::{Case, Move};

const SCOPED: &str = "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  project:
    store: default
    primary_key: [id]
    static: true
    refs: {organization_id: {parent: organization}}
  group:
    store: default
    primary_key: [id]
    refs: {project_id: {parent: project}}
  event:
    store: default
    primary_key: [id]
    refs: {group_id: {parent: group}}
  note:
    store: default
    primary_key: [project_id, number]
    refs: {project_id: {parent: project}}
  member:
    store: default
    primary_key: [organization_id, name]
    refs: {organization_id: {parent: organization}}
";

/// `$KEY` is the type of every scoping key, `$EDGE` of every edge, `$ID` makes a key of a tenant's
/// number and one more.
const SCOPED_SCHEMA: &str = r#"
create function id(tenant bigint, n bigint) returns $KEY language sql immutable as $$ select $ID $$;
create table organization (id $KEY primary key);
create table project (id $KEY primary key, organization_id $EDGE references organization);
create table "group" (id $KEY primary key, project_id $EDGE references project, title text);
create table event (id bigint primary key,
  group_id $EDGE references "group" on delete cascade on update cascade deferrable, body text);
create table note (project_id $EDGE references project, number int, body text,
  primary key (project_id, number));
create table member (organization_id $EDGE references organization, name text,
  primary key (organization_id, name));
"#;

const SCOPED_ROWS: &str = r#"
insert into organization values (id($ORG, 0));
insert into project select id($ORG, n), id($ORG, 0) from generate_series(1, 3) n;
insert into "group" select id($ORG, 10 + n), id($ORG, 1 + n % 3), 'g' from generate_series(1, 6) n;
insert into event select $ORG * 1000 + n, id($ORG, 11 + n % 6), 'e' from generate_series(1, 30) n;
insert into note select id($ORG, 1 + n % 3), n, 'n' from generate_series(1, 9) n;
insert into member select id($ORG, 0), 'm' || n from generate_series(1, 3) n;
"#;

const SCOPED_OWNED: &[(&str, &str)] = &[
    ("organization", "id = id($ORG, 0)"),
    ("project", "organization_id = id($ORG, 0)"),
    (
        "\"group\"",
        "project_id in (select id from project where organization_id = id($ORG, 0))",
    ),
    (
        "event",
        "group_id in (select g.id from \"group\" g join project p on p.id = g.project_id
                       where p.organization_id = id($ORG, 0))",
    ),
    (
        "note",
        "project_id in (select id from project where organization_id = id($ORG, 0))",
    ),
    ("member", "organization_id = id($ORG, 0)"),
];

const SCOPED_CHANGES: &[&str] = &[
    r#"insert into "group" values (id(1, 30), id(1, 2), 'new'), (id(2, 30), id(2, 2), 'new');
       insert into event values (1100, id(1, 30), 'new'), (2100, id(2, 30), 'new')"#,
    r#"update "group" set title = title || '!';
       update event set body = body || '!' where id % 3 = 0"#,
    "update event set id = id + 500 where id in (1001, 2001)",
    // Leaves go to another organization and come from it.
    "update event set group_id = id(2, 12) where id = 1002;
     update event set group_id = id(1, 12) where id = 2002",
    "update note set project_id = id(2, 1), number = number + 50 where project_id = id(1, 1);
     update note set body = 'x' where number = 4; delete from note where number = 5",
    "insert into member values (id(1, 0), 'new'); delete from member where name = 'm2';
     update member set name = 'renamed' where name = 'm3'",
    r#"delete from "group" where id in (id(1, 14), id(2, 14));
       update "group" set id = id(1, 31) where id = id(1, 15);
       update event set group_id = null where id = 1004"#,
];

/// Guards promise 1 for every kind of key that may scope others: what the log prints, what a
/// predicate selects and what the membership holds mean the same rows.
#[tokio::test]
async fn scoping_keys_of_every_kind_move_their_subtrees() {
    let awkward = r#"format(E'%s/\u00fc\'"{,\\}%% %s', tenant, n)"#;
    let uuid =
        "format('00000000-0000-4000-8000-%s', lpad((tenant * 1000 + n)::text, 12, '0'))::uuid";
    let cases = [
        ("bigint", "integer", "-(tenant * 1000 + n)"),
        ("integer", "bigint", "(tenant * 1000 + n)::int"),
        ("smallint", "integer", "(tenant * 1000 + n)::smallint"),
        ("uuid", "uuid", uuid),
        ("text", "varchar(40)", awkward),
        ("varchar(30)", "text", awkward),
        ("number", "bigint", "(tenant * 1000 + n)::number"),
    ];
    let moves = cases.map(|(key, edge, id)| async move {
        let schema = SCOPED_SCHEMA
            .replace("$KEY", key)
            .replace("$EDGE", edge)
            .replace("$ID", id);
        let case = Case {
            manifest: SCOPED,
            schema: &format!("create domain number as bigint check (value <> 13); {schema}"),
            fill: SCOPED_ROWS,
            owned: SCOPED_OWNED,
            ..Case::EMPTY
        };
        let mut it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
        it.is_organization("id(1, 0)").await;
        let whole = it.whole(SCOPED_CHANGES).await;
        assert!(whole.comparison.is_equal(), "{key}: {:?}", whole.comparison);
        assert!(whole.evicted > 30, "{key}");
    });
    // One after the other: the servers are the test's only resource.
    for one in moves {
        one.await;
    }
}

/// Text keys may sort differently on the two sides, and differently from their edges.
#[tokio::test]
async fn text_keys_under_different_collations_are_the_same_keys() {
    let schema = SCOPED_SCHEMA
        .replace("$KEY", "text")
        .replace("$EDGE", "text")
        .replace("$ID", "format(E'%s/\u{e4}-%s', tenant, n)");
    // What is compared here is given a collation.
    let same = |text: &str| text.replace("_id in (", "_id collate \"C\" in (");
    let owned: Vec<(&str, String)> = SCOPED_OWNED
        .iter()
        .map(|(table, rows)| (*table, same(rows).replace("= g.", "collate \"C\" = g.")))
        .collect();
    let owned: Vec<(&str, &str)> = owned
        .iter()
        .map(|(table, rows)| (*table, &**rows))
        .collect();
    let case = Case {
        manifest: SCOPED,
        schema: &schema,
        source: r#"alter table "group" alter id type text collate "POSIX""#,
        sink: r#"alter table "group" alter id type text collate "und-x-icu";
            alter table event alter group_id type text collate "de-x-icu";
            alter table project alter id type text collate "ucs_basic";
            alter table note alter project_id type text collate "sv-x-icu""#,
        fill: SCOPED_ROWS,
        owned: &owned,
        ..Case::EMPTY
    };
    let mut it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
    it.is_organization("id(1, 0)").await;
    let whole = it.whole(SCOPED_CHANGES).await;
    assert!(whole.comparison.is_equal(), "{:?}", whole.comparison);
}

/// Parents above parents with text keys, each under a collation of its own: what hangs two levels below
/// a parent that leaves, enters, or gets another key is found by comparing columns, and not by luck.
#[tokio::test]
async fn text_keys_over_two_levels_are_the_same_keys() {
    let case = Case {
        manifest: "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  folder: {store: default, primary_key: [id], refs: {organization_id: {parent: organization}}}
  page: {store: default, primary_key: [id], refs: {folder_id: {parent: folder}}}
  line: {store: default, primary_key: [page_id, n], refs: {page_id: {parent: page}}}
",
        schema: "
create table organization (id text primary key);
create table folder (id text primary key, organization_id text);
create table page (id varchar(20) primary key, folder_id varchar(20), body text);
create table line (page_id text, n int, body text, primary key (page_id, n))",
        source: r#"alter table page alter id type varchar(20) collate "POSIX";
            alter table line alter page_id type text collate "ucs_basic""#,
        sink: r#"alter table folder alter id type text collate "und-x-icu";
            alter table page alter folder_id type varchar(20) collate "sv-x-icu",
              alter id type varchar(20) collate "de-x-icu";
            alter table line alter page_id type text collate "POSIX""#,
        fill:
            "insert into organization values ($ORG::text);
            insert into folder select $ORG || '/ä' || n, $ORG::text
              from generate_series(1, 5) n;
            insert into page select $ORG || '-' || n, $ORG || '/ä' || 1 + n % 5, 'p'
              from generate_series(1, 10) n;
            insert into line select $ORG || '-' || 1 + n % 10, n, 'l' from generate_series(1, 40) n",
        owned: &[
            ("organization", "id = '$ORG'"),
            ("folder", "organization_id = '$ORG'"),
            (
                "page",
                "folder_id collate \"C\" in (select id from folder where organization_id = '$ORG')",
            ),
            (
                "line",
                "page_id collate \"C\" in (select p.id from page p join folder f
                   on f.id collate \"C\" = p.folder_id where f.organization_id = '$ORG')",
            ),
        ],
        ..Case::EMPTY
    };
    let mut it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
    let whole = it
        .whole(&[
            "delete from folder where id = '1/ä1'",
            "update folder set organization_id = '2' where id = '1/ä2'",
            "update folder set organization_id = '1' where id = '2/ä3'",
            "update folder set id = '1/ä9' where id = '1/ä3';
             update page set folder_id = '1/ä9' where folder_id = '1/ä3' and id = '1-2'",
            "update page set folder_id = '2/ä1' where id = '1-3';
             update page set id = '1-x' where id = '1-7'",
        ])
        .await;
    assert!(whole.comparison.is_equal(), "{:?}", whole.comparison);
}

/// Guards promise 1: a key that may be written in two ways cannot scope, since the log, the
/// membership and the predicates would not agree on what it scopes; it is refused by name, before
/// anything is made.
#[tokio::test]
async fn a_scoping_key_that_may_be_written_in_two_ways_is_refused() {
    for (key, edge, id) in [
        ("citext", "citext", "format('T%s-%s', tenant, n)::citext"),
        ("char(8)", "char(8)", "format('%s-%s', tenant, n)"),
        ("numeric", "numeric", "tenant * 1000 + n"),
        ("anycase", "anycase", "format('%s-%s', tenant, n)"),
    ] {
        let schema = SCOPED_SCHEMA
            .replace("$KEY", key)
            .replace("$EDGE", edge)
            .replace("$ID", id);
        let case = Case {
            manifest: SCOPED,
            schema: &format!(
                "create extension citext;
                 create collation ci (provider = icu, locale = 'und-u-ks-level2',
                                      deterministic = false);
                 create domain anycase as text collate ci; {schema}"
            ),
            fill: SCOPED_ROWS,
            owned: SCOPED_OWNED,
            ..Case::EMPTY
        };
        let it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
        let report = it.preflight().await;
        let refused: Vec<String> = report
            .refusals()
            .filter(|finding| finding.code == "scoping-key-type")
            .map(|finding| finding.place.to_string())
            .collect();
        for column in ["organization.id", "project.id", "event.group_id"] {
            assert!(
                refused.iter().any(|place| place.ends_with(column)),
                "{key}: {column} in {refused:?}"
            );
        }
    }
}

/// An edge that was not chosen is compared by its own type's rules: another case of the same team is
/// the same team, and no disagreement.
#[tokio::test]
async fn an_edge_that_is_spelled_otherwise_does_not_disagree() {
    let case = Case {
        manifest: "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  team:
    store: default
    primary_key: [name]
    refs: {organization_id: {parent: organization}}
  doc:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}, team: {parent: team}}
",
        schema: "create extension citext;
            create table organization (id bigint primary key);
            create table team (name citext primary key, organization_id bigint);
            create table doc (id bigint primary key, organization_id bigint, team citext)",
        fill: "insert into organization values ($ORG);
            insert into team values ('Red' || $ORG, $ORG);
            insert into doc values ($ORG, $ORG, 'rED' || $ORG)",
        ..Case::EMPTY
    };
    let it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
    let disagrees = async || {
        let refusals = it.refusals().await;
        refusals.iter().any(|code| code == "edges-disagree")
    };
    assert!(!disagrees().await);
    it.on_source("update doc set team = 'RED2' where id = 1")
        .await;
    assert!(disagrees().await);
}

/// A type, two values of it, and what the first may also be written as.
const LEAF_KEYS: &[(&str, &str, &str, &str)] = &[
    ("citext", "'Abc'", "'x'", "'aBC'"),
    ("char(4)", "'a'", "'b c'", "'a  '"),
    ("numeric", "1.0", "'-2.50'", "1.000"),
    ("numeric(6,2)", "1", "'-2.5'", "1"),
    ("double precision", "0.1", "'NaN'", "0.1"),
    (
        "timestamptz",
        "'2024-01-01 00:00+00'",
        "'infinity'",
        "'2024-01-01 01:00+01'",
    ),
    ("interval", "'1 day'", "'-1 mon'", "'24:00'"),
    ("bytea", r"'\x5c00'", "''", r"'\x5c00'"),
    ("hstore", "'a=>1,b=>NULL'", "''", "'b=>NULL, a=>1'"),
    ("mood", "'sad'", "'ok'", "'sad'"),
    ("int4range", "'[1,3)'", "'empty'", "'[1,2]'"),
    ("text[]", "array['a', null]", "'{}'", "array['a', null]"),
    ("bit(3)", "'101'", "'000'", "'101'"),
    ("inet", "'10.0.0.1'", "'::1/64'", "'10.0.0.1/32'"),
    ("jsonb", r#"'{"a": 1.0}'"#, "'[]'", r#"'{"a": 1}'"#),
    ("text collate ci", "'abc'", "'x'", "'ABC'"),
    ("age", "7", "8", "7"),
    ("pair", "row(1, 'a')", "row(null, 'b')", "row(1, 'a')"),
    (
        "uuid",
        "'8e0b7b4e-2f38-4d9c-a6a5-0e9a0c6d2f11'",
        "'00000000-0000-0000-0000-000000000000'",
        "'8E0B7B4E-2F38-4D9C-A6A5-0E9A0C6D2F11'",
    ),
    ("\"char\"", "'q'", "''", "'q'"),
    ("boolean", "true", "false", "'yes'"),
    ("money", "'1.5'", "'-2'", "'1.50'"),
];

/// What is the same for every type of key, once for each.
fn each_leaf(text: &str) -> String {
    let one = |(n, (of, first, second, again)): (usize, &(&str, &str, &str, &str))| {
        let plain = of.split(" collate").next().unwrap();
        text.replace("$LEAF", &format!("leaf_{n:02}"))
            .replace("$TYPE", of)
            .replace("$FIRST", &format!("{first}::{plain}"))
            .replace("$SECOND", &format!("{second}::{plain}"))
            .replace("$AGAIN", &format!("{again}::{plain}"))
    };
    LEAF_KEYS.iter().enumerate().map(one).collect()
}

/// Guards promise 1 for the keys by which rows are written: every type that an index can hold
/// finds its row again, as a half of a composite key, when it changes and when it is spelled in
/// another way.
#[tokio::test]
async fn leaf_keys_of_every_type_find_their_rows() {
    let manifest = format!(
        "root: organization
stores: {{default: {{type: postgres}}}}
relationships:
  organization: {{store: default, primary_key: [id]}}
{}",
        each_leaf(
            "  $LEAF:
    store: default
    primary_key: [a, b]
    refs: {organization_id: {parent: organization}}
"
        )
    );
    let schema = format!(
        "create extension citext; create extension hstore;
         create type mood as enum ('sad', 'ok');
         create domain age as int; create type pair as (x int, y text);
         create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         create table organization (id bigint primary key);
         {}",
        each_leaf(
            "create table $LEAF (a $TYPE, b int, organization_id bigint, body text,
               primary key (a, b));"
        )
    );
    let fill = format!(
        "insert into organization values ($ORG); {}",
        each_leaf(
            "insert into $LEAF values ($FIRST, $ORG * 10 + 1, $ORG, 'one'),
               ($SECOND, $ORG * 10 + 2, $ORG, 'two'), ($SECOND, $ORG * 10 + 3, $ORG, 'three');"
        )
    );
    let names: Vec<String> = (0..LEAF_KEYS.len())
        .map(|n| format!("leaf_{n:02}"))
        .collect();
    let mut owned = vec![("organization", "id = $ORG")];
    owned.extend(
        names
            .iter()
            .map(|name| (name.as_str(), "organization_id = $ORG")),
    );
    let case = Case {
        manifest: &manifest,
        schema: &schema,
        fill: &fill,
        owned: &owned,
        ..Case::EMPTY
    };
    let mut it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
    let whole = it
        .whole(&[&each_leaf(
            "insert into $LEAF values ($FIRST, 14, 1, 'four');
             update $LEAF set a = $AGAIN, body = 'again' where b = 11;
             update $LEAF set body = body || '!';
             update $LEAF set a = $FIRST where b = 13;
             update $LEAF set b = b + 100 where b in (12, 22);
             update $LEAF set organization_id = 3 - organization_id where b in (13, 23);
             delete from $LEAF where b in (14, 21, 112);",
        )])
        .await;
    assert!(whole.comparison.is_equal(), "{:?}", whole.comparison);
    for name in &names {
        let rows = &whole.comparison.0[&name.parse().unwrap()];
        assert_eq!(*rows, Outcome::Equal { rows: 2 }, "{name}");
    }
}
