//! `monarch move start`

use std::time::Duration;

use clap::{Args, ValueEnum};
use monarch_ledger::{Ledger, Move};
use monarch_model::{OrgId, Phase};
use monarch_view::advice::{may_be_asked, take_up};
use monarch_workflows::contract::failure;
use monarch_workflows::input::{CutOverPolicy, EvictionPolicy, OrgMoveInput};
use monarch_workflows::org_move::workflow_id;
use monarch_workflows::{OrgMove, queue};
use serde::Serialize;
use temporalio_client::{
    Client, WorkflowIdConflictPolicy, WorkflowIdReusePolicy, WorkflowStartOptions,
};
use temporalio_common::data_converters::{PayloadConverter, RawValue};
use tokio::time::Instant;

use super::watch;
use crate::args::{Accepted, Organization, Route, Which};
use crate::console::{self, Output};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::org_move::{self, Ended, Handle, Liveness};

/// How long to wait for the move to be registered before the command says how to watch it.
const REGISTERED_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    #[command(flatten)]
    route: Route,
    #[command(flatten)]
    accepted: Accepted,
    /// Who decides that it cuts over
    #[arg(long, value_enum, value_name = "WHO", default_value = "manual")]
    cut_over: WhoCutsOver,
    /// When the source is evicted: `manual`, `now` (after the flip), or `after=SECONDS`
    #[arg(long, value_name = "WHEN", default_value = "manual", value_parser = eviction)]
    eviction: EvictionPolicy,
    /// The longest time from fence to seal before the organization writes on the source again
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    max_pause: u32,
    /// If the move fails, scrub the sink at once, not on `abort`
    #[arg(long)]
    scrub_on_failure: bool,
    /// A mover that has reported nothing for so long is taken for dead
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=3_600))]
    heartbeat: u32,
    /// Follow the move until it ends
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WhoCutsOver {
    /// You, by `monarch move cut-over`
    Manual,
    /// The move itself, once every store is ready; needs `control` in the fleet
    Auto,
}

/// What was started.
#[derive(Serialize)]
struct Started {
    workflow_id: String,
    run_id: Option<String>,
    /// None when it was not registered in time.
    move_id: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let org = arguments.organization.org.clone();
    let ledger = context.ledger()?;
    let client = context.temporal().await?;
    let files = context.files();
    refuse_second(&ledger, &client, &org, &files).await?;
    let handle = launch(&client, workflow_id(&org), &input(&arguments)).await?;
    let options = format!("{}{}{files}", arguments.route, arguments.accepted);
    let registered = until_registered(&ledger, &handle, &org, &options).await?;
    let started = Started {
        workflow_id: handle.info().workflow_id.clone(),
        run_id: handle.run_id().map(str::to_owned),
        move_id: registered.as_ref().map(|of| of.id.to_string()),
    };
    if !(arguments.wait && context.output() == Output::Json) {
        console::show(context.output(), &started, |started| {
            text(started, &org, &files)
        })?;
    }
    if !arguments.wait {
        return Ok(Exit::Done);
    }
    let which = Which {
        move_id: registered.as_ref().map(|of| of.id),
        org: registered.is_none().then_some(org),
    };
    Box::pin(watch::follow(&ledger, &client, &which, context.output())).await
}

/// Names the live move that stands in the way, if there is one.
pub(crate) async fn refuse_second(
    ledger: &Ledger,
    client: &Client,
    org: &OrgId,
    files: &str,
) -> Result<(), Failure> {
    let Some(live) = ledger.live_move().await? else {
        return Ok(());
    };
    let said = format!(
        "move {} of organization {} is live ({}), and one may be at a time",
        live.id, live.org, live.phase
    );
    let workflow = client.get_workflow_handle::<OrgMove>(live.workflow_id.clone());
    let to_do = match (org_move::liveness(&workflow).await?, live.phase) {
        (Liveness::Running { .. }, Phase::Failed) => {
            may_be_asked(Some(live.phase), false, &live.org)
        }
        (Liveness::Running { .. }, _) if live.org == *org => {
            format!("watch it with `monarch move watch --org {org}{files}`")
        }
        (Liveness::Running { .. }, _) => "wait for its end, or end it".to_owned(),
        (Liveness::Closed { .. } | Liveness::Missing, _) => {
            format!("nobody drives it: {}", take_up(&live))
        }
    };
    Err(Failure::not_ready(said).advising(to_do))
}

/// Starts the workflow of a move; a handle to this very run.
pub(crate) async fn launch(
    client: &Client,
    workflow_id: String,
    input: &OrgMoveInput,
) -> Result<Handle, Failure> {
    let org = &input.org_id;
    let payload = RawValue::from_value(input, &PayloadConverter::default());
    let summary = console::plain(&format!("move organization {org}"));
    let options = WorkflowStartOptions::new(queue::MONARCH, workflow_id)
        .id_reuse_policy(WorkflowIdReusePolicy::AllowDuplicate)
        .id_conflict_policy(WorkflowIdConflictPolicy::Fail)
        .static_summary(summary.chars().take(200).collect::<String>())
        .build();
    let started = client
        .start_workflow(OrgMove::run, payload, options)
        .await
        .map_err(|error| org_move::start_failure(org, error))?;
    let mut info = started.info().clone();
    info.run_id = started.run_id().map(str::to_owned);
    Ok(Handle::new(client.clone(), info))
}

