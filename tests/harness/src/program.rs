//! Our own program as a child process that a test can kill, stop and let go on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;

use crate::install::project;
use crate::keeper::{Keeper, Kept};

/// The `monarch` program, built from the present source in the dev profile. The first call in a
/// process runs cargo, which does nothing when the program is fresh.
///
/// # Errors
///
/// When it does not compile.
pub fn monarch_binary() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .as_deref()
        .map_err(|error| anyhow!("build monarch: {error}"))
}

/// How the names of the variables begin that cargo sets for a running test, of itself.
const SET_FOR_TESTS: [&str; 5] = [
    "CARGO_BIN_",
    "CARGO_CRATE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PRIMARY_",
];

/// Built so that what `cargo test --workspace` has compiled counts as fresh, or half of the
/// dependencies would be compiled again. A test among the targets makes cargo choose the features
/// that the tests have; and the variables that cargo sets for a running test must not be seen, since
/// build scripts (`ring`'s) watch them.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if SET_FOR_TESTS.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    let output = command
        .args([
            "build",
            "--workspace",
            "--bin",
            "monarch",
            "--test",
            "program",
        ])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(project())
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo")?;
    ensure!(
        output.status.success(),
        "cargo ended with {}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "monarch")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo names no executable")
}

/// A child process. It is killed when the handle drops or our process dies; its output is in a
/// file, which a failing test prints.
#[derive(Debug)]
pub struct Program {
    keeper: Keeper,
}

impl Program {
    /// Starts a command, whose input is empty. Of the command, the program, its arguments, its
    /// folder and the variables set or removed are taken over.
    ///
    /// # Errors
    ///
    /// When no process can be made. A program that is not there exits with status 127.
    pub fn start(name: &str, command: &Command) -> Result<Self> {
        let keeper = Keeper::new(name, |_| kept(command))?;
        keeper.start()?;
        Ok(Self { keeper })
    }

    /// The process id; nothing once it was waited for.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.keeper.pid().map(rustix::process::Pid::as_raw_pid)
    }

    /// Whether it still runs (a paused one does).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.keeper.is_alive()
    }

    /// Everything it has written so far, output and errors.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn output(&self) -> Result<String> {
        let bytes = std::fs::read(self.keeper.log()).context("read a program's output")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits for its end. The status is as a shell gives it: 128 + n after signal n; nothing when
    /// it was waited for before.
    ///
    /// # Errors
    ///
    /// When the keeper died.
    pub async fn wait(&self) -> Result<Option<i32>> {
        self.keeper.exit().await
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`], and when it cannot be signalled.
    pub async fn terminate(&self) -> Result<Option<i32>> {
        self.keeper.signal(Signal::TERM)?;
        self.wait().await
    }

    /// Kills it where it stands (SIGKILL).
    ///
    /// # Errors
    ///
    /// As [`Self::terminate`].
    pub async fn kill_9(&self) -> Result<()> {
        self.keeper.signal(Signal::KILL)?;
        self.wait().await?;
        Ok(())
    }

    /// Halts it (SIGSTOP), as a machine does that is taken for dead and is not.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn pause(&self) -> Result<()> {
        self.keeper.signal(Signal::STOP)
    }

    /// Lets a paused program go on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn resume(&self) -> Result<()> {
        self.keeper.signal(Signal::CONT)
    }
}

fn kept(command: &Command) -> Kept {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut surroundings = Command::new("sh");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => surroundings.env(name, value),
            None => surroundings.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        surroundings.current_dir(folder);
    }
    Kept {
        command: words.map(OsString::from).collect(),
        surroundings,
        last_signal: "KILL",
    }
}
