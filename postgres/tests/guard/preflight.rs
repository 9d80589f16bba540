//! Each finding is shown by making its condition; that it is not there otherwise is shown by
//! [`a_clean_pair_of_cells_has_no_findings`].

use std::time::Duration;

use monarch_config::{Fleet, Graph, fleet_from_str, manifest_from_str};
use monarch_harness::{
    Cluster, ClusterOptions, PASSWORD, PgVersion, Standby, TransactionPooler, fresh_name,
};
use monarch_postgres::preflight::{self, Finding, Job, Limits, Report, Severity};

use crate::cells::{Cell, MANIFEST, SCHEMA, fill, graph, org, table};

/// A source with organization 1, and a sink with organization 2.
pub(crate) async fn pair() -> (Cell<'static>, Cell<'static>) {
    let source = Cell::new(PgVersion::V16).await;
    let sink = Cell::new(PgVersion::V14).await;
    source.run(&fill(1, 3, 10)).await;
    sink.run(&fill(2, 3, 10)).await;
    (source, sink)
}

fn fleet(source: &str, standby: Option<&str>, sink: &str, graph: &Graph) -> Fleet {
    let standby = standby.map_or(String::new(), |dsn| format!("        standby_dsn: {dsn}\n"));
    let text = format!(
        "cells:
  from:
    databases:
      - primary_dsn: {source}
{standby}        stores: [default]
  to:
    databases:
      - primary_dsn: {sink}
        stores: [default]
ledger:
  dsn: {sink}
"
    );
    fleet_from_str("fleet.yaml", &text, graph, &|_| None).unwrap()
}

async fn check_fleet(graph: &Graph, fleet: &Fleet, org_id: &str, limits: Limits) -> Report {
    let (from, to) = ("from".parse().unwrap(), "to".parse().unwrap());
    let org = org_id.parse().unwrap();
    let job = Job {
        graph,
        fleet,
        from: &from,
        to: &to,
        org: &org,
        accept_disagreeing_edges: &[],
        limits,
    };
    preflight::check(&job).await
}

pub(crate) async fn check_dsns(source: &str, sink: &str) -> Report {
    let graph = graph();
    let fleet = fleet(source, None, sink, &graph);
    check_fleet(&graph, &fleet, "1", Limits::default()).await
}

pub(crate) fn codes(report: &Report) -> Vec<&str> {
    report
        .findings
        .iter()
        .map(|finding| &*finding.code)
        .collect()
}

pub(crate) fn found<'r>(report: &'r Report, code: &str) -> &'r Finding {
    let finding = report.findings.iter().find(|finding| finding.code == code);
    finding.unwrap_or_else(|| panic!("no {code} in {:#?}", report.findings))
}

/// Where a condition is made.
#[derive(Clone, Copy)]
enum On {
    Source,
    Sink,
}

/// Makes each condition in a pair of its own, and expects its finding, at that weight, with a way
/// to mend it unless it is only good to know.
async fn each_shows(cases: &[(On, &str, &str, Severity)]) {
    for (on, sql, code, severity) in cases {
        let (source, sink) = pair().await;
        match on {
            On::Source => source.run(sql).await,
            On::Sink => sink.run(sql).await,
        }
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        let finding = found(&report, code);
        assert_eq!(finding.severity, *severity, "{code}");
        assert_eq!(report.refuses(), report.refusals().count() > 0);
        for finding in &report.findings {
            assert!(!finding.to_string().contains(PASSWORD), "{finding}");
        }
    }
}

#[tokio::test]
async fn a_clean_pair_of_cells_has_no_findings() {
    let (source, sink) = pair().await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(report.findings, []);
}

/// Guards promise 1: what would lose rows, or mistake one for another, is refused by table.
#[tokio::test]
async fn the_shape_of_a_table_is_looked_at_on_both_sides() {
    use On::{Sink, Source};
    use Severity::{Info, Refuse, Warn};
    each_shows(&[
        (Source, "drop table tag", "table-missing", Refuse),
        (Sink, "drop table tag", "table-missing", Refuse),
        (
            Sink,
            "alter table tag rename to tags; create view tag as select * from tags",
            "not-a-table",
            Refuse,
        ),
        (
            Source,
            "alter table event add extra int",
            "column-missing",
            Refuse,
        ),
        (
            Sink,
            "alter table event add extra int",
            "column-only-on-sink",
            Info,
        ),
        (
            Sink,
            "alter table event add extra int not null default 1",
            "column-only-on-sink",
            Info,
        ),
        (
            Sink,
            "alter table event add extra int not null default 1;
            alter table event alter extra drop default",
            "column-only-on-sink",
            Refuse,
        ),
        (
            Sink,
            "alter table event alter body type varchar(20)",
            "column-type-differs",
            Refuse,
        ),
        (
            Sink,
            "alter table event alter body set not null",
            "column-not-null",
            Warn,
        ),
        (
            Sink,
            "alter table event drop body; alter table event add body text
            generated always as ('x') stored",
            "column-generated-differs",
            Refuse,
        ),
        (
            Source,
            "alter table event add twice bigint generated always as (id * 2) stored",
            "generated-column",
            Info,
        ),
        (Source, "alter table tag set unlogged", "unlogged", Refuse),
    ])
    .await;
}

