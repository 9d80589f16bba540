//! Two databases with the kinds of tables that a copy meets, and tenants in them.

use std::collections::BTreeMap;
use std::time::Duration;

use monarch_config::Graph;
use monarch_harness::{Cluster, PgVersion, fresh_name, shared};
use monarch_model::{Epoch, MoveId, OrgId, StoreName, TableName};
use monarch_postgres::connect::Environment;
use monarch_postgres::publication;
use monarch_postgres::replication::{ExportedSlot, ReplicationConnection, SlotKind};
use monarch_postgres::scope::Scope;
use monarch_postgres::slot::{Making, SlotError};
use monarch_postgres::spine::Spine;
use monarch_postgres::{ConnectOptions, SessionPurpose, Unit, catalog, spine};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const MANIFEST: &str = r#"
root: organization
stores:
  default: {type: postgres}
  events: {type: postgres}
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
  event:
    store: default
    primary_key: [key]
    refs: {group_id: {parent: group}}
  member:
    store: default
    primary_key: [organization_id, email]
    refs: {organization_id: {parent: organization}}
  App.Order:
    store: default
    primary_key: [Id]
    refs: {"group": {parent: group}}
  App.line:
    store: default
    primary_key: [order, place]
    refs: {order: {parent: App.Order}}
  log:
    store: default
    primary_key: [organization_id, at, note]
    refs: {organization_id: {parent: organization}}
  hit:
    store: events
    primary_key: [id]
    refs: {project_id: {parent: project}}
"#;

const SOURCE_SCHEMA: &str = r#"
create schema "App";
create type "App"."Mood" as enum ('glad', 'so so');
create domain "App".positive as integer check (value > 0);
create type "App".place as (x integer, label text);
create table organization (id bigint primary key, name text);
create table project (id uuid primary key, organization_id bigint, name text);
create table "group" (
  id bigint generated always as identity primary key, dropped text, project_id uuid,
  title text, shout text generated always as (upper(title)) stored);
alter table "group" drop column dropped;
create table event (key text primary key, group_id bigint, body text);
create table member (
  organization_id bigint, email text, role varchar(5), primary key (organization_id, email));
create table "App"."Order" (
  "Id" integer primary key, "group" bigint, mood "App"."Mood", size "App".positive,
  places "App".place[], "select" jsonb);
create table "App".line (
  "order" integer, place smallint, price numeric(10, 2), primary key ("order", place));
create table log (organization_id bigint, at date, note text,
  primary key (organization_id, at, note)) partition by range (at);
create table log_old partition of log for values from (minvalue) to ('2020-01-01');
create table log_new partition of log for values from ('2020-01-01') to (maxvalue);
create table hit (id bigint primary key, project_id uuid, path text);
"#;

/// The same tables with columns in another order and other partitions.
const SINK_SCHEMA: &str = r#"
create schema "App";
create type "App"."Mood" as enum ('so so', 'glad');
create domain "App".positive as integer check (value > 0);
create type "App".place as (x integer, label text);
create table organization (name text, id bigint primary key);
create table project (
  name text, id uuid primary key, organization_id bigint references organization);
create table "group" (
  title text, shout text generated always as (upper(title)) stored,
  id bigint generated always as identity primary key, project_id uuid references project);
create table event (body text, key text primary key, group_id bigint references "group");
create table member (
  organization_id bigint, role varchar(5), email text, primary key (organization_id, email));
create table "App"."Order" (
  "select" jsonb, "Id" integer primary key, "group" bigint, size "App".positive,
  mood "App"."Mood", places "App".place[]);
create table "App".line (
  place smallint, "order" integer, price numeric(10, 2), primary key ("order", place));
create table log (note text, organization_id bigint, at date,
  primary key (organization_id, at, note)) partition by hash (organization_id);
create table log_0 partition of log for values with (modulus 2, remainder 0);
create table log_1 partition of log for values with (modulus 2, remainder 1);
create table hit (id bigint primary key, project_id uuid, path text);
"#;

