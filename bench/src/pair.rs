//! A source and a sink server, and an organization's tables on both.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use monarch_config::Graph;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, fresh_name};
use monarch_model::{Epoch, MoveId};
use monarch_postgres::connect::Environment;
use monarch_postgres::keys::{KeyRecorder, NoObjects};
use monarch_postgres::replication::{ExportedSlot, ReplicationConnection, SlotKind};
use monarch_postgres::scope::Scope;
use monarch_postgres::sink::{self, TakeOver};
use monarch_postgres::spine;
use monarch_postgres::stream::{self, Batching, Spool};
use monarch_postgres::{ConnectOptions, SessionPurpose, Unit, catalog, publication, snapshot};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The organization's tables; `label` may hold keys of objects.
fn manifest(names_objects: bool) -> String {
    let (store, label) = match names_objects {
        true => (
            "\n  files: {type: blob_store, eviction: keep}",
            ", label: {blob: files}",
        ),
        false => ("", ""),
    };
    format!(
        "
root: organization
stores:
  default: {{type: postgres}}{store}
relationships:
  organization: {{store: default, primary_key: [id]}}
  item:
    store: default
    primary_key: [id]
    refs: {{organization_id: {{parent: organization}}{label}}}
  marker:
    store: default
    primary_key: [id]
    refs: {{organization_id: {{parent: organization}}}}
"
    )
}

/// Servers that sync to disk as in production: what waits for the disk is part of the matter.
pub(crate) struct Pair {
    pub(crate) source: Cluster,
    pub(crate) sink: Cluster,
    /// Of the ledger.
    pub(crate) ledger: Cluster,
}

/// A database on each, thrown away after its run.
pub(crate) struct Databases<'p> {
    pair: &'p Pair,
    name: String,
    pub(crate) source: Client,
    pub(crate) sink: Client,
}

/// What our own code needs to move the organization from one to the other.
pub(crate) struct Move {
    pub(crate) job: stream::Job,
    /// Holds the exported snapshot.
    slot: ExportedSlot,
}

impl Pair {
    pub(crate) async fn start() -> Result<Self> {
        let server = || {
            ClusterOptions::new(PgVersion::V16)
                .setting("fsync = on")
                .setting("full_page_writes = on")
                .setting("shared_buffers = 512MB")
                .setting("max_wal_size = 8GB")
                .setting("checkpoint_timeout = 1h")
                .setting("autovacuum = off")
                .setting("max_slot_wal_keep_size = -1")
                .setting("wal_retrieve_retry_interval = 100ms")
        };
        Ok(Self {
            source: Cluster::start(server()).await?,
            sink: Cluster::start(server()).await?,
            ledger: Cluster::start(server()).await?,
        })
    }

    /// A database on each side with `schema`, and on the source with the rows of `fill`.
    pub(crate) async fn databases(&self, schema: &str, fill: &str) -> Result<Databases<'_>> {
        let name = fresh_name("bench");
        for cluster in [&self.source, &self.sink] {
            cluster.create_database(&name).await?;
        }
        let source = self.source.admin(&name).await?;
        let sink = self.sink.admin(&name).await?;
        for client in [&source, &sink] {
            client.batch_execute(schema).await.context("make tables")?;
        }
        let whole = format!("{fill}; vacuum analyze");
        for statement in whole.split(';') {
            source.batch_execute(statement).await.context("fill")?;
        }
        for client in [&source, &sink] {
            client.batch_execute("checkpoint").await?;
        }
        Ok(Databases {
            pair: self,
            name,
            source,
            sink,
        })
    }
}

impl Databases<'_> {
    pub(crate) fn source_dsn(&self) -> String {
        self.pair.source.dsn(&self.name)
    }

    pub(crate) fn sink_dsn(&self) -> String {
        self.pair.sink.dsn(&self.name)
    }

    /// Publications, a slot, and the unit taken over on the sink: all that comes before a copy. With
    /// `keys`, rows name objects, and their keys go there.
    pub(crate) async fn prepare(&self, keys: Option<Arc<dyn KeyRecorder>>) -> Result<Move> {
        let manifest = manifest(keys.is_some());
        let graph: Graph = monarch_config::manifest_from_str("manifest.yaml", &manifest)?;
        let options = |dsn: &str| ConnectOptions::parse(dsn, &Environment::empty());
        let unit = Unit {
            move_id: MoveId(Uuid::new_v4()),
            org: "1".parse()?,
            store: "default".parse()?,
        };
        let (source, to) = (options(&self.source_dsn())?, options(&self.sink_dsn())?);
        let mut primary = self.pair.source.admin(&self.name).await?;
        let mut writer = self.pair.sink.admin(&self.name).await?;
        let spine =
            spine::read(&[(unit.store.clone(), &primary)].into(), &graph, &unit.org).await?;
        let tables = catalog::load(&primary, &graph.walk(&unit.store)).await?;
        let scope = Scope::new(&graph, &unit.store, &unit.org, &spine, &tables)?;
        let plan = publication::plan(&unit, &graph, &scope, &tables)?;
        publication::ensure(&mut primary, &plan).await?;
        sink::ensure_schema(&mut writer).await?;
        let epoch = Epoch(1);
        let wait = std::time::Duration::from_secs(20);
        let taken = sink::take_over(&mut writer, &unit, epoch, wait).await?;
        anyhow::ensure!(matches!(taken, TakeOver::Held(_)), "the unit is new");
        let reader = SessionPurpose::reader(unit.application(epoch));
        let connection = ReplicationConnection::connect(&source, &reader).await?;
        let name = unit.slot(epoch);
        let slot = connection.create_slot(&name, SlotKind::Permanent).await?;
        let job = stream::Job {
            slot: name,
            unit,
            epoch,
            graph: Arc::new(graph),
            spine: Arc::new(spine),
            source: source.clone(),
            primary: source,
            sink: to,
            acknowledged: None,
            sink_identity: None,
            spool: Spool::new(std::env::temp_dir()),
            keys: keys.unwrap_or_else(|| Arc::new(NoObjects)),
            batching: Batching::default(),
        };
        Ok(Move { job, slot })
    }

    /// Copies the organization.
    pub(crate) async fn copy(&self, of: &Move) -> Result<()> {
        let mut source = self.pair.source.admin(&self.name).await?;
        let mut sink = self.pair.sink.admin(&self.name).await?;
        let copying = snapshot::Job {
            unit: &of.job.unit,
            epoch: of.job.epoch,
            graph: &of.job.graph,
            spine: &of.job.spine,
            snapshot: &of.slot.snapshot,
            consistent_point: of.slot.consistent_point,
            keys: &of.job.keys,
        };
        let cancel = CancellationToken::new();
        snapshot::copy(&copying, &mut source, &mut sink, &mut Nobody, &cancel).await?;
        Ok(())
    }

    /// Throws both databases away.
    pub(crate) async fn drop(self) -> Result<()> {
        let Self {
            pair,
            name,
            source,
            sink,
        } = self;
        let slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
                      where database = current_database()";
        source.batch_execute(slots).await.context("drop the slot")?;
        drop((source, sink));
        for cluster in [&pair.source, &pair.sink] {
            let admin = cluster.admin("postgres").await?;
            let gone = format!("drop database \"{name}\" with (force)");
            admin.batch_execute(&gone).await?;
        }
        Ok(())
    }
}

struct Nobody;

impl snapshot::Observer for Nobody {
    fn progress(&mut self, _: &snapshot::Progress) {}
}
