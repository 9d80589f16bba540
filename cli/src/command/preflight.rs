//! `monarch preflight`

use std::fmt::Write as _;

use clap::Args;
use monarch_config::Config;
use monarch_model::{CellName, OrgId};
use monarch_postgres::preflight::{Finding, Job, Limits, Report, Severity};
use serde::Serialize;

use crate::args::{Accepted, Organization, Route};
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

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
    let config = context.config()?;
    let (from, to) = arguments.route.within(&config.fleet)?;
    let org = &arguments.organization.org;
    let report = check(&config, &from, &to, org, &arguments.accepted).await;
    let looked = Looked {
        org,
        from: &from,
        to: &to,
        refused: report.refuses(),
        findings: &report.findings,
    };
    console::show(context.output(), &looked, |_| text(&report))?;
    Ok(exit(&report))
}

/// Looks at every database and bucket of both cells, and at the control database.
pub(super) async fn check(
    config: &Config,
    from: &CellName,
    to: &CellName,
    org: &OrgId,
    accepted: &Accepted,
) -> Report {
    let job = Job {
        graph: &config.graph,
        fleet: &config.fleet,
        from,
        to,
        org,
        accept_disagreeing_edges: &accepted.disagreeing_edges,
        limits: Limits::default(),
    };
    Box::pin(monarch_activities::preflight::check(config, &job)).await
}

/// What the findings mean for whoever runs this in a script.
pub(super) fn exit(report: &Report) -> Exit {
    if report.refuses() {
        Exit::Failed
    } else {
        Exit::Done
    }
}

/// The findings, the heaviest first, each with what mends it.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(
            text,
            "{} [{}] {}\n  {}. {}.",
            finding.severity,
            finding.code,
            plain(&finding.place.to_string()),
            plain(&finding.what),
            finding.why
        );
        if let Some(mend) = &finding.mend {
            let _ = writeln!(text, "  mend: {}", plain(mend));
        }
    }
    let of = |severity| {
        let found = report.findings.iter();
        found.filter(|finding| finding.severity == severity).count()
    };
    let verdict = if report.refuses() {
        "refused"
    } else {
        "nothing forbids the move"
    };
    let _ = write!(
        text,
        "{verdict}: {} that refuse, {} that warn, {} to know",
        of(Severity::Refuse),
        of(Severity::Warn),
        of(Severity::Info)
    );
    text
}
