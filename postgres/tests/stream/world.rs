//! A source and a sink with the kinds of tables that a stream meets, an organization copied from
//! one to the other, and a mover.

use std::collections::BTreeMap;
use std::sync::Arc;

use monarch_config::Graph;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby, fresh_name, shared};
use monarch_model::{Epoch, MoveId, StoreName};
use monarch_postgres::catalog;
use monarch_postgres::connect::Environment;
use monarch_postgres::keys::NoObjects;
use monarch_postgres::replication::{ExportedSlot, ReplicationConnection, SlotKind};
use monarch_postgres::scope::Scope;
use monarch_postgres::sink::{self, TakeOver};
use monarch_postgres::slot::Making;
use monarch_postgres::snapshot;
use monarch_postgres::spine::{self, Spine};
use monarch_postgres::stream::{
    self, Aligned, Alignment, Batching, Job, Observer, Reason, Report, Spool, StreamError,
};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, Unit, drain, publication};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const MANIFEST: &str = r#"
root: organization
stores:
  default: {type: postgres}
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
    primary_key: [id]
    refs: {group_id: {parent: group}}
  thread:
    store: default
    primary_key: [id]
    refs: {group_id: {parent: group}}
  reply:
    store: default
    primary_key: [id]
    refs: {thread_id: {parent: thread}}
  member:
    store: default
    primary_key: [organization_id, email]
    refs: {organization_id: {parent: organization}}
  audit:
    store: default
    primary_key: [id]
    refs: {project_id: {parent: project}}
  log:
    store: default
    primary_key: [organization_id, at, note]
    refs: {organization_id: {parent: organization}}
  topic:
    store: default
    primary_key: [id]
    refs: {project_id: {parent: project}}
  post:
    store: default
    primary_key: [id]
    refs: {topic_id: {parent: topic}}
  board:
    store: default
    primary_key: [id]
    refs: {project_id: {parent: project}}
  card:
    store: default
    primary_key: [id]
    refs: {board_id: {parent: board}}
  note:
    store: default
    primary_key: [id]
    refs: {card_id: {parent: card}}
"#;

/// `group`, `thread` and their children have foreign keys; `topic` and `post`, and `board`, `card`
/// and `note`, do not.
const SCHEMA: &str = r#"
create table organization (id bigint primary key, name text);
create table project (id bigint primary key, organization_id bigint, name text);
create table "group" (
  id bigint generated always as identity primary key, project_id bigint references project,
  title text, shout text generated always as (upper(title)) stored);
create table event (
  id bigint primary key,
  group_id bigint references "group" on delete cascade on update cascade deferrable,
  label text, body text);
alter table event alter body set storage external;
create unique index event_label on event (group_id, label);
create table thread (
  id uuid primary key,
  group_id bigint references "group" on delete cascade on update cascade deferrable, title text);
create table reply (
  id text primary key, thread_id uuid references thread on delete cascade deferrable, body text);
create table member (
  organization_id bigint, email text, role varchar(5), primary key (organization_id, email));
create table audit (id bigint primary key, project_id bigint, label text, body text);
alter table audit replica identity full;
alter table audit alter body set storage external;
create table log (organization_id bigint, at date, note text,
  primary key (organization_id, at, note)) partition by range (at);
create table topic (id integer primary key, project_id bigint, title text);
create table post (id integer primary key, topic_id integer, body text);
create table board (id uuid primary key, project_id bigint, title text, body text);
alter table board alter body set storage external;
create table card (id text primary key, board_id uuid, place integer, body text);
alter table card alter body set storage external;
create unique index card_place on card (board_id, place);
create table note (id bigint primary key, card_id text, body text);
alter table note replica identity full;
create index on post (topic_id);
create index on card (board_id);
create index on note (card_id);
"#;

/// The leaves of the partitioned table differ.
const SOURCE_LEAVES: &str = "
create table log_old partition of log for values from (minvalue) to ('2020-01-01');
create table log_new partition of log for values from ('2020-01-01') to (maxvalue)";
const SINK_LEAVES: &str = "create table log_all partition of log default";

