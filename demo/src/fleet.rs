//! The fleet in miniature: its databases, its schema, and the two files that describe it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use monarch_harness::{Cluster, Standby, fresh_name};
use monarch_outbox::Table;
use tokio_postgres::{Client, NoTls};

use crate::{ControlDatabase, ControlPlane};

const SCHEMA: [(&str, &str); 3] = [
    ("default", include_str!("../schema/default.sql")),
    ("events", include_str!("../schema/events.sql")),
    ("metrics", include_str!("../schema/metrics.sql")),
];
const SINK_SCHEMA: &str = include_str!("../schema/sink.sql");
const MANIFEST: &str = include_str!("../schema/manifest.yaml");

/// The servers that a fleet is made on. One server may stand for several.
#[derive(Debug, Clone, Copy)]
pub struct Hosts<'a> {
    /// Holds two databases of the source cell.
    pub main: &'a Cluster,
    /// A standby of `main`: where its rows are read and its changes decoded.
    pub standby: Option<&'a Standby>,
    /// Holds the third database of the source cell.
    pub side: &'a Cluster,
    /// Holds the one database of the sink cell.
    pub sink: &'a Cluster,
    /// Holds the ledger.
    pub ledger: &'a Cluster,
}

/// A database of a cell.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name on its server.
    pub database: String,
    /// How to reach it, as libpq's `key=value` words.
    pub dsn: String,
    /// How to reach its standby, if it has one.
    pub standby_dsn: Option<String>,
    /// The stores that it holds.
    pub stores: Vec<String>,
}

/// A cell of the fleet.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Its name in `fleet.yaml`.
    pub name: String,
    /// Its databases.
    pub places: Vec<Place>,
}

/// What is moved by a test or by the demo: two cells, a ledger, a control plane, two files.
#[derive(Debug)]
pub struct Fleet {
    /// Where organizations leave.
    pub source: Cell,
    /// Where they arrive.
    pub sink: Cell,
    /// How to reach the ledger's database.
    pub ledger_dsn: String,
    /// Routes the organizations, and fences them, unless a database does.
    pub control: ControlPlane,
    /// The control database, in the place of the commands.
    pub control_database: Option<ControlDatabase>,
    folder: PathBuf,
}

impl Place {
    /// A connection to the primary as the superuser.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.dsn, &self.database).await
    }
}

/// A connection as the superuser; it is driven on the current tokio runtime.
pub(crate) async fn connect(dsn: &str, database: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls)
        .await
        .with_context(|| format!("connect to {database}"))?;
    // Its errors reach whoever uses the client.
    tokio::spawn(connection);
    Ok(client)
}

impl Cell {
    /// The database that holds a store.
    ///
    /// # Errors
    ///
    /// When none does.
    pub fn place_of(&self, store: &str) -> Result<&Place> {
        self.places
            .iter()
            .find(|place| place.stores.iter().any(|held| held == store))
            .with_context(|| format!("no database of {} holds {store}", self.name))
    }
}

impl Fleet {
    /// Makes empty databases of names that no other fleet has, and the schema in them.
    ///
    /// # Errors
    ///
    /// When a server refuses, or a file cannot be written to `folder`.
    pub async fn make(hosts: &Hosts<'_>, folder: &Path) -> Result<Self> {
        let fleet = Self::without_schema(hosts, folder).await?;
        for (store, sql) in SCHEMA {
            for cell in [&fleet.source, &fleet.sink] {
                let client = cell.place_of(store)?.connect().await?;
                client
                    .batch_execute(sql)
                    .await
                    .with_context(|| format!("make the schema of {store} in {}", cell.name))?;
            }
        }
        let sink = fleet.sink.place_of("default")?.connect().await?;
        sink.batch_execute(SINK_SCHEMA)
            .await
            .context("change the sink's schema")?;
        fleet.write_manifest(MANIFEST)?;
        fleet.write_fleet_file(&fleet.fleet_yaml(true))?;
        Ok(fleet)
    }

