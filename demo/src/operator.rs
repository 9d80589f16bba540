//! Runs `monarch` and `temporal` as an operator does, and reads the ledger.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use monarch_harness::{Program, Temporal};
use tokio_postgres::Client;

use crate::Fleet;

/// How often the ledger is looked at while we wait for it.
const LOOK: Duration = Duration::from_millis(100);

/// Who works with a fleet: the programs, and the environment they are run in.
#[derive(Debug)]
pub struct Operator<'a> {
    temporal: &'a Temporal,
    namespace: String,
    monarch: PathBuf,
    environment: Vec<(String, String)>,
    ledger: Client,
}

/// What a command said when it ended.
#[derive(Debug, Clone)]
pub struct Said {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

impl Said {
    /// Itself, if the exit code was 0.
    ///
    /// # Errors
    ///
    /// When it was not; the message is what the command said.
    pub fn success(self) -> Result<Self> {
        ensure!(
            self.code == 0,
            "exit code {}:\n{}{}",
            self.code,
            self.output,
            self.errors
        );
        Ok(self)
    }

    /// All that it said.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", self.output, self.errors)
    }
}

impl<'a> Operator<'a> {
    /// An operator who runs the program `monarch` on a fleet, in a namespace of Temporal.
    ///
    /// # Errors
    ///
    /// When the ledger's database cannot be reached.
    pub async fn new(
        fleet: &Fleet,
        temporal: &'a Temporal,
        namespace: String,
        monarch: PathBuf,
    ) -> Result<Self> {
        let path = |path: PathBuf| path.display().to_string();
        let environment = [
            ("MONARCH_MANIFEST", path(fleet.manifest_file())),
            ("MONARCH_FLEET", path(fleet.fleet_file())),
            ("TEMPORAL_ADDRESS", temporal.address()),
            ("TEMPORAL_NAMESPACE", namespace.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        Ok(Self {
            temporal,
            namespace,
            monarch,
            environment,
            ledger: fleet.ledger().await?,
        })
    }

    /// The variables that `monarch` and `temporal` are run with.
    #[must_use]
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Gives both programs more variables, for example those by which they find buckets.
    pub fn give(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        self.environment.extend(variables);
    }

    /// The folders of the programs `monarch` and `temporal`, for a shell's search path.
    #[must_use]
    pub fn folders(&self) -> Vec<&Path> {
        let programs = [self.monarch.as_path(), self.temporal.program()];
        programs.into_iter().filter_map(Path::parent).collect()
    }

    /// Starts `monarch worker` for every queue.
    ///
    /// # Errors
    ///
    /// When no process can be made.
    pub fn worker(&self) -> Result<Program> {
        self.worker_of([])
    }

    /// Starts `monarch worker` for the queues that its arguments name.
    ///
    /// # Errors
    ///
    /// As [`Self::worker`].
    pub fn worker_of<'s>(&self, arguments: impl IntoIterator<Item = &'s str>) -> Result<Program> {
        Program::start("worker", self.command().arg("worker").args(arguments))
    }

    /// The same, with a log of what a filter in the form of `RUST_LOG` lets through.
    ///
    /// # Errors
    ///
    /// As [`Self::worker`].
    pub fn worker_logging<'s>(
        &self,
        filter: &str,
        arguments: impl IntoIterator<Item = &'s str>,
    ) -> Result<Program> {
        let mut command = self.command();
        command
            .env("RUST_LOG", filter)
            .arg("worker")
            .args(arguments);
        Program::start("worker", &command)
    }