/// Which rows of each table are tenant `$ORG`'s, told independently of the code under test.
const OWNED: &[(&str, &str)] = &[
    ("organization", "id = $ORG"),
    ("project", "organization_id = $ORG"),
    ("\"group\"", "project_id in $PROJECTS"),
    ("event", "group_id in $GROUPS"),
    ("thread", "group_id in $GROUPS"),
    (
        "reply",
        "thread_id in (select id from thread where group_id in $GROUPS)",
    ),
    ("member", "organization_id = $ORG"),
    ("log", "organization_id = $ORG"),
    ("audit", "project_id in $PROJECTS"),
    ("topic", "project_id in $PROJECTS"),
    (
        "post",
        "topic_id in (select id from topic where project_id in $PROJECTS)",
    ),
    ("board", "project_id in $PROJECTS"),
    ("card", "board_id in $BOARDS"),
    (
        "note",
        "card_id in (select id from card where board_id in $BOARDS)",
    ),
];

/// A value that is stored out of line.
pub(crate) const LARGE: &str = "repeat('0123456789', 1000)";

/// An organization copied from a source to a sink.
pub(crate) struct World {
    pub(crate) source: Client,
    pub(crate) sink: Client,
    pub(crate) job: Job,
    source_cluster: &'static Cluster,
    decoder: &'static Cluster,
    sink_cluster: &'static Cluster,
    database: String,
    others: BTreeMap<String, Vec<String>>,
}

/// A mover under way.
pub(crate) struct Mover {
    cancel: CancellationToken,
    pub(crate) ask: mpsc::Sender<Alignment>,
    reports: watch::Receiver<Report>,
    running: JoinHandle<Result<Report, StreamError>>,
}

type Answer = Result<Aligned, StreamError>;

struct Watching(watch::Sender<Report>);

/// Rows share statements wherever they may, so that every test meets it; `MONARCH_BATCHING=off` shows
/// whether a fault lies there.
fn batching() -> Batching {
    match std::env::var("MONARCH_BATCHING").as_deref() {
        Ok("off") => Batching::Off,
        Ok("on") => Batching::AsPays,
        _ => Batching::Random(7),
    }
}

impl Observer for Watching {
    fn observe(&mut self, report: &Report) {
        self.0.send_replace(*report);
    }
}

impl World {
    /// Tenants 1 and 2 on the source, tenant 9 on the sink; 1 is copied and to be streamed.
    pub(crate) async fn new() -> Self {
        Self::between(PgVersion::V15, PgVersion::V14).await
    }

    pub(crate) async fn between(source: PgVersion, sink: PgVersion) -> Self {
        let source = shared::cluster(source).await;
        Self::of(source, source, shared::cluster(sink).await, "").await
    }

    /// The same, with statements that run on the source before the copy.
    pub(crate) async fn with(before: &str) -> Self {
        Self::with_sink(PgVersion::V14, before).await
    }

    /// The same, and a sink of that version.
    pub(crate) async fn with_sink(sink: PgVersion, before: &str) -> Self {
        let source = shared::cluster(PgVersion::V15).await;
        Self::of(source, source, shared::cluster(sink).await, before).await
    }

    /// The same, from a server that the test may configure. It ends with the process.
    pub(crate) async fn on_its_own(source: PgVersion, settings: &[&str]) -> Self {
        let mut options = ClusterOptions::new(source);
        for setting in settings {
            options = options.setting(*setting);
        }
        let source = Box::leak(Box::new(Cluster::start(options).await.unwrap()));
        Self::of(source, source, shared::cluster(PgVersion::V14).await, "").await
    }

    /// The same, decoded on a standby of a primary of its own.
    pub(crate) async fn decoded_on_a_standby(source: PgVersion) -> Self {
        let options = ClusterOptions::new(source);
        let primary = Box::leak(Box::new(Cluster::start(options).await.unwrap()));
        let standby = Box::leak(Box::new(Standby::of(primary).await.unwrap()));
        Self::of(primary, standby, shared::cluster(PgVersion::V14).await, "").await
    }

