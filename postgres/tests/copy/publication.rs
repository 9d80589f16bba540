//! What the source publishes and what it keeps back, seen by what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use monarch_config::manifest_from_str;
use monarch_harness::{PgVersion, fresh_name};
use monarch_model::names;
use monarch_postgres::catalog::{self, Catalog};
use monarch_postgres::publication::{self, Choice, Plan, PublicationError, WhyUnfiltered};
use monarch_postgres::scope::Scope;
use monarch_postgres::spine::Spine;
use tokio_postgres::Client;

use crate::world::{World, one, store, table};

async fn catalog(world: &World) -> Catalog {
    let tables = world.graph.walk(&world.unit.store);
    catalog::load(&world.source, &tables).await.unwrap()
}

async fn try_plan(world: &World, spine: &Spine) -> Result<Plan, PublicationError> {
    let catalog = catalog(world).await;
    let unit = &world.unit;
    let scope = Scope::new(&world.graph, &unit.store, &unit.org, spine, &catalog)?;
    publication::plan(unit, &world.graph, &scope, &catalog)
}

async fn plan(world: &World) -> Plan {
    try_plan(world, &world.spine().await).await.unwrap()
}

fn choice(publication: &publication::Publication, name: &str) -> Choice {
    let of = |member: &&publication::Member| member.table == table(name);
    publication.members.iter().find(of).unwrap().choice
}

/// A slot that nobody reads from; its changes are looked at.
async fn slot(client: &Client) -> String {
    let name = fresh_name("look");
    client
        .execute(
            "select pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&name],
        )
        .await
        .unwrap();
    name
}

/// The changes since the last look, as `I group`: kind and table.
async fn arrived(client: &Client, slot: &str, plan: &Plan) -> Vec<String> {
    let rows = client
        .query(
            "select data from pg_logical_slot_get_binary_changes($1, null, null,
               'proto_version', '1', 'publication_names', $2)",
            &[&slot, &plan.names().join(",")],
        )
        .await
        .unwrap();
    let mut relations: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    let mut changes = Vec::new();
    for row in rows {
        let data: &[u8] = row.get(0);
        match data[0] {
            b'R' => {
                let text = String::from_utf8_lossy(&data[5..]).into_owned();
                let name = text.split('\0').nth(1).unwrap().to_owned();
                relations.insert(data[1..5].to_vec(), name);
            }
            kind @ (b'I' | b'U' | b'D') => {
                changes.push(format!("{} {}", kind as char, relations[&data[1..5]]));
            }
            b'T' => changes.push("T".to_owned()),
            _ => {}
        }
    }
    changes
}