/// Guards promises 1 and 9: changes are written by key, and a publication must not break the
/// production's own writes.
#[tokio::test]
async fn keys_and_replica_identities_are_looked_at() {
    use On::{Sink, Source};
    use Severity::Refuse;
    each_shows(&[
        (
            Sink,
            "alter table tag drop constraint tag_pkey",
            "key-not-unique",
            Refuse,
        ),
        (
            Sink,
            "alter table tag drop constraint tag_pkey;
            create unique index on tag (event_id, key) where value <> ''",
            "key-not-unique",
            Refuse,
        ),
        (
            Sink,
            "alter table tag drop constraint tag_pkey;
            alter table tag add primary key (event_id, key) deferrable",
            "key-not-unique",
            Refuse,
        ),
        (
            Sink,
            "alter table tag drop constraint tag_pkey;
            alter table tag alter key drop not null; create unique index on tag (event_id, key)",
            "key-not-unique",
            Refuse,
        ),
        (
            Source,
            "alter table tag replica identity nothing",
            "replica-identity-missing",
            Refuse,
        ),
        (
            Source,
            "alter table tag drop constraint tag_pkey;
            create unique index on tag (event_id, key)",
            "replica-identity-missing",
            Refuse,
        ),
        (
            Source,
            "alter table tag add number int not null default 0;
            create sequence s; update tag set number = nextval('s');
            create unique index by_number on tag (number);
            alter table tag replica identity using index by_number",
            "replica-identity-lacks-key",
            Refuse,
        ),
    ])
    .await;
}

/// Guards promise 1: what the mover cannot treat rightly never becomes a failure in mid-stream.
#[tokio::test]
async fn what_cannot_be_moved_rightly_is_refused_by_name() {
    use On::{Sink, Source};
    use Severity::Refuse;
    let child = "create table odd () inherits (event)";
    each_shows(&[
        (Source, child, "inheriting-table", Refuse),
        (Sink, child, "inheriting-table", Refuse),
        (
            Source,
            "alter table tag drop constraint tag_pkey; alter table tag drop key;
            alter table tag add key text not null generated always as (lower(value)) stored;
            alter table tag add primary key (event_id, key)",
            "key-generated",
            Refuse,
        ),
        (
            Source,
            "create type state as enum ('on', 'off'); alter table event add state state",
            "column-missing",
            Refuse,
        ),
        (
            Sink,
            "alter table release alter id set generated always",
            "column-identity-differs",
            Refuse,
        ),
        (
            Source,
            "alter table \"group\" drop constraint group_project_id_fkey;
            alter table \"group\" alter project_id type text",
            "edge-type-differs",
            Refuse,
        ),
    ])
    .await;
}

/// Guards promise 1: a type of one name is not always the same type.
#[tokio::test]
async fn types_of_one_name_are_compared() {
    let (source, sink) = pair().await;
    let make = |labels: &str, check: &str, attributes: &str| {
        format!(
            "create type state as enum ({labels});
             create domain small as int check ({check});
             create type pair as ({attributes});
             alter table event add state state[], add small small, add pair pair"
        )
    };
    source
        .run(&make("'on', 'off'", "value < 10", "a int, b text"))
        .await;
    sink.run(&make("'on', 'dim'", "value < 9", "a int, b varchar(3)"))
        .await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(
        codes(&report),
        ["enum-label-missing", "type-differs", "type-differs"]
    );
    let mend = found(&report, "enum-label-missing").mend.clone().unwrap();
    assert_eq!(mend, "alter type public.state add value 'off'");
    sink.run(&mend).await;
    // A label more on the sink does no harm.
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["type-differs", "type-differs"]);
}

/// Another index that fits is as good as the primary key.
#[tokio::test]
async fn a_unique_index_serves_as_key_and_as_replica_identity() {
    let (source, sink) = pair().await;
    for cell in [&source, &sink] {
        cell.run(
            "alter table tag drop constraint tag_pkey;
             alter table tag alter key set not null, alter event_id set not null;
             create unique index by_key on tag (key, event_id);
             alter table tag replica identity using index by_key",
        )
        .await;
    }
    assert_eq!(check_dsns(&source.dsn, &sink.dsn).await.findings, []);
}

/// Guards promises 7 and 8: eviction must not reach out of the graph, nor the copy need what is
/// outside of it.
#[tokio::test]
async fn foreign_keys_are_looked_at() {
    use On::{Sink, Source};
    use Severity::{Info, Refuse, Warn};
    each_shows(&[
        (
            Source,
            "create table audit (event_id bigint references event on delete cascade)",
            "cascade-leaves-graph",
            Refuse,
        ),
        (
            Source,
            "create table audit (event_id bigint references event on delete set null)",
            "reference-from-outside",
            Warn,
        ),
        (
            Source,
            "create table audit (event_id bigint references event)",
            "not-in-manifest",
            Warn,
        ),
        (
            Source,
            "alter table tag drop constraint tag_event_id_fkey",
            "edge-not-enforced",
            Info,
        ),
        (
            Source,
            "alter table tag alter constraint tag_event_id_fkey deferrable",
            "edge-not-enforced",
            Info,
        ),
        (
            Sink,
            "create table region (id bigint primary key); insert into region values (1);
            alter table project add region_id bigint default 1 references region",
            "reference-leaves-graph",
            Warn,
        ),
    ])
    .await;
}

