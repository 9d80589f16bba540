//! `monarch preflight`

use std::fmt::Write as _;

use clap::Args;
use monarch_activities::World;
use monarch_model::{CellName, OrgId};
use monarch_postgres::preflight::{Finding, Job, Limits, Report, Severity};
use serde::Serialize;

use crate::args::{Accepted, Organization, Route};
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::findings;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    #[command(flatten)]
    route: Route,
    #[command(flatten)]
    accepted: Accepted,
}

/// What was found on the way from one cell to the other.
#[derive(Serialize)]
struct Looked<'a> {
    org: &'a OrgId,
    from: &'a CellName,
    to: &'a CellName,
    refused: bool,
    findings: &'a [Finding],
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let world = context.world()?;
    let (from, to) = arguments.route.within(&world.config.fleet)?;
    let org = &arguments.organization.org;
    let report = check(&world, &from, &to, org, &arguments.accepted).await;
    let looked = Looked {
        org,
        from: &from,
        to: &to,
        refused: report.refuses(),
        findings: &report.findings,
    };
    console::show(context.output(), &looked, |_| {
        let options = options(&arguments.route, &arguments.accepted, context);
        text(&report, org, &options)
    })?;
    Ok(exit(&report))
}

/// What the commands of `control` lack here, which they may have where workers run them.
const OF_THIS_MACHINE: [&str; 2] = ["control-program-missing", "control-where-failed"];

/// Looks at every database and bucket of both cells, at the ledger and at the control plane.
pub(super) async fn check(
    world: &World,
    from: &CellName,
    to: &CellName,
    org: &OrgId,
    accepted: &Accepted,
) -> Report {
    let job = Job {
        graph: &world.config.graph,
        fleet: &world.config.fleet,
        from,
        to,
        org,
        accept_disagreeing_edges: &accepted.disagreeing_edges,
        limits: Limits::default(),
    };
    let mut report = Box::pin(monarch_activities::preflight::check(world, &job)).await;
    let mut found = std::mem::take(&mut report.findings);
    for finding in &mut found {
        if OF_THIS_MACHINE.contains(&finding.code.as_ref()) {
            finding.severity = Severity::Warn;
        }
    }
    report.add(found);
    report
}

/// What the findings mean for whoever runs this in a script.
pub(super) fn exit(report: &Report) -> Exit {
    if report.refuses() {
        Exit::Failed
    } else {
        Exit::Done
    }
}

/// The options that a look and a move have in common, as they were given.
pub(super) fn options(route: &Route, accepted: &Accepted, context: &Context) -> String {
    format!("{route}{accepted}{}", context.files())
}

/// The findings and, where none forbids the move, how to start it the way it was looked at.
pub(super) fn text(report: &Report, org: &OrgId, options: &str) -> String {
    let mut text = findings::text(report);
    if !report.refuses() {
        let _ = write!(
            text,
            "\nstart it with `monarch move start --org {}{options}`",
            plain(org.as_str())
        );
    }
    text
}
