//! What the sink refuses of the organization's rows, though the source has them: values that others
//! hold under indexes of any kind, and nulls.

use monarch_harness::PgVersion;
use monarch_postgres::preflight::Severity;

use crate::cells::{Cell, fill};
use crate::preflight::{check_dsns, codes, found, pair, role};

/// What is done on the source, what on the sink, and how many pairs of rows clash.
const CLASHES: &[(&str, &str, i64)] = &[
    // Bodies are the same on both sides: event 1 to event 10.
    (
        "",
        "create unique index special on event (body) where id < 2000005",
        4,
    ),
    (
        "",
        "update event set body = upper(body);
         create unique index special on event (group_id, body);
         create unique index special_1 on event (lower(body), (at is null)) where at < 'infinity'",
        10,
    ),
    (
        r#"alter table event add "Odd ""name" varchar(12) collate "C";
           update event set "Odd ""name" = 'ab ' || id"#,
        r#"alter table event add "Odd ""name" varchar(12) collate "C";
           update event set "Odd ""name" = 'AB 1000003' where id = 2000007;
           create unique index special on event (lower("Odd ""name") text_pattern_ops)"#,
        1,
    ),
    // Two rows of the organization overlap with one of another; beside the condition none does.
    (
        "alter table event add during int4range, add room int;
         update event set room = id % 3, during = int4range((id % 100)::int * 10, (id % 100)::int * 10 + 5)",
        "alter table event add during int4range, add room int;
         update event set room = 1, during = int4range(32, 72) where id = 2000001;
         update event set during = int4range(0, 1000), room = 9 where id = 2000002;
         create extension btree_gist;
         alter table event add constraint special
           exclude using gist ((room % 3) with =, during with &&) where (room < 9)",
        2,
    ),
    // Of one partition only: others' rows stand in it, and half of the organization's will.
    (
        "",
        "drop table tag;
         create table tag (event_id bigint references event, key text, value text,
           primary key (event_id, key)) partition by range (event_id);
         create table tag_low partition of tag for values from (minvalue) to (1000006);
         create table tag_high partition of tag for values from (1000006) to (maxvalue);
         insert into tag values (2000001, 'level', 'error');
         create unique index special on tag_high (value)",
        5,
    ),
    // Nulls that are equal.
    (
        "update event set body = null where id in (1000001, 1000002)",
        "update event set body = 'other ' || id; update event set body = null where id = 2000001;
         create unique index special on event (body) nulls not distinct",
        2,
    ),
];

/// Guards promise 1: whatever the kind of index, others' values under it are found before the move,
/// by its own rules, and what is told to mend it does.
#[tokio::test]
async fn what_others_hold_under_an_index_of_any_kind_is_found() {
    for (on_source, on_sink, clashes) in CLASHES {
        let (source, _) = pair().await;
        let sink = Cell::new(PgVersion::V15).await;
        sink.run(&fill(2, 3, 10)).await;
        source.run(on_source).await;
        sink.run(on_sink).await;
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        assert_eq!(codes(&report), ["unique-value-taken"], "{on_sink}");
        let finding = &report.findings[0];
        assert_eq!(finding.severity, Severity::Refuse);
        let told = finding.what.starts_with(&format!("{clashes} times"));
        assert!(told && finding.what.contains("special"), "{finding}");
        let mend = finding.mend.as_deref().unwrap();
        sink.run(mend.split("on the sink ").nth(1).unwrap()).await;
        assert_eq!(check_dsns(&source.dsn, &sink.dsn).await.findings, []);
    }
}

/// What an index that others' rows do not clash under says is nothing.
#[tokio::test]
async fn an_index_under_which_nothing_clashes_is_no_finding() {
    let (source, sink) = pair().await;
    sink.run(
        "create unique index a on event (body) where id > 5000000;
         create unique index b on event ((body || 'x')) where group_id is null;
         create unique index c on event (lower(body), group_id);
         alter table event add constraint d exclude using btree (id with =)",
    )
    .await;
    assert_eq!(check_dsns(&source.dsn, &sink.dsn).await.findings, []);
}

