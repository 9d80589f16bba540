//! One look at a move: the ledger's rows, what the workflow has said, and what follows from both.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use monarch_config::{BlobPlace, Config, Missing, StoreKind};
use monarch_ledger::{
    BlobCounts, Event, Ledger, LedgerError, Move, STALE_AFTER, Unit, Verification,
};
use monarch_model::{CellName, MoveId, Phase, StoreName, UnitStatus};
use monarch_view::units_of_measure::elapsed;
use monarch_view::{MoveView, UnitView};

use crate::history::{History, Lag};
use crate::workflows::Driver;

/// The newest rows of the journal that a page shows.
const EVENTS: u32 = 100;

/// What earlier looks have seen, by store.
pub(crate) type Histories = BTreeMap<StoreName, History>;

/// What is asked for at a rhythm of its own, since it takes long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// What is known of the workflow.
    pub(crate) driver: Option<Driver>,
    /// The keys of objects in numbers.
    pub(crate) objects: BTreeMap<StoreName, BlobCounts>,
}

/// One look at a move.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) of: Move,
    pub(crate) view: MoveView,
    pub(crate) stores: Vec<Store>,
    pub(crate) verifications: Vec<Verification>,
    /// The newest first.
    pub(crate) events: Vec<Event>,
    pub(crate) driver: Option<Driver>,
}

/// One store of it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) unit: Unit,
    pub(crate) view: UnitView,
    /// Where it is copied from and to, as the fleet names the places.
    pub(crate) source: String,
    pub(crate) sink: String,
    /// Its keys in numbers, if it is of objects.
    pub(crate) objects: Option<BlobCounts>,
    /// Why it is not ready for a cut-over.
    pub(crate) objections: Vec<String>,
    pub(crate) mover: Mover,
    pub(crate) changes_per_second: Option<f64>,
    pub(crate) lag: Option<Lag>,
    pub(crate) lags: Vec<(Timestamp, u64)>,
    /// How long the copy took, or takes so far.
    pub(crate) copying_for: Option<Duration>,
}

/// Whether a store's mover is heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mover {
    /// It reports.
    Alive,
    /// It has been silent longer than movers are.
    Stale(Duration),
    /// It has been silent for so long that it is taken for dead.
    Dead(Duration),
    /// None is expected to report.
    NotExpected,
}

impl Reading {
    /// Looks at a move; none if the ledger has no such move. `histories` remember what is seen.
    pub(crate) async fn take(
        ledger: &Ledger,
        config: &Config,
        id: MoveId,
        known: Known,
        histories: &mut Histories,
    ) -> Result<Option<Self>, LedgerError> {
        let Some(of) = ledger.move_by_id(id).await? else {
            return Ok(None);
        };
        let units = ledger.units(id).await?;
        let verifications = ledger.standing_verifications(id).await?;
        let mut events = ledger.newest_events(id, EVENTS).await?;
        events.reverse();
        let Known { driver, objects } = known;
        let driver = driver.filter(|_| of.phase.is_live());
        let view = view(&of, &units, driver.as_ref());
        let is_paused = view.workflow.as_ref().is_some_and(|said| said.paused);
        let look = Look {
            of: &of,
            config,
            verifications: &verifications,
            is_paused,
            now: view.at,
        };
        let stores = units
            .into_iter()
            .map(|unit| {
                let history = histories.entry(unit.store.clone()).or_default();
                history.note(&unit);
                let counts = objects.get(&unit.store).copied();
                look.store(unit, counts, history)
            })
            .collect();
        Ok(Some(Self {
            of,
            view,
            stores,
            verifications,
            events,
            driver,
        }))
    }

    /// Why a cut-over would be refused, as far as ledger and workflow know.
    pub(crate) fn objections(&self) -> Vec<String> {
        let of_stores = self.stores.iter().flat_map(|store| {
            let named = |why| format!("{}: {why}", store.unit.store);
            store.objections.iter().map(named)
        });
        of_stores.collect()
    }

