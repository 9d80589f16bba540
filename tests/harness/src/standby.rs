//! A physical standby, made from a running primary by the manual's low-level backup: the builds we
//! test with bring no `pg_basebackup`, and a shared primary must not be stopped for a copy.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::cluster::{Cluster, PASSWORD, PATIENCE, PgVersion};
use crate::name::fresh_name;

/// Folders that a backup holds empty: their content belongs to the running primary.
const LEFT_EMPTY: [&str; 8] = [
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];

/// A hot standby that streams from a physical slot with `hot_standby_feedback`. It ends when the
/// handle drops; the slot stays on the primary, so give it a primary that ends with the test.
#[derive(Debug)]
pub struct Standby {
    cluster: Cluster,
    slot: String,
}

impl Standby {
    /// Makes a standby of a running primary and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When the backup fails or the standby does not start; the message ends with its log.
    pub async fn of(primary: &Cluster) -> Result<Self> {
        let slot = fresh_name("standby");
        let (cluster, _) = Cluster::prepare(primary.version())?;
        let data = cluster.data();
        back_up(primary, &slot, &data).await?;
        let settings = format!(
            "port = {}\nprimary_conninfo = 'host=127.0.0.1 port={} user=postgres \
             password={PASSWORD}'\nprimary_slot_name = '{slot}'\nhot_standby_feedback = on\n\
             wal_receiver_status_interval = 1\n",
            cluster.port(),
            primary.port(),
        );
        let conf = data.join("postgresql.conf");
        let primary_settings = fs::read_to_string(&conf).context("read the primary's settings")?;
        fs::write(&conf, primary_settings + &settings).context("write the standby's settings")?;
        fs::write(data.join("standby.signal"), "").context("write standby.signal")?;
        cluster.launch().await?;
        Ok(Self { cluster, slot })
    }

    /// The physical slot on the primary that this standby streams from.
    #[must_use]
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// Waits until this standby has replayed all that the primary has written by now.
    ///
    /// # Errors
    ///
    /// When either does not answer, or the standby does not get there.
    pub async fn catch_up(&self, primary: &Cluster) -> Result<()> {
        let written = primary.admin("postgres").await?;
        let written = written
            .query_one("select pg_current_wal_lsn()::text", &[])
            .await?;
        let replayed = format!(
            "select pg_last_wal_replay_lsn() >= '{}'",
            written.get::<_, String>(0)
        );
        let standby = self.admin("postgres").await?;
        tokio::time::timeout(PATIENCE, async {
            while !standby.query_one(&replayed, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        })
        .await
        .context("the standby does not catch up")?
    }
}

impl Deref for Standby {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Copies the primary's files between the two calls that make a copy of changing files whole. The
/// slot comes first: it keeps the WAL that the copy needs to become consistent.
async fn back_up(primary: &Cluster, slot: &str, to: &Path) -> Result<()> {
    let (start, stop) = match primary.version() {
        PgVersion::V14 => (
            "pg_start_backup('standby', true, false)",
            "pg_stop_backup(false)",
        ),
        _ => ("pg_backup_start('standby', true)", "pg_backup_stop()"),
    };
    let session = primary.admin("postgres").await?;
    let make_slot = "select pg_create_physical_replication_slot($1, true)";
    session
        .execute(make_slot, &[&slot])
        .await
        .context("make the standby's slot")?;
    session
        .execute(&format!("select {start}"), &[])
        .await
        .context("start a backup")?;
    copy(&primary.data(), to)?;
    let label = stop_backup(&session, stop).await?;
    fs::write(to.join("backup_label"), label).context("write backup_label")
}

async fn stop_backup(session: &Client, stop: &str) -> Result<String> {
    let query = format!("select labelfile from {stop}");
    Ok(session
        .query_one(&query, &[])
        .await
        .context("stop the backup")?
        .get(0))
}

/// Copies a data directory in use: what disappears meanwhile is left out, recovery will not miss it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry.with_context(|| format!("list {}", from.display()))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let name = entry.file_name();
        if name == "postmaster.pid" || name == "postmaster.opts" {
            continue;
        }
        if LEFT_EMPTY.iter().any(|empty| name == *empty) {
            fs::create_dir(&target).with_context(|| format!("make {}", target.display()))?;
        } else if source.is_dir() {
            copy(&source, &target)?;
        } else {
            match fs::copy(&source, &target) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("copy {}", source.display()));
                }
            }
        }
    }
    Ok(())
}
