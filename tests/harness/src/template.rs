//! Data directories to start from. `initdb` takes seconds, a copy of what it made does not.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::account::{Account, run};
use crate::cluster::{PASSWORD, PgVersion};
use crate::install::servers;
use crate::name::fresh_name;

/// Raised when what [`make`] does changes, so that directories made before are not used.
const EDITION: u32 = 1;

/// Copies a fresh data directory of `version` to `to`, which must not exist.
pub(crate) fn copy(version: PgVersion, binaries: &Path, to: &Path) -> Result<()> {
    let template = servers()?.join(format!("data-{}-{EDITION}", version.major()));
    ensure_made(&template, binaries)?;
    run(Command::new("cp")
        .args(["-r", "--reflink=auto"])
        .arg(&template)
        .arg(to))?;
    Account::of_servers().own(to)
}

/// One process makes it, others wait; the name is given last, so what has it is whole.
fn ensure_made(template: &Path, binaries: &Path) -> Result<()> {
    if template.exists() {
        return Ok(());
    }
    let lock = File::create(template.with_extension("lock")).context("make a lock file")?;
    lock.lock()
        .context("wait for another process that runs initdb")?;
    if template.exists() {
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let made = make(&scratch.0, binaries)?;
    let unnamed = template.with_extension("unnamed");
    if unnamed.exists() {
        fs::remove_dir_all(&unnamed).context("remove what a dead process left")?;
    }
    run(Command::new("cp").arg("-r").arg(&made).arg(&unnamed))?;
    fs::rename(&unnamed, template).context("name the data directory")
}

/// Text sorts by bytes, the same on every machine; passwords are stored as SCRAM.
fn make(scratch: &Path, binaries: &Path) -> Result<PathBuf> {
    let account = Account::of_servers();
    let password = scratch.join("password");
    fs::write(&password, PASSWORD).context("write the password file")?;
    account.own(scratch)?;
    let data = scratch.join("data");
    run(account
        .command(&binaries.join("initdb"))
        .args([
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "--username=postgres",
        ])
        .args(["--auth=scram-sha-256", "--pwfile"])
        .arg(&password)
        .arg("-D")
        .arg(&data)
        .current_dir(scratch))?;
    Ok(data)
}

/// A folder that the servers' account can write to, removed with the handle.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(fresh_name("monarch-initdb"));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}