/// Which rows of each table are tenant `$ORG`'s, told independently of the code under test.
const OWNED: &[(&str, &str)] = &[
    ("organization", "id = $ORG"),
    ("project", "organization_id = $ORG"),
    (
        "\"group\"",
        "project_id in (select id from project where organization_id = $ORG)",
    ),
    (
        "event",
        "group_id in (select g.id from \"group\" g join project p on p.id = g.project_id
                            where p.organization_id = $ORG)",
    ),
    ("member", "organization_id = $ORG"),
    (
        "\"App\".\"Order\"",
        "\"group\" in (select g.id from \"group\" g
       join project p on p.id = g.project_id where p.organization_id = $ORG)",
    ),
    (
        "\"App\".line",
        "\"order\" in (select o.\"Id\" from \"App\".\"Order\" o
       join \"group\" g on g.id = o.\"group\" join project p on p.id = g.project_id
       where p.organization_id = $ORG)",
    ),
    ("log", "organization_id = $ORG"),
];

/// A source and a sink with the schema above.
pub(crate) struct World {
    pub(crate) graph: Graph,
    pub(crate) unit: Unit,
    pub(crate) source: Client,
    pub(crate) sink: Client,
    pub(crate) database: String,
    pub(crate) source_cluster: &'static Cluster,
    pub(crate) sink_cluster: &'static Cluster,
}

impl World {
    /// Tenants 1 and 2 on the source, tenant 9 on the sink; 1 is to move.
    pub(crate) async fn new(source: PgVersion, sink: PgVersion) -> Self {
        let source_cluster = shared::cluster(source).await;
        let sink_cluster = shared::cluster(sink).await;
        let database = fresh_name("copy");
        let sink_name = format!("{database}_sink");
        source_cluster.create_database(&database).await.unwrap();
        sink_cluster.create_database(&sink_name).await.unwrap();
        let source = source_cluster.admin(&database).await.unwrap();
        let sink = sink_cluster.admin(&sink_name).await.unwrap();
        source.batch_execute(SOURCE_SCHEMA).await.unwrap();
        sink.batch_execute(SINK_SCHEMA).await.unwrap();
        for tenant in [1, 2] {
            source.batch_execute(&tenant_rows(tenant)).await.unwrap();
        }
        source.batch_execute(NOBODYS_ROWS).await.unwrap();
        sink.batch_execute(&tenant_rows(9)).await.unwrap();
        Self {
            graph: monarch_config::manifest_from_str("manifest.yaml", MANIFEST).unwrap(),
            unit: Unit {
                move_id: MoveId(Uuid::new_v4()),
                org: org("1"),
                store: store("default"),
            },
            source,
            sink,
            database,
            source_cluster,
            sink_cluster,
        }
    }

    pub(crate) async fn source_session(&self) -> Client {
        self.source_cluster.admin(&self.database).await.unwrap()
    }

    pub(crate) async fn sink_session(&self) -> Client {
        let name = format!("{}_sink", self.database);
        self.sink_cluster.admin(&name).await.unwrap()
    }

    /// A sink session that calls itself the mover of an epoch.
    pub(crate) async fn mover_session(&self, epoch: i64) -> Client {
        let client = self.sink_session().await;
        let name = self.unit.application(Epoch(epoch));
        client
            .batch_execute(&format!("set application_name = '{name}'"))
            .await
            .unwrap();
        client
    }

    /// A replication connection of the mover of an epoch.
    pub(crate) async fn replication(&self, epoch: i64) -> ReplicationConnection {
        replication(&self.source_cluster.dsn(&self.database), &self.unit, epoch).await
    }

    /// Publications and slot, as a mover makes them.
    pub(crate) async fn publish(&mut self, epoch: i64) -> ExportedSlot {
        let spine = self.spine().await;
        let tables = self.graph.walk(&self.unit.store);
        let catalog = catalog::load(&self.source, &tables).await.unwrap();
        let (store, org) = (&self.unit.store, &self.unit.org);
        let scope = Scope::new(&self.graph, store, org, &spine, &catalog).unwrap();
        let plan = publication::plan(&self.unit, &self.graph, &scope, &catalog).unwrap();
        publication::ensure(&mut self.source, &plan).await.unwrap();
        self.slot(epoch).await.unwrap()
    }

    /// The slot of an epoch that is still the unit's.
    pub(crate) async fn slot(&self, epoch: i64) -> Result<ExportedSlot, SlotError> {
        let making = Making {
            unit: &self.unit,
            epoch: Epoch(epoch),
            decoder: &self.source,
            primary: &self.source,
            timeout: Duration::from_secs(120),
            cancel: &CancellationToken::new(),
        };
        let connection = self.replication(epoch).await;
        let name = self.unit.slot(Epoch(epoch));
        let command = connection.create_slot(&name, SlotKind::Permanent);
        making.create(command, async || Ok(true)).await
    }

