//! Looks at every database of the move before anything is changed.

use monarch_config::Config;
use monarch_model::CellName;
use monarch_postgres::preflight::{self, Finding, Job, Limits, Report, Severity};
use monarch_workflows::contract::{PreflightInput, PreflightOutput};

use crate::failure::Fault;
use crate::register;
use crate::routing;
use crate::vitals::Vitals;
use crate::world::World;

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: PreflightInput,
) -> Result<PreflightOutput, Fault> {
    let (from, to) = cells(world, &input)?;
    // Before the cells are looked at: the rows of a move that is under way would be taken for ones
    // that were left behind.
    if let Some(live) = world.ledger.live_move().await? {
        return Err(register::refused_by(live.id, &live.org, live.phase));
    }
    let job = Job {
        graph: &world.config.graph,
        fleet: &world.config.fleet,
        from: &from,
        to: &to,
        org: &input.org,
        accept_disagreeing_edges: &input.accept_disagreeing_edges,
        limits: Limits::default(),
    };
    let look = async { Ok(check(&world.config, &job).await) };
    let report = vitals.during("every database of both cells", look).await?;
    Ok(PreflightOutput {
        from,
        to,
        can_fence: world.config.fleet.control.is_some(),
        refusals: told(&report, Severity::Refuse),
        warnings: u32::try_from(told(&report, Severity::Warn).len()).unwrap_or(u32::MAX),
    })
}

/// Looks at every database of both cells and at the control database, and returns every finding.
pub async fn check(config: &Config, job: &Job<'_>) -> Report {
    let mut report = Box::pin(preflight::check(job)).await;
    report.add(routing::preflight(config, job.from, job.to, job.org).await);
    report
}

/// The two cells: those that were asked for, else those of the fleet.
fn cells(world: &World, input: &PreflightInput) -> Result<(CellName, CellName), Fault> {
    let fleet = &world.config.fleet;
    let from = input.from.clone().or_else(|| fleet.from.clone());
    let to = input.to.clone().or_else(|| fleet.to.clone());
    let (Some(from), Some(to)) = (from, to) else {
        return Err(Fault::BadInput(
            "which cell the organization leaves and where it goes is not known: give `from` and \
             `to` at the start, or in fleet.yaml"
                .to_owned(),
        ));
    };
    world.cell(&from)?;
    world.cell(&to)?;
    Ok((from, to))
}

fn told(report: &Report, severity: Severity) -> Vec<String> {
    let of = |finding: &&Finding| finding.severity == severity;
    report
        .findings
        .iter()
        .filter(of)
        .map(Finding::to_string)
        .collect()
}
