//! What a server quotes stays where it was met: no row value in an error, in its `Debug`, or in a
//! log of any level.

use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::{Mutex, Once};

use monarch_harness::PgVersion;
use monarch_model::chain;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::world::{Case, Move, run};

/// Stands in every column of every table that can hold it.
const SECRET: &str = "s3cr3t-Vv8";
/// The same for numbers.
const NUMBER: &str = "80414243";

/// All that this binary logs, at every level, the driver's lines among them.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        Log
    }
}

fn record_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(Log)
            .finish()
            .init();
    });
}

fn assert_silent(what: &str, text: &str) {
    for secret in [SECRET, NUMBER] {
        if let Some(at) = text.find(secret) {
            let mut from = at.saturating_sub(400);
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            panic!("{what} tells a value: {}", &text[from..at + secret.len()]);
        }
    }
}

/// Says in every way what an error says.
fn assert_tells_nothing<E: std::error::Error + Debug + 'static>(error: &E) {
    for told in [
        chain(error),
        format!("{error}"),
        format!("{error:?}"),
        format!("{error:#?}"),
    ] {
        assert_silent("an error", &told);
    }
}

const CASE: Case<'static> = Case {
    manifest: "
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
  thing:
    store: default
    primary_key: [id]
    refs: {group_id: {parent: group}}
",
    schema: r#"
create table organization (id bigint primary key, name text);
create table project (id text primary key, organization_id bigint, name text);
create table "group" (id text primary key, project_id text, name text);
create domain short as text;
create table thing (id text primary key, group_id text, name text, mood short, number bigint)"#,
    source: "create type label as enum ('s3cr3t-Vv8', 'ok'); alter table thing add label label",
    sink: "create type label as enum ('s3cr3t-Vv8', 'ok'); alter table thing add label label",
    fill: r#"
insert into organization values ($ORG, 's3cr3t-Vv8');
insert into project select 's3cr3t-Vv8/' || $ORG || n, $ORG, 's3cr3t-Vv8' from generate_series(1, 3) n;
insert into "group" select 's3cr3t-Vv8/' || $ORG || n, 's3cr3t-Vv8/' || $ORG || n, 's3cr3t-Vv8'
  from generate_series(1, 3) n;
insert into thing select 's3cr3t-Vv8/' || $ORG || n, 's3cr3t-Vv8/' || $ORG || n,
    's3cr3t-Vv8' || $ORG || n, 's3cr3t-Vv8', 80414243, 'ok'
  from generate_series(1, 3) n"#,
    owned: &[
        ("organization", "id = $ORG"),
        ("project", "organization_id = $ORG"),
        ("\"group\"", "id like '%/$ORG_'"),
        ("thing", "group_id like '%/$ORG_'"),
    ],
    ..Case::EMPTY
};

/// What makes the sink refuse the row that comes, by quoting it.
const REFUSALS: &[(&str, &str)] = &[
    (
        "unique",
        "create unique index on thing (name);
         update thing set name = 's3cr3t-Vv8-new' where id like '%/91'",
    ),
    (
        "check",
        "alter table thing add check (name <> 's3cr3t-Vv8-new')",
    ),
    (
        "not null",
        "delete from thing; alter table thing add extra int not null",
    ),
    (
        "domain",
        "alter domain short add check (length(value) < 14)",
    ),
    (
        "enum",
        "alter type label rename value 's3cr3t-Vv8' to 'other'",
    ),
    (
        "exclusion",
        "create extension btree_gist;
         update thing set name = 's3cr3t-Vv8-new' where id like '%/91';
         alter table thing add exclude using gist (name with =)",
    ),
    (
        "trigger",
        "create function refuse() returns trigger language plpgsql as
           'begin raise exception ''%'', new using detail = new.name, hint = new.name; end';
         create trigger t before insert on thing for each row execute function refuse();
         alter table thing enable always trigger t",
    ),
    (
        "key taken",
        "insert into thing (id) values ('s3cr3t-Vv8/new')",
    ),
    (
        "function",
        "create function fail(text) returns text language plpgsql immutable as
           'begin return $1::int; end';
         create index on thing (fail(nullif(mood, 's3cr3t-Vv8')))",
    ),
];