/// Guards promises 1 and 8: what fires for a row that is moved or evicted writes what nobody asked for.
#[tokio::test]
async fn triggers_and_rules_are_looked_at() {
    use On::{Sink, Source};
    use Severity::{Refuse, Warn};
    let trigger = "create function nothing() returns trigger language plpgsql
        as 'begin return old; end'; create trigger told after delete on event
        for each row execute function nothing()";
    each_shows(&[
        (Source, trigger, "delete-trigger", Warn),
        (
            Sink,
            &format!("{trigger}; alter table event enable always trigger told"),
            "sink-trigger",
            Refuse,
        ),
        (
            Sink,
            &format!("{trigger}; alter table event enable replica trigger told"),
            "sink-trigger",
            Refuse,
        ),
        (
            Sink,
            "do $$ begin execute (select format('alter table event enable always trigger %I', tgname)
               from pg_trigger where tgrelid = 'event'::regclass and tgisinternal limit 1); end $$",
            "sink-trigger",
            Refuse,
        ),
        (
            Sink,
            "create rule quiet as on insert to event do instead nothing",
            "sink-rule",
            Refuse,
        ),
        (
            Source,
            "create rule kept as on delete to event do instead nothing",
            "delete-rule",
            Refuse,
        ),
    ])
    .await;
}

/// What was switched off does nothing, and is not told.
#[tokio::test]
async fn a_trigger_that_is_disabled_is_no_finding() {
    let (source, sink) = pair().await;
    for cell in [&source, &sink] {
        cell.run(
            "create function nothing() returns trigger language plpgsql
               as 'begin return old; end';
             create trigger told after delete on event
               for each row execute function nothing();
             alter table event disable trigger told",
        )
        .await;
    }
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(report.findings, []);
}

/// Guards promise 1: a partition's triggers and rules fire for rows of its table. They are told with the
/// partition, once, and what mends it does.
#[tokio::test]
async fn triggers_of_partitions_are_looked_at() {
    let (source, _) = pair().await;
    for version in [PgVersion::V14, PgVersion::V17] {
        let sink = Cell::new(version).await;
        sink.run(
            "drop table tag;
             create table tag (event_id bigint references event, key text, value text,
               primary key (event_id, key)) partition by hash (event_id);
             create table tag_0 partition of tag for values with (modulus 2, remainder 0);
             create table tag_1 partition of tag for values with (modulus 2, remainder 1);
             create function nothing() returns trigger language plpgsql as
               'begin return new; end';
             create trigger quiet after insert on tag for each row execute function nothing()",
        )
        .await;
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        assert_eq!(report.findings, []);
        for sql in [
            "alter table tag_1 enable always trigger quiet",
            "create trigger own after insert on tag_0 for each row execute function nothing();
             alter table tag_0 enable replica trigger own",
        ] {
            sink.run(sql).await;
            let report = check_dsns(&source.dsn, &sink.dsn).await;
            assert_eq!(codes(&report), ["sink-trigger"], "{sql}");
            let finding = found(&report, "sink-trigger");
            assert_eq!(finding.place.table, Some(table("tag")));
            assert!(finding.what.contains("public.tag_"), "{finding}");
            let mend = finding.mend.as_deref().unwrap();
            sink.run(mend.split(", for").next().unwrap()).await;
            let report = check_dsns(&source.dsn, &sink.dsn).await;
            assert_eq!(report.findings, []);
        }
        // What its partitions have from the table is the table's.
        sink.run("alter table tag enable always trigger quiet")
            .await;
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        assert_eq!(codes(&report), ["sink-trigger"]);
        sink.run("alter table tag enable trigger quiet").await;
        sink.run("create rule own as on update to tag_0 do instead nothing")
            .await;
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        let rule = found(&report, "sink-rule").mend.as_deref();
        assert_eq!(rule, Some("drop rule \"own\" on public.tag_0"));
    }
}

/// Guards promise 1: another tenant's row is never changed, so what it holds is found first.
#[tokio::test]
async fn what_is_taken_on_the_sink_is_found() {
    use On::Sink;
    use Severity::Refuse;
    each_shows(&[
        (
            Sink,
            "insert into organization values (1, 'one')",
            "sink-holds-organization",
            Refuse,
        ),
        (
            Sink,
            "insert into \"group\" (id, project_id) values (8, 2000001);
            insert into event (id, group_id) values (1000004, 8)",
            "key-taken",
            Refuse,
        ),
        (
            Sink,
            "create unique index on organization (name);
            update organization set name = 'org 1'",
            "unique-value-taken",
            Refuse,
        ),
        // Nobody's on the sink, until a group of this id arrives.
        (
            Sink,
            "alter table event drop constraint event_group_id_fkey;
            insert into event (id, group_id) values (77, 1000001)",
            "strays-on-sink",
            Refuse,
        ),
    ])
    .await;
}

