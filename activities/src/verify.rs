//! Compares the organization's rows on both sides, table by table, and writes what it saw into the
//! journal: rows and digest of every table are the move's certificate.

use std::collections::BTreeMap;

use monarch_model::TableName;
use monarch_postgres::Session;
use monarch_postgres::catalog::Catalog;
use monarch_postgres::scope::Scope;
use monarch_postgres::verify::{self, Digests, Outcome, Subject};
use monarch_workflows::contract::{MoveRef, VerifyOutput};
use serde::Serialize;
use serde_json::json;

use crate::code::Code;
use crate::failure::Fault;
use crate::schema;
use crate::vitals::Vitals;
use crate::world::{Caller, Place, World};

/// The kind of the journal's rows that hold a store's digests.
pub const VERIFIED: &str = "verified";

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: MoveRef,
) -> Result<VerifyOutput, Fault> {
    let case = world.open(input.move_id).await?;
    let places = case.places().await?;
    let sides = vitals
        .during("the digests of both sides", async {
            futures::future::try_join_all(places.iter().map(both_sides)).await
        })
        .await?;
    let mut all = BTreeMap::new();
    let mut differences = Vec::new();
    for (place, (source, sink)) in places.iter().zip(sides) {
        let store = &place.unit.store;
        let compared = Compared::new(&source, &sink);
        let differing = compared.differences.iter();
        differences.extend(differing.map(|told| format!("{store}: {told}")));
        let detail = json!(compared);
        world
            .ledger
            .note(case.of.id, Some(store), VERIFIED, detail)
            .await?;
        all.extend(source.0);
    }
    let all = Digests(all);
    Ok(VerifyOutput {
        tables: all.0.len() as u64,
        rows: all.rows(),
        digest: all.sha256(),
        differences,
    })
}

/// What a unit's two sides came to, as the journal keeps it.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    equal: bool,
    source: Side,
    sink: Side,
    tables: usize,
    /// Each table that differs, and how.
    differences: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Side {
    rows: u64,
    sha256: String,
}

impl Compared {
    pub(crate) fn new(source: &Digests, sink: &Digests) -> Self {
        let side = |digests: &Digests| Side {
            rows: digests.rows(),
            sha256: digests.sha256(),
        };
        let comparison = verify::compare(source, sink);
        let differing = comparison.differing();
        Self {
            equal: comparison.is_equal(),
            source: side(source),
            sink: side(sink),
            tables: source.0.len(),
            differences: differing
                .map(|(table, outcome)| format!("{table} {}", told(outcome)))
                .collect(),
        }
    }

    pub(crate) fn is_equal(&self) -> bool {
        self.equal
    }
}

/// How a table differs, in counts: what differs is a row's value.
fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Equal { rows } => format!("is equal in {rows} rows"),
        Outcome::Differs {
            source_rows,
            sink_rows,
        } => {
            let more = match sink_rows > source_rows {
                true => ", which has rows that the source does not have: somebody writes there",
                false => "",
            };
            format!("differs: {source_rows} rows on the source, {sink_rows} on the sink{more}")
        }
        Outcome::MissingOnSource { sink_rows } => {
            format!("was read on the sink only, {sink_rows} rows")
        }
        Outcome::MissingOnSink { source_rows } => {
            format!("was read on the source only, {source_rows} rows")
        }
    }
}

/// The digests of one unit's tables, on the source and on the sink.
async fn both_sides(place: &Place<'_>) -> Result<(Digests, Digests), Fault> {
    let source = place.source_session(Caller::Watcher).await?;
    let sink = place.sink_session(Caller::Watcher).await?;
    let subjects = Subjects::of(place, &source, &sink).await?;
    tokio::try_join!(verify::begin(&source), verify::begin(&sink))?;
    subjects.digests(&source, &sink).await
}

/// What is compared of a unit, on either side.
pub(crate) struct Subjects {
    source: Vec<Subject>,
    sink: Vec<Subject>,
}

impl Subjects {
    /// Reads the catalogs of both sides, and fails by name if the source's tables have changed.
    pub(crate) async fn of(
        place: &Place<'_>,
        source: &Session,
        sink: &Session,
    ) -> Result<Self, Fault> {
        let (ours, theirs) = (place.catalog(source).await?, place.catalog(sink).await?);
        schema::check(place, &ours).await?;
        Ok(Self {
            source: subjects(place, &ours, &theirs, &place.scope(&ours)?)?,
            sink: subjects(place, &ours, &theirs, &place.scope(&theirs)?)?,
        })
    }

    /// The tables of the sink that are read.
    pub(crate) fn on_sink(&self) -> impl Iterator<Item = &TableName> {
        self.sink.iter().map(|subject| &subject.table)
    }

    /// Reads both sides, each in the snapshot of the transaction that its session is in.
    pub(crate) async fn digests(
        &self,
        source: &Session,
        sink: &Session,
    ) -> Result<(Digests, Digests), Fault> {
        Ok(tokio::try_join!(
            verify::digest(&**source, &self.source),
            verify::digest(&**sink, &self.sink),
        )?)
    }
}

/// What is compared of each table: the columns that both sides have, and the organization's rows.
fn subjects(
    place: &Place<'_>,
    source: &Catalog,
    sink: &Catalog,
    scope: &Scope,
) -> Result<Vec<Subject>, Fault> {
    let mut subjects = Vec::new();
    for table in place.tables() {
        let (Some(ours), Some(theirs)) = (source.relation(&table.name), sink.relation(&table.name))
        else {
            return Err(Fault::Fatal {
                code: Code::SchemaChanged,
                text: format!("table {} is missing on one side", table.name),
            });
        };
        subjects.push(Subject {
            table: table.name.clone(),
            columns: verify::shared_columns(ours, theirs),
            predicate: scope.predicate(&table.name, "t")?,
        });
    }
    Ok(subjects)
}