const NEW: &str = "insert into thing values ('s3cr3t-Vv8/new', 's3cr3t-Vv8/11', 's3cr3t-Vv8-new',
    's3cr3t-Vv8-mood', 80414243, 's3cr3t-Vv8')";

/// Guards promise 10: of what a server refuses only names and codes go on, whatever it quotes, from
/// the stream and from the copy.
#[tokio::test]
async fn what_the_sink_quotes_is_told_nowhere() {
    record_logs();
    for (name, sql) in REFUSALS {
        let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
        run(&it.sink, sql).await;
        let error = it.ends(&[NEW]).await;
        assert_tells_nothing(&error);
        assert!(!error.is_transient(), "{name}: {error:?}");
    }
    // A copy's refusals come with the line and the column's value.
    for (name, sql) in &REFUSALS[..5] {
        let mut it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
        run(&it.source, NEW).await;
        run(&it.sink, sql).await;
        assert_tells_nothing(&it.copy().await.expect_err(name));
    }
    assert_logs_are_silent();
}

/// Guards promise 10 on the source's side and in what only looks: preflight, the spine, scopes,
/// publications, comparison, eviction.
#[tokio::test]
async fn what_is_looked_at_is_told_nowhere() {
    record_logs();
    // Keys, unique values, edges, references and the organization itself clash with the sink's.
    let it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
    run(
        &it.sink,
        "create unique index on thing (name);
         update thing set name = 's3cr3t-Vv811' where id like '%/91';
         update thing set id = 's3cr3t-Vv8/12' where id like '%/92';
         create table mood (name text primary key); insert into mood values ('x');
         alter table thing add foreign key (mood) references mood not valid",
    )
    .await;
    let report = it.preflight().await;
    assert!(report.refusals().count() >= 3, "{:#?}", report.findings);
    for finding in &report.findings {
        assert_silent("a finding", &finding.to_string());
        assert_silent("a finding", &format!("{finding:?}"));
    }
    let mut it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
    it.is_organization("'s3cr3t-Vv8'").await;
    for finding in it.preflight().await.findings {
        assert_silent("a finding", &finding.to_string());
    }

    // A whole move, its jobs and what they come to.
    let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
    assert_silent("a job", &format!("{:?}", it.job));
    it.follows(&[
        NEW,
        "update thing set name = 's3cr3t-Vv8-again'; delete from thing where id like '%new'",
    ])
    .await;
    assert_silent("a comparison", &format!("{:?}", it.compare().await));
    run(
        &it.source,
        "create table left_behind (thing_id text references thing);
         insert into left_behind values ('s3cr3t-Vv8/11')",
    )
    .await;
    assert_tells_nothing(&it.try_evict().await.unwrap_err());
    run(&it.source, "drop table left_behind").await;
    it.evict().await;

    // What ends a stream by name.
    for sql in [
        &["insert into project values ('s3cr3t-Vv8/new', 1, 's3cr3t-Vv8')"][..],
        // What is fetched has a key that another tenant of the sink has.
        &[
            "insert into thing values ('s3cr3t-Vv8/91', 's3cr3t-Vv8/21')",
            r#"update "group" set project_id = 's3cr3t-Vv8/11' where id = 's3cr3t-Vv8/21'"#,
        ],
        &[
            "insert into thing values ('s3cr3t-Vv8/92', 's3cr3t-Vv8/y')",
            r#"insert into "group" values ('s3cr3t-Vv8/y', 's3cr3t-Vv8/11')"#,
        ],
        &["truncate thing"],
        &[
            "alter table thing alter number type text",
            "update thing set name = 's3cr3t-Vv8'",
        ],
    ] {
        let it = Move::begin(&CASE, PgVersion::V15, PgVersion::V14).await;
        assert_tells_nothing(&it.ends(sql).await);
    }
    assert_logs_are_silent();
}

fn assert_logs_are_silent() {
    let log = LOG.lock().unwrap().clone();
    let log = String::from_utf8_lossy(&log);
    assert!(!log.is_empty(), "nothing was recorded");
    assert_silent("a log", &log);
}