/// Guards the pair of publications on every source version: the source keeps back what it can, no
/// change of the organization is kept back, and none of the owner's statements fails.
async fn filters_hold_back_other_tenants(version: PgVersion) {
    let mut world = World::new(version, PgVersion::V14).await;
    let plan = plan(&world).await;
    publication::ensure(&mut world.source, &plan).await.unwrap();
    let slot = slot(&world.source).await;
    let project = |tenant: i64| format!("00000000-0000-4000-8000-{tenant:06}000001");
    let (ours, theirs) = (project(1), project(2));
    let cases: Vec<(String, &[&str])> = vec![
        ("insert into member values (2, 'new')".into(), &[]),
        ("insert into member values (1, 'new')".into(), &["I member"]),
        ("update member set role = 'r' where organization_id = 2".into(), &[]),
        (
            "update member set role = 'r' where organization_id = 1 and email = 'new'".into(),
            &["U member"],
        ),
        (
            "update member set organization_id = 1, email = 'in' where organization_id = 2 and email = 'new'".into(),
            &["I member"],
        ),
        (
            "update member set organization_id = 2, email = 'new' where organization_id = 1 and email = 'in'".into(),
            &["D member"],
        ),
        ("delete from member where organization_id = 2 and email = 'new'".into(), &[]),
        ("update organization set name = 'x' where id = 2".into(), &[]),
        ("update organization set name = 'x' where id = 1".into(), &["U organization"]),
        ("insert into project values (gen_random_uuid(), 2)".into(), &[]),
        ("insert into project values (gen_random_uuid(), 1)".into(), &["I project"]),
        (
            "update project set name = 'x' where organization_id = 2 and name = 'one'".into(),
            &["U project"],
        ),
        (format!("insert into \"group\" (project_id) values ('{theirs}'), (null)"), &[]),
        (format!("insert into \"group\" (project_id) values ('{ours}')"), &["I group"]),
        ("update \"group\" set title = 'x' where id = 201".into(), &["U group"]),
        ("insert into event values ('new', 201)".into(), &["I event"]),
        ("insert into log values (2, '2018-01-01', 'n')".into(), &[]),
        ("insert into log values (1, '2018-01-01', 'n')".into(), &["I log"]),
        ("update log set note = 'm' where organization_id = 2".into(), &[]),
        ("delete from log where organization_id = 1 and note = 'n'".into(), &["D log"]),
        ("update \"App\".\"Order\" set size = 9 where \"Id\" = 101".into(), &["U Order"]),
        ("delete from \"App\".line where place = 2 and \"order\" = 101".into(), &["D line"]),
        ("truncate log_old".into(), &[]),
        ("truncate log".into(), &["T"]),
    ];
    for (statement, expected) in cases {
        world.source.batch_execute(&statement).await.unwrap();
        let seen = arrived(&world.source, &slot, &plan).await;
        // A truncated leaf alone says nothing on some versions: the catalog's fingerprint does.
        if statement != "truncate log_old" {
            assert_eq!(seen, expected, "{version}: {statement}");
        }
    }
    let drop = "select pg_drop_replication_slot($1)";
    world.source.execute(drop, &[&slot]).await.unwrap();
}

#[tokio::test]
async fn filters_hold_back_other_tenants_on_15() {
    filters_hold_back_other_tenants(PgVersion::V15).await;
}

#[tokio::test]
async fn filters_hold_back_other_tenants_on_16() {
    filters_hold_back_other_tenants(PgVersion::V16).await;
}

#[tokio::test]
async fn filters_hold_back_other_tenants_on_17() {
    filters_hold_back_other_tenants(PgVersion::V17).await;
}

#[tokio::test]
async fn filters_hold_back_other_tenants_on_18() {
    filters_hold_back_other_tenants(PgVersion::V18).await;
}

/// Guards production writes: a filter on updates only looks at what the log has of the old row.
#[tokio::test]
async fn updates_are_filtered_only_by_what_the_replica_identity_covers() {
    let world = World::new(PgVersion::V15, PgVersion::V14).await;
    let before = plan(&world).await;
    let not_covered = Choice::Nothing(WhyUnfiltered::NotInIdentity);
    assert_eq!(
        choice(&before.inserts, "group"),
        Choice::List { ids_total: 2 }
    );
    let scopes_others = Choice::Nothing(WhyUnfiltered::ScopesOthers);
    assert_eq!(choice(&before.mutations, "group"), scopes_others);
    assert_eq!(choice(&before.mutations, "project"), not_covered);
    assert_eq!(choice(&before.mutations, "member"), Choice::Organization);
    assert_eq!(choice(&before.mutations, "log"), Choice::Organization);
    let dynamic = Choice::Nothing(WhyUnfiltered::DynamicParent);
    assert_eq!(choice(&before.inserts, "App.Order"), dynamic);

    world
        .source
        .batch_execute("alter table project replica identity full; alter table \"group\" replica identity full")
        .await
        .unwrap();
    let after = plan(&world).await;
    assert_eq!(choice(&after.mutations, "project"), Choice::Organization);
    assert_eq!(choice(&after.mutations, "group"), scopes_others);
}

/// Guards production writes: publishing a table without identity would make its updates fail.
#[tokio::test]
async fn a_table_or_leaf_without_identity_is_refused_by_name() {
    let world = World::new(PgVersion::V17, PgVersion::V14).await;
    let spine = world.spine().await;
    for (statement, expected) in [
        ("alter table log_old replica identity nothing", "log"),
        (
            "alter table log_old replica identity default;
             alter table event drop constraint event_pkey",
            "event",
        ),
        (
            "alter table event add primary key (key) deferrable",
            "event",
        ),
    ] {
        world.source.batch_execute(statement).await.unwrap();
        match try_plan(&world, &spine).await {
            Err(PublicationError::NoReplicaIdentity { table: refused }) => {
                assert_eq!(refused, table(expected), "{statement}");
            }
            other => panic!("{statement}: {other:?}"),
        }
    }
}

