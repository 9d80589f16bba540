//! A move of organization 1 between two databases, for whatever tables a test brings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use monarch_config::{Fleet, Graph, fleet_from_str, manifest_from_str};
use monarch_harness::{Cluster, PgVersion, fresh_name, shared};
use monarch_model::{Epoch, MoveId, StoreName};
use monarch_postgres::catalog;
use monarch_postgres::connect::Environment;
use monarch_postgres::evict::{self, EvictionPermit, Evidence};
use monarch_postgres::keys::NoObjects;
use monarch_postgres::preflight::{self, Limits, Report};
use monarch_postgres::replication::{ReplicationConnection, SlotKind};
use monarch_postgres::scope::Scope;
use monarch_postgres::sequences::Keeper;
use monarch_postgres::sink::{self, TakeOver};
use monarch_postgres::snapshot::{self, Copied, CopyError};
use monarch_postgres::spine::{self, Spine};
use monarch_postgres::stream::{self, Batching, Job, Observer, Spool, StreamError};
use monarch_postgres::verify::{self, Comparison, Digests, Subject};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, Unit, drain, publication, slot};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The tables of a move, and what is in them. `$ORG` stands for a tenant in `fill` and `owned`,
/// `$DB` for the database's name in `source` and `sink`.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) manifest: &'a str,
    /// Run on both sides.
    pub(crate) schema: &'a str,
    /// Run on the source behind the schema.
    pub(crate) source: &'a str,
    /// Run on the sink behind the schema.
    pub(crate) sink: &'a str,
    /// What follows `create database NAME`, on either side.
    pub(crate) databases: (&'a str, &'a str),
    /// Makes a tenant's rows: 1 and 2 on the source, 9 on the sink.
    pub(crate) fill: &'a str,
    /// Which rows are a tenant's, told independently of the code under test.
    pub(crate) owned: &'a [(&'a str, &'a str)],
}

/// Rows share statements wherever they may, so that every test meets it; `MONARCH_BATCHING=off` shows
/// whether a fault lies there.
fn batching() -> Batching {
    match std::env::var("MONARCH_BATCHING").as_deref() {
        Ok("off") => Batching::Off,
        Ok("on") => Batching::AsPays,
        _ => Batching::Random(7),
    }
}

impl Case<'_> {
    pub(crate) const EMPTY: Case<'static> = Case {
        manifest: "",
        schema: "",
        source: "",
        sink: "",
        databases: ("", ""),
        fill: "",
        owned: &[],
    };
}

/// A move between two databases of their own.
pub(crate) struct Move {
    pub(crate) source: Client,
    pub(crate) sink: Client,
    pub(crate) job: Job,
    pub(crate) dsns: (String, String),
    owned: Vec<(String, String)>,
    others: BTreeMap<String, Vec<String>>,
}

/// A mover under way.
pub(crate) struct Mover {
    cancel: CancellationToken,
    reports: watch::Receiver<stream::Report>,
    running: JoinHandle<Result<stream::Report, StreamError>>,
}

struct Watching(watch::Sender<stream::Report>);

impl Observer for Watching {
    fn observe(&mut self, report: &stream::Report) {
        self.0.send_replace(*report);
    }
}

struct Nobody;

impl snapshot::Observer for Nobody {
    fn progress(&mut self, _: &snapshot::Progress) {}
}

/// What a whole move came to.
pub(crate) struct Whole {
    pub(crate) comparison: Comparison,
    pub(crate) evicted: u64,
}

impl Move {
    /// The databases with their tables and tenants; nothing has moved yet.
    pub(crate) async fn prepare(case: &Case<'_>, source: PgVersion, sink: PgVersion) -> Self {
        let clusters = (shared::cluster(source).await, shared::cluster(sink).await);
        Self::on(case, clusters.0, clusters.1).await
    }

