//! What the catalog says, and what it notices.

use monarch_harness::PgVersion;
use monarch_postgres::catalog::{
    self, Catalog, Fingerprint, Generated, Identity, RelationKind, ReplicaIdentity,
};
use tokio_postgres::Client;

use crate::world::{World, table};

async fn load(world: &World, client: &Client) -> Catalog {
    catalog::load(client, &world.graph.walk(&world.unit.store))
        .await
        .unwrap()
}

/// Guards every decision that rests on a table's shape, on the oldest and newest server.
#[tokio::test]
async fn the_catalog_says_what_the_tables_are() {
    for version in [PgVersion::V14, PgVersion::V18] {
        let world = World::new(version, PgVersion::V14).await;
        world
            .source
            .batch_execute(
                "drop table event; alter table member replica identity full;
                 alter table log_new replica identity nothing;
                 create unlogged table spare (like \"group\" including generated); alter table spare inherit \"group\";
                 alter table project enable row level security",
            )
            .await
            .unwrap();
        let catalog = load(&world, &world.source).await;
        assert_eq!(catalog.missing(), [table("event")]);

        let group = catalog.relation(&table("group")).unwrap();
        let names: Vec<&str> = group
            .columns
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        assert_eq!(names, ["id", "project_id", "title", "shout"]);
        assert_eq!(group.column("id").unwrap().identity, Identity::Always);
        assert_eq!(group.column("shout").unwrap().generated, Generated::Stored);
        assert!(group.column("id").unwrap().not_null);
        assert_eq!(group.given_columns().count(), 3);
        assert_eq!(group.primary_key, ["id"]);
        assert!(group.unlogged && group.lacks_identity(), "by its heir");
        assert!(!group.leaves[0].is_partition);

        let order = catalog.relation(&table("App.Order")).unwrap();
        assert_eq!(order.column("Id").unwrap().key_type, "pg_catalog.int8");
        assert_eq!(order.column("size").unwrap().key_type, "pg_catalog.int8");
        assert_eq!(order.column("mood").unwrap().key_type, "\"App\".\"Mood\"");
        assert!(!order.column("size").unwrap().can_filter());

        let member = catalog.relation(&table("member")).unwrap();
        assert_eq!(
            member.column("role").unwrap().type_name,
            "character varying(5)"
        );
        assert_eq!(member.column("role").unwrap().key_type, "pg_catalog.text");
        assert_eq!(member.primary_key, ["organization_id", "email"]);
        assert_eq!(member.replica_identity, ReplicaIdentity::Full);
        assert!(member.identity_covers("role"));

        let log = catalog.relation(&table("log")).unwrap();
        assert_eq!(log.kind, RelationKind::Partitioned);
        assert_eq!(log.leaves.len(), 2);
        assert!(log.lacks_identity(), "by one of its leaves");

        let project = catalog.relation(&table("project")).unwrap();
        assert!(project.row_security.enabled && !project.row_security.binds_us);
    }
}

/// Guards "Schema": what the log says late or never, the fingerprint says at once, by line.
#[tokio::test]
async fn the_fingerprint_notices_what_the_log_does_not_say() {
    let world = World::new(PgVersion::V17, PgVersion::V14).await;
    let look = async || load(&world, &world.source).await.fingerprint();
    let first = look().await;
    world
        .source
        .batch_execute("insert into member values (3, 'x'); analyze; create index on event (body)")
        .await
        .unwrap();
    assert_eq!(look().await, first);
    for (statement, touched) in [
        (
            "alter table event add column more integer default 5",
            "event",
        ),
        ("alter table event drop column body", "event"),
        ("alter table \"group\" rename title to heading", "group"),
        (
            "alter table member alter column role type varchar(9)",
            "member",
        ),
        ("alter table \"App\".line replica identity full", "App.line"),
        ("truncate log_old", "log"),
        ("alter table log detach partition log_old", "log"),
        ("create table log_more partition of log default", "log"),
        (
            "drop table hit; alter table organization alter column name set not null",
            "organization",
        ),
        ("drop table \"App\".line", "App.line"),
    ] {
        let before = look().await;
        world.source.batch_execute(statement).await.unwrap();
        let after = look().await;
        assert_ne!(before.digest(), after.digest(), "{statement}");
        let changes = Fingerprint::changes(&before, &after);
        assert!(!changes.is_empty(), "{statement}");
        assert!(
            changes
                .iter()
                .all(|(changed, _)| *changed == table(touched)),
            "{changes:?}"
        );
    }
}