/// Guards production writes: Postgres 18 refuses updates of a published table when a generated column
/// is of its replica identity. Older ones do not mind.
#[tokio::test]
async fn a_generated_column_in_the_identity_is_refused_where_the_server_would_refuse_writes() {
    const IDENTITY: &str = "
        alter table project add shout text generated always as ('!') stored;
        alter table project replica identity full";
    for (version, refuses) in [(PgVersion::V18, true), (PgVersion::V17, false)] {
        let mut world = World::new(version, PgVersion::V14).await;
        let spine = world.spine().await;
        world.source.batch_execute(IDENTITY).await.unwrap();
        match try_plan(&world, &spine).await {
            Err(PublicationError::GeneratedIdentity { table: refused }) if refuses => {
                assert_eq!(refused, table("project"));
                // What it was refused for: the server does refuse.
                let publish = "create publication p for table project with (publish = 'update')";
                world.source.batch_execute(publish).await.unwrap();
                let error = world
                    .source
                    .batch_execute("update project set id = id")
                    .await;
                assert_eq!(error.unwrap_err().code().unwrap().code(), "42P10");
            }
            Ok(_) if !refuses => {
                world.publish(1).await;
                world
                    .source
                    .batch_execute("update project set id = id")
                    .await
                    .unwrap();
            }
            other => panic!("{version}: {other:?}"),
        }
    }
}

