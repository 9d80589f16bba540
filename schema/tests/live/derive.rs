//! What is proposed for schemas of several makes.

use insta::assert_snapshot;
use monarch_config::{Graph, Scope, manifest_from_str};
use monarch_harness::PgVersion;
use monarch_schema::{Because, Database, ProposalError, Proposed, propose};

use crate::database;

fn proposed(databases: &[Database], root: &str) -> Proposed {
    propose(databases, &root.parse().unwrap()).unwrap()
}

fn graph(proposed: &Proposed) -> Graph {
    manifest_from_str("manifest.yaml", &proposed.text).unwrap()
}

/// The relationships of a proposed manifest.
fn relationships(proposed: &Proposed) -> &str {
    proposed.text.split_once("relationships:\n").unwrap().1
}

fn because<'a>(proposed: &'a Proposed, table: &str) -> &'a Because {
    let left = &proposed.proposal.left;
    let found = left.iter().find(|left| left.name.as_str() == table);
    &found.unwrap_or_else(|| panic!("{table} moves")).because
}

/// Integer keys, foreign keys throughout: the shortest path by columns that are not null, with every
/// reason to look beside it.
#[tokio::test]
async fn foreign_keys_make_the_edges_and_doubts_stand_beside_them() {
    let shop = database(
        PgVersion::V17,
        &["shop"],
        "create table plans (id serial primary key);
         create table organizations (id bigserial primary key, plan_id int references plans);
         create table projects (id bigserial primary key,
             organization_id bigint not null references organizations);
         create table issues (id bigserial primary key,
             project_id bigint not null references projects,
             organization_id bigint references organizations,
             duplicate_of bigint references issues);
         create table comments (id bigserial primary key,
             issue_id bigint not null references issues,
             author_id bigint references organizations);
         create table drafts (id bigserial primary key,
             comment_id bigint references comments);
         create table settings (organization_id bigint not null references organizations,
             name text not null, primary key (organization_id, name));
         create table log_lines (organization_id bigint not null references organizations,
             line text);
         create table scratch (line text);",
    )
    .await;
    let proposed = proposed(&[shop], "organizations");
    assert_snapshot!(relationships(&proposed), @r"
    organizations:
      store: shop
      primary_key: [id]

    projects:
      store: shop
      primary_key: [id]
      refs:
        organization_id: {parent: organizations}

    issues:
      store: shop
      primary_key: [id]
      refs:
        project_id: {parent: projects}
        # Left out: it would be chosen, and may be null.
        # organization_id: {parent: organizations}
        duplicate_of: {parent: issues}

    comments:
      store: shop
      primary_key: [id]
      refs:
        issue_id: {parent: issues}
        # Left out: it would be chosen, and may be null.
        # author_id: {parent: organizations}

    drafts:
      store: shop
      primary_key: [id]
      refs:
        # May be null: such a row is nobody's, and does not move.
        comment_id: {parent: comments}

    settings:
      store: shop
      primary_key: [organization_id, name]
      refs:
        organization_id: {parent: organizations}

    # Not moved: it references nothing that moves, and is referenced by organizations: the other cell
    # needs the same rows.
    plans:
      store: shop
      primary_key: [id]

    # Not in the manifest, and not moved:
    # - log_lines of store shop: it is the organization's by organization_id, and no unique index
    # tells its rows apart: give it a primary key, or its rows stay behind
    # - scratch of store shop: it references nothing that moves
    ");
    graph(&proposed);
}

/// Uuid keys, partitions, enums, a schema of its own, camel case: names with capitals are quoted where
/// YAML needs it, partitions count as their root.
#[tokio::test]
async fn a_schema_with_partitions_enums_and_capitals_is_read_by_its_roots() {
    let app = database(
        PgVersion::V15,
        &["app"],
        r#"create schema app;
           create type app.state as enum ('open', 'closed');
           create table app."Workspace" ("workspaceId" uuid primary key);
           create table app."Document" ("documentId" uuid primary key,
               "workspaceId" uuid not null references app."Workspace", state app.state not null);
           create table app."Visit" ("visitId" uuid not null, at timestamptz not null,
               "documentId" uuid not null references app."Document",
               primary key ("visitId", at)) partition by range (at);
           create table app.visit_2026 partition of app."Visit"
               for values from ('2026-01-01') to ('2027-01-01');
           create table app."on" (id int primary key,
               "workspaceId" uuid not null references app."Workspace");"#,
    )
    .await;
    let proposed = proposed(&[app], "app.Workspace");
    assert_snapshot!(relationships(&proposed), @r"
    app.Workspace:
      store: app
      primary_key: [workspaceId]

    app.Document:
      store: app
      primary_key: [documentId]
      refs:
        workspaceId: {parent: app.Workspace}

    app.Visit:
      store: app
      primary_key: [visitId, at]
      refs:
        documentId: {parent: app.Document}

    app.on:
      store: app
      primary_key: [id]
      refs:
        workspaceId: {parent: app.Workspace}
    ");
    let graph = graph(&proposed);
    assert_eq!(graph.walk(&"app".parse().unwrap()).len(), 4);
}

/// Text keys and no foreign keys, over two databases: columns are known by their names, and whatever
/// scopes a table of another store is static, with all above it.
#[tokio::test]
async fn names_stand_for_foreign_keys_within_a_database_and_across_two() {
    let main = database(
        PgVersion::V16,
        &["main"],
        "create table acme_tenant (id text primary key);
         create table acme_site (id text primary key, tenant_id varchar(40) not null);
         create table acme_page (id text primary key, site_id text not null);
         create table acme_word (id int primary key, page_id int not null);",
    )
    .await;
    let events = database(
        PgVersion::V14,
        &["events"],
        "create table acme_hit (id bigserial primary key, page_id text not null, site_id text);
         create table acme_seen (id bigserial primary key, hit_id bigint not null);",
    )
    .await;
    let proposed = proposed(&[main, events], "acme_tenant");
    assert_snapshot!(relationships(&proposed), @r"
    acme_tenant:
      store: main
      primary_key: [id]

    # Static, since it scopes a static table: no row of it may be made or deleted while its
    # organization moves.
    acme_site:
      store: main
      primary_key: [id]
      static: true
      refs:
        # Known by its name alone: no foreign key says so.
        tenant_id: {parent: acme_tenant}

    # Static, since it scopes tables of events: no row of it may be made or deleted while its
    # organization moves.
    acme_page:
      store: main
      primary_key: [id]
      static: true
      refs:
        # Known by its name alone: no foreign key says so.
        site_id: {parent: acme_site}

    acme_hit:
      store: events
      primary_key: [id]
      refs:
        # Known by its name alone: no foreign key says so.
        page_id: {parent: acme_page}
        # Known by its name alone: no foreign key says so.
        site_id: {parent: acme_site}

    acme_seen:
      store: events
      primary_key: [id]
      refs:
        # Known by its name alone: no foreign key says so.
        hit_id: {parent: acme_hit}

    # Not moved: it references nothing that moves.
    acme_word:
      store: main
      primary_key: [id]
    ");
    let graph = graph(&proposed);
    let scope = |table: &str| &graph.table(&table.parse().unwrap()).unwrap().scope;
    assert!(matches!(scope("acme_hit"), Scope::ByStatic { .. }));
    assert!(matches!(scope("acme_seen"), Scope::ByDynamic { .. }));
}

/// What cannot be moved is named with the reason.
#[tokio::test]
async fn what_is_left_out_says_why() {
    let main = database(
        PgVersion::V18,
        &["main"],
        "create table tenant (id bigint primary key, slug text unique not null);
         create table item (tenant_id bigint not null references tenant, id bigint not null,
             primary key (tenant_id, id));
         create table part (id bigint primary key, tenant_id bigint, item_id bigint,
             foreign key (tenant_id, item_id) references item (tenant_id, id));
         alter table part drop column tenant_id cascade;
         alter table part add column owner bigint,
             add foreign key (owner, item_id) references item (tenant_id, id);
         create table nickname (id bigint primary key, slug text references tenant (slug));
         create table a_user (id bigint primary key);
         create table b_user (id bigint primary key, tenant_id bigint not null);
         create table vote (id bigint primary key, user_id bigint);
         create table country (id bigint primary key);
         create table city (id bigint primary key, country_id bigint references country);
         alter table item add country_id bigint references country;",
    )
    .await;
    let other = database(
        PgVersion::V18,
        &["other"],
        "create table item (id bigint primary key, tenant_id bigint not null);",
    )
    .await;
    let proposed = proposed(&[main, other], "tenant");
    graph(&proposed);
    let told = [
        "part", "nickname", "vote", "city", "country", "item", "a_user",
    ]
    .map(|table| format!("{table}: {}", because(&proposed, table)));
    assert_snapshot!(told.join("\n"), @r"
    part: foreign key part_owner_item_id_fkey to item has several columns, and an edge has one
    nickname: foreign key nickname_slug_fkey does not reference the key by which rows of tenant are told apart
    vote: user_id may mean any of a_user, b_user
    city: what it references does not move: country
    country: it references nothing that moves, and is referenced by item: the other cell needs the same rows
    item: the table of that name in store main is the one in the manifest
    a_user: it references nothing that moves
    ");
    assert!(because(&proposed, "vote").may_be_the_organizations());
}

/// Whatever the schema's size, a proposal loads: 150 tables in three databases, of every key's type,
/// in chains, stars and circles.
#[tokio::test]
async fn a_proposal_for_a_hundred_and_fifty_tables_loads() {
    let mut databases = Vec::new();
    for (store, key) in [("a", "bigint"), ("b", "uuid"), ("c", "text")] {
        let mut sql = match store {
            "a" => "create table org (id bigint primary key);".to_owned(),
            _ => String::new(),
        };
        for n in 0..50 {
            let parent = match n % 5 {
                0 if store == "a" => "org_id bigint not null references org".to_owned(),
                0 => "org_id bigint not null".to_owned(),
                m => format!("up {key} references {store}{}", n - m),
            };
            sql.push_str(&format!(
                "create table {store}{n} (id {key} primary key, {parent});"
            ));
        }
        sql.push_str(&format!(
            "alter table {store}0 add last_id {key} references {store}49;
             alter table {store}1 add next_id {key} not null references {store}2;
             alter table {store}2 add next_id {key} not null references {store}1;"
        ));
        databases.push(database(PgVersion::V17, &[store], &sql).await);
    }
    let proposed = proposed(&databases, "org");
    assert_eq!(proposed.proposal.tables.len(), 151);
    assert_eq!(proposed.proposal.left, []);
    graph(&proposed);
}

#[tokio::test]
async fn a_root_that_is_not_there_or_has_no_key_of_one_column_is_refused() {
    let main = database(
        PgVersion::V17,
        &["main"],
        "create table organization (a int, b int, primary key (a, b))",
    )
    .await;
    let refused =
        |root: &str| propose(std::slice::from_ref(&main), &root.parse().unwrap()).unwrap_err();
    let missing = refused("organizatoin");
    assert!(
        matches!(&missing, ProposalError::NoRoot { near: Some(near), .. } if near == "organization")
    );
    assert!(matches!(
        refused("organization"),
        ProposalError::RootKey { .. }
    ));
}