/// A composite key, uuids and texts are compared like integers; a null is nobody's.
#[tokio::test]
async fn keys_of_every_kind_are_compared() {
    const TEXT_KEYS: &str = "
root: org
stores: {default: {type: postgres}}
relationships:
  org: {store: default, primary_key: [slug]}
  doc: {store: default, primary_key: [id], refs: {org_slug: {parent: org}}}
  part: {store: default, primary_key: [doc_id, name], refs: {doc_id: {parent: doc}}}
";
    let schema = "create table org (slug text primary key);
        create table doc (id uuid primary key, org_slug text not null references org, code char(4),
            unique (code));
        create table part (doc_id uuid references doc, name varchar(9), primary key (doc_id, name))";
    let (source, sink) = (
        Cell::empty(PgVersion::V16).await,
        Cell::empty(PgVersion::V16).await,
    );
    let doc = "00000000-0000-0000-0000-00000000000";
    for (cell, slug) in [(&source, "a'b\\c"), (&sink, "other")] {
        cell.run(schema).await;
        let sql = "insert into org select $1::text";
        cell.admin().await.execute(sql, &[&slug]).await.unwrap();
    }
    source
        .run(&format!(
            "insert into doc select '{doc}1', slug, null from org"
        ))
        .await;
    source
        .run(&format!("insert into part select '{doc}1', 'it''s'"))
        .await;
    let graph = manifest_from_str("manifest.yaml", TEXT_KEYS).unwrap();
    let fleet = fleet(&source.dsn, None, &sink.dsn, &graph);
    let run = async || check_fleet(&graph, &fleet, "a'b\\c", Limits::default()).await;
    assert_eq!(run().await.findings, []);

    sink.run(&format!(
        "insert into doc select '{doc}2', slug, null from org"
    ))
    .await;
    assert_eq!(run().await.findings, []);
    source.run("update doc set code = 'x'").await;
    sink.run("update doc set code = 'x'").await;
    assert_eq!(codes(&run().await), ["unique-value-taken"]);
    sink.run(&format!("update doc set code = null, id = '{doc}1'"))
        .await;
    assert_eq!(codes(&run().await), ["key-taken"]);
}

/// Guards promise 10 too: an id that is not shown might hold anything.
#[tokio::test]
async fn an_organization_that_is_not_there_is_refused_and_another_spelling_is_told() {
    let (source, sink) = pair().await;
    let graph = graph();
    let fleet = fleet(&source.dsn, None, &sink.dsn, &graph);
    let run = async |id: &str| check_fleet(&graph, &fleet, id, Limits::default()).await;
    assert_eq!(codes(&run("77").await), ["organization-not-found"]);
    assert_eq!(codes(&run("<script>").await), ["organization-id-invalid"]);
    assert_eq!(
        codes(&run("99999999999999999999").await),
        ["organization-id-invalid"]
    );
    let spelling = run("007").await;
    assert_eq!(codes(&spelling), ["organization-not-found"]);
    let spelling = run("01").await;
    assert_eq!(codes(&spelling), ["organization-id-spelling"]);
    assert!(!spelling.refuses());
}

/// Guards promise 9: a move from a database to itself would end by deleting what it moved.
#[tokio::test]
async fn one_database_under_two_names_is_refused() {
    let (source, sink) = pair().await;
    let other_name = source.dsn.replace("host=127.0.0.1", "host=localhost");
    assert_ne!(other_name, source.dsn);
    let report = check_dsns(&source.dsn, &other_name).await;
    assert_eq!(found(&report, "source-is-sink").severity, Severity::Refuse);
    // Two databases of one server are two databases.
    let beside = Cell::new(PgVersion::V16).await;
    assert_eq!(check_dsns(&source.dsn, &beside.dsn).await.findings, []);
    drop(sink);
}

/// Guards promises 2 and 5: snapshots and locks are a session's, and behind a pooler of
/// transactions a session is nobody's.
#[tokio::test]
async fn a_pooler_of_transactions_is_refused() {
    let (source, sink) = pair().await;
    let before_source = TransactionPooler::before(source.cluster, &source.database)
        .await
        .unwrap();
    let pooled = before_source.dsn(&source.database);
    let report = check_dsns(&pooled, &sink.dsn).await;
    assert_eq!(
        found(&report, "transaction-pooler").severity,
        Severity::Refuse
    );
    let before_sink = TransactionPooler::before(sink.cluster, &sink.database)
        .await
        .unwrap();
    let report = check_dsns(&source.dsn, &before_sink.dsn(&sink.database)).await;
    let pooled = report
        .findings
        .iter()
        .filter(|finding| finding.code == "transaction-pooler");
    // The sink and, in these tests' fleet, the ledger.
    assert_eq!(pooled.count(), 2, "{:#?}", report.findings);
}

/// Guards production writes, on the one version that would refuse them.
#[tokio::test]
async fn a_generated_column_in_the_identity_is_found_before_it_is_published() {
    let (_, sink) = pair().await;
    for (version, refuses) in [(PgVersion::V18, true), (PgVersion::V17, false)] {
        let source = Cell::new(version).await;
        source.run(&fill(1, 3, 10)).await;
        for (cell, identity) in [(&source, "full"), (&sink, "default")] {
            cell.run(&format!(
                "alter table tag drop column if exists shout;
                 alter table tag add shout text generated always as (upper(key)) stored;
                 alter table tag replica identity {identity}"
            ))
            .await;
        }
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        let mut findings = report.findings.iter();
        let told = findings.any(|finding| finding.code == "replica-identity-generated");
        assert_eq!(told, refuses, "{version}");
    }
}