    pub(crate) async fn on(case: &Case<'_>, source: &Cluster, sink: &Cluster) -> Self {
        let name = fresh_name("types");
        let sink_name = format!("{name}_sink");
        let from = database(source, &name, case.databases.0, case.schema, case.source).await;
        let to = database(sink, &sink_name, case.databases.1, case.schema, case.sink).await;
        for (client, tenants) in [(&from, &["1", "2"][..]), (&to, &["9"])] {
            for tenant in tenants {
                run(client, &case.fill.replace("$ORG", tenant)).await;
            }
        }
        let owned: Vec<(String, String)> = case
            .owned
            .iter()
            .map(|(table, rows)| ((*table).to_owned(), (*rows).to_owned()))
            .collect();
        let others = rows(&to, &owned, None).await;
        let unit = Unit {
            move_id: MoveId(Uuid::new_v4()),
            org: "1".parse().unwrap(),
            store: "default".parse().unwrap(),
        };
        let dsns = (source.dsn(&name), sink.dsn(&sink_name));
        let job = Job {
            slot: unit.slot(Epoch(1)),
            unit,
            epoch: Epoch(1),
            graph: Arc::new(manifest_from_str("manifest.yaml", case.manifest).unwrap()),
            spine: Arc::new(Spine::default()),
            source: options(&dsns.0),
            primary: options(&dsns.0),
            sink: options(&dsns.1),
            acknowledged: None,
            sink_identity: None,
            spool: Spool::new(std::env::temp_dir()),
            keys: Arc::new(NoObjects),
            batching: batching(),
        };
        Self {
            source: from,
            sink: to,
            job,
            dsns,
            owned,
            others,
        }
    }

    /// Prepared, found clean by preflight, and copied.
    pub(crate) async fn begin(case: &Case<'_>, source: PgVersion, sink: PgVersion) -> Self {
        let mut it = Self::prepare(case, source, sink).await;
        let report = it.preflight().await;
        assert!(!report.refuses(), "{:#?}", report.findings);
        it.copy().await.unwrap();
        it.assert_same().await;
        it
    }

    /// Who the move is on the two servers from now on.
    pub(crate) fn act_as(&mut self, source: &str, sink: &str) {
        self.dsns = (source.to_owned(), sink.to_owned());
        self.job.source = options(source);
        self.job.primary = options(source);
        self.job.sink = options(sink);
    }

    /// The organization is another than 1: the one whose key an expression gives on the source.
    pub(crate) async fn is_organization(&mut self, key: &str) {
        let sql = format!("select ({key})::text");
        let key: String = self.source.query_one(&sql, &[]).await.unwrap().get(0);
        self.job.unit.org = key.parse().unwrap();
    }

    pub(crate) async fn preflight(&self) -> Report {
        self.preflight_with("blobs: {}").await
    }

    /// With a key more in the sink's cell.
    pub(crate) async fn preflight_with(&self, sink_key: &str) -> Report {
        let graph: &Graph = &self.job.graph;
        let fleet = fleet(&self.dsns.0, &self.dsns.1, sink_key, graph);
        let (from, to) = ("from".parse().unwrap(), "to".parse().unwrap());
        let job = preflight::Job {
            graph,
            fleet: &fleet,
            from: &from,
            to: &to,
            org: &self.job.unit.org,
            accept_disagreeing_edges: &[],
            limits: Limits::default(),
        };
        preflight::check(&job).await
    }

    /// The codes that preflight refuses by.
    pub(crate) async fn refusals(&self) -> Vec<String> {
        let report = self.preflight().await;
        let codes = report.refusals().map(|finding| finding.code.to_string());
        codes.collect()
    }

    pub(crate) async fn source_session(&self) -> Session {
        self.connect(&self.job.source).await
    }

    pub(crate) async fn sink_session(&self) -> Session {
        self.connect(&self.job.sink).await
    }

    async fn connect(&self, options: &ConnectOptions) -> Session {
        let purpose = SessionPurpose::writer(self.job.unit.application(self.job.epoch));
        Session::connect(options, &purpose).await.unwrap()
    }

