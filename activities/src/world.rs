//! What every activity stands on: the two configuration files, the ledger, and the databases of
//! the move at hand.

use std::path::PathBuf;
use std::sync::Arc;

use monarch_blobs::KeysOfMove;
use monarch_config::{Cell, Config, Control, Database, Dsn, Graph, IdRange, Table};
use monarch_ledger::{Ledger, Move, Unit as Recorded};
use monarch_model::{CellName, Epoch, MoveId, StoreName, TableName, names};
use monarch_postgres::catalog::{self, Catalog};
use monarch_postgres::keys::KeyRecorder;
use monarch_postgres::scope::Scope;
use monarch_postgres::spine::Spine;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, Unit};

use crate::control::Plane;
use crate::failure::Fault;

/// The configuration and the ledger, shared by all activities of a worker.
pub struct World {
    /// Both files, checked.
    pub config: Config,
    /// The configuration's graph, for movers that outlive a borrow.
    pub(crate) graph: Arc<Graph>,
    /// The ledger.
    pub ledger: Ledger,
    /// Where source transactions too large for memory are spooled.
    pub spool: PathBuf,
}

impl World {
    /// A world over the fleet's ledger, which is connected to when first used.
    ///
    /// # Errors
    /// The ledger's DSN cannot be read.
    pub fn new(config: Config) -> Result<Arc<Self>, monarch_postgres::Error> {
        let options = ConnectOptions::from_dsn(&config.fleet.ledger)?;
        let ledger = Ledger::new(options);
        let spool = std::env::temp_dir();
        let graph = Arc::new(config.graph.clone());
        Ok(Arc::new(Self {
            config,
            graph,
            ledger,
            spool,
        }))
    }

    /// Opens a move: its row and its spine.
    pub(crate) async fn open(&self, move_id: MoveId) -> Result<Case<'_>, Fault> {
        let of = self
            .ledger
            .move_by_id(move_id)
            .await?
            .ok_or_else(|| Fault::BadInput(format!("no move {move_id} in the ledger")))?;
        let spine = self.ledger.whole_spine(move_id).await?;
        Ok(Case {
            world: self,
            of,
            spine,
        })
    }

    /// The cell of that name, or a fault that names the cells there are.
    pub(crate) fn cell(&self, name: &CellName) -> Result<&Cell, Fault> {
        cell(&self.config, name)
    }
}

/// The cell of that name, or a fault that names the cells there are.
pub(crate) fn cell<'c>(config: &'c Config, name: &CellName) -> Result<&'c Cell, Fault> {
    config.fleet.cell(name).ok_or_else(|| {
        let cells = config.fleet.cells.iter();
        let known: Vec<&str> = cells.map(|cell| cell.name.as_str()).collect();
        Fault::BadInput(format!(
            "fleet.yaml has no cell {name}; it has {}",
            known.join(", ")
        ))
    })
}

/// One move, opened.
pub(crate) struct Case<'w> {
    pub(crate) world: &'w World,
    pub(crate) of: Move,
    pub(crate) spine: Spine,
}

/// Who opens a session.
pub(crate) enum Caller {
    /// Whoever holds the unit under this epoch; a successor ends the session.
    Holder(Epoch),
    /// Somebody who looks, or who steers; no successor ends the session.
    Watcher,
}

impl From<Epoch> for Caller {
    fn from(epoch: Epoch) -> Self {
        Caller::Holder(epoch)
    }
}

/// What a watcher's session calls itself.
const WATCHER: &str = "monarch watch";

/// One unit of a move, with the two databases that its store is placed on.
pub(crate) struct Place<'c> {
    pub(crate) case: &'c Case<'c>,
    pub(crate) unit: Unit,
    source: &'c Database,
    sink: &'c Database,
}

impl<'w> Case<'w> {
    /// The units of rows.
    pub(crate) async fn row_units(&self) -> Result<Vec<Recorded>, Fault> {
        let units = self.world.ledger.units(self.of.id).await?;
        Ok(units.into_iter().filter(|unit| !unit.of_objects).collect())
    }

    /// The units of objects.
    pub(crate) async fn blob_units(&self) -> Result<Vec<Recorded>, Fault> {
        let units = self.world.ledger.units(self.of.id).await?;
        Ok(units.into_iter().filter(|unit| unit.of_objects).collect())
    }

