//! The account that Postgres runs as: it refuses to run as root, which is what CI is.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Who runs the servers: ourselves, or `postgres` when we are root.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Account {
    Ourselves,
    Postgres,
}

impl Account {
    pub(crate) fn of_servers() -> Self {
        if rustix::process::geteuid().is_root() {
            Self::Postgres
        } else {
            Self::Ourselves
        }
    }

    /// What stands before a server's own command line so that it runs as this account.
    pub(crate) fn prefix(self) -> Vec<OsString> {
        match self {
            Self::Ourselves => Vec::new(),
            Self::Postgres => [
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                "--",
            ]
            .map(OsString::from)
            .to_vec(),
        }
    }

    /// A command that runs `program` as this account.
    pub(crate) fn command(self, program: &Path) -> Command {
        let mut words = self.prefix().into_iter().chain([program.into()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }

    /// Gives a folder and all in it to this account.
    pub(crate) fn own(self, folder: &Path) -> Result<()> {
        match self {
            Self::Ourselves => Ok(()),
            Self::Postgres => run(Command::new("chown")
                .args(["-R", "postgres:postgres"])
                .arg(folder)),
        }
    }

    /// Whether this account may run `program`: it may not in a clone below a home that only root
    /// enters.
    pub(crate) fn reaches(self, program: &Path) -> Result<bool> {
        let mut test = self.command(Path::new("test"));
        Ok(test
            .arg("-x")
            .arg(program)
            .status()
            .context("run test -x")?
            .success())
    }
}

/// Runs a command to its end; a failure quotes what it wrote.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(())
}
