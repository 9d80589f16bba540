//! Looks, before a move, for everything that would stop it half-way, and says all of it at once.
//!
//! A move that fails after hours costs more than a look that takes a minute; and some things would
//! not fail at all, but harm somebody: a publication on a table without a replica identity makes
//! the production's own updates fail, a cascade deletes rows that never moved, a policy hides rows
//! from the copy. Each finding says where it is, why it matters, and what mends it.
//!
//! Nothing is changed: sessions are read-only, and what they lock is let go. A database that cannot
//! be reached is a finding, and the rest is looked at all the same. The checks are kept by family,
//! each with its SQL beside it.

mod access;
mod edges;
mod finding;
mod identity;
mod open;
mod references;
mod rows;
mod server;
mod shape;
mod supply;
mod ties;
mod uniqueness;
mod waits;

use std::time::Duration;

use futures::future::{join, join_all};
use monarch_config::{Fleet, Graph};
use monarch_model::{CellName, OrgId, TableName};

pub use finding::{Finding, Place, Report, Severity};

use open::{Open, Side, not_checked};

/// What is to be moved, and between which cells.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The tables.
    pub graph: &'a Graph,
    /// The cells.
    pub fleet: &'a Fleet,
    /// The cell that the organization leaves.
    pub from: &'a CellName,
    /// The cell where it arrives.
    pub to: &'a CellName,
    /// The organization, as it was given.
    pub org: &'a OrgId,
    /// The tables whose rows move by their chosen edge though another of their edges names another
    /// organization: accepted by name, since nobody but the owner of the data can tell.
    pub accept_disagreeing_edges: &'a [TableName],
    /// How far the checks go.
    pub limits: Limits,
}

/// How far the checks go.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From which age on a transaction on the source is told of.
    pub long_transaction: Duration,
    /// How many keys of a table are compared with the sink's; beyond that, the rest is left to the
    /// move itself, which never changes another tenant's row either.
    pub compared_keys: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            long_transaction: Duration::from_secs(60),
            compared_keys: 1_000_000,
        }
    }
}

/// Looks at everything, the databases side by side.
pub async fn check(job: &Job<'_>) -> Report {
    let Job {
        graph,
        fleet,
        from,
        to,
        ..
    } = *job;
    let mut findings = accepted_in_vain(job);
    if from == to {
        findings.push(same_cell(from));
        return Report::of(findings);
    }
    let ((source, faults), (sink, more)) = join(
        open::cell(fleet, from, Side::Source, graph),
        open::cell(fleet, to, Side::Sink, graph),
    )
    .await;
    findings.extend(faults);
    findings.extend(more);

    let everywhere: Vec<&Open<'_>> = source.iter().chain(&sink).collect();
    let one_by_one = join_all(everywhere.into_iter().map(|open| database(open, job)));
    let (one_by_one, ledger) = join(one_by_one, identity::ledger(&fleet.ledger)).await;
    findings.extend(one_by_one.into_iter().flatten());
    findings.extend(ledger);
    findings.extend(identity::distinct(&source, &sink).await);
    findings.extend(server::encodings(graph, &source, &sink).await);
    findings.extend(shape::check(graph, &source, &sink));
    findings.extend(rows::check(job, &source, &sink).await);
    Report::of(findings)
}

/// The checks that need one database alone.
async fn database(open: &Open<'_>, job: &Job<'_>) -> Vec<Finding> {
    let graph = job.graph;
    let found = [
        server::check(open, graph).await,
        access::check(open, graph).await,
        edges::check(open, graph).await,
        supply::check(open, graph).await,
        waits::check(open, job.limits.long_transaction).await,
    ];
    found
        .into_iter()
        .flat_map(|found| found.unwrap_or_else(|error| vec![not_checked(&open.place, &error)]))
        .collect()
}

/// A name that is misspelled accepts nothing, and would be found out by the refusal alone.
fn accepted_in_vain(job: &Job<'_>) -> Vec<Finding> {
    let names = job.accept_disagreeing_edges.iter();
    names
        .filter(|name| job.graph.table(name).is_none())
        .map(|name| {
            Finding::refuse(
                "accepted-table-unknown",
                Place::default(),
                format!("disagreeing edges of {name} are accepted, which is no table that moves"),
                "What is accepted by name must have that name",
            )
            .mend("name the table as the manifest does")
        })
        .collect()
}

fn same_cell(cell: &CellName) -> Finding {
    let place = Place {
        cell: Some(cell.clone()),
        ..Place::default()
    };
    Finding::refuse(
        "source-is-sink",
        place,
        "source and sink are the same cell",
        "A move from a database to itself would end by deleting what it moved",
    )
}
