//! Roles whose defaults would break or bend a move.

use std::time::Duration;

use monarch_harness::{PgVersion, fresh_name};

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
",
    // Whatever is found by a path is a decoy.
    schema: "
create table organization (id bigint primary key);
create table thing (id bigserial primary key, organization_id bigint references organization,
  at timestamptz, took interval, raw bytea, share double precision, body text, doc xml);
create schema evil;
create table evil.organization (id bigint, evil text);
create table evil.thing (id bigint, evil text);
create function evil.now() returns timestamptz language sql as 'select null::timestamptz';
create function evil.count(bigint) returns bigint language sql as 'select 0::bigint';
create function evil.eq(bigint, bigint) returns boolean language sql as 'select false';
create operator evil.= (function = evil.eq, leftarg = bigint, rightarg = bigint)",
    fill: r"
insert into organization values ($ORG);
insert into thing select $ORG * 100 + n, $ORG, '2024-03-04 05:06:07.89+00'::timestamptz + n * '1 day'::interval,
  '-1 mon 3 days', '\x005c', 0.1 + n, 'it''s \', '<a/>' from generate_series(1, 9) n",
    owned: &[
        ("organization", "id = $ORG"),
        ("thing", "organization_id = $ORG"),
    ],
    ..Case::EMPTY
};

/// Defaults that would end every session, or make it read and write something else.
const HOSTILE: &str = "
alter role $ROLE set idle_in_transaction_session_timeout = '1s';
alter role $ROLE set idle_session_timeout = '1s';
alter role $ROLE set statement_timeout = '1ms';
alter role $ROLE set lock_timeout = '1ms';
alter role $ROLE set wal_sender_timeout = '1s';
alter role $ROLE set default_transaction_read_only = on;
alter role $ROLE set default_transaction_isolation = 'serializable';
alter role $ROLE set default_transaction_deferrable = on;
alter role $ROLE set search_path = evil, pg_catalog, public;
alter role $ROLE set datestyle = 'SQL, DMY';
alter role $ROLE set intervalstyle = 'sql_standard';
alter role $ROLE set timezone = 'Pacific/Chatham';
alter role $ROLE set extra_float_digits = -15;
alter role $ROLE set bytea_output = 'escape';
alter role $ROLE set xmloption = 'document';
alter role $ROLE set standard_conforming_strings = off;
alter role $ROLE set array_nulls = off;
alter role $ROLE set transform_null_equals = on;
alter role $ROLE set quote_all_identifiers = on;
alter role $ROLE set client_encoding = 'SQL_ASCII';
alter role $ROLE set synchronous_commit = off;
alter role $ROLE set row_security = on;
alter role $ROLE set session_replication_role = 'replica';
alter role $ROLE set client_min_messages = 'debug5';
alter role $ROLE set plan_cache_mode = 'force_generic_plan';
alter role $ROLE set enable_seqscan = off;";

/// Makes the move act by roles of its own with hostile defaults, which own nothing of the sink.
async fn hostile(it: &mut Move) -> (String, String) {
    let (source, sink) = (fresh_name("hostile"), fresh_name("hostile"));
    let (from, to) = (it.job.source.dbname(), it.job.sink.dbname());
    run(
        &it.source,
        &format!(
            "create role {source} login replication password 'p' in role pg_read_all_stats;
             grant create on database {from} to {source};
             alter table organization owner to {source}; alter table thing owner to {source};
             grant usage on schema public to {source};
             grant select on all sequences in schema public to {source};
             grant set on parameter session_replication_role to {source};"
        ),
    )
    .await;
    run(
        &it.sink,
        &format!(
            "create role {sink} login password 'p' in role pg_read_all_stats, pg_signal_backend;
             grant create on database {to} to {sink};
             grant select, insert, update, delete on organization, thing to {sink};
             grant select, update on all sequences in schema public to {sink};
             grant set on parameter session_replication_role to {sink};"
        ),
    )
    .await;
    for (client, role) in [(&it.source, &source), (&it.sink, &sink)] {
        run(client, &HOSTILE.replace("$ROLE", role)).await;
        let version = "select current_setting('server_version_num')::int";
        let version: i32 = client.query_one(version, &[]).await.unwrap().get(0);
        if version >= 170_000 {
            run(
                client,
                &format!("alter role {role} set transaction_timeout = '1ms'"),
            )
            .await;
        }
    }
    let by = |dsn: &str, role: &str| {
        let dsn = dsn.replace("user=postgres", &format!("user={role}"));
        dsn.replace(monarch_harness::PASSWORD, "p")
    };
    let dsns = (by(&it.dsns.0, &source), by(&it.dsns.1, &sink));
    it.act_as(&dsns.0, &dsns.1);
    (source, sink)
}

