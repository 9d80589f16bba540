//! Values of every type, copied and streamed, whatever the defaults of the two databases.

use monarch_harness::PgVersion;

use crate::world::{Case, Move};

const MANIFEST: &str = "
root: organization
stores: {default: {type: postgres}}
relationships:
  organization: {store: default, primary_key: [id]}
  thing:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}}
";

const TYPES: &str = r#"
create extension hstore;
create extension citext;
create type mood as enum ('sad', 'ok', 'it''s "fine"');
create domain age as integer check (value >= 0);
create domain ages as integer[] check (array_length(value, 1) < 10);
create type point3 as (x numeric(10,3), label text, inner_mood mood);
create type span as range (subtype = numeric(12,2));
create table organization (id bigint primary key);
"#;

/// Two rows a tenant beside one of nulls: what is awkward in each type.
const THINGS: &[(&str, &str, &str)] = &[
    ("char(5)", "'ab'", "'x  y'"),
    ("varchar(7)", "'ü''\\n'", "''"),
    ("\"char\"", "'q'", "'\\'"),
    ("bpchar", "'pad  '", "'  '"),
    ("name", "'a name'", "'Ñ'"),
    ("bit(5)", "'10101'", "'00000'"),
    ("bit varying(9)", "'1'", "''"),
    ("bit varying", "'101010101010'", "'0'"),
    ("numeric", "repeat('9', 200)::numeric + 0.5", "'NaN'"),
    ("numeric(205,3)", "repeat('7', 200)::numeric", "-0.125"),
    ("numeric(3,-2)", "12345", "-99900"),
    ("real", "'3.4028235e38'", "'-0'"),
    ("double precision", "0.1 + 0.2", "'-Infinity'"),
    ("smallint", "-32768", "32767"),
    ("money", "1234567.89", "-0.01"),
    ("bytea", "'\\x00ff5c0a0927'", "'\\x'"),
    ("json", "'{\"b\":  1, \"a\":2, \"a\": \"\\u00e9\"}'", "'[]'"),
    (
        "jsonb",
        "'{\"q\": \"it''s \\\"x\\\" \\\\ \\t\", \"n\": 1e400}'",
        "'null'",
    ),
    (
        "text[]",
        "array['a', null, 'NULL', '', 'b\"c', 'd\\e', '{f,g}', E'h\\ni']",
        "'{}'",
    ),
    ("integer[]", "'[0:1][2:3]={{1,null},{3,4}}'", "'{}'"),
    (
        "varchar(3)[]",
        "array['abc', 'ü\"']",
        "array[null]::varchar[]",
    ),
    ("int4range", "'[1,10)'", "'empty'"),
    (
        "tstzrange",
        "'[2024-01-01 00:00:00.123456+14,infinity]'",
        "'(,)'",
    ),
    ("nummultirange", "'{[1.50,2.5),(7,)}'", "'{}'"),
    ("span", "'(1.10,2.2]'", "'[,3)'"),
    (
        "interval",
        "'-1 year 2 mons -3 days 04:05:06.789'",
        "'178000000 years'",
    ),
    (
        "interval day to second(2)",
        "'1 day 02:03:04.567'",
        "'-00:00:00.01'",
    ),
    ("interval year to month", "'1-2'", "'-3 mons'"),
    ("timestamptz", "'infinity'", "'4713-01-01 00:00:00+00 BC'"),
    (
        "timestamptz(3)",
        "'2024-03-31 02:30:00.1239+01'",
        "'-infinity'",
    ),
    (
        "timestamp",
        "'294276-12-31 23:59:59.999999'",
        "'2024-02-03 04:05:06'",
    ),
    ("date", "'2024-02-03'", "'infinity'"),
    ("time(1)", "'24:00:00'", "'01:02:03.44'"),
    ("timetz", "'23:59:60+15:59'", "'00:00:00-02'"),
    (
        "hstore",
        "'\"a\\\"b\"=>\"c=>d\", n=>NULL, \"\"=>\"\\\\\"'",
        "''",
    ),
    ("citext", "'MiXeD'", "''"),
    ("mood", "'it''s \"fine\"'", "'sad'"),
    (
        "mood[]",
        "array['sad', null, 'it''s \"fine\"']::mood[]",
        "'{}'",
    ),
    ("age", "7", "0"),
    ("ages", "array[1, null, 3]", "'{}'"),
    (
        "point3",
        "row(1.5, 'a,\"b\\ ', 'ok')",
        "row(null, '', null)",
    ),
    (
        "point3[]",
        "array[row(1, '(', 'sad')::point3, null]",
        "'{}'",
    ),
    (
        "tsvector",
        "'''it''''s'':3A fat:2,4 ''a b'''::tsvector",
        "''",
    ),
    ("tsquery", "'''a b'' & !c:*B'::tsquery", "''"),
    ("xml", "'<a b=\"c\">&lt;\u{1F600}</a>'", "'two <b/> parts'"),
    ("inet", "'192.168.1.5/24'", "'::1'"),
    ("cidr", "'10.0.0.0/8'", "'2001:db8::/32'"),
    ("macaddr8", "'08:00:2b:01:02:03:04:05'", "null"),
    ("uuid", "'8E0B7B4E-2F38-4D9C-A6A5-0E9A0C6D2F11'", "null"),
    ("point", "'(0.1,-1e300)'", "'(NaN,Infinity)'"),
    ("polygon", "'((0,0),(1,1.5),(2,0))'", "null"),
    ("pg_lsn", "'16/B374D848'", "'0/0'"),
    ("boolean", "true", "false"),
    (
        "text",
        "E'tab\\there\\n\\\\.\\nand \\\\N \\\\ end'",
        "'\u{1F9D1}\u{200D}\u{1F680} \u{202E}abc'",
    ),
    ("text", "E'\\\\.'", "E'\\r\\n\\\\.\\r\\n'"),
    ("text", "repeat('ü\\', 6000)", "''"),
];

