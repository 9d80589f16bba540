//! Which rows a predicate selects.

use monarch_config::manifest_from_str;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_model::TableName;
use monarch_postgres::connect::Environment;
use monarch_postgres::scope::Scope;
use monarch_postgres::sql::qualified;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, catalog, spine};
use tokio_postgres::Client;

use crate::world::{org, store, table};

const MANIFEST: &str = "root: org
stores: {default: {type: postgres}}
relationships:
  org: {store: default, primary_key: [id]}
  team: {store: default, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  item: {store: default, primary_key: [id], refs: {team_id: {parent: team}}}
  note: {store: default, primary_key: [id], refs: {item_id: {parent: item}}}
  tag: {store: default, primary_key: [id], refs: {note_id: {parent: note}}}
";

/// As a mover has it: with an empty `search_path`.
async fn session(schema: &str) -> Session {
    let cluster = shared::cluster(PgVersion::V15).await;
    let database = fresh_name("scope");
    let dsn = cluster.create_database(&database).await.unwrap();
    let admin = cluster.admin(&database).await.unwrap();
    admin.batch_execute(schema).await.unwrap();
    let options = ConnectOptions::parse(&dsn, &Environment::empty()).unwrap();
    Session::connect(&options, &SessionPurpose::reader("scope"))
        .await
        .unwrap()
}

/// The keys that are in scope, by table.
async fn selected(client: &Client, id: &str) -> Vec<(String, Vec<String>)> {
    let graph = manifest_from_str("manifest.yaml", MANIFEST).unwrap();
    let clients = [(store("default"), client)].into();
    let spine = spine::read(&clients, &graph, &org(id)).await.unwrap();
    let tables = graph.walk(&store("default"));
    let catalog = catalog::load(client, &tables).await.unwrap();
    let scope = Scope::new(&graph, &store("default"), &org(id), &spine, &catalog).unwrap();
    let mut selected = Vec::new();
    for name in tables.iter().map(|table| &table.name) {
        selected.push((name.to_string(), keys(client, &scope, name).await));
    }
    selected
}

async fn keys(client: &Client, scope: &Scope, name: &TableName) -> Vec<String> {
    let predicate = scope.predicate(name, "Odd \"alias\"").unwrap();
    let statement = format!(
        "select id::text from {} as \"Odd \"\"alias\"\"\" where {predicate} order by 1",
        qualified(name)
    );
    let rows = client.query(&statement, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn expected(tables: [(&str, &[&str]); 5]) -> Vec<(String, Vec<String>)> {
    let owned = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    tables
        .map(|(name, keys)| (table(name).to_string(), owned(keys)))
        .to_vec()
}

/// Guards promise 1: keys under different collations are compared, not refused, at every depth.
#[tokio::test]
async fn text_keys_under_different_collations_are_compared() {
    let client = session(
        "create table org (id varchar(4) collate \"C\" primary key);
         create table team (id text collate \"POSIX\" primary key, org_id text);
         create table item (id text collate \"C\" primary key, team_id varchar(3));
         create table note (id text collate \"POSIX\" primary key, item_id text collate \"POSIX\");
         create table tag (id text primary key, note_id char(5) collate \"C\");
         insert into org values ('a''b'), ('b');
         insert into team values ('t\\1', 'a''b'), ('t2', 'b'), ('t\\1xx', 'b'), ('null', 'a''b');
         insert into item values ('i1', 't\\1'), ('i2', 't2'), ('i3', null);
         insert into note values ('n1', 'i1'), ('n2', 'i2'), ('n3', 'i3');
         insert into tag values ('g1', 'n1'), ('g2', 'n2'), ('g3', null)",
    )
    .await;
    assert_eq!(
        selected(&client, "a'b").await,
        expected([
            ("org", &["a'b"]),
            ("team", &["null", "t\\1"]),
            ("item", &["i1"]),
            ("note", &["n1"]),
            ("tag", &["g1"]),
        ])
    );
}

/// Guards promise 1: a type of an extension is compared by its own operator, whatever the
/// `search_path`: as text, the children in other spellings would be missed.
#[tokio::test]
async fn keys_of_an_extensions_type_are_compared_as_that_type() {
    let client = session(
        "create schema ext; create extension citext schema ext;
         create domain ext.handle as ext.citext;
         create table org (id ext.citext primary key);
         create table team (id ext.citext primary key, org_id ext.citext);
         create table item (id ext.handle primary key, team_id ext.citext);
         create table note (id bigint primary key, item_id ext.citext);
         create table tag (id bigint primary key, note_id integer);
         insert into org values ('Acme'), ('other');
         insert into team values ('One', 'ACME'), ('Two', 'other');
         insert into item values ('Item', 'one'), ('Other', 'two');
         insert into note values (1, 'iTEM'), (2, 'oTHER');
         insert into tag values (1, 1), (2, 2)",
    )
    .await;
    assert_eq!(
        selected(&client, "acme").await,
        expected([
            ("org", &["Acme"]),
            ("team", &["One"]),
            ("item", &["Item"]),
            ("note", &["1"]),
            ("tag", &["1"]),
        ])
    );
}
