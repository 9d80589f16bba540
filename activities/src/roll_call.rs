//! Asks Temporal which of a move's queues have a worker.

use std::time::{Duration, SystemTime};

use monarch_workflows::contract::{RollCallInput, RollCallOutput};
use temporalio_client::grpc::WorkflowService as _;
use temporalio_client::tonic::{Request, Status};
use temporalio_client::{Client, NamespacedClient as _};
use temporalio_common::protos::temporal::api::enums::v1::TaskQueueType;
use temporalio_common::protos::temporal::api::taskqueue::v1::{PollerInfo, TaskQueue};
use temporalio_common::protos::temporal::api::workflowservice::v1::DescribeTaskQueueRequest;

use crate::failure::Fault;
use crate::vitals::Vitals;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// A worker asks again at least once a minute; one that has not for so long is gone. Temporal
/// itself forgets it only after five minutes.
const GONE_AFTER: Duration = Duration::from_secs(90);

/// Lasts until other queues are without a worker than the caller knows of.
pub(crate) async fn run(
    client: Client,
    vitals: Vitals,
    input: RollCallInput,
) -> Result<RollCallOutput, Fault> {
    vitals
        .during("a change of who serves the queues", async {
            loop {
                match unserved(&client, &input.queues).await {
                    Ok(unserved) if unserved != input.unserved => {
                        return Ok(RollCallOutput { unserved });
                    }
                    Ok(_) => {}
                    Err(status) => {
                        tracing::debug!(code = ?status.code(), "Temporal does not say who serves");
                    }
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })
        .await
}

async fn unserved(client: &Client, queues: &[String]) -> Result<Vec<String>, Status> {
    let mut unserved = Vec::new();
    for queue in queues {
        let request = DescribeTaskQueueRequest {
            namespace: client.namespace(),
            task_queue: Some(TaskQueue {
                name: queue.clone(),
                ..TaskQueue::default()
            }),
            task_queue_type: TaskQueueType::Activity as i32,
            ..DescribeTaskQueueRequest::default()
        };
        let mut connection = client.connection().clone();
        let answer = connection
            .describe_task_queue(Request::new(request))
            .await?
            .into_inner();
        let since = SystemTime::now() - GONE_AFTER;
        if !answer.pollers.iter().any(|poller| has_asked(poller, since)) {
            unserved.push(queue.clone());
        }
    }
    Ok(unserved)
}

fn has_asked(poller: &PollerInfo, since: SystemTime) -> bool {
    let last = poller.last_access_time.as_ref();
    last.is_some_and(|at| SystemTime::try_from(*at).is_ok_and(|at| at >= since))
}
