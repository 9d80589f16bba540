//! A Temporal development server with its Web UI.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::cluster::PATIENCE;
use crate::install::servers;
use crate::keeper::{Keeper, Kept};
use crate::name::{free_port, fresh_name};

/// A running server with its database in a file. It ends when the handle drops or our process dies.
#[derive(Debug)]
pub struct Temporal {
    program: PathBuf,
    port: u16,
    ui_port: u16,
    keeper: Keeper,
}

impl Temporal {
    /// Starts a server and waits until it serves.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or does not start; the message ends with the server's log.
    pub async fn start() -> Result<Self> {
        let program = servers()?.join("temporal/bin/temporal");
        let (port, ui_port) = (free_port()?, free_port()?);
        let (http_port, metrics_port) = (free_port()?, free_port()?);
        let keeper = Keeper::new("temporal", |folder| {
            let ports = [
                ("--port", port),
                ("--ui-port", ui_port),
                ("--http-port", http_port),
                ("--metrics-port", metrics_port),
            ];
            Kept {
                command: server(&program, folder, &ports),
                surroundings: Command::new("sh"),
                last_signal: "KILL",
            }
        })?;
        let temporal = Self {
            program,
            port,
            ui_port,
            keeper,
        };
        temporal.launch().await?;
        Ok(temporal)
    }

    /// The program `temporal`.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Host and port of the frontend, for clients.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The Web UI.
    #[must_use]
    pub fn ui_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ui_port)
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.keeper.log()
    }

    /// Makes a namespace of a fresh name and waits until it can be used.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn namespace(&self) -> Result<String> {
        let name = fresh_name("test");
        let made = self.cli(&name, ["operator", "namespace", "create"]).await?;
        ensure!(made.status.success(), "create namespace {name}: {made:?}");
        self.until_it_works(&name, &["workflow", "list", "--limit", "1"])
            .await?;
        Ok(name)
    }

    /// Runs `temporal` with these arguments against this server and `namespace`, to its end.
    ///
    /// # Errors
    ///
    /// When it cannot be run; a command that fails is in the output's status.
    pub async fn cli<S: AsRef<OsStr>>(
        &self,
        namespace: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Output> {
        tokio::process::Command::new(&self.program)
            .args(arguments)
            .args(["--address", &self.address(), "--namespace", namespace])
            .kill_on_drop(true)
            .output()
            .await
            .context("run the temporal command")
    }

    /// Kills the server where it stands; its database stays for [`Self::restart`].
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub async fn kill_9(&self) -> Result<()> {
        self.keeper.signal(Signal::KILL)?;
        self.keeper.exit().await?;
        Ok(())
    }

    /// Starts the server again, on the same ports and database, killing it first when it runs.
    ///
    /// # Errors
    ///
    /// When it does not start; the message ends with the server's log.
    pub async fn restart(&self) -> Result<()> {
        self.kill_9().await?;
        self.launch().await
    }

    async fn launch(&self) -> Result<()> {
        self.keeper.start()?;
        self.until_it_works("default", &["operator", "cluster", "health"])
            .await?;
        self.until_it_works("default", &["workflow", "list", "--limit", "1"])
            .await
    }

    /// Repeats a command until it succeeds.
    async fn until_it_works(&self, namespace: &str, arguments: &[&str]) -> Result<()> {
        let waiting = tokio::time::timeout(PATIENCE, async {
            while self.keeper.is_alive() {
                if self.cli(namespace, arguments).await?.status.success() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bail!("the Temporal server ended:\n{}", self.keeper.log_tail())
        });
        waiting.await.with_context(|| {
            format!(
                "temporal {} does not work:\n{}",
                arguments.join(" "),
                self.keeper.log_tail()
            )
        })?
    }
}

/// The server's command line; its database is in `folder`.
fn server(program: &Path, folder: &Path, ports: &[(&str, u16)]) -> Vec<std::ffi::OsString> {
    let mut command = Command::new(program);
    command.args([
        "server",
        "start-dev",
        "--ip",
        "127.0.0.1",
        "--log-level",
        "warn",
    ]);
    command
        .args(["--ui-disable-news-fetch", "--db-filename"])
        .arg(folder.join("temporal.db"));
    // Survives a killed process, though not a killed machine, and spares the disk.
    command.args([
        "--sqlite-pragma",
        "synchronous=0",
        "--sqlite-pragma",
        "journal_mode=wal",
    ]);
    for (name, port) in ports {
        command.arg(name).arg(port.to_string());
    }
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(Into::into)
        .collect()
}