/// All findings at once: what cannot be reached does not hide what is wrong elsewhere.
#[tokio::test]
async fn an_unreachable_database_does_not_stop_the_rest() {
    let (source, _) = pair().await;
    source.run("alter table tag replica identity nothing").await;
    let nowhere = format!("host=127.0.0.1 port=1 user=x password={PASSWORD} dbname=x");
    let report = check_dsns(&source.dsn, &nowhere).await;
    let unreachable: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.code == "unreachable")
        .collect();
    assert_eq!(unreachable.len(), 2, "{:#?}", report.findings);
    for finding in unreachable {
        let database = finding.place.database.as_deref().unwrap();
        assert!(database.ends_with("(127.0.0.1:1/x)"), "{database}");
        assert!(finding.mend.as_deref().unwrap().contains("host and port"));
    }
    found(&report, "replica-identity-missing");
    for finding in &report.findings {
        assert!(!finding.to_string().contains(PASSWORD), "{finding}");
    }
}

/// An operator is told what to look at, not everything that there is to look at.
#[tokio::test]
async fn a_database_that_lets_nobody_in_says_why() {
    let (source, sink) = pair().await;
    let nobody = format!("{} user=nobody_of_that_name", sink.dsn);
    for (dsn, what, mend) in [
        (
            format!("{} dbname=dbnam", sink.dsn),
            "no database \"dbnam\"",
            "correct dbname",
        ),
        (nobody, "cannot be reached", "user"),
    ] {
        let report = check_dsns(&source.dsn, &dsn).await;
        let finding = found(&report, "unreachable");
        assert!(finding.what.contains(what), "{finding}");
        assert!(finding.mend.as_deref().unwrap().contains(mend), "{finding}");
    }
}

/// One fault is one finding: no key can be made of a column that is not there.
#[tokio::test]
async fn a_key_column_that_is_missing_is_told_once() {
    let (source, sink) = pair().await;
    let rename = "alter table tag rename key to name";
    source.run(rename).await;
    sink.run(rename).await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["column-missing", "column-missing"]);
}

#[tokio::test]
async fn a_cell_that_the_fleet_lacks_is_named() {
    let (source, sink) = pair().await;
    let graph = graph();
    let fleet = fleet(&source.dsn, None, &sink.dsn, &graph);
    let (from, to) = ("from".parse().unwrap(), "nowhere".parse().unwrap());
    let limits = Limits::default();
    let org = org(1);
    let job = Job {
        graph: &graph,
        fleet: &fleet,
        from: &from,
        to: &to,
        org: &org,
        accept_disagreeing_edges: &[],
        limits,
    };
    let report = preflight::check(&job).await;
    assert_eq!(codes(&report), ["unknown-cell"]);
    let report = preflight::check(&Job { to: &from, ..job }).await;
    assert_eq!(codes(&report), ["source-is-sink"]);
}

/// A role of its own, with nothing granted.
pub(crate) async fn role(cell: &Cell<'_>) -> (String, String) {
    let role = fresh_name("role");
    cell.run(&format!("create role {role} login password 'x'"))
        .await;
    let dsn = cell.dsn.replace("user=postgres", &format!("user={role}"));
    (role, dsn.replace(PASSWORD, "x"))
}

/// Each right that is missing is named with the statement that grants it; with all of them granted,
/// as the findings say, nothing is left.
#[tokio::test]
async fn a_role_without_rights_is_told_what_to_grant() {
    let (source, sink) = pair().await;
    let (from_role, from) = role(&source).await;
    let (_, to) = role(&sink).await;
    let report = check_dsns(&from, &to).await;
    for code in [
        "no-table-privilege",
        "cannot-publish",
        "no-replication-attribute",
        "cannot-see-sessions",
        "no-sequence-privilege",
        "no-state-schema",
    ] {
        assert!(found(&report, code).mend.is_some(), "{code}");
    }
    for finding in &report.findings {
        let Some(mend) = finding.mend.as_deref() else {
            continue;
        };
        if !mend.starts_with("grant") && !mend.starts_with("alter role") {
            continue;
        }
        let is_source = finding.place.cell.as_ref().unwrap().as_str() == "from";
        if is_source {
            source.run(mend).await
        } else {
            sink.run(mend).await
        }
    }
    let left = check_dsns(&from, &to).await;
    let codes = codes(&left);
    assert!(
        // Before Postgres 15 the sink cannot grant it.
        codes
            .iter()
            .all(|code| ["sequence-not-owned", "writes-as-origin"].contains(code)),
        "{:#?}",
        left.findings
    );

    // The schema without its tables is not enough where no schema may be made.
    let (bare, bare_dsn) = role(&sink).await;
    sink.run(&format!("create schema monarch authorization {bare}"))
        .await;
    found(&check_dsns(&source.dsn, &bare_dsn).await, "no-state-schema");

    // A policy that binds the role hides rows from it; the owner's role is not bound.
    source
        .run(&format!(
            "create role {from_role}_owner; alter table tag owner to {from_role}_owner;
             grant select, delete on tag to {from_role};
             alter table tag enable row level security",
        ))
        .await;
    let report = check_dsns(&from, &to).await;
    found(&report, "row-security-binds");
    found(&report, "cannot-publish");
}