    pub(crate) async fn spine(&self) -> Spine {
        let clients = BTreeMap::from([
            (store("default"), &self.source),
            (store("events"), &self.source),
        ]);
        spine::read(&clients, &self.graph, &self.unit.org)
            .await
            .unwrap()
    }
}

/// A replication connection that calls itself the mover of an epoch.
pub(crate) async fn replication(dsn: &str, unit: &Unit, epoch: i64) -> ReplicationConnection {
    let options = ConnectOptions::parse(dsn, &Environment::empty()).unwrap();
    let purpose = SessionPurpose::writer(unit.application(Epoch(epoch)));
    ReplicationConnection::connect(&options, &purpose)
        .await
        .unwrap()
}

/// Rows of a tenant, with ids that no other tenant has.
fn tenant_rows(tenant: i64) -> String {
    let project = |n: i64| format!("00000000-0000-4000-8000-{tenant:06}{n:06}");
    let (p1, p2) = (project(1), project(2));
    let g = tenant * 100;
    format!(
        r#"
insert into organization (id, name) values ({tenant}, 'tenant {tenant}');
insert into project (id, organization_id, name) values
  ('{p1}', {tenant}, 'one'), ('{p2}', {tenant}, null);
insert into "group" (id, project_id, title) overriding system value
  select {g} + n, case when n % 2 = 0 then '{p1}'::uuid else '{p2}'::uuid end, 'group ' || n
  from generate_series(1, 10) n;
insert into event (key, group_id, body)
  select 'e{tenant}-' || n || E'\\ "q" \u00e4', {g} + 1 + n % 10,
         E'tab\tline\n\\.\nback\\slash ' || repeat('x', n)
  from generate_series(1, 500) n;
insert into member (organization_id, email, role) values
  ({tenant}, 'a@b.example', 'admin'), ({tenant}, '', null), ({tenant}, '\N', 'x');
insert into "App"."Order" ("Id", "group", mood, size, places, "select") values
  ({g} + 1, {g} + 1, 'so so', 7, array[row(1, 'a "b" \ c'), null]::"App".place[], '{{"a": [1]}}'),
  ({g} + 2, {g} + 2, 'glad', null, null, null);
insert into "App".line ("order", place, price) values
  ({g} + 1, 1, 10.50), ({g} + 1, 2, 'NaN'), ({g} + 2, 1, null);
insert into log (organization_id, at, note) values
  ({tenant}, '2019-05-05', 'old'), ({tenant}, '2024-05-05', 'new'), ({tenant}, 'infinity', 'x');
insert into hit (id, project_id, path) values ({g} + 1, '{p1}', '/a'), ({g} + 2, null, '/b');
"#
    )
}

/// Rows whose edges are null or lead nowhere.
const NOBODYS_ROWS: &str = r#"
insert into project (id, organization_id) values ('00000000-0000-4000-8000-00000000aaaa', null);
insert into "group" (id, project_id) overriding system value
  values (5000, null), (5001, '00000000-0000-4000-8000-00000000aaaa'),
         (5002, '00000000-0000-4000-8000-00000000bbbb');
insert into event (key, group_id) values ('n1', null), ('n2', 5000), ('n3', 5001), ('n4', 77777);
"#;

/// Each table's rows of a tenant as sorted JSON, by table.
pub(crate) async fn rows_of(client: &Client, tenant: i64) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (table, owned) in OWNED {
        let owned = owned.replace("$ORG", &tenant.to_string());
        rows.insert((*table).to_owned(), json_rows(client, table, &owned).await);
    }
    rows
}

/// Every row of each table as sorted JSON, by table.
pub(crate) async fn all_rows(client: &Client) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (table, _) in OWNED {
        rows.insert((*table).to_owned(), json_rows(client, table, "true").await);
    }
    rows
}

async fn json_rows(client: &Client, table: &str, condition: &str) -> Vec<String> {
    let statement = format!(
        "select to_jsonb(t)::text from {table} as t where {condition} order by to_jsonb(t)::text collate \"C\""
    );
    let rows = client.query(&statement, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The first column of the first row.
pub(crate) async fn one<T>(client: &Client, statement: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client.query_one(statement, &[]).await.unwrap().get(0)
}

pub(crate) fn org(id: &str) -> OrgId {
    id.parse().unwrap()
}

pub(crate) fn store(name: &str) -> StoreName {
    name.parse().unwrap()
}

pub(crate) fn table(name: &str) -> TableName {
    name.parse().unwrap()
}
