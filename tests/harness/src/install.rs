//! Where the servers' programs are: the script `install` beside this crate puts them there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};

use crate::account::run;

const HARNESS: &str = env!("CARGO_MANIFEST_DIR");

/// The project's folder.
pub(crate) fn project() -> &'static Path {
    Path::new(HARNESS)
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new(HARNESS))
}

/// The folder of installed servers, `$MONARCH_SERVERS` or `.servers/` in the project. The first
/// call in a process runs the script, which does nothing when all is there.
pub(crate) fn servers() -> Result<&'static Path> {
    static SERVERS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    SERVERS
        .get_or_init(|| {
            run(&mut Command::new(Path::new(HARNESS).join("install")))
                .map(|()| place())
                .map_err(|error| format!("{error:#}"))
        })
        .as_deref()
        .map_err(|error| anyhow!("install the servers: {error}"))
}

/// PgBouncer, a package of the system. The first call in a process sees to it that it is there.
pub(crate) fn pgbouncer() -> Result<&'static Path> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            run(Command::new(Path::new(HARNESS).join("install")).arg("pgbouncer"))
                .map_err(|error| format!("{error:#}"))
        })
        .as_ref()
        .map_err(|error| anyhow!("install pgbouncer: {error}"))?;
    Ok(Path::new("/usr/sbin/pgbouncer"))
}

/// A browser, a package of the system, and the folder of what looks whether everybody can read a
/// page. The first call in a process sees to it that both are there.
pub(crate) fn chromium() -> Result<PathBuf> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            let parts = ["chromium", "axe-core"];
            run(Command::new(Path::new(HARNESS).join("install")).args(parts))
                .map_err(|error| format!("{error:#}"))
        })
        .as_ref()
        .map_err(|error| anyhow!("install chromium: {error}"))?;
    Ok(place().join("axe-core"))
}

/// A server that few tests need, from the folder of its name. The first call in a process sees to
/// it that it is there.
#[cfg(feature = "object-stores")]
pub(crate) fn object_store(part: &'static str) -> Result<PathBuf> {
    static INSTALLED: std::sync::Mutex<Vec<&'static str>> = std::sync::Mutex::new(Vec::new());
    let mut installed = INSTALLED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !installed.contains(&part) {
        run(Command::new(Path::new(HARNESS).join("install")).arg(part))?;
        installed.push(part);
    }
    Ok(place().join(part))
}

fn place() -> PathBuf {
    match std::env::var_os("MONARCH_SERVERS") {
        Some(place) if !place.is_empty() => PathBuf::from(place),
        _ => project().join(".servers"),
    }
}
