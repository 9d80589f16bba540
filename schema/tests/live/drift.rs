//! A manifest held against a schema that went on without it.

use insta::assert_snapshot;
use monarch_config::manifest_from_str;
use monarch_harness::PgVersion;
use monarch_schema::{drift, propose};

use crate::database;

const SCHEMA: &str = "
    create table org (id bigint primary key);
    create table project (id bigint primary key, org_id bigint not null references org);
    create table issue (id bigint primary key, project_id bigint not null references project);
    create table kind (id bigint primary key);";

const MANIFEST: &str = "
root: org
stores:
  main: {type: postgres}
  side: {type: postgres}
relationships:
  org: {store: main, primary_key: [id]}
  project:
    store: main
    primary_key: [id]
    refs: {org_id: {parent: org}}
  issue:
    store: side
    primary_key: [id]
    refs: {org_id: {parent: org}}
  kind: {store: side, primary_key: [id]}
";

/// Each change of the schema is told, the ones that would leave rows behind first.
#[tokio::test]
async fn what_was_added_renamed_and_dropped_is_told() {
    let live = database(
        PgVersion::V17,
        &["main", "side"],
        "create table org (id bigint primary key);
         create table project (id bigint, org_id text not null, owner_id bigint references org);
         create table issue (id bigint primary key, organization bigint);
         create table kind (id bigint primary key, org_id bigint references org);
         create table added (id bigint primary key, org_id bigint not null references org);
         create table guessed (id bigint primary key, org_id bigint);
         create table migration (id bigint primary key);",
    )
    .await;
    let graph = manifest_from_str("manifest.yaml", MANIFEST).unwrap();
    let found = drift(&graph, &[live]);
    let told: Vec<String> = found
        .iter()
        .map(|drift| {
            let severity = drift.severity.as_str();
            format!("{severity} {} {}: {}", drift.store, drift.table, drift.kind)
        })
        .collect();
    assert_snapshot!(told.join("\n"), @r"
    error main added: not in the manifest, and org_id references org, which moves
    error main project: no unique index tells rows apart by (id)
    error main project: org_id is text, and the key of org is integer
    error side issue: there is no column org_id
    error side kind: listed without an edge, and org_id references org, which moves
    warning main guessed: not in the manifest, and org_id is named like a key of org, which moves
    warning main project: owner_id references org, and is not among its refs
    note main migration: not in the manifest
    ");
}

/// A table that went to another store is told so, and one that is gone.
#[tokio::test]
async fn a_table_elsewhere_and_a_table_gone_are_told_apart() {
    let main = database(
        PgVersion::V17,
        &["main"],
        "create table org (id bigint primary key);
         create table project (id bigint primary key, org_id bigint not null references org);
         create table issue (id bigint primary key, org_id bigint not null references org);",
    )
    .await;
    let side = database(PgVersion::V17, &["side"], "").await;
    let graph = manifest_from_str("manifest.yaml", MANIFEST).unwrap();
    let found = drift(&graph, &[main, side]);
    let told: Vec<String> = found
        .iter()
        .map(|drift| format!("{} {}: {}", drift.store, drift.table, drift.kind))
        .collect();
    assert_snapshot!(told.join("\n"), @r"
    main issue: not in the manifest, and org_id references org, which moves
    side issue: the table is in the database of store main
    side kind: the database has no such table
    ");
}

/// A manifest that was just proposed has not drifted.
#[tokio::test]
async fn a_schema_has_not_drifted_from_what_was_proposed_for_it() {
    let live = database(PgVersion::V17, &["main"], SCHEMA).await;
    let proposed = propose(std::slice::from_ref(&live), &"org".parse().unwrap()).unwrap();
    let graph = manifest_from_str("manifest.yaml", &proposed.text).unwrap();
    assert_eq!(drift(&graph, &[live]), []);
}