#[tokio::test]
async fn a_sequence_that_hands_out_ids_in_advance_is_told() {
    each_shows(&[(
        On::Sink,
        "alter sequence event_id_seq cache 50",
        "sequence-cache",
        Severity::Warn,
    )])
    .await;
}

/// Guards promise 1: which organization a row is of is not guessed where its edges disagree; the
/// owner of the data says so by name.
#[tokio::test]
async fn rows_whose_edges_disagree_are_refused_until_they_are_accepted() {
    let (source, sink) = pair().await;
    let manifest = MANIFEST.replace(
        "      project_id: {parent: project}\n  event:",
        "      project_id: {parent: project}\n      release_id: {parent: release}\n  event:",
    );
    let graph = manifest_from_str("manifest.yaml", &manifest).unwrap();
    let fleet = fleet(&source.dsn, None, &sink.dsn, &graph);
    let run_with = async |accepted: &[&str]| {
        let (from, to) = ("from".parse().unwrap(), "to".parse().unwrap());
        let accepted: Vec<_> = accepted.iter().map(|name| table(name)).collect();
        let job = Job {
            graph: &graph,
            fleet: &fleet,
            from: &from,
            to: &to,
            org: &"1".parse().unwrap(),
            accept_disagreeing_edges: &accepted,
            limits: Limits::default(),
        };
        preflight::check(&job).await
    };
    let run = async || run_with(&[]).await;
    assert_eq!(run().await.findings, []);

    source.run(&fill(2, 3, 10)).await;
    source
        .run("update \"group\" set release_id = 2000001 where id = 1000001")
        .await;
    let report = run().await;
    assert_eq!(codes(&report), ["edges-disagree"]);
    assert!(report.refuses());
    // Another table's name accepts nothing of this one, and no table's name is told.
    assert!(run_with(&["event"]).await.refuses());
    let report = run_with(&["grup"]).await;
    let refused: Vec<&str> = report.refusals().map(|finding| &*finding.code).collect();
    assert_eq!(refused, ["accepted-table-unknown", "edges-disagree"]);
    let report = run_with(&["group"]).await;
    assert!(!report.refuses());
    assert_eq!(codes(&report), ["edges-disagree"]);
    assert_eq!(report.findings[0].severity, Severity::Warn);

    source
        .run("update \"group\" set release_id = null where id = 1000001")
        .await;
    source
        .run("update \"group\" set project_id = null where id = 1000002")
        .await;
    assert_eq!(codes(&run().await), ["tied-by-another-edge"]);
}

/// Two stores that share a sink database are streamed side by side.
#[tokio::test]
async fn a_foreign_key_between_stores_of_one_sink_is_told() {
    let (source, sink) = pair().await;
    let (plain, plain_dsn) = role(&sink).await;
    sink.run(&format!(
        "grant all on all tables in schema public to {plain};
         grant all on all sequences in schema public to {plain};
         grant create on database {} to {plain}",
        sink.database
    ))
    .await;
    let manifest = MANIFEST
        .replace("stores:\n", "stores:\n  releases:\n    type: postgres\n")
        .replace(
            "  release:\n    store: default",
            "  release:\n    store: releases",
        );
    let graph = manifest_from_str("manifest.yaml", &manifest).unwrap();
    let run = async |to: &str| {
        let text = format!(
            "cells:
  from: {{databases: [{{primary_dsn: {}, stores: [default, releases]}}]}}
  to: {{databases: [{{primary_dsn: {to}, stores: [default, releases]}}]}}
ledger: {{dsn: {}}}
",
            source.dsn, sink.dsn
        );
        let fleet = fleet_from_str("fleet.yaml", &text, &graph, &|_| None).unwrap();
        check_fleet(&graph, &fleet, "1", Limits::default()).await
    };
    // The root's store would be emptied last.
    for cell in [&source, &sink] {
        cell.run("alter table \"group\" drop constraint group_release_id_fkey")
            .await;
    }
    // Who may keep foreign keys from acting need not care.
    assert_eq!(run(&sink.dsn).await.findings, []);
    let report = run(&plain_dsn).await;
    let crossing = report
        .findings
        .iter()
        .filter(|finding| finding.code == "reference-crosses-stores");
    assert_eq!(crossing.count(), 1);
    assert!(report.refuses());
    found(&report, "writes-as-origin");
}

