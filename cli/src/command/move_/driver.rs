//! How the commands that steer a move reach the workflow that drives it.
//!
//! Temporal keeps a request that no worker has accepted for as long as it has the workflow in
//! memory, whether or not the caller still waits: served when a worker comes back, it would act long
//! after whoever made it has gone. So a worker is looked for first, by a query, which leaves nothing
//! behind; only when one has answered is the request made.

use std::time::{Duration, SystemTime};

use clap::Args;
use monarch_ledger::{Ledger, Move};
use monarch_model::OrgId;
use monarch_view::advice::{forsaken, may_be_asked, over, take_up};
use monarch_workflows::OrgMove;
use monarch_workflows::org_move::Status;
use temporalio_client::{Client, RpcOptions, WorkflowStartUpdateOptions};
use temporalio_common::UpdateDefinition;
use temporalio_common::data_converters::{TemporalDeserializable, TemporalSerializable};
use tokio::time::{Instant, timeout_at};

use crate::console;
use crate::failure::Failure;
use crate::org_move::{self, GLANCE, Handle, Liveness};

/// How long a command waits for a worker.
#[derive(Debug, Clone, Args)]
pub(crate) struct Patience {
    /// How long to wait for a worker that answers; without one, nothing is asked for
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    timeout: u32,
}

impl Patience {
    pub(crate) fn of_seconds(timeout: u32) -> Self {
        Self { timeout }
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// When it ends, in seconds since 1970, with a moment more for the way.
    pub(crate) fn valid_until(&self) -> Option<u64> {
        let end = SystemTime::now() + self.duration() + GLANCE;
        let since = end.duration_since(SystemTime::UNIX_EPOCH);
        since.ok().map(|since| since.as_secs())
    }
}

/// The workflow that drives an organization's move.
pub(crate) struct Driver {
    pub(crate) handle: Handle,
    org: OrgId,
    /// None before the move is registered, and while the ledger cannot be reached.
    pub(crate) of: Option<Move>,
}

impl Driver {
    /// Finds it by the ledger's word, or by the id that `monarch move start` gives; it runs.
    pub(crate) async fn find(
        ledger: &Ledger,
        client: &Client,
        org: &OrgId,
    ) -> Result<Self, Failure> {
        let latest = match ledger.latest_move_of(org).await {
            Ok(found) => found,
            // A move can be steered, above all given up, while its ledger is away.
            Err(error) if error.is_transient() => None,
            Err(error) => return Err(error.into()),
        };
        let (of, ended) = match latest {
            Some(of) if of.phase.is_live() => (Some(of), None),
            ended => (None, ended),
        };
        let handle = match &of {
            Some(of) => client.get_workflow_handle::<OrgMove>(of.workflow_id.clone()),
            None => org_move::handle(client, org),
        };
        let org = org.clone();
        match (org_move::liveness(&handle).await?, &of) {
            (Liveness::Running { .. }, _) => Ok(Self { handle, org, of }),
            (gone, Some(of)) => {
                Err(Failure::not_ready(forsaken(of, gone.in_words())).advising(take_up(of)))
            }
            (_, None) => {
                let (said, to_do) = ended.as_ref().map(over).unwrap_or_else(|| {
                    let said = format!(
                        "organization {org} is not being moved: no workflow {} runs",
                        handle.info().workflow_id
                    );
                    (said, org_move::SPELLING.to_owned())
                });
                Err(Failure::not_ready(said).advising(to_do))
            }
        }
    }

    /// Asks the workflow for an update, once a worker is there, and waits for its answer.
    pub(crate) async fn ask<U>(
        &self,
        update: U,
        input: U::Input,
        patience: &Patience,
    ) -> Result<U::Output, Failure>
    where
        U: UpdateDefinition<Workflow = org_move::Run>,
        U::Input: TemporalSerializable + Send,
        U::Output: TemporalDeserializable,
    {
        let deadline = Instant::now() + patience.duration();
        let status = self.worker_answers(patience).await?;
        let told = |error| {
            let failure = org_move::update_failure(&self.handle.info().workflow_id, error);
            self.with_what_may_be_asked(failure, &status)
        };
        let options = WorkflowStartUpdateOptions::default();
        let begun = self.handle.start_update(update, input, options);
        // The worker that answered may have gone since.
        let begun = timeout_at(deadline.max(Instant::now() + GLANCE), begun)
            .await
            .map_err(|_| {
                Failure::unreachable(
                    "no worker answers any more; the request still stands, and is served when one \
                     does",
                )
                .advising("start `monarch worker`, and watch what becomes of it")
            })?;
        let begun = begun.map_err(told)?;
        let mut answer = std::pin::pin!(begun.get_result(RpcOptions::default()));
        loop {
            tokio::select! {
                answer = &mut answer => return answer.map_err(told),
                () = tokio::time::sleep(patience.duration()) => self.still_answers(patience).await?,
            }
        }
    }

    /// What the workflow knows, as soon as a worker answers for it.
    async fn worker_answers(&self, patience: &Patience) -> Result<Status, Failure> {
        let whole = patience.duration();
        let glance = GLANCE.min(whole);
        match org_move::status(&self.handle, glance).await {
            Err(silent) if silent.is_unreachable() => {}
            answer => return answer,
        }
        let left = whole - glance;
        if !left.is_zero() {
            console::mention(&format!(
                "no worker answers yet; waiting for one, {} s at most",
                left.as_secs()
            ));
        }
        let deadline = Instant::now() + left;
        while Instant::now() < deadline {
            let left = deadline - Instant::now();
            match org_move::status(&self.handle, left).await {
                Err(silent) if silent.is_unreachable() => {}
                answer => return answer,
            }
            // Refused at once: the workflow's first task has not been done.
            tokio::time::sleep(GLANCE.min(deadline - Instant::now()) / 5).await;
        }
        Err(Failure::unreachable(format!(
            "no worker answers for workflow {}; nothing was asked of it",
            self.handle.info().workflow_id
        ))
        .advising("start `monarch worker`, then ask again"))
    }

    /// Of a request that was accepted and takes long.
    async fn still_answers(&self, patience: &Patience) -> Result<(), Failure> {
        match org_move::status(&self.handle, patience.duration()).await {
            Err(silent) if silent.is_unreachable() => Err(Failure::unreachable(
                "the request was accepted, and no worker answers any more; it goes on when one does",
            )
            .advising(format!(
                "start `monarch worker`, then `monarch move watch --org {}`",
                self.org
            ))),
            // What it says is not of interest; that it ended shows in the update's own answer.
            _ => Ok(()),
        }
    }

    fn with_what_may_be_asked(&self, failure: Failure, status: &Status) -> Failure {
        if failure.is_refusal() {
            failure.advising(may_be_asked(status.phase, status.paused, &self.org))
        } else {
            failure
        }
    }
}
