//! Servers never outlive their user, whichever way it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monarch_harness::{Cluster, ClusterOptions, PgVersion};

/// Nothing runs any code at `kill -9`, so this is what shows that the servers of a lost test
/// process, its statics included, end all the same.
#[test]
fn a_killed_process_leaves_no_server_and_no_folder() -> Result<()> {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_hold"))
        .stdout(Stdio::piped())
        .spawn()?;
    let folders = folders_it_tells(&mut BufReader::new(
        holder.stdout.take().context("no pipe")?,
    ))?;
    assert_eq!(folders.len(), 2, "a cluster and Temporal");
    for folder in &folders {
        assert!(folder.is_dir());
        assert!(runs_in(folder)?, "a server runs in {}", folder.display());
    }

    holder.kill()?;
    holder.wait()?;
    for folder in &folders {
        eventually_gone(folder)?;
    }
    Ok(())
}

/// A handle that drops ends its server before the test goes on.
#[tokio::test]
async fn a_dropped_cluster_is_gone_at_once() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V17)).await?;
    let folder = cluster.data().parent().context("no folder")?.to_owned();
    assert!(runs_in(&folder)?);
    // With a client connected and the server halted: neither may keep it.
    let _client = cluster.admin("postgres").await?;
    cluster.pause()?;
    drop(cluster);
    assert!(!folder.exists());
    assert!(!runs_in(&folder)?);
    Ok(())
}

fn folders_it_tells(output: &mut impl BufRead) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for line in output.lines() {
        let line = line?;
        if let Some((_, log)) = line.split_once("_log ") {
            folders.push(
                Path::new(log)
                    .parent()
                    .context("a log has a folder")?
                    .to_owned(),
            );
        }
        if line.starts_with("Ctrl-C") {
            break;
        }
    }
    Ok(folders)
}

/// Whether a process, the keeper among them, names this folder in its command line.
fn runs_in(folder: &Path) -> Result<bool> {
    let folder = folder.to_string_lossy().into_owned();
    for entry in std::fs::read_dir("/proc")? {
        let command = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(&folder) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn eventually_gone(folder: &Path) -> Result<()> {
    let patience = Instant::now() + Duration::from_secs(60);
    while folder.exists() || runs_in(folder)? {
        ensure!(
            Instant::now() < patience,
            "{} or its server is left",
            folder.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