    async fn scope(&self, session: &Session) -> (Scope, catalog::Catalog) {
        let Job {
            graph, unit, spine, ..
        } = &self.job;
        let catalog = catalog::load(&**session, &graph.walk(&unit.store))
            .await
            .unwrap();
        let scope = Scope::new(graph, &unit.store, &unit.org, spine, &catalog).unwrap();
        (scope, catalog)
    }

    pub(crate) async fn read_spine(&mut self) {
        let source = self.source_session().await;
        let clients: BTreeMap<StoreName, &Client> =
            BTreeMap::from([(self.job.unit.store.clone(), &*source)]);
        let spine = spine::read(&clients, &self.job.graph, &self.job.unit.org)
            .await
            .unwrap();
        self.job.spine = Arc::new(spine);
    }

    /// Publications, slot and copy, as the activities make them.
    pub(crate) async fn copy(&mut self) -> Result<Copied, CopyError> {
        self.read_spine().await;
        self.copy_by_spine().await
    }

    /// The same, by the spine that was read.
    pub(crate) async fn copy_by_spine(&self) -> Result<Copied, CopyError> {
        let mut source = self.source_session().await;
        let mut sink = self.sink_session().await;
        let graph = Arc::clone(&self.job.graph);
        let (scope, catalog) = self.scope(&source).await;
        let plan = publication::plan(&self.job.unit, &graph, &scope, &catalog).unwrap();
        publication::ensure(&mut source, &plan).await.unwrap();
        sink::ensure_schema(&mut sink).await.unwrap();
        let wait = Duration::from_secs(20);
        let taken = sink::take_over(&mut sink, &self.job.unit, self.job.epoch, wait)
            .await
            .unwrap();
        assert!(matches!(taken, TakeOver::Held(_)));
        let reader = SessionPurpose::reader("types test");
        let replication = ReplicationConnection::connect(&self.job.source, &reader)
            .await
            .unwrap();
        let made = replication
            .create_slot(&self.job.slot, SlotKind::Permanent)
            .await
            .unwrap();
        let copying = snapshot::Job {
            unit: &self.job.unit,
            epoch: self.job.epoch,
            graph: &graph,
            spine: &self.job.spine,
            snapshot: &made.snapshot,
            consistent_point: made.consistent_point,
            keys: &self.job.keys,
        };
        let cancel = CancellationToken::new();
        snapshot::copy(&copying, &mut source, &mut sink, &mut Nobody, &cancel).await
    }

    pub(crate) fn start(&self) -> Mover {
        let (sender, reports) = watch::channel(stream::Report::default());
        let cancel = CancellationToken::new();
        let (job, stop) = (self.job.clone(), cancel.clone());
        let (_, nobody) = mpsc::channel(1);
        let running =
            tokio::spawn(
                async move { stream::run(&job, &mut Watching(sender), nobody, &stop).await },
            );
        Mover {
            cancel,
            reports,
            running,
        }
    }

    pub(crate) async fn on_source(&self, sql: &str) {
        run(&self.source, sql).await;
    }

    /// Waits until the mover has applied all that is committed now; the error if it ends before.
    pub(crate) async fn settle(&self, mover: &mut Mover) -> Result<(), StreamError> {
        let nonce = Uuid::new_v4();
        let unit = &self.job.unit;
        drain::emit_barrier(&self.source, unit.move_id, &unit.store, nonce)
            .await
            .unwrap();
        let met =
            |report: &stream::Report| report.barrier.is_some_and(|barrier| barrier.nonce == nonce);
        mover.until(met).await
    }

    /// Runs statements on the source while a mover streams, and checks that the sink has the same
    /// of the organization, and that nothing else on it changed.
    pub(crate) async fn follows(&self, sql: &[&str]) {
        let mut mover = self.start();
        for sql in sql {
            self.on_source(sql).await;
        }
        if let Err(error) = self.settle(&mut mover).await {
            panic!("the mover ended: {error:?}");
        }
        mover.stop().await.unwrap();
        self.assert_same().await;
    }