/// Guards promise 1: what a foreign key of the sink does on its own account to the organization's rows
/// is in no log. Where our role cannot keep it from acting it is refused, by name; where there is
/// nothing for it to do, or our role can, it is not.
#[tokio::test]
async fn a_foreign_key_that_acts_on_its_own_is_refused() {
    let (source, _) = pair().await;
    let sink = Cell::new(PgVersion::V15).await;
    let (plain, plain_dsn) = role(&sink).await;
    sink.run(&format!(
        "grant all on all tables in schema public to {plain};
         grant all on all sequences in schema public to {plain};
         grant create on database {} to {plain}",
        sink.database
    ))
    .await;
    for (table, column, parent, acts) in [
        ("\"group\"", "release_id", "release", true),
        ("event", "group_id", "\"group\"", false),
        ("\"group\"", "project_id", "project", false),
    ] {
        let name = format!("{}_{column}_fkey", table.replace('"', ""));
        for action in [
            "on delete set null",
            "on delete set default",
            "on delete cascade",
            "on update set null",
            "on update cascade",
            "on delete cascade on update set default deferrable",
            "on delete restrict",
        ] {
            sink.run(&format!(
                "alter table {table} drop constraint {name},
                 add foreign key ({column}) references {parent} {action}"
            ))
            .await;
            let report = check_dsns(&source.dsn, &plain_dsn).await;
            let refused: Vec<&str> = report.refusals().map(|finding| &*finding.code).collect();
            let expected: &[&str] = if acts && action != "on delete restrict" {
                &["foreign-key-acts"]
            } else {
                &[]
            };
            assert_eq!(refused, expected, "{table} {action}");
            if let [_] = expected {
                let told = found(&report, "foreign-key-acts");
                let said = action.trim_end_matches(" deferrable");
                assert!(told.what.contains(&format!("({name}), {said}, ")), "{told}");
            }
            assert!(!check_dsns(&source.dsn, &sink.dsn).await.refuses());
        }
    }
}

const STORES: &str = "
root: organization
stores: {main: {type: postgres}, side: {type: postgres}, third: {type: postgres}}
relationships:
  organization: {store: main, primary_key: [id]}
  setting: {store: side, primary_key: [id], refs: {organization_id: {parent: organization}}}
  plan: {store: third, primary_key: [id], refs: {organization_id: {parent: organization}}}
";
const STORES_TABLES: &str = "
create table organization (id bigint primary key, setting_id bigint);
create table setting (id bigint primary key, organization_id bigint references organization,
  plan_id bigint, other_id bigint);
create table plan (id bigint primary key, organization_id bigint references organization,
  setting_id bigint);
";

/// What preflight says of these stores where each side has one database.
async fn look_at_stores(source: &Cell<'_>, sink: &Cell<'_>, manifest: &str) -> Report {
    let graph = manifest_from_str("manifest.yaml", manifest).unwrap();
    let text = format!(
        "cells:
  from: {{databases: [{{primary_dsn: {}, stores: [main, side, third]}}]}}
  to: {{databases: [{{primary_dsn: {}, stores: [main, side, third]}}]}}
ledger: {{dsn: {}}}
",
        source.dsn, sink.dsn, sink.dsn
    );
    let fleet = fleet_from_str("fleet.yaml", &text, &graph, &|_| None).unwrap();
    check_fleet(&graph, &fleet, "1", Limits::default()).await
}

/// Guards promise 7: stores that share a database are emptied one after the other, and a foreign key
/// that no order of them satisfies would stop the eviction or the scrub. It is said before, with what
/// mends it, and what mends it does.
#[tokio::test]
async fn foreign_keys_that_no_order_of_stores_satisfies_are_refused() {
    let source = Cell::empty(PgVersion::V16).await;
    let sink = Cell::empty(PgVersion::V15).await;
    for cell in [&source, &sink] {
        cell.run(STORES_TABLES).await;
    }
    source.run("insert into organization values (1)").await;
    let look = async |manifest: &str| look_at_stores(&source, &sink, manifest).await;
    assert!(!look(STORES).await.refuses());

    // The root's store is emptied last, whatever references it has.
    for cell in [&source, &sink] {
        cell.run(
            "alter table organization add constraint c foreign key (setting_id)
                    references setting on delete set null",
        )
        .await;
        let report = look(STORES).await;
        let finding = found(&report, "stores-in-a-circle");
        assert_eq!(finding.severity, Severity::Refuse);
        assert_eq!(finding.place.table, Some(table("organization")));
        let mend = finding.mend.as_deref().unwrap();
        cell.run(mend.split(", or").next().unwrap()).await;
        assert!(!look(STORES).await.refuses());
    }

    // Two that reference each other.
    sink.run(
        "alter table setting add constraint c foreign key (plan_id) references plan deferrable;
         alter table plan add constraint d foreign key (setting_id) references setting",
    )
    .await;
    let report = look(STORES).await;
    assert_eq!(
        found(&report, "stores-in-a-circle").place.table,
        Some(table("plan"))
    );
    sink.run("alter table plan drop constraint d").await;
    assert!(!look(STORES).await.refuses());

    // One that the manifest's order happens to contradict, until the manifest knows of it.
    sink.run(
        "alter table setting drop constraint c;
         alter table plan add constraint d foreign key (setting_id) references setting",
    )
    .await;
    let report = look(STORES).await;
    let finding = found(&report, "reference-not-in-manifest");
    assert!(
        finding
            .mend
            .as_deref()
            .unwrap()
            .contains("refs of public.plan")
    );
    let told = STORES.replace(
        "plan: {store: third, primary_key: [id], refs: {",
        "plan: {store: third, primary_key: [id], refs: {setting_id: {parent: setting}, ",
    );
    assert!(
        !look(&told).await.refuses(),
        "{:#?}",
        look(&told).await.findings
    );
}