    /// The place of every unit of rows.
    pub(crate) async fn places(&self) -> Result<Vec<Place<'_>>, Fault> {
        self.row_units()
            .await?
            .iter()
            .map(|unit| self.place(&unit.store))
            .collect()
    }

    /// Where a unit's store is placed in both cells.
    pub(crate) fn place(&self, store: &StoreName) -> Result<Place<'_>, Fault> {
        let find = |cell: &'w Cell| {
            cell.database_of(store).ok_or_else(|| {
                Fault::BadInput(format!("cell {} places no store {store}", cell.name))
            })
        };
        let source = find(self.world.cell(&self.of.source_cell)?)?;
        let sink = find(self.world.cell(&self.of.sink_cell)?)?;
        let unit = Unit {
            move_id: self.of.id,
            org: self.of.org.clone(),
            store: store.clone(),
        };
        Ok(Place {
            case: self,
            unit,
            source,
            sink,
        })
    }

    /// The control plane for one attempt to cut over, if the fleet has one.
    pub(crate) fn plane(&self, attempt: u32) -> Option<Plane<'_>> {
        let fleet = &self.world.config.fleet;
        let control: Option<&Control> = fleet.control.as_ref();
        control.map(|control| Plane::new(control, fleet, &self.of, attempt))
    }
}

impl Place<'_> {
    /// The store's tables that move, parents first.
    pub(crate) fn tables(&self) -> Vec<&Table> {
        self.case.world.config.graph.walk(&self.unit.store)
    }

    /// Whether no other store of the move stands before this one in its source database: what is the
    /// database's and not a store's is looked at once.
    pub(crate) fn is_first_of_its_database(&self) -> bool {
        let graph = &self.case.world.config.graph;
        let moves = |store: &&StoreName| graph.store(store).is_some_and(|store| store.migrate);
        self.source.stores.iter().find(moves) == Some(&self.unit.store)
    }

    /// The names of these tables.
    pub(crate) fn table_names(&self) -> Vec<TableName> {
        self.tables()
            .iter()
            .map(|table| table.name.clone())
            .collect()
    }

    /// The source's primary: where publications and barriers are made and rows are evicted.
    pub(crate) fn source_primary(&self) -> Result<ConnectOptions, Fault> {
        options(&self.source.primary)
    }

    /// Where the source is decoded and read: its standby if it has one.
    pub(crate) fn source_decode(&self) -> Result<ConnectOptions, Fault> {
        options(self.source.standby.as_ref().unwrap_or(&self.source.primary))
    }

    /// Whether the source is decoded on a standby.
    pub(crate) fn decodes_on_standby(&self) -> bool {
        self.source.standby.is_some()
    }

    /// The sink.
    pub(crate) fn sink(&self) -> Result<ConnectOptions, Fault> {
        options(&self.sink.primary)
    }

    /// The ids that the sink's sequences give, if the fleet says so.
    pub(crate) fn own_ids(&self) -> Result<Option<IdRange>, Fault> {
        let sink = self.case.world.cell(&self.case.of.sink_cell)?;
        Ok(sink.sequences)
    }

    /// Where the keys of objects go that the unit's rows name.
    pub(crate) fn keys(&self) -> Arc<dyn KeyRecorder> {
        Arc::new(KeysOfMove {
            ledger: self.case.world.ledger.clone(),
            move_id: self.unit.move_id,
        })
    }

    /// What a session of this unit calls itself: a successor finds and ends it by this name.
    pub(crate) fn application(&self, caller: impl Into<Caller>) -> String {
        match caller.into() {
            Caller::Holder(epoch) => names::application(&self.unit.prefix(), epoch),
            Caller::Watcher => WATCHER.to_owned(),
        }
    }

    /// A session on the source's primary.
    pub(crate) async fn source_session(&self, caller: impl Into<Caller>) -> Result<Session, Fault> {
        let purpose = SessionPurpose::writer(self.application(caller));
        Ok(Session::connect(&self.source_primary()?, &purpose).await?)
    }

    /// A session where the source is decoded.
    pub(crate) async fn decode_session(&self, caller: impl Into<Caller>) -> Result<Session, Fault> {
        let purpose = SessionPurpose::reader(self.application(caller));
        Ok(Session::connect(&self.source_decode()?, &purpose).await?)
    }

    /// A session on the sink.
    pub(crate) async fn sink_session(&self, caller: impl Into<Caller>) -> Result<Session, Fault> {
        let purpose = SessionPurpose::writer(self.application(caller));
        Ok(Session::connect(&self.sink()?, &purpose).await?)
    }

    /// The scope of the organization in this store, by the column types of `catalog`.
    pub(crate) fn scope(&self, catalog: &Catalog) -> Result<Scope, Fault> {
        Scope::new(
            &self.case.world.config.graph,
            &self.unit.store,
            &self.case.of.org,
            &self.case.spine,
            catalog,
        )
        .map_err(|error| Fault::BadInput(error.to_string()))
    }

    /// What a database says of this store's tables.
    pub(crate) async fn catalog(&self, session: &Session) -> Result<Catalog, Fault> {
        Ok(catalog::load(&**session, &self.tables()).await?)
    }
}

/// Reads a DSN of the fleet, with what the environment adds to it.
pub(crate) fn options(dsn: &Dsn) -> Result<ConnectOptions, Fault> {
    ConnectOptions::from_dsn(dsn).map_err(|error| Fault::BadInput(error.to_string()))
}