    /// Runs statements on the source while a mover streams; why it ends.
    pub(crate) async fn ends(&self, sql: &[&str]) -> StreamError {
        let mut mover = self.start();
        self.settle(&mut mover).await.unwrap();
        for sql in sql {
            self.on_source(sql).await;
        }
        match self.settle(&mut mover).await {
            Err(error) => error,
            Ok(()) => panic!("the mover goes on after {sql:?}"),
        }
    }

    pub(crate) async fn assert_same(&self) {
        let source = rows(&self.source, &self.owned, Some("1")).await;
        let sink = rows(&self.sink, &self.owned, Some("1")).await;
        assert!(source.values().any(|rows| !rows.is_empty()));
        assert_eq!(sink, source);
        let mut rest = rows(&self.sink, &self.owned, None).await;
        for (table, rows) in &mut rest {
            rows.retain(|row| !sink[table].contains(row));
        }
        assert_eq!(rest, self.others);
    }

    /// Both sides by the mover's own comparison.
    pub(crate) async fn compare(&self) -> Comparison {
        let (source, sink) = (self.source_session().await, self.sink_session().await);
        let (from, theirs) = self.scope(&source).await;
        let (to, ours) = self.scope(&sink).await;
        let tables = self.job.graph.walk(&self.job.unit.store);
        let subjects = |scope: &Scope| -> Vec<Subject> {
            tables
                .iter()
                .map(|table| Subject {
                    table: table.name.clone(),
                    columns: verify::shared_columns(
                        theirs.relation(&table.name).unwrap(),
                        ours.relation(&table.name).unwrap(),
                    ),
                    predicate: scope.predicate(&table.name, "t").unwrap(),
                })
                .collect()
        };
        let (source_subjects, sink_subjects) = (subjects(&from), subjects(&to));
        let digests: (Digests, Digests) = (
            verify::digest(&*source, &source_subjects).await.unwrap(),
            verify::digest(&*sink, &sink_subjects).await.unwrap(),
        );
        verify::compare(&digests.0, &digests.1)
    }

    /// What keeps the sink's sequences ahead, as the activities use it.
    pub(crate) fn keeper(&self) -> Keeper<'_> {
        Keeper {
            unit: &self.job.unit,
            graph: &self.job.graph,
            spine: &self.job.spine,
            source: &self.job.source,
            sink: &self.job.sink,
            application: "types test",
            headroom: 50,
            own: None,
        }
    }

    /// Takes the machinery down and deletes the organization from the source; how many rows.
    pub(crate) async fn evict(&self) -> u64 {
        let deleted = self.try_evict().await.unwrap();
        let left = rows(&self.source, &self.owned, Some("1")).await;
        assert!(left.values().all(Vec::is_empty), "{left:?}");
        deleted
    }

    pub(crate) async fn try_evict(&self) -> Result<u64, evict::Error> {
        let horizon = self.horizon().await;
        self.evict_behind(&horizon).await
    }

    /// All that is committed on the source now.
    pub(crate) async fn horizon(&self) -> String {
        let source = self.source_session().await;
        let patience = Instant::now() + Duration::from_secs(60);
        let recorded = evict::record_horizon(&source, patience).await.unwrap();
        recorded.horizon.to_string()
    }

    pub(crate) async fn evict_behind(&self, horizon: &str) -> Result<u64, evict::Error> {
        let mut source = self.source_session().await;
        slot::drop_all(&source, &self.job.unit).await.unwrap();
        publication::drop_all(&mut source, &self.job.unit)
            .await
            .unwrap();
        let (scope, catalog) = self.scope(&source).await;
        let Job { graph, unit, .. } = &self.job;
        let doomed = evict::doomed(graph, &unit.store, &scope, &catalog).unwrap();
        let evidence = Evidence {
            late_changes: 0,
            slot_prefixes: &[unit.prefix()],
            horizon,
        };
        let permit = EvictionPermit::issue(&[&source], evidence).await.unwrap();
        let deleted = evict::evict(&mut source, &doomed, &permit, &mut |_, _| {}).await?;
        Ok(deleted.values().sum())
    }

    /// A move from preflight to eviction, with changes while it streams.
    pub(crate) async fn whole(&mut self, changes: &[&str]) -> Whole {
        let comparison = self.whole_without_eviction(changes).await;
        let evicted = self.evict().await;
        Whole {
            comparison,
            evicted,
        }
    }

    pub(crate) async fn whole_without_eviction(&mut self, changes: &[&str]) -> Comparison {
        let report = self.preflight().await;
        assert!(!report.refuses(), "{:#?}", report.findings);
        self.read_spine().await;
        self.keeper().raise().await.unwrap();
        self.copy().await.unwrap();
        self.assert_same().await;
        self.follows(changes).await;
        self.compare().await
    }
}