/// Guards promise 1: nothing that is read, written or waited for depends on what a role's defaults
/// are: not how values are printed, not which tables are meant, not how long a session lives.
#[tokio::test]
async fn a_role_with_hostile_defaults_moves_an_organization() {
    for (source, sink) in [
        (PgVersion::V15, PgVersion::V17),
        (PgVersion::V18, PgVersion::V16),
    ] {
        let mut it = Move::prepare(&CASE, source, sink).await;
        hostile(&mut it).await;
        let whole = it
            .whole(&[
                "insert into thing (organization_id, at, took, raw, body)
                   values (1, now(), '1 day 02:03', '\\x00', E'\\\\')",
                "update thing set took = took * 3, share = share / 3, at = at + '1 hour'::interval",
                "update thing set id = id + 500 where id = 101; delete from thing where id = 102",
            ])
            .await;
        assert!(whole.comparison.is_equal(), "{:?}", whole.comparison);
        // Longer than the role would be given, in a transaction and out of it.
        for session in [it.source_session().await, it.sink_session().await] {
            session.batch_execute("begin; select 1").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            session.batch_execute("commit").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            session.batch_execute("select 1").await.unwrap();
        }
    }
}

/// Guards promise 8: an eviction deletes with foreign keys on, also where the role has them off.
#[tokio::test]
async fn a_role_that_switches_foreign_keys_off_still_evicts_with_them() {
    let mut it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V14).await;
    let other = fresh_name("orphan");
    let role = fresh_name("switched");
    run(
        &it.source,
        &format!(
            "create table {other} (thing_id bigint references thing);
             insert into {other} values (101);
             create role {role} login superuser replication password 'p';
             alter role {role} set session_replication_role = replica"
        ),
    )
    .await;
    let source = it.dsns.0.replace("user=postgres", &format!("user={role}"));
    let source = source.replace(monarch_harness::PASSWORD, "p");
    it.act_as(&source, &it.dsns.1.clone());
    it.whole_without_eviction(&[]).await;
    let error = it.try_evict().await.unwrap_err();
    let told = monarch_model::chain(&error);
    assert!(told.contains("23503"), "{told}");
    run(&it.source, &format!("delete from {other}")).await;
    it.evict().await;

    // Who could not switch them on again is refused before the move.
    run(&it.source, &format!("alter role {role} nosuperuser")).await;
    let refusals = it.refusals().await;
    assert!(
        refusals.contains(&"foreign-keys-off".to_owned()),
        "{refusals:?}"
    );
}

/// Guards promise 1: a policy that hides rows from our role is refused on either side, whether it
/// binds an owner or somebody else.
#[tokio::test]
async fn row_level_security_that_binds_our_role_is_refused() {
    let mut it = Move::prepare(&CASE, PgVersion::V15, PgVersion::V16).await;
    let (source, sink) = hostile(&mut it).await;
    let report = it.preflight().await;
    assert!(!report.refuses(), "{:#?}", report.findings);
    run(&it.source, "alter table thing enable row level security").await;
    assert_eq!(it.refusals().await, Vec::<String>::new());
    run(
        &it.source,
        "alter table thing force row level security;
         create policy even on thing using (id % 2 = 0)",
    )
    .await;
    let binds = "row-security-binds".to_owned();
    assert!(it.refusals().await.contains(&binds));
    run(&it.source, &format!("alter role {source} bypassrls")).await;
    run(&it.sink, "alter table thing enable row level security").await;
    assert!(it.refusals().await.contains(&binds));
    run(&it.sink, &format!("alter role {sink} bypassrls")).await;
    assert_eq!(it.refusals().await, Vec::<String>::new());
}