    async fn of(
        source_cluster: &'static Cluster,
        decoder: &'static Cluster,
        sink_cluster: &'static Cluster,
        before: &str,
    ) -> Self {
        let database = fresh_name("stream");
        let source_dsn = source_cluster.create_database(&database).await.unwrap();
        let sink_name = format!("{database}_sink");
        let sink_dsn = sink_cluster.create_database(&sink_name).await.unwrap();
        let source = source_cluster.admin(&database).await.unwrap();
        let sink = sink_cluster.admin(&sink_name).await.unwrap();
        let sides = [
            (&source, SOURCE_LEAVES, vec![1, 2]),
            (&sink, SINK_LEAVES, vec![9]),
        ];
        for (client, leaves, tenants) in sides {
            client.batch_execute(SCHEMA).await.unwrap();
            client.batch_execute(leaves).await.unwrap();
            for tenant in tenants {
                client.batch_execute(&tenant_rows(tenant)).await.unwrap();
            }
        }
        let options = |dsn: &str| ConnectOptions::parse(dsn, &Environment::empty()).unwrap();
        let unit = Unit {
            move_id: MoveId(Uuid::new_v4()),
            org: "1".parse().unwrap(),
            store: "default".parse().unwrap(),
        };
        source.batch_execute(before).await.unwrap();
        let mut world = Self {
            job: Job {
                slot: unit.slot(Epoch(1)),
                unit,
                epoch: Epoch(1),
                graph: Arc::new(
                    monarch_config::manifest_from_str("manifest.yaml", MANIFEST).unwrap(),
                ),
                spine: Arc::new(Spine::default()),
                source: options(&decoder.dsn(&database)),
                primary: options(&source_dsn),
                sink: options(&sink_dsn),
                acknowledged: None,
                sink_identity: None,
                spool: Spool::new(std::env::temp_dir()),
                keys: Arc::new(NoObjects),
                batching: batching(),
            },
            others: all_rows(&sink).await,
            source,
            sink,
            source_cluster,
            decoder,
            sink_cluster,
            database,
        };
        world.copy().await;
        world
    }

    async fn copy(&mut self) {
        let graph: &Graph = &self.job.graph;
        let store: StoreName = self.job.unit.store.clone();
        let mut primary = self.source_client().await;
        let mut sink = self.sink_client().await;
        let clients = BTreeMap::from([(store.clone(), &primary)]);
        let spine = spine::read(&clients, graph, &self.job.unit.org)
            .await
            .unwrap();
        let catalog = catalog::load(&primary, &graph.walk(&store)).await.unwrap();
        let scope = Scope::new(graph, &store, &self.job.unit.org, &spine, &catalog).unwrap();
        let plan = publication::plan(&self.job.unit, graph, &scope, &catalog).unwrap();
        publication::ensure(&mut primary, &plan).await.unwrap();
        sink::ensure_schema(&mut sink).await.unwrap();
        self.take_over(1).await;
        let slot = self.make_slot(&primary).await;
        let mut source = self.decoder.admin(&self.database).await.unwrap();
        let copying = snapshot::Job {
            unit: &self.job.unit,
            epoch: Epoch(1),
            graph,
            spine: &spine,
            snapshot: &slot.snapshot,
            consistent_point: slot.consistent_point,
            keys: &self.job.keys,
        };
        let mut nobody = Nobody;
        snapshot::copy(
            &copying,
            &mut source,
            &mut sink,
            &mut nobody,
            &CancellationToken::new(),
        )
        .await
        .unwrap();
        self.job.spine = Arc::new(spine);
    }

    async fn make_slot(&self, primary: &Client) -> ExportedSlot {
        let decoder = self.decoder.admin(&self.database).await.unwrap();
        let timeout = std::time::Duration::from_secs(60);
        if self.decoder.port() != self.source_cluster.port() {
            publication::wait_replayed(primary, &decoder, timeout)
                .await
                .unwrap();
        }
        let making = Making {
            unit: &self.job.unit,
            epoch: Epoch(1),
            decoder: &decoder,
            primary,
            timeout,
            cancel: &CancellationToken::new(),
        };
        let reader = SessionPurpose::reader(self.job.unit.application(Epoch(1)));
        let connection = ReplicationConnection::connect(&self.job.source, &reader)
            .await
            .unwrap();
        let command = connection.create_slot(&self.job.slot, SlotKind::Permanent);
        making.create(command, async || Ok(true)).await.unwrap()
    }