/// What is wrong with a server is told by server.
#[tokio::test]
async fn the_servers_settings_are_looked_at() {
    let options = ClusterOptions::new(PgVersion::V16)
        .setting("wal_level = replica")
        .setting("max_replication_slots = 1")
        .setting("max_wal_senders = 0")
        .setting("max_slot_wal_keep_size = -1");
    let cluster = Cluster::start(options).await.unwrap();
    let source = Cell::empty_on(&cluster).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 3, 10)).await;
    let admin = source.admin().await;
    let taken = "select pg_create_physical_replication_slot('taken')";
    admin.execute(taken, &[]).await.unwrap();
    let (_, sink) = pair().await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    let expected = [
        "no-free-slot",
        "no-free-walsender",
        "wal-level",
        "wal-without-limit",
    ];
    assert_eq!(codes(&report), expected);
    // The same server as a sink lacks nothing.
    let (good, _) = pair().await;
    source
        .run("drop schema public cascade; create schema public")
        .await;
    source.run(SCHEMA).await;
    assert_eq!(check_dsns(&good.dsn, &source.dsn).await.findings, []);
}

#[tokio::test]
async fn a_source_that_is_too_old_is_refused() {
    let (source, sink) = (
        Cell::new(PgVersion::V14).await,
        Cell::new(PgVersion::V16).await,
    );
    source.run(&fill(1, 3, 10)).await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["server-version"]);
}

/// What one version lacks and another adds is told before it matters.
#[tokio::test]
async fn what_a_version_lacks_or_adds_is_told() {
    let (_, sink) = pair().await;
    let graph = graph();
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V15))
        .await
        .unwrap();
    let source = Cell::empty_on(&primary).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 3, 10)).await;
    let standby = Standby::of(&primary).await.unwrap();
    standby.catch_up(&primary).await.unwrap();
    let decoded_there = standby.dsn(&source.database);
    let fleet_of_15 = fleet(&source.dsn, Some(&decoded_there), &sink.dsn, &graph);
    let report = check_fleet(&graph, &fleet_of_15, "1", Limits::default()).await;
    assert_eq!(codes(&report), ["standby-version"]);

    let options =
        ClusterOptions::new(PgVersion::V18).setting("idle_replication_slot_timeout = '10min'");
    let newest = Cluster::start(options).await.unwrap();
    let source = Cell::empty_on(&newest).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 3, 10)).await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["idle-slot-timeout"]);
}

/// Guards promise 9: who blocks the making of a slot is named before the move begins.
#[tokio::test]
async fn long_and_prepared_transactions_are_named() {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let source = Cell::empty_on(&cluster).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 3, 10)).await;
    let (_, sink) = pair().await;
    let mut writing = source.admin().await;
    let tx = writing.transaction().await.unwrap();
    tx.batch_execute("insert into organization values (5, 'five')")
        .await
        .unwrap();
    source
        .run("begin; insert into organization values (6, 'six'); prepare transaction 'forgotten'")
        .await;
    let graph = graph();
    let fleet = fleet(&source.dsn, None, &sink.dsn, &graph);
    let limits = Limits {
        long_transaction: Duration::ZERO,
        ..Limits::default()
    };
    let report = check_fleet(&graph, &fleet, "1", limits).await;
    assert_eq!(codes(&report), ["long-transaction", "prepared-transaction"]);
    assert!(
        found(&report, "prepared-transaction")
            .what
            .contains("forgotten")
    );
}

/// Guards promise 7: without feedback a vacuum on the primary would lose the slots.
#[tokio::test]
async fn a_standby_is_looked_at_as_the_decoder() {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let source = Cell::empty_on(&primary).await;
    source.run(SCHEMA).await;
    source.run(&fill(1, 3, 10)).await;
    let standby = Standby::of(&primary).await.unwrap();
    standby.catch_up(&primary).await.unwrap();
    let (_, sink) = pair().await;
    let other = Cell::new(PgVersion::V17).await;
    let graph = graph();
    let standby_dsn = standby.dsn(&source.database);
    let run = async |standby: &str| {
        let fleet = fleet(&source.dsn, Some(standby), &sink.dsn, &graph);
        check_fleet(&graph, &fleet, "1", Limits::default()).await
    };
    assert_eq!(run(&standby_dsn).await.findings, []);
    assert_eq!(codes(&run(&source.dsn).await), ["standby-is-primary"]);
    found(&run(&other.dsn).await, "standby-of-another");
    let report = {
        let fleet = fleet(&standby_dsn, None, &sink.dsn, &graph);
        check_fleet(&graph, &fleet, "1", Limits::default()).await
    };
    found(&report, "not-a-primary");

    let admin = standby.admin("postgres").await.unwrap();
    for sql in [
        "alter system set hot_standby_feedback = off",
        "alter system set primary_slot_name = ''",
        "select pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    standby.restart().await.unwrap();
    assert_eq!(
        codes(&run(&standby_dsn).await),
        ["no-standby-feedback", "no-physical-slot"]
    );
}
