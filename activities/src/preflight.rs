//! Looks at every database of the move before anything is changed.

use monarch_config::Control;
use monarch_model::CellName;
use monarch_postgres::preflight::{self, Finding, Job, Limits, Report, Severity};
use monarch_workflows::contract::{PreflightInput, PreflightOutput};

use crate::control::ControlError;
use crate::failure::Fault;
use crate::register;
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
    let look = async { Ok(check(world, &input, &from, &to).await) };
    let report = vitals.during("every database of both cells", look).await?;
    let mut refusals = told(&report, Severity::Refuse);
    if let Some(Control::Database(_)) = world.config.fleet.control {
        refusals.push(format!("fleet.yaml: {}", ControlError::Database));
    }
    Ok(PreflightOutput {
        from,
        to,
        can_fence: matches!(world.config.fleet.control, Some(Control::Commands { .. })),
        refusals,
        warnings: u32::try_from(told(&report, Severity::Warn).len()).unwrap_or(u32::MAX),
    })
}

/// Looks at everything and returns every finding.
async fn check(world: &World, input: &PreflightInput, from: &CellName, to: &CellName) -> Report {
    let job = Job {
        graph: &world.config.graph,
        fleet: &world.config.fleet,
        from,
        to,
        org: &input.org,
        accept_disagreeing_edges: &input.accept_disagreeing_edges,
        limits: Limits::default(),
    };
    preflight::check(&job).await
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
