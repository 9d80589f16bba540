//! The static spine.

use monarch_harness::PgVersion;
use monarch_postgres::spine::{self, SpineError};

use crate::world::{World, org, table};

/// Guards the gap between register and snapshot: a project that slips in is noticed.
#[tokio::test]
async fn a_changed_spine_is_refused_by_table_and_count() {
    let world = World::new(PgVersion::V15, PgVersion::V14).await;
    let recorded = world.spine().await;
    assert_eq!(recorded.ids(&table("organization")).unwrap().len(), 1);
    assert_eq!(recorded.ids(&table("project")).unwrap().len(), 2);
    assert_eq!(recorded.ids(&table("group")), None);
    let store = &world.unit.store;
    let compare = async || {
        spine::compare(
            &world.source,
            &world.graph,
            store,
            &world.unit.org,
            &recorded,
        )
        .await
    };
    compare().await.unwrap();

    world
        .source
        .batch_execute("insert into project (id, organization_id) values (gen_random_uuid(), 2)")
        .await
        .unwrap();
    compare().await.unwrap();

    world
        .source
        .batch_execute(
            "insert into project (id, organization_id)
             values (gen_random_uuid(), 1), (gen_random_uuid(), 1);
             update project set organization_id = 2 where organization_id = 1 and name = 'one'",
        )
        .await
        .unwrap();
    match compare().await.unwrap_err() {
        SpineError::StaticSpineChanged {
            table: changed,
            appeared,
            gone,
        } => assert_eq!((changed, appeared, gone), (table("project"), 2, 1)),
        other => panic!("{other:?}"),
    }
    assert_ne!(world.spine().await.digest(), recorded.digest());
}

/// Guards against a move of nobody: a wrong id ends before anything is made.
#[tokio::test]
async fn an_organization_that_is_not_there_is_named() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world.unit.org = org("404");
    let clients = [("default", &world.source), ("events", &world.source)]
        .map(|(name, client)| (crate::world::store(name), client))
        .into();
    let error = spine::read(&clients, &world.graph, &world.unit.org).await;
    assert!(matches!(
        error,
        Err(SpineError::NoSuchOrganization { table: root }) if root == table("organization")
    ));
}

/// Guards names and predicates: two spellings of one id are one organization.
#[tokio::test]
async fn an_id_is_kept_as_postgres_prints_it() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let plain = world.spine().await;
    world.unit.org = org("0001");
    assert_eq!(world.spine().await, plain);
}