/// Guards the sink's own promise to its tenants: a deferrable constraint is checked by a trigger, which does
/// not fire for a role that keeps triggers from firing, unless it is told to; where the role cannot,
/// it does. What mends it does, also where partitions have it.
#[tokio::test]
async fn a_deferrable_constraint_that_our_role_would_not_meet_is_refused() {
    for version in [PgVersion::V14, PgVersion::V18] {
        let (source, _) = pair().await;
        let sink = Cell::new(version).await;
        sink.run(&fill(2, 3, 10)).await;
        sink.run(
            "alter table event add constraint once unique (id, body) deferrable;
             alter table \"group\" add constraint apart exclude using btree (id with =) deferrable
               initially deferred;
             drop table tag;
             create table tag (event_id bigint references event, key text, value text,
               primary key (event_id, key), unique (event_id, value) deferrable)
               partition by range (event_id);
             create table tag_low partition of tag for values from (minvalue) to (1000006);
             create table tag_high partition of tag for values from (1000006) to (maxvalue)",
        )
        .await;
        let report = check_dsns(&source.dsn, &sink.dsn).await;
        assert_eq!(codes(&report), ["deferrable-not-checked"; 4]);
        assert!(report.refuses());
        let plain = plain_role(&sink).await;
        assert!(!check_dsns(&source.dsn, &plain).await.refuses());
        for finding in &report.findings {
            let mend = finding.mend.as_deref().unwrap();
            sink.run(mend.split(", as").next().unwrap()).await;
        }
        assert_eq!(check_dsns(&source.dsn, &sink.dsn).await.findings, []);
    }
}

/// A role of the sink that may write and may not keep triggers from firing.
async fn plain_role(sink: &Cell<'_>) -> String {
    let (role, dsn) = role(sink).await;
    sink.run(&format!(
        "grant all on all tables in schema public to {role};
         grant all on all sequences in schema public to {role};
         grant create on database {} to {role}",
        sink.database
    ))
    .await;
    dsn
}

/// Where it cannot be looked for it is told: the sink alone knows what stands in such a column.
#[tokio::test]
async fn an_index_on_what_the_source_does_not_have_is_told() {
    let (source, sink) = pair().await;
    sink.run(
        "alter table event add kind text default 'x';
         create unique index special on event ((kind || body))",
    )
    .await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(
        codes(&report),
        ["unique-not-compared", "column-only-on-sink"]
    );
    let finding = found(&report, "unique-not-compared");
    assert_eq!(finding.severity, Severity::Warn);
    assert_eq!(finding.place.column.as_deref(), Some("kind"));
    assert!(finding.mend.as_deref().unwrap().contains("special"));
}

/// Guards promise 1: nulls that the sink refuses are refused before the move only where the organization
/// has them; what others of the source have is nothing to it.
#[tokio::test]
async fn nulls_that_the_sink_refuses_are_the_organizations_own() {
    let (source, sink) = pair().await;
    source.run(&fill(3, 1, 5)).await;
    source
        .run("update event set body = null where id > 3000000")
        .await;
    sink.run("alter table event alter body set not null").await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["column-not-null"]);
    assert_eq!(report.findings[0].severity, Severity::Warn);
    source
        .run("update event set body = null where id in (1000001, 1000002)")
        .await;
    let report = check_dsns(&source.dsn, &sink.dsn).await;
    assert_eq!(codes(&report), ["column-not-null"]);
    let finding = &report.findings[0];
    assert_eq!(finding.severity, Severity::Refuse);
    assert!(finding.what.contains("2 rows"), "{finding}");
    let mend = finding.mend.as_deref().unwrap();
    sink.run(mend.split(", or").next().unwrap()).await;
    assert_eq!(check_dsns(&source.dsn, &sink.dsn).await.findings, []);
}