    pub(crate) async fn source_client(&self) -> Client {
        self.source_cluster.admin(&self.database).await.unwrap()
    }

    /// Waits until the mover, or somebody else, waits on the source for something of that kind.
    pub(crate) async fn waits_on_source(&self, wait_event_type: &str) {
        let question = format!(
            "select exists (select from pg_stat_activity
                            where datname = current_database() and backend_type = 'client backend'
                              and wait_event_type = '{wait_event_type}')"
        );
        let patience = tokio::time::timeout(std::time::Duration::from_secs(60), async {
            while !one::<bool>(&self.source, &question).await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        patience.await.expect("nobody waits on the source");
    }

    pub(crate) async fn sink_client(&self) -> Client {
        let name = format!("{}_sink", self.database);
        self.sink_cluster.admin(&name).await.unwrap()
    }

    pub(crate) async fn take_over(&self, epoch: i64) {
        let mut sink = self.sink_client().await;
        let wait = std::time::Duration::from_secs(20);
        let taken = sink::take_over(&mut sink, &self.job.unit, Epoch(epoch), wait)
            .await
            .unwrap();
        assert!(matches!(taken, TakeOver::Held(_)));
    }

    /// The sink under a role that is no superuser: it owns nothing and may only do what is granted.
    pub(crate) async fn as_plain_role(&mut self) {
        let role = fresh_name("plain");
        self.sink
            .batch_execute(&format!(
                "create role {role} login password 'plain' nosuperuser;
                 grant usage on schema public, monarch to {role};
                 grant select, insert, update, delete on all tables in schema public, monarch
                   to {role};
                 grant pg_signal_backend to {role}"
            ))
            .await
            .unwrap();
        let dsn = format!(
            "host=127.0.0.1 port={} user={role} password=plain dbname={}_sink",
            self.sink_cluster.port(),
            self.database
        );
        self.job.sink = ConnectOptions::parse(&dsn, &Environment::empty()).unwrap();
    }

    /// The source under a role that is no superuser: it may read and replicate, and is not told what
    /// other sessions do.
    pub(crate) async fn read_as_plain_role(&mut self) {
        let role = fresh_name("plain");
        self.on_source(&format!(
            "create role {role} login replication password 'plain';
             grant select on all tables in schema public to {role}"
        ))
        .await;
        let dsn = format!(
            "host=127.0.0.1 port={} user={role} password=plain dbname={}",
            self.source_cluster.port(),
            self.database
        );
        self.job.source = ConnectOptions::parse(&dsn, &Environment::empty()).unwrap();
        self.job.primary = self.job.source.clone();
    }

    /// Starts a mover with the job as it stands.
    pub(crate) fn start(&self) -> Mover {
        let (sender, reports) = watch::channel(Report::default());
        let cancel = CancellationToken::new();
        let (job, stop) = (self.job.clone(), cancel.clone());
        let (ask, asked) = mpsc::channel(1);
        let running =
            tokio::spawn(
                async move { stream::run(&job, &mut Watching(sender), asked, &stop).await },
            );
        Mover {
            cancel,
            ask,
            reports,
            running,
        }
    }

    /// Waits until no mover has a session on the sink.
    pub(crate) async fn left_the_sink(&self) {
        let application = self.job.unit.application(self.job.epoch);
        let question = format!(
            "select exists (select from pg_stat_activity
                            where datname = current_database()
                              and application_name = '{application}')"
        );
        let patience = tokio::time::timeout(std::time::Duration::from_secs(60), async {
            while one::<bool>(&self.sink, &question).await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        patience.await.expect("a mover stays on the sink");
    }

    /// What a mover is asked to align, and where its answer comes.
    pub(crate) async fn alignment(&self) -> (Alignment, oneshot::Receiver<Answer>) {
        let reader = SessionPurpose::reader("stream test");
        let source = Session::connect(&self.job.primary, &reader).await.unwrap();
        let sink = Session::connect(&self.job.sink, &reader).await.unwrap();
        let tables = self.job.graph.walk(&self.job.unit.store);
        let names = tables.iter().map(|table| &table.name);
        stream::await_snapshot(&sink, names).await.unwrap();
        Alignment::new(source, sink)
    }

    /// The organization's rows on both sides, as of one position that the mover brought them to.
    pub(crate) async fn compared(&self, mover: &Mover) -> [BTreeMap<String, Vec<String>>; 2] {
        let (alignment, answer) = self.alignment().await;
        mover.ask.send(alignment).await.unwrap();
        let both = answer.await.unwrap().unwrap();
        for side in [&both.source, &both.sink] {
            let path = "set local search_path = public";
            side.batch_execute(path).await.unwrap();
        }
        [rows_of(&both.source, 1).await, rows_of(&both.sink, 1).await]
    }

    pub(crate) async fn on_source(&self, sql: &str) {
        self.source.batch_execute(sql).await.unwrap();
    }

    /// Leaves a barrier on the source; its nonce.
    pub(crate) async fn barrier(&self) -> Uuid {
        let nonce = Uuid::new_v4();
        let unit = &self.job.unit;
        drain::emit_barrier(&self.source, unit.move_id, &unit.store, nonce)
            .await
            .unwrap();
        nonce
    }

    /// Waits until the mover has applied all that is committed now.
    pub(crate) async fn settle(&self, mover: &mut Mover) -> Report {
        let nonce = self.barrier().await;
        let met = mover
            .until(|report| report.barrier.is_some_and(|barrier| barrier.nonce == nonce))
            .await;
        match met {
            Ok(report) => report,
            Err(error) => panic!("the mover ended: {error:?}"),
        }
    }

    /// Runs statements on the source while a mover streams, and checks that the sink has the same
    /// of the organization and that no other tenant's row on it changed.
    pub(crate) async fn follows(&self, sql: &[&str]) -> Report {
        let mut mover = self.start();
        for sql in sql {
            self.on_source(sql).await;
        }
        let report = self.settle(&mut mover).await;
        mover.stop().await.unwrap();
        self.assert_same().await;
        report
    }

    /// Runs statements on the source while a mover streams, and says why it fails by name.
    pub(crate) async fn fails(&self, sql: &[&str]) -> (String, Reason) {
        let mut mover = self.start();
        self.settle(&mut mover).await;
        for sql in sql {
            self.on_source(sql).await;
        }
        let nonce = self.barrier().await;
        let met = |report: &Report| report.barrier.is_some_and(|barrier| barrier.nonce == nonce);
        match mover.until(met).await {
            Err(StreamError::Fatal(finding)) => (finding.table.to_string(), finding.reason),
            other => panic!("not fatal: {other:?}"),
        }
    }

    pub(crate) async fn assert_same(&self) {
        let (source, sink) = (rows_of(&self.source, 1).await, rows_of(&self.sink, 1).await);
        assert_eq!(sink, source);
    }

    pub(crate) async fn state(&self) -> sink::State {
        sink::read(&self.sink, &self.job.unit)
            .await
            .unwrap()
            .unwrap()
    }
}

impl Drop for World {
    /// Guards promise 1 in every scenario, however it ended: what is on the sink beside the
    /// organization is as it was.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (cluster, others) = (self.sink_cluster, std::mem::take(&mut self.others));
        let name = format!("{}_sink", self.database);
        let look = move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                let sink = cluster.admin(&name).await.unwrap();
                let ours = rows_of(&sink, 1).await;
                let mut rest = all_rows(&sink).await;
                for (table, rows) in &mut rest {
                    rows.retain(|row| ours[table].binary_search(row).is_err());
                }
                assert_eq!(rest, others, "another tenant's rows changed on the sink");
            });
        };
        std::thread::spawn(look).join().unwrap();
    }
}