fn input(arguments: &Arguments) -> OrgMoveInput {
    OrgMoveInput {
        from: arguments.route.from.clone(),
        to: arguments.route.to.clone(),
        cut_over: match arguments.cut_over {
            WhoCutsOver::Manual => CutOverPolicy::Manual,
            WhoCutsOver::Auto => CutOverPolicy::Auto,
        },
        eviction: arguments.eviction,
        max_pause_seconds: arguments.max_pause,
        scrub_on_failure: arguments.scrub_on_failure,
        heartbeat_seconds: arguments.heartbeat,
        accept_disagreeing_edges: arguments.accepted.disagreeing_edges.clone(),
        ..OrgMoveInput::new(arguments.organization.org.clone())
    }
}

/// The registered move, or nothing if that takes long. A workflow that ends before it registers
/// says why.
pub(crate) async fn until_registered(
    ledger: &Ledger,
    handle: &Handle,
    org: &OrgId,
    options: &str,
) -> Result<Option<Move>, Failure> {
    let begun = Instant::now();
    while begun.elapsed() < REGISTERED_WITHIN {
        if let Some(live) = ledger.live_move().await?
            && handle.run_id() == Some(live.run_id.as_str())
        {
            return Ok(Some(live));
        }
        if let Liveness::Closed { .. } = org_move::liveness(handle).await?
            && let Err(ended) = org_move::outcome(handle).await?
        {
            return Err(Failure::failed(console::plain(&ended.why))
                .advising(begin_again(&ended, org, options)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(None)
}

/// What to do about a move that ended before it was registered. `options` are those of its start, as
/// far as they are known, that a look at the same move needs.
pub(super) fn begin_again(ended: &Ended, org: &OrgId, options: &str) -> String {
    match ended.code.as_str() {
        failure::PREFLIGHT_REFUSED => format!(
            "nothing was changed; `monarch preflight --org {org}{options}` says what mends each finding"
        ),
        failure::LIVE_MOVE => "nothing was changed; wait for the other move's end".to_owned(),
        _ => "nothing was changed; mend it and start again".to_owned(),
    }
}

fn text(started: &Started, org: &OrgId, files: &str) -> String {
    let watch = format!("watch it with `monarch move watch --org {org}{files}`");
    match &started.move_id {
        Some(id) => format!("started {}\nmove {id}\n{watch}", started.workflow_id),
        None => format!(
            "started {}\nnot registered yet: preflight takes long, or no `monarch worker` runs\n{watch}",
            started.workflow_id
        ),
    }
}

/// Reads `manual`, `now`, `after=SECONDS`.
fn eviction(text: &str) -> Result<EvictionPolicy, String> {
    let expected = || format!("expected manual, now or after=SECONDS, not {text:?}");
    match text {
        "manual" => Ok(EvictionPolicy::Manual),
        "now" => Ok(EvictionPolicy::Now),
        _ => {
            let seconds = text.strip_prefix("after=").ok_or_else(expected)?;
            let seconds = seconds.strip_suffix('s').unwrap_or(seconds);
            seconds
                .parse()
                .map(EvictionPolicy::AfterSeconds)
                .map_err(|_| expected())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An advice that is pasted is about the same fleet and the same route.
    #[test]
    fn what_to_do_next_keeps_the_options_as_they_were_given() {
        let org: OrgId = "7".parse().unwrap();
        let started = Started {
            workflow_id: "org-move-7".to_owned(),
            run_id: None,
            move_id: None,
        };
        let told = text(&started, &org, " --fleet other.yaml");
        let watch = "`monarch move watch --org 7 --fleet other.yaml`";
        assert!(told.contains(watch), "{told}");
        let refused = Ended {
            code: failure::PREFLIGHT_REFUSED.to_owned(),
            why: String::new(),
        };
        let told = begin_again(&refused, &org, " --to us3 --fleet other.yaml");
        let look = "`monarch preflight --org 7 --to us3 --fleet other.yaml`";
        assert!(told.contains(look), "{told}");
    }

    #[test]
    fn the_time_of_eviction_is_read_or_refused_by_name() {
        assert_eq!(eviction("now"), Ok(EvictionPolicy::Now));
        assert_eq!(
            eviction("after=3600"),
            Ok(EvictionPolicy::AfterSeconds(3_600))
        );
        assert_eq!(eviction("after=5s"), Ok(EvictionPolicy::AfterSeconds(5)));
        for bad in ["", "later", "after=", "after=-1", "after 5", "3600"] {
            assert!(
                eviction(bad).unwrap_err().contains("after=SECONDS"),
                "{bad} was taken"
            );
        }
    }
}