    /// Makes empty databases for the three stores, and neither schema nor files.
    ///
    /// # Errors
    ///
    /// As [`Self::make`].
    pub async fn without_schema(hosts: &Hosts<'_>, folder: &Path) -> Result<Self> {
        let tail = fresh_name("");
        let place = async |cluster: &Cluster, name: &str, stores: &[&str]| -> Result<Place> {
            let database = format!("{name}{tail}");
            Ok(Place {
                dsn: cluster.create_database(&database).await?,
                database,
                standby_dsn: None,
                stores: stores.iter().map(|&store| store.to_owned()).collect(),
            })
        };
        let mut places = vec![
            place(hosts.main, "app", &["default"]).await?,
            place(hosts.main, "events", &["events"]).await?,
            place(hosts.side, "metrics", &["metrics"]).await?,
        ];
        if let Some(standby) = hosts.standby {
            for place in &mut places[..2] {
                place.standby_dsn = Some(standby.dsn(&place.database));
            }
        }
        let stores = ["default", "events", "metrics"];
        let sink = place(hosts.sink, "cell", &stores).await?;
        let ledger = place(hosts.ledger, "ledger", &[]).await?;
        Ok(Self {
            source: Cell {
                name: "us1".to_owned(),
                places,
            },
            sink: Cell {
                name: "us2".to_owned(),
                places: vec![sink],
            },
            ledger_dsn: ledger.dsn,
            control: ControlPlane::new(folder.join("control"))?,
            control_database: None,
            folder: folder.to_owned(),
        })
    }

    /// Lets a database route the organizations, and gives both cells an outbox. The cells' side of
    /// it is made by `monarch control init`.
    ///
    /// # Errors
    ///
    /// When a server refuses, or `fleet.yaml` cannot be written.
    pub async fn use_control_database(&mut self, cluster: &Cluster) -> Result<()> {
        for cell in [&self.source, &self.sink] {
            let client = cell.place_of("default")?.connect().await?;
            let outbox = Table::<monarch_outbox::Cell>::default();
            let made = outbox.create(&client).await;
            made.with_context(|| format!("make the outbox of {}", cell.name))?;
        }
        self.control_database = Some(ControlDatabase::make(cluster).await?);
        self.write_fleet_file(&self.fleet_yaml(true))
    }

    /// Lets an organization live in a cell, as whoever routes has it.
    ///
    /// # Errors
    ///
    /// When the database or a file refuses.
    pub async fn settle(&self, organization: i64, cell: &str) -> Result<()> {
        match &self.control_database {
            Some(database) => database.settle(organization, cell).await,
            None => self.control.settle(organization, cell),
        }
    }

    /// What `fleet.yaml` says, with its control plane or without it.
    #[must_use]
    pub fn fleet_yaml(&self, with_control: bool) -> String {
        let mut yaml = format!(
            "from: {}\nto: {}\ncells:\n",
            self.source.name, self.sink.name
        );
        for cell in [&self.source, &self.sink] {
            let _ = writeln!(yaml, "  {}:\n    databases:", cell.name);
            for place in &cell.places {
                let _ = writeln!(yaml, "      - primary_dsn: {}", place.dsn);
                if let Some(standby) = &place.standby_dsn {
                    let _ = writeln!(yaml, "        standby_dsn: {standby}");
                }
                let _ = writeln!(yaml, "        stores: [{}]", place.stores.join(", "));
            }
        }
        let _ = writeln!(yaml, "ledger:\n  dsn: {}", self.ledger_dsn);
        if with_control {
            let control = self.control_database.as_ref();
            yaml.push_str(&control.map_or_else(|| self.control.yaml(), ControlDatabase::yaml));
        }
        yaml
    }

    /// Writes `manifest.yaml`.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_manifest(&self, yaml: &str) -> Result<()> {
        fs::write(self.manifest_file(), yaml).context("write manifest.yaml")
    }

    /// Writes `fleet.yaml`.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_fleet_file(&self, yaml: &str) -> Result<()> {
        fs::write(self.fleet_file(), yaml).context("write fleet.yaml")
    }

    /// Where `manifest.yaml` is.
    #[must_use]
    pub fn manifest_file(&self) -> PathBuf {
        self.folder.join("manifest.yaml")
    }

    /// Where `fleet.yaml` is.
    #[must_use]
    pub fn fleet_file(&self) -> PathBuf {
        self.folder.join("fleet.yaml")
    }

    /// The folder of the two files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A connection to the ledger's database.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn ledger(&self) -> Result<Client> {
        connect(&self.ledger_dsn, "the ledger").await
    }
}