impl Mover {
    async fn until(&mut self, wanted: impl Fn(&stream::Report) -> bool) -> Result<(), StreamError> {
        let patience = Duration::from_secs(120);
        let seen = tokio::time::timeout(patience, self.reports.wait_for(|report| wanted(report)));
        match seen.await.expect("the mover does not come so far") {
            Ok(_) => Ok(()),
            Err(_) => Err((&mut self.running).await.unwrap().unwrap_err()),
        }
    }

    pub(crate) async fn stop(self) -> Result<stream::Report, StreamError> {
        self.cancel.cancel();
        self.running.await.unwrap()
    }
}

pub(crate) fn options(dsn: &str) -> ConnectOptions {
    ConnectOptions::parse(dsn, &Environment::empty()).unwrap()
}

fn fleet(source: &str, sink: &str, sink_key: &str, graph: &Graph) -> Fleet {
    let text = format!(
        "cells:
  from: {{databases: [{{primary_dsn: \"{source}\", stores: [default]}}]}}
  to: {{databases: [{{primary_dsn: \"{sink}\", stores: [default]}}], {sink_key}}}
ledger: {{dsn: \"{sink}\"}}
"
    );
    fleet_from_str("fleet.yaml", &text, graph, &|_| None).unwrap()
}

async fn database(cluster: &Cluster, name: &str, how: &str, schema: &str, more: &str) -> Client {
    let admin = cluster.admin("postgres").await.unwrap();
    run(&admin, &format!("create database {name} {how}")).await;
    let client = cluster.admin(name).await.unwrap();
    run(&client, schema).await;
    run(&client, &more.replace("$DB", name)).await;
    // What was set for the database counts from the next session on, and not for this one.
    let client = cluster.admin(name).await.unwrap();
    run(&client, SAME_TEXT).await;
    client
}

pub(crate) async fn run(client: &Client, sql: &str) {
    if let Err(error) = client.batch_execute(sql).await {
        let sql: String = sql.chars().take(400).collect();
        panic!("{error:?} in {sql}");
    }
}

/// Each table's rows of a tenant, or all of them, as sorted texts under settings of our own.
async fn rows(
    client: &Client,
    owned: &[(String, String)],
    tenant: Option<&str>,
) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for (table, condition) in owned {
        let columns = client
            .query(
                "select quote_ident(attname) from pg_attribute
                  where attrelid = $1::text::regclass and attnum > 0 and not attisdropped
                  order by attname collate \"C\"",
                &[table],
            )
            .await
            .unwrap();
        let columns: Vec<String> = columns
            .iter()
            .map(|row| format!("t.{}", row.get::<_, &str>(0)))
            .collect();
        let condition = match tenant {
            Some(tenant) => condition.replace("$ORG", tenant),
            None => "true".to_owned(),
        };
        let sql = format!(
            "select row({})::text as r from {table} as t where {condition}",
            columns.join(", ")
        );
        let rows = client.query(&sql, &[]).await.unwrap();
        let mut rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        rows.sort();
        all.insert(table.clone(), rows);
    }
    all
}

const SAME_TEXT: &str = "
set datestyle = 'ISO, YMD'; set intervalstyle = 'iso_8601'; set extra_float_digits = 1;
set bytea_output = 'escape'; set lc_monetary = 'C'; set timezone = 'UTC';
set client_encoding = 'UTF8'; set search_path = 'public'; set xmloption = 'content';
set array_nulls = on; set standard_conforming_strings = on; set quote_all_identifiers = off";