fn schema() -> String {
    let columns: Vec<String> = THINGS
        .iter()
        .enumerate()
        .map(|(n, (of, ..))| format!("c{n:02} {of}"))
        .collect();
    format!(
        "{TYPES} create table thing (
           id bigint primary key, organization_id bigint references organization, {},
           lower_text text generated always as (lower(c01::text)) stored);
         alter table thing alter c53 set storage external, alter c55 set storage external",
        columns.join(", ")
    )
}

fn row(id: &str, pick: fn(&(&'static str, &'static str, &'static str)) -> &'static str) -> String {
    let values: Vec<String> = THINGS
        .iter()
        .map(|thing| match pick(thing) {
            "null" => "null".to_owned(),
            value => format!("({value})::{}", thing.0),
        })
        .collect();
    format!(
        "insert into thing values ({id}, $ORG, {});",
        values.join(", ")
    )
}

fn first(thing: &(&'static str, &'static str, &'static str)) -> &'static str {
    thing.1
}

fn second(thing: &(&'static str, &'static str, &'static str)) -> &'static str {
    thing.2
}

fn nothing(_: &(&'static str, &'static str, &'static str)) -> &'static str {
    "null"
}

fn fill() -> String {
    format!(
        "insert into organization values ($ORG); {}{}{}",
        row("$ORG * 100 + 1", first),
        row("$ORG * 100 + 2", second),
        row("$ORG * 100 + 3", nothing)
    )
}

/// Swaps the values of every column between the rows, by one update a column.
fn each_column_changes() -> String {
    let update = |(n, (of, a, b)): (usize, &(&str, &str, &str))| {
        let cast = |value: &str| match value {
            "null" => "null".to_owned(),
            value => format!("({value})::{of}"),
        };
        format!(
            "update thing set c{n:02} = {} where id = 101;
             update thing set c{n:02} = {} where id = 103;",
            cast(b),
            cast(a)
        )
    };
    THINGS.iter().enumerate().map(update).collect()
}

/// Guards promise 1, value by value: nothing stands between what the source prints and what the
/// sink reads, and neither depends on anybody's defaults.
#[tokio::test]
async fn values_of_every_type_arrive_as_they_were() {
    let (schema, fill) = (schema(), fill());
    let case = Case {
        manifest: MANIFEST,
        schema: &schema,
        source: "alter database $DB set datestyle = 'German, DMY';
            alter database $DB set intervalstyle = 'sql_standard';
            alter database $DB set extra_float_digits = -10;
            alter database $DB set bytea_output = 'escape';
            alter database $DB set timezone = 'Asia/Kathmandu';
            alter database $DB set xmloption = 'document';
            alter database $DB set lc_monetary = 'C.utf8';
            alter database $DB set quote_all_identifiers = on;
            alter database $DB set client_encoding = 'LATIN1'",
        sink: "alter database $DB set datestyle = 'SQL, MDY';
            alter database $DB set intervalstyle = 'iso_8601';
            alter database $DB set extra_float_digits = 0;
            alter database $DB set timezone = 'America/St_Johns';
            alter database $DB set array_nulls = off;
            alter database $DB set standard_conforming_strings = off;
            alter database $DB set lc_monetary = 'POSIX'",
        fill: &fill,
        owned: &[
            ("organization", "id = $ORG"),
            ("thing", "organization_id = $ORG"),
        ],
        ..Case::EMPTY
    };
    let mut it = Move::prepare(&case, PgVersion::V16, PgVersion::V15).await;
    let inserted =
        row("110", first).replace("$ORG", "1") + &row("111", second).replace("$ORG", "1");
    let whole = it
        .whole(&[
            &inserted,
            &each_column_changes(),
            "update thing set id = id + 1000 where id = 110",
            "update thing set id = id + 1000, c00 = 'both' where id in (102, 111)",
        ])
        .await;
    assert!(whole.comparison.is_equal(), "{:?}", whole.comparison);
}