impl Mover {
    /// Waits for a report; the error if the mover ends before.
    pub(crate) async fn until(
        &mut self,
        wanted: impl Fn(&Report) -> bool,
    ) -> Result<Report, StreamError> {
        let patience = std::time::Duration::from_secs(120);
        let seen = tokio::time::timeout(patience, self.reports.wait_for(|report| wanted(report)));
        match seen.await.expect("the mover does not come so far") {
            Ok(report) => Ok(*report),
            Err(_) => (&mut self.running).await.unwrap(),
        }
    }

    /// Stops it at a boundary.
    pub(crate) async fn stop(self) -> Result<Report, StreamError> {
        self.cancel.cancel();
        self.running.await.unwrap()
    }

    /// Kills it where it stands.
    pub(crate) async fn kill(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
    }

    /// Why it ended by itself.
    pub(crate) async fn ended(self) -> StreamError {
        self.running.await.unwrap().unwrap_err()
    }
}

struct Nobody;

impl snapshot::Observer for Nobody {
    fn progress(&mut self, _: &snapshot::Progress) {}
}

/// Rows of a tenant. Tenant `n` has projects `n0` and `n1`, groups `n01` to `n04`, events `n001`
/// to `n020`, and so on.
fn tenant_rows(tenant: i64) -> String {
    let (p, g, e) = (tenant * 10, tenant * 100, tenant * 1000);
    format!(
        r#"
insert into organization values ({tenant}, 'tenant {tenant}');
insert into project values ({p}, {tenant}, 'one'), ({p} + 1, {tenant}, 'two');
insert into "group" (id, project_id, title) overriding system value
  select {g} + n, {p} + n % 2, 'group ' || n from generate_series(1, 4) n;
insert into event select {e} + n, {g} + 1 + n % 4, 'event ' || n, {LARGE} || n
  from generate_series(1, 20) n;
insert into thread
  select format('00000000-0000-4000-8000-%s', lpad(({g} + n)::text, 12, '0'))::uuid, {g} + n, 't'
  from generate_series(1, 3) n;
insert into reply select '{tenant}-' || n,
  format('00000000-0000-4000-8000-%s', lpad(({g} + 1 + n % 3)::text, 12, '0'))::uuid, 'r ' || n
  from generate_series(1, 9) n;
insert into member values ({tenant}, 'a@b.example', 'admin'), ({tenant}, '', null);
insert into audit select {e} + n, {p} + n % 2, 'audit ' || n, {LARGE} || n
  from generate_series(1, 5) n;
insert into log values ({tenant}, '2019-05-05', 'old'), ({tenant}, '2024-05-05', 'new');
insert into topic values ({g} + 1, {p}, 'a'), ({g} + 2, {p} + 1, 'b');
insert into post select {e} + n, {g} + 1 + n % 2, 'p' from generate_series(1, 6) n;
insert into board select format('00000000-0000-4000-9000-%s', lpad(({g} + n)::text, 12, '0'))::uuid,
  {p} + n % 2, 'board ' || n, {LARGE} || n from generate_series(1, 2) n;
insert into card select '{tenant}-' || n,
  format('00000000-0000-4000-9000-%s', lpad(({g} + 1 + n % 2)::text, 12, '0'))::uuid, n, {LARGE} || n
  from generate_series(1, 4) n;
insert into note select {e} + n, '{tenant}-' || (1 + n % 4), 'note ' || n
  from generate_series(1, 8) n;
"#
    )
}

/// Each table's rows of a tenant as sorted JSON, by table.
async fn rows_of(client: &Client, tenant: i64) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (table, owned) in OWNED {
        let owned = owned
            .replace(
                "$BOARDS",
                "(select id from board where project_id in $PROJECTS)",
            )
            .replace(
                "$GROUPS",
                "(select id from \"group\" where project_id in $PROJECTS)",
            )
            .replace(
                "$PROJECTS",
                "(select id from project where organization_id = $ORG)",
            )
            .replace("$ORG", &tenant.to_string());
        rows.insert((*table).to_owned(), json_rows(client, table, &owned).await);
    }
    rows
}

async fn all_rows(client: &Client) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for (table, _) in OWNED {
        rows.insert((*table).to_owned(), json_rows(client, table, "true").await);
    }
    rows
}

async fn json_rows(client: &Client, table: &str, condition: &str) -> Vec<String> {
    let statement = format!(
        "select r from (select to_jsonb(t)::text as r from {table} as t where {condition}) as rows
         order by r collate \"C\""
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