/// Guards the decoding rate: row filters are linear in their ids.
#[tokio::test]
async fn many_static_ids_become_a_range_or_nothing() {
    let graph = manifest_from_str(
        "manifest.yaml",
        "root: org
stores: {default: {type: postgres}}
relationships:
  org: {store: default, primary_key: [id]}
  team: {store: default, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  code: {store: default, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  by_team: {store: default, primary_key: [id, team_id], refs: {team_id: {parent: team}}}
  by_code: {store: default, primary_key: [id], refs: {code_id: {parent: code}}}
",
    )
    .unwrap();
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world.graph = graph;
    world
        .source
        .batch_execute(
            "create table org (id integer primary key);
             create table team (id integer primary key, org_id integer);
             create table code (id text primary key, org_id integer);
             create table by_team (id bigint, team_id smallint, primary key (id, team_id));
             create table by_code (id bigint primary key, code_id varchar(20));
             insert into org values (1), (2);
             insert into team select n, 1 from generate_series(1000, 1500) n;
             insert into code select 'c' || n, 1 from generate_series(1000, 1500) n",
        )
        .await
        .unwrap();
    let plan = plan(&world).await;
    assert_eq!(choice(&plan.inserts, "by_team"), Choice::Range);
    assert_eq!(choice(&plan.mutations, "by_team"), Choice::Range);
    let too_many = Choice::Nothing(WhyUnfiltered::TooManyIds);
    assert_eq!(choice(&plan.inserts, "by_code"), too_many);

    publication::ensure(&mut world.source, &plan).await.unwrap();
    let slot = slot(&world.source).await;
    world
        .source
        .batch_execute(
            "insert into by_team values (1, 999), (2, 1000), (3, 1500), (4, 1501), (5, -3);
             insert into by_code values (1, 'x')",
        )
        .await
        .unwrap();
    assert_eq!(
        arrived(&world.source, &slot, &plan).await,
        ["I by_team", "I by_team", "I by_code"]
    );
}

/// Guards the owner's writes on types that a filter may not have: they are left to the mover.
#[tokio::test]
async fn a_type_that_is_not_built_in_is_not_filtered() {
    let graph = manifest_from_str(
        "manifest.yaml",
        "root: org
stores: {default: {type: postgres}}
relationships:
  org: {store: default, primary_key: [id]}
  item: {store: default, primary_key: [id], refs: {org_id: {parent: org}}}
",
    )
    .unwrap();
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world.graph = graph;
    world
        .source
        .batch_execute(
            "create domain key as integer;
             create table org (id key primary key);
             create table item (id bigint primary key, org_id key);
             insert into org values (1)",
        )
        .await
        .unwrap();
    let plan = plan(&world).await;
    let column_type = Choice::Nothing(WhyUnfiltered::ColumnType);
    assert_eq!(choice(&plan.inserts, "org"), column_type);
    assert_eq!(choice(&plan.inserts, "item"), column_type);
    publication::ensure(&mut world.source, &plan).await.unwrap();
}

/// Guards promise 4: again is the same, and a plan with other ids takes the old one's place.
#[tokio::test]
async fn publications_are_made_once_and_replaced_when_they_differ() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let first = plan(&world).await;
    let oids = "select array_agg(oid order by pubname) from pg_publication";
    publication::ensure(&mut world.source, &first)
        .await
        .unwrap();
    let made: Vec<u32> = one(&world.source, oids).await;
    publication::ensure(&mut world.source, &first)
        .await
        .unwrap();
    assert_eq!(one::<Vec<u32>>(&world.source, oids).await, made);

    let drop_table = format!(
        "alter publication {} drop table event",
        names::insert_publication(&world.unit.prefix())
    );
    world.source.batch_execute(&drop_table).await.unwrap();
    publication::ensure(&mut world.source, &first)
        .await
        .unwrap();
    let members = "select count(*) from pg_publication_rel";
    let total = first.inserts.members.len() + first.mutations.members.len();
    assert_eq!(one::<i64>(&world.source, members).await, total as i64);

    let mut ids: BTreeMap<_, BTreeSet<String>> = world
        .spine()
        .await
        .tables()
        .map(|(table, ids)| (table.clone(), ids.clone()))
        .collect();
    ids.get_mut(&table("project")).unwrap().pop_first();
    let second = try_plan(&world, &Spine::from_ids(ids)).await.unwrap();
    assert_eq!(
        choice(&second.inserts, "group"),
        Choice::List { ids_total: 1 }
    );
    publication::ensure(&mut world.source, &second)
        .await
        .unwrap();
    assert_ne!(one::<Vec<u32>>(&world.source, oids).await, made);
}

/// Guards promise 7: what is dropped is looked for again, and nobody else's is touched.
#[tokio::test]
async fn dropping_leaves_nothing_and_touches_nobody_elses() {
    let mut world = World::new(PgVersion::V16, PgVersion::V14).await;
    let first = plan(&world).await;
    publication::ensure(&mut world.source, &first)
        .await
        .unwrap();
    world.unit.store = store("events");
    let second = plan(&world).await;
    publication::ensure(&mut world.source, &second)
        .await
        .unwrap();
    world
        .source
        .batch_execute("create publication owners for all tables")
        .await
        .unwrap();
    world.unit.store = store("default");
    for _ in 0..2 {
        publication::drop_all(&mut world.source, &world.unit)
            .await
            .unwrap();
        let left: Vec<String> = one(
            &world.source,
            "select array_agg(pubname::text order by pubname) from pg_publication",
        )
        .await;
        let mut expected: Vec<&str> = second.names().to_vec();
        expected.push("owners");
        assert_eq!(left, expected);
    }
}

/// Guards the owner's DDL: a publication waits in short tries, and is made when the lock is free.
#[tokio::test]
async fn a_lock_of_the_owner_is_waited_for_in_short_tries() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let plan = plan(&world).await;
    let mut owner = world.source_session().await;
    let ddl = owner.transaction().await.unwrap();
    ddl.batch_execute("lock table event in access exclusive mode")
        .await
        .unwrap();
    let look = world.source_session().await;
    let waiters = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                   where not l.granted and a.datname = current_database()";
    let until = async |waiting: i64| {
        while one::<i64>(&look, waiters).await != waiting {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (made, ()) = tokio::join!(publication::ensure(&mut world.source, &plan), async {
        until(1).await;
        until(0).await;
        ddl.commit().await.unwrap();
    });
    made.unwrap();
    let made: i64 = one(&look, "select count(*) from pg_publication").await;
    assert_eq!(made, 2);
}
