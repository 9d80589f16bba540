//! A ledger of its own for each test, and moves to put into it.

use std::collections::BTreeSet;

use monarch_config::Dsn;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_ledger::{Event, Ledger, Move, NewMove, Purpose, Registration};
use monarch_model::phase::PhaseEvent;
use monarch_model::{Epoch, MoveId, Phase, StoreName, UnitStatus};
use monarch_postgres::spine::Spine;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

/// The versions that every test runs on.
pub(crate) const VERSIONS: [PgVersion; 2] = [PgVersion::V14, PgVersion::V17];

/// A ledger in a database of its own, and a way round it.
pub(crate) struct Fixture {
    pub(crate) ledger: Ledger,
    pub(crate) admin: Client,
    /// A second way: a transaction of `admin` sees one state of `pg_stat_activity` only.
    pub(crate) watcher: Client,
    pub(crate) dsn: String,
    pub(crate) database: String,
}

/// A ledger with connections of its own.
pub(crate) async fn connect(dsn: &str) -> Ledger {
    Ledger::connect(&Dsn::new(dsn)).await.unwrap()
}

/// How the statement begins that writes the journal.
pub(crate) const JOURNAL: &str = "insert into monarch_ledger.move_event";

/// Waits until a session waits for a lock in a statement that begins with `statement`; returns its
/// process id.
pub(crate) async fn stuck(watcher: &Client, statement: &str) -> i32 {
    let waiting = "select pid from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'
                      and starts_with(query, $1)";
    loop {
        if let Some(row) = watcher.query_opt(waiting, &[&statement]).await.unwrap() {
            return row.get(0);
        }
    }
}

impl Fixture {
    /// A database without the schema.
    pub(crate) async fn bare(version: PgVersion) -> Self {
        let cluster = shared::cluster(version).await;
        let database = fresh_name("ledger");
        let dsn = cluster.create_database(&database).await.unwrap();
        Self {
            watcher: cluster.admin(&database).await.unwrap(),
            ledger: connect(&dsn).await,
            admin: cluster.admin(&database).await.unwrap(),
            dsn,
            database,
        }
    }

    /// A ledger without moves.
    pub(crate) async fn new(version: PgVersion) -> Self {
        let fixture = Self::bare(version).await;
        fixture.ledger.init().await.unwrap();
        fixture
    }

    /// A ledger with one active move of the stores `default` and `events`.
    pub(crate) async fn with_move(version: PgVersion) -> (Self, MoveId) {
        let fixture = Self::new(version).await;
        let new = new_move("1");
        assert!(matches!(
            fixture.ledger.register(&new).await.unwrap(),
            Registration::Registered(_)
        ));
        (fixture, new.id)
    }

    /// A ledger with one active move and an epoch for its store `default`.
    pub(crate) async fn with_epoch(version: PgVersion) -> (Self, MoveId, StoreName, Epoch) {
        let (fixture, id) = Self::with_move(version).await;
        let store = store("default");
        let epoch = fixture
            .ledger
            .next_epoch(id, &store, Purpose::Mover)
            .await
            .unwrap();
        (fixture, id, store, epoch)
    }

    pub(crate) async fn the_move(&self, id: MoveId) -> Move {
        self.ledger.move_by_id(id).await.unwrap().unwrap()
    }

    pub(crate) async fn events(&self, id: MoveId) -> Vec<Event> {
        self.ledger.events(id, 0, 10_000).await.unwrap()
    }

    /// The kinds of a move's events, oldest first.
    pub(crate) async fn kinds(&self, id: MoveId) -> Vec<String> {
        self.events(id).await.into_iter().map(|e| e.kind).collect()
    }

    /// Puts a move where a test wants it, past the table of transitions.
    pub(crate) async fn put(&self, id: MoveId, phase: Phase) {
        self.admin
            .execute(
                "update monarch_ledger.move
                    set phase = $2, fenced_at = now(), ended_at = case when $3 then now() end
                  where id = $1",
                &[&id.0, &phase.as_str(), &!phase.is_live()],
            )
            .await
            .unwrap();
    }

    /// Puts the move's units where a test wants them, past their table.
    pub(crate) async fn put_units(&self, id: MoveId, stores: &[&str], status: UnitStatus) {
        self.admin
            .execute(
                "update monarch_ledger.move_unit set status = $3
                  where move_id = $1 and store = any ($2)",
                &[&id.0, &stores, &status.as_str()],
            )
            .await
            .unwrap();
    }

    /// Takes a move from `active` to where its organization lives on the sink.
    pub(crate) async fn flip(&self, id: MoveId) {
        use PhaseEvent as E;
        let steps = [
            (Phase::Active, E::BeginDrain),
            (Phase::Draining, E::BeginFlip),
            (Phase::Flipping, E::Flipped),
        ];
        for (phase, event) in steps {
            self.ledger
                .transition(id, event, phase, json!({}))
                .await
                .unwrap();
        }
    }
}

pub(crate) fn store(name: &str) -> StoreName {
    name.parse().unwrap()
}

pub(crate) fn new_move(org: &str) -> NewMove {
    NewMove {
        id: MoveId(Uuid::new_v4()),
        org: org.parse().unwrap(),
        source_cell: "us1".parse().unwrap(),
        sink_cell: "us2".parse().unwrap(),
        workflow_id: format!("org-move-{org}"),
        run_id: Uuid::new_v4().to_string(),
        stores: vec![store("default"), store("events")],
        blob_stores: Vec::new(),
        spine: spine(&["1", "2", "10"]),
        options: json!({ "evict": "manual" }),
        token: Uuid::new_v4(),
    }
}

pub(crate) fn spine(projects: &[&str]) -> Spine {
    let ids = projects.iter().map(|id| (*id).to_owned()).collect();
    let table = |name: &str| name.parse().unwrap();
    Spine::from_ids([(table("project"), ids), (table("team"), BTreeSet::new())].into())
}
