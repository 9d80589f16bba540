//! What a move needs of its namespace: search attributes, the sweep's schedule and those of the
//! outboxes: control's, where a control database routes, and each cell's whose messages we deliver.
//!
//! They are made when they are missing and left alone when they are there: an operator may have
//! paused the schedule, and must not find it running again after a deploy.

use std::time::Duration;

use monarch_config::{Control, Fleet};
use monarch_model::CellName;
use monarch_workflows::contract::{OutboxInput, SWEEP_CLOSED_FOR, SweepInput};
use monarch_workflows::org_move::{MOVE_PHASE, ORG_ID, SINK_CELL, SOURCE_CELL};
use monarch_workflows::{OutboxDrain, Sweep, queue};
use temporalio_client::errors::ClientError;
use temporalio_client::grpc::OperatorService as _;
use temporalio_client::schedules::{
    CreateScheduleOptions, ScheduleAction, ScheduleError, ScheduleOverlapPolicy, ScheduleSpec,
};
use temporalio_client::tonic::{Code, Request, Status};
use temporalio_client::{Client, WorkflowCountOptions};
use temporalio_common::protos::temporal::api::enums::v1::IndexedValueType;
use temporalio_common::protos::temporal::api::operatorservice::v1::AddSearchAttributesRequest;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::WorkerError;
use crate::temporal::{is_transient, names_namespace};

/// The id of the schedule that runs the sweep.
pub const SWEEP_SCHEDULE: &str = "monarch-sweep";
/// How often it runs.
pub const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// How long a move may be silent before the sweep ends it where Temporal cannot be asked.
pub const SWEEP_SILENT_FOR: Duration = Duration::from_secs(600);

/// The id of the schedule that drains the control database's outboxes.
pub const OUTBOX_SCHEDULE: &str = "monarch-outbox-control";
/// How often it runs: what it finds was not delivered at its commit.
pub const OUTBOX_EVERY: Duration = Duration::from_secs(30);
/// Parts that an outbox's range of ids is cut into.
const OUTBOX_PARTITIONS: u32 = 5;

/// Servers learn of a new search attribute from each other; a minute is their refresh interval.
const ATTRIBUTES_USABLE_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause while the server is away.
const RETRY_EVERY: Duration = Duration::from_secs(2);

const ATTRIBUTES: &str = "register the search attributes";
const SCHEDULE: &str = "make the schedule of the sweep";
const OUTBOX: &str = "make the schedule of the outbox";

/// The id of the schedule that drains the outboxes of a cell.
#[must_use]
pub fn outbox_schedule_of(cell: &CellName) -> String {
    format!("monarch-outbox-cell-{cell}")
}

/// Makes sure of all, and tries again while the server is away.
pub(crate) async fn ensure(client: &Client, fleet: &Fleet) -> Result<(), WorkerError> {
    patiently(ATTRIBUTES, async || ensure_attributes(client).await).await?;
    patiently(SCHEDULE, async || ensure_sweep(client).await).await?;
    if let Some(Control::Database(_)) = fleet.control {
        patiently(OUTBOX, async || ensure_outbox(client, None).await).await?;
    }
    for cell in fleet.cells.iter().filter(|cell| cell.outbox.is_some()) {
        let name = &cell.name;
        patiently(OUTBOX, async || ensure_outbox(client, Some(name)).await).await?;
    }
    Ok(())
}

async fn patiently(
    doing: &'static str,
    attempt: impl AsyncFn() -> Result<(), Status>,
) -> Result<(), WorkerError> {
    loop {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(status) if is_transient(&status) => {
                warn!(
                    doing,
                    reason = status.message(),
                    "Temporal is away; trying again"
                );
                tokio::time::sleep(RETRY_EVERY).await;
            }
            Err(status) => {
                return Err(WorkerError::Namespace {
                    doing,
                    reason: advice(doing, &status),
                });
            }
        }
    }
}

fn advice(doing: &'static str, status: &Status) -> String {
    let what_to_do = match status.code() {
        _ if names_namespace(status) => "create the namespace, or set TEMPORAL_NAMESPACE",
        Code::PermissionDenied | Code::Unimplemented if doing == ATTRIBUTES => {
            "create OrgId, MovePhase, SourceCell and SinkCell as Keyword in the namespace by hand"
        }
        _ => "see the server's log",
    };
    format!("{} ({what_to_do})", status.message())
}