    /// Starts `monarch dashboard` on a port of this machine, with this token for the operator; the
    /// address under which it is reached.
    ///
    /// # Errors
    ///
    /// When no process can be made, or it ends.
    pub async fn dashboard(&self, token: &str) -> Result<(Program, String)> {
        let mut command = self.command();
        command
            .env("MONARCH_DASHBOARD_OPERATOR_TOKEN", token)
            .args(["dashboard", "--listen", "127.0.0.1:0", "--temporal-ui"])
            .arg(self.temporal.ui_url());
        let program = Program::start("dashboard", &command)?;
        loop {
            let output = program.output()?;
            let address = output.lines().find(|line| line.starts_with("http://"));
            if let Some(address) = address {
                return Ok((program, address.trim_end_matches('/').to_owned()));
            }
            ensure!(program.is_alive(), "the dashboard ended:\n{output}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Makes the ledger's schema.
    ///
    /// # Errors
    ///
    /// When `monarch ledger init` fails.
    pub async fn make_ledger(&self) -> Result<()> {
        let made = self.monarch(["ledger", "init"]).await?;
        made.success().context("monarch ledger init").map(drop)
    }

    /// Makes what Monarch needs in the control database and in the cells.
    ///
    /// # Errors
    ///
    /// When `monarch control init` fails.
    pub async fn make_control(&self) -> Result<()> {
        let made = self.monarch(["control", "init"]).await?;
        made.success().context("monarch control init").map(drop)
    }

    /// Runs `monarch` to its end.
    ///
    /// # Errors
    ///
    /// When it cannot be run; a command that fails says so in [`Said::code`].
    pub async fn monarch<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Said> {
        let mut command = tokio::process::Command::from(self.command());
        let ended = command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("run {}", self.monarch.display()))?;
        Ok(said(&ended))
    }

    /// Runs `temporal` to its end.
    ///
    /// # Errors
    ///
    /// As [`Self::monarch`].
    pub async fn temporal<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Said> {
        Ok(said(&self.temporal.cli(&self.namespace, arguments).await?))
    }

    /// Connects to the ledger again, after its server was away.
    ///
    /// # Errors
    ///
    /// When it cannot be reached.
    pub async fn reconnect(&mut self, fleet: &Fleet) -> Result<()> {
        self.ledger = fleet.ledger().await?;
        Ok(())
    }

    /// Reads one text from the ledger; nothing where the query finds no row, or null.
    ///
    /// # Errors
    ///
    /// When the ledger does not answer.
    pub async fn ledger(&self, query: &str) -> Result<Option<String>> {
        let row = self
            .ledger
            .query_opt(query, &[])
            .await
            .with_context(|| format!("ask the ledger: {query}"))?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// The phase of an organization's newest move; nothing before its first.
    ///
    /// # Errors
    ///
    /// As [`Self::ledger`].
    pub async fn phase(&self, organization: i64) -> Result<Option<String>> {
        let query = format!(
            "select phase from monarch_ledger.move where org_id = '{organization}' \
             order by created_at desc limit 1"
        );
        self.ledger(&query).await
    }

    /// Waits until a condition over the ledger holds. `while_alive` is a worker whose end would
    /// make waiting vain.
    ///
    /// # Errors
    ///
    /// When it does not hold in time, or the worker ended; the message tells where the ledger
    /// stands and what the worker said.
    pub async fn until(&self, condition: &str, worker: &Program, patience: Duration) -> Result<()> {
        let query = format!("select 'yes' where {condition}");
        let waiting = async {
            while self.ledger(&query).await?.is_none() {
                if !worker.is_alive() {
                    bail!("the worker ended");
                }
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.context(self.story(worker, condition).await?)),
            Err(_) => bail!("{}", self.story(worker, condition).await?),
        }
    }

    /// Waits until the newest move of an organization is in a phase.
    ///
    /// # Errors
    ///
    /// As [`Self::until`].
    pub async fn until_phase(
        &self,
        organization: i64,
        phase: &str,
        worker: &Program,
        patience: Duration,
    ) -> Result<()> {
        let condition = format!(
            "(select phase from monarch_ledger.move where org_id = '{organization}' \
             order by created_at desc limit 1) = '{phase}'"
        );
        self.until(&condition, worker, patience).await
    }

    /// Waits until every unit of an organization's newest move streams.
    ///
    /// # Errors
    ///
    /// As [`Self::until`].
    pub async fn until_streaming(
        &self,
        organization: i64,
        worker: &Program,
        patience: Duration,
    ) -> Result<()> {
        let condition = format!(
            "(select count(*) filter (where status = 'streaming') = count(*) and count(*) > 0 \
             from monarch_ledger.move_unit where move_id = (select id from monarch_ledger.move \
             where org_id = '{organization}' order by created_at desc limit 1))"
        );
        self.until(&condition, worker, patience).await
    }

    /// Where the ledger stands and what the worker said last, for a message about a failure.
    async fn story(&self, worker: &Program, awaited: &str) -> Result<String> {
        const LINES: usize = 60;
        const MOVES: &str = "
            select concat_ws(E'\\n',
              (select string_agg(concat_ws(' ', 'move of', org_id, phase, reason_code, reason),
                                 E'\\n' order by created_at) from monarch_ledger.move),
              (select string_agg(concat_ws(' ', store, status, 'applied', applied_lsn, 'head',
                                           source_head_lsn, last_error_code, last_error),
                                 E'\\n' order by store) from monarch_ledger.move_unit),
              (select string_agg(concat_ws(' ', at::time(0), store, kind, before, after, detail),
                                 E'\\n' order by id) from monarch_ledger.move_event))";
        let ledger = self.ledger(MOVES).await?.unwrap_or_default();
        let output = worker.output()?;
        let lines: Vec<_> = output.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
        let listed = self.temporal(["workflow", "list"]).await?.text();
        Ok(format!(
            "waited in vain for: {awaited}\n--- ledger\n{ledger}\n--- workflows\n{listed}\n\
             --- worker\n{last}"
        ))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.monarch);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

fn said(ended: &std::process::Output) -> Said {
    Said {
        code: ended.status.code().unwrap_or(-1),
        output: String::from_utf8_lossy(&ended.stdout).into_owned(),
        errors: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}