    /// How long the write pause will be at least: the comparison behind the barrier reads what the
    /// last one read, all stores side by side. None before every store was compared.
    pub(crate) fn forecast(&self) -> Option<Duration> {
        let rows = self.stores.iter().filter(|store| !store.unit.of_objects);
        let took = rows.map(|store| {
            let mut of_store = self.verifications.iter();
            let done =
                of_store.find(|one| one.store == store.unit.store && one.outcome.is_some())?;
            Some(elapsed(done.begun_at?, done.ended_at?))
        });
        took.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

fn view(of: &Move, units: &[Unit], driver: Option<&Driver>) -> MoveView {
    let view = MoveView::of_rows(Some(of.clone()), units, Timestamp::now());
    match driver {
        Some(Driver::Answers(status)) => view.with(Ok(status.clone())),
        Some(Driver::Silent(why)) => view.with(Err(why.clone())),
        Some(Driver::Gone(why)) => MoveView {
            forsaken: Some(why.clone()),
            ..view
        },
        None => view,
    }
}

/// What the stores of one look have in common.
struct Look<'a> {
    of: &'a Move,
    config: &'a Config,
    verifications: &'a [Verification],
    is_paused: bool,
    now: Timestamp,
}

impl Look<'_> {
    fn store(&self, unit: Unit, objects: Option<BlobCounts>, history: &History) -> Store {
        let mut objections = unit.objections(self.verifications, self.now);
        objections.extend(objects.and_then(|counts| self.uncopied(&unit.store, counts)));
        let copying_for = unit.copy_started_at.map(|begun| {
            let until = unit.copied_at.filter(|end| *end >= begun);
            elapsed(begun, until.unwrap_or(self.now))
        });
        let is_streaming = unit.status == UnitStatus::Streaming;
        Store {
            view: UnitView::new(&unit, self.now),
            source: self.place(&self.of.source_cell, &unit),
            sink: self.place(&self.of.sink_cell, &unit),
            objects,
            objections,
            mover: self.mover(&unit),
            changes_per_second: history.changes_per_second().filter(|_| is_streaming),
            lag: history.lag(unit.stream.applied).filter(|_| is_streaming),
            lags: history.lags(),
            copying_for,
            unit,
        }
    }

    fn mover(&self, unit: &Unit) -> Mover {
        let works = matches!(
            unit.status,
            UnitStatus::Copying | UnitStatus::Copied | UnitStatus::Streaming
        );
        let expected = self.of.phase.is_live()
            && !self.is_paused
            && works
            && unit.sealed_at.is_none()
            && self.of.phase != Phase::Failed;
        let Some(heard) = unit.heartbeat_at.filter(|_| expected) else {
            return Mover::NotExpected;
        };
        let silence = elapsed(heard, self.now);
        let usual = STALE_AFTER.unsigned_abs();
        let limit = self.of.options["heartbeat_seconds"].as_u64();
        // The ledger is told once a second, so a moment more than Temporal allows.
        let dead = limit.map_or(usual + Duration::from_secs(5), Duration::from_secs);
        if silence > dead + Duration::from_secs(1) {
            Mover::Dead(silence)
        } else if silence > usual {
            Mover::Stale(silence)
        } else {
            Mover::Alive
        }
    }

    /// Why keys of objects hold a cut-over back.
    fn uncopied(&self, store: &StoreName, counts: BlobCounts) -> Option<String> {
        let kind = self.config.graph.store(store).map(|store| store.kind);
        let accepts_missing = matches!(
            kind,
            Some(StoreKind::Blob {
                missing: Missing::Accept,
                ..
            })
        );
        let blocking = counts.blocking(accepts_missing);
        (blocking > 0).then(|| {
            format!(
                "{blocking} keys have no object on the sink; those that a row names hold it back"
            )
        })
    }

    /// Where a cell keeps a store, without a secret.
    fn place(&self, cell: &CellName, unit: &Unit) -> String {
        let Some(of) = self.config.fleet.cell(cell) else {
            return cell.to_string();
        };
        if unit.of_objects {
            return match of.blobs.get(&unit.store) {
                Some(BlobPlace::FilePath(path)) => format!("{cell} {}", path.display()),
                Some(BlobPlace::Url(url)) => format!("{cell} {url}"),
                None => cell.to_string(),
            };
        }
        let identity = if *cell == self.of.source_cell {
            &unit.source_database
        } else {
            &unit.sink_database
        };
        let named = identity
            .as_ref()
            .map(|known| format!(" ({})", known.database));
        let place = of
            .database_of(&unit.store)
            .map(|place| format!(" {}", place.name));
        format!(
            "{cell}{}{}",
            place.unwrap_or_default(),
            named.unwrap_or_default()
        )
    }
}