fn attribute_names() -> [String; 4] {
    [&ORG_ID, &MOVE_PHASE, &SOURCE_CELL, &SINK_CELL].map(|key| key.name().to_owned())
}

/// Registers what is missing and waits until a list can be filtered by all of them.
async fn ensure_attributes(client: &Client) -> Result<(), Status> {
    if are_usable(client).await? {
        return Ok(());
    }
    for name in attribute_names() {
        add_attribute(client, &name).await?;
    }
    let since = Instant::now();
    while !are_usable(client).await? {
        if since.elapsed() > ATTRIBUTES_USABLE_WITHIN {
            return Err(Status::failed_precondition(
                "they were registered and still cannot be used",
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    info!("registered the search attributes");
    Ok(())
}

async fn are_usable(client: &Client) -> Result<bool, Status> {
    let query = attribute_names().map(|name| format!("{name} = 'none'"));
    let counted = client
        .count_workflows(query.join(" and "), WorkflowCountOptions::default())
        .await;
    match counted {
        Ok(_) => Ok(true),
        Err(ClientError::Rpc(status)) if status.code() == Code::InvalidArgument => Ok(false),
        Err(ClientError::Rpc(status)) => Err(status),
        Err(other) => Err(Status::internal(other.to_string())),
    }
}

/// One at a time: a server refuses a list of which one exists as a whole.
async fn add_attribute(client: &Client, name: &str) -> Result<(), Status> {
    let keyword = IndexedValueType::Keyword as i32;
    let request = AddSearchAttributesRequest {
        search_attributes: [(name.to_owned(), keyword)].into(),
        namespace: client.options().namespace.clone(),
    };
    let mut connection = client.connection().clone();
    match connection
        .add_search_attributes(Request::new(request))
        .await
    {
        Err(status) if status.code() != Code::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}

async fn ensure_sweep(client: &Client) -> Result<(), Status> {
    let input = SweepInput {
        silent_for: SWEEP_SILENT_FOR,
        closed_for: SWEEP_CLOSED_FOR,
    };
    let action = ScheduleAction::start_workflow(Sweep::run, input, queue::MONARCH, SWEEP_SCHEDULE);
    let options = CreateScheduleOptions::builder()
        .action(action)
        .spec(ScheduleSpec::from_interval(SWEEP_EVERY))
        .overlap_policy(ScheduleOverlapPolicy::Skip)
        .note("Ends moves that nobody drives any more.")
        .build();
    ensure_schedule(client, SWEEP_SCHEDULE, options).await
}

async fn ensure_outbox(client: &Client, cell: Option<&CellName>) -> Result<(), Status> {
    let input = OutboxInput {
        partitions: OUTBOX_PARTITIONS,
        cell: cell.cloned(),
    };
    let (schedule, note) = match cell {
        None => (
            OUTBOX_SCHEDULE.to_owned(),
            "Tells the cells what they have not heard of the routing.",
        ),
        Some(cell) => (
            outbox_schedule_of(cell),
            "Delivers the messages of the cell's application.",
        ),
    };
    let (run, queue) = (OutboxDrain::run, queue::MONARCH);
    let action = ScheduleAction::start_workflow(run, input, queue, schedule.clone());
    let options = CreateScheduleOptions::builder()
        .action(action)
        .spec(ScheduleSpec::from_interval(OUTBOX_EVERY))
        .overlap_policy(ScheduleOverlapPolicy::Skip)
        .note(note)
        .build();
    ensure_schedule(client, &schedule, options).await
}

async fn ensure_schedule(
    client: &Client,
    schedule: &str,
    options: CreateScheduleOptions,
) -> Result<(), Status> {
    match client.create_schedule(schedule, options).await {
        Ok(_) => {
            info!(schedule, "made a schedule");
            Ok(())
        }
        Err(ScheduleError::Rpc(status)) if status.code() == Code::AlreadyExists => Ok(()),
        Err(ScheduleError::Rpc(status)) => Err(status),
        Err(other) => Err(Status::internal(other.to_string())),
    }
}
