//! Two files, perhaps a ledger, perhaps Temporal, and the program among them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result};
use monarch_harness::{PgVersion, Program, fresh_name, shared};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_monarch");

/// Never printed, whatever goes wrong.
pub(crate) const SECRET: &str = "hunter2-that-nobody-may-see";

const MANIFEST: &str = "
root: organization
stores:
  default: {type: postgres}
relationships:
  organization: {store: default, primary_key: [id]}
  issue:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}}
  feature: {store: default, primary_key: [id]}
";

/// Where a test runs the program.
pub(crate) struct Stage {
    folder: TempDir,
    environment: Vec<(&'static str, String)>,
}

/// What a command said and how it ended.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Said {
    /// The output as JSON.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.output).with_context(|| format!("not JSON: {}", self.output))
    }
}

impl Stage {
    /// A fleet whose ledger and databases are at this connection string. Temporal is nowhere.
    pub(crate) fn new(dsn: &str) -> Result<Self> {
        Self::of(dsn, dsn, dsn)
    }

    /// A fleet whose source, sink and ledger are at these connection strings.
    pub(crate) fn of(source: &str, sink: &str, ledger: &str) -> Result<Self> {
        let folder = TempDir::new().context("make a folder")?;
        let place = |dsn: &str| format!("databases: [{{primary_dsn: '{dsn}', stores: [default]}}]");
        let fleet = format!(
            "from: us1\nto: us2\ncells:\n  us1: {{{}}}\n  us2: {{{}}}\nledger: {{dsn: '{ledger}'}}\n",
            place(source),
            place(sink),
        );
        std::fs::write(folder.path().join("manifest.yaml"), MANIFEST)?;
        std::fs::write(folder.path().join("fleet.yaml"), fleet)?;
        Ok(Self {
            folder,
            environment: vec![
                ("TEMPORAL_ADDRESS", "127.0.0.1:1".to_owned()),
                ("TEMPORAL_CONFIG_FILE", "/dev/null".to_owned()),
            ],
        })
    }

    /// Lets a program take the messages of the outbox of `us1`: a script in the stage's folder that is
    /// given to `sh`.
    pub(crate) fn deliver_by(&self, script: &str) -> Result<()> {
        let file = self.folder().join("fleet.yaml");
        let fleet = std::fs::read_to_string(&file)?;
        if !fleet.contains("outbox") {
            let outbox = "us1: {outbox: {deliver: [sh, take.sh], timeout: 30s}, ";
            std::fs::write(&file, fleet.replace("us1: {", outbox))?;
        }
        Ok(std::fs::write(self.folder().join("take.sh"), script)?)
    }

    /// The same with nothing to reach: its databases are at a port where nobody listens.
    pub(crate) fn alone() -> Result<Self> {
        Self::new(&format!(
            "host=127.0.0.1 port=1 dbname=none user=monarch password={SECRET} connect_timeout=2"
        ))
    }

    /// The same with a ledger's database, which is empty.
    pub(crate) async fn with_ledger() -> Result<(Self, String)> {
        let cluster = shared::cluster(PgVersion::V17).await;
        let dsn = cluster.create_database(&fresh_name("ledger")).await?;
        Ok((Self::new(&dsn)?, dsn))
    }

    /// The same, where Temporal is the shared server, in a namespace of the test's own.
    pub(crate) async fn with_temporal(mut self) -> Result<(Self, String)> {
        let temporal = shared::temporal().await;
        let namespace = temporal.namespace().await?;
        self.at_temporal(&temporal.address(), &namespace);
        Ok((self, namespace))
    }

    pub(crate) fn at_temporal(&mut self, address: &str, namespace: &str) {
        self.environment[0].1 = address.to_owned();
        self.environment
            .push(("TEMPORAL_NAMESPACE", namespace.to_owned()));
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .current_dir(self.folder.path())
            .env_remove("MONARCH_MANIFEST")
            .env_remove("MONARCH_FLEET")
            .env_remove("RUST_LOG");
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    /// Runs the program to its end.
    pub(crate) async fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Said> {
        let mut command = tokio::process::Command::from(self.command());
        let ended = command.args(arguments).kill_on_drop(true).output().await?;
        Ok(said(&ended))
    }

    /// Starts a worker on these queues.
    pub(crate) fn worker(&self, arguments: &[&str]) -> Result<Program> {
        Program::start("worker", self.command().arg("worker").args(arguments))
    }
}

fn said(ended: &Output) -> Said {
    Said {
        code: ended.status.code().unwrap_or(-1),
        output: String::from_utf8_lossy(&ended.stdout).into_owned(),
        errors: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}

/// Runs SQL as the superuser in the database that a stage's ledger is in.
pub(crate) async fn in_ledger(dsn: &str, sql: &str) -> Result<()> {
    let (_, database) = dsn
        .rsplit_once("dbname=")
        .context("a DSN with dbname last")?;
    let client = shared::cluster(PgVersion::V17)
        .await
        .admin(database)
        .await?;
    Ok(client.batch_execute(sql).await?)
}

/// Waits until a worker has said a word; its end makes waiting vain.
pub(crate) async fn until_said(worker: &Program, word: &str) -> Result<()> {
    while !worker.output()?.contains(word) {
        anyhow::ensure!(worker.is_alive(), "the worker ended: {}", worker.output()?);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(())
}
