//! A Postgres cluster of its own folder and port, made to be killed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};

use crate::account::{Account, run};
use crate::install::servers;
use crate::keeper::{Keeper, Kept};
use crate::name::free_port;
use crate::template;

/// The password of the superuser `postgres` in every cluster; a test can look for it where no
/// secret may be seen.
pub const PASSWORD: &str = "harness-secret";

/// How long a server may take to accept connections before we give up on it: far more than it
/// needs on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The settings of every cluster. It is thrown away at the end, so nothing is synced to disk; a
/// killed process loses nothing by that, only a killed machine would.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
fsync = off
full_page_writes = off
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
max_connections = 200
max_replication_slots = 120
max_wal_senders = 120
max_worker_processes = 24
max_logical_replication_workers = 16
max_prepared_transactions = 10
max_slot_wal_keep_size = 4GB
log_line_prefix = '%m [%p] %q%u@%d %a '
";

/// Who may connect: everybody from 127.0.0.1, by SCRAM. A test's own lines stand before these and
/// win.
const HBA: &str = "\
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
";

/// A major version of Postgres that can be started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PgVersion {
    /// Postgres 14: a sink only.
    V14,
    /// Postgres 15, Debian's build: the only one with `psql`, `pg_dump` and `pgbench` beside it.
    V15,
    /// Postgres 16: the first that decodes on a standby.
    V16,
    /// Postgres 17.
    V17,
    /// Postgres 18.
    V18,
}

impl PgVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The number of the major version.
    #[must_use]
    pub const fn major(self) -> u32 {
        14 + self as u32
    }

    /// Where `postgres` and `initdb` of this version are.
    fn binaries(self) -> Result<PathBuf> {
        match self {
            Self::V15 => Ok(PathBuf::from("/usr/lib/postgresql/15/bin")),
            _ => Ok(servers()?.join(format!("postgres-{}/bin", self.major()))),
        }
    }
}

impl fmt::Display for PgVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres {}", self.major())
    }
}

/// How a cluster is to be.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its major version.
    pub version: PgVersion,
    /// Lines for `postgresql.conf`; they win over the harness's own.
    pub settings: Vec<String>,
    /// Lines for `pg_hba.conf`; they stand before the harness's own, which let everybody in from
    /// 127.0.0.1 by SCRAM.
    pub hba: Vec<String>,
    /// The certificate to serve TLS with; without one the server offers none.
    pub tls: Option<ServerTls>,
}

impl ClusterOptions {
    /// A cluster with `wal_level = logical`, many slots and senders, and no TLS.
    #[must_use]
    pub fn new(version: PgVersion) -> Self {
        Self {
            version,
            settings: Vec::new(),
            hba: Vec::new(),
            tls: None,
        }
    }

    /// Adds a line for `postgresql.conf`, such as `max_replication_slots = 1`.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Adds a line for `pg_hba.conf`, such as `hostnossl all guarded 127.0.0.1/32 reject`.
    #[must_use]
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba.push(line.into());
        self
    }

    /// Serves TLS.
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }
}

/// What a server shows in TLS.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Its certificate, PEM.
    pub certificate_pem: String,
    /// The certificate's key, PEM.
    pub key_pem: String,
    /// The authority whose client certificates it accepts, PEM.
    pub client_authority_pem: Option<String>,
}

/// A running cluster. It ends, with its data, when the handle drops or our process dies.
#[derive(Debug)]
pub struct Cluster {
    version: PgVersion,
    port: u16,
    keeper: Keeper,
}

impl Cluster {
    /// Starts a cluster and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When the servers cannot be installed or the cluster does not start; the message ends with
    /// the server's log.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let (cluster, binaries) = Self::prepare(options.version)?;
        template::copy(options.version, &binaries, &cluster.data())?;
        cluster.configure(&options)?;
        cluster.launch().await?;
        Ok(cluster)
    }

    /// A cluster without data, and the folder of its programs.
    pub(crate) fn prepare(version: PgVersion) -> Result<(Self, PathBuf)> {
        servers()?;
        let installed = version.binaries()?;
        let reachable = Account::of_servers().reaches(&installed.join("postgres"))?;
        let keeper = Keeper::new(&format!("pg{}", version.major()), |folder| {
            let binaries = if reachable {
                installed.clone()
            } else {
                folder.join("postgres/bin")
            };
            server(&binaries, folder)
        })?;
        let cluster = Self {
            version,
            port: free_port()?,
            keeper,
        };
        let binaries = if reachable {
            installed
        } else {
            cluster.copy_binaries(&installed)?
        };
        Ok((cluster, binaries))
    }

    /// Starts the server on its data and waits until it accepts connections.
    pub(crate) async fn launch(&self) -> Result<()> {
        let data = self.data();
        Account::of_servers().own(&data)?;
        // The server refuses a data directory that others can read.
        run(Command::new("chmod").args(["-R", "go-rwx"]).arg(&data))?;
        self.keeper.start()?;
        self.accepts_connections().await
    }

    /// The major version.
    #[must_use]
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// The port of 127.0.0.1 that the server listens on; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How to connect to a database as the superuser, as libpq's `key=value` words.
    #[must_use]
    pub fn dsn(&self, database: &str) -> String {
        let port = self.port;
        format!("host=127.0.0.1 port={port} user=postgres password={PASSWORD} dbname={database}")
    }

    /// Makes an empty database and returns its DSN.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn create_database(&self, name: &str) -> Result<String> {
        let admin = self.admin("postgres").await?;
        admin
            .batch_execute(&format!("create database \"{name}\""))
            .await
            .with_context(|| format!("create database {name} on {}", self.version))?;
        Ok(self.dsn(name))
    }

    /// A connection to a database as the superuser, without TLS. It is driven on the current tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn admin(&self, database: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.dsn(database), NoTls)
            .await
            .with_context(|| format!("connect to {database} on {}", self.version))?;
        // Its errors reach whoever uses the client.
        tokio::spawn(connection);
        Ok(client)
    }

    /// The process id of the postmaster; nothing while the server is down.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.keeper.pid().map(Pid::as_raw_pid)
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.keeper.log()
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.keeper.folder().join("data")
    }

    /// Kills the postmaster and its backends at once, as a lost machine would end them (what was
    /// written but not synced survives, unlike there). The data stays for [`Self::restart`].
    ///
    /// # Errors
    ///
    /// When a process cannot be killed.
    pub async fn kill_9(&self) -> Result<()> {
        // Halted first, so that the postmaster neither starts others nor tells them what happens.
        self.keeper.signal(Signal::STOP)?;
        self.signal_backends(Signal::KILL)?;
        self.keeper.signal(Signal::KILL)?;
        self.keeper.exit().await?;
        self.free_shared_memory()
    }

    /// Stops the server as an administrator would (`fast`); the data stays for [`Self::restart`].
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub async fn stop(&self) -> Result<()> {
        self.keeper.signal(Signal::INT)?;
        self.keeper.exit().await?;
        Ok(())
    }

    /// Starts the server again, on the same port and data, stopping it first when it runs.
    ///
    /// # Errors
    ///
    /// When it does not start; the message ends with the server's log.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.launch().await {
                // A backend that was killed may not have let its memory go yet. What was started in
                // vain is waited for, or it would count as running.
                Err(error) if is_held(&error) && Instant::now() < give_up => {
                    self.stop().await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                started => return started,
            }
        }
    }

    /// Halts every process of the server where it stands: connections stay open, nothing answers.
    ///
    /// # Errors
    ///
    /// When a process cannot be signalled.
    pub fn pause(&self) -> Result<()> {
        self.keeper.signal(Signal::STOP)?;
        self.signal_backends(Signal::STOP)
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    ///
    /// When a process cannot be signalled.
    pub fn resume(&self) -> Result<()> {
        self.signal_backends(Signal::CONT)?;
        self.keeper.signal(Signal::CONT)
    }

    fn configure(&self, options: &ClusterOptions) -> Result<()> {
        let data = self.data();
        let mut settings = format!("{SETTINGS}port = {}\n", self.port);
        if let Some(tls) = &options.tls {
            settings.push_str(&write_tls(&data, tls)?);
        }
        settings.push_str(&options.settings.join("\n"));
        settings.push('\n');
        let hba = options
            .hba
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
            + HBA;
        write(&data.join("postgresql.conf"), &settings)?;
        write(&data.join("pg_hba.conf"), &hba)
    }

    /// The kernel keeps a killed server's segment until it is started again, and it may never be.
    fn free_shared_memory(&self) -> Result<()> {
        let lines = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        // Line 7: key and id of the segment.
        match lines
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1))
        {
            Some(id) => run(Command::new("ipcrm").args(["-m", id])),
            None => Ok(()),
        }
    }

    /// For an account that cannot enter the folder where the servers are installed.
    fn copy_binaries(&self, installed: &Path) -> Result<PathBuf> {
        let from = installed
            .parent()
            .context("an installed server has a folder")?;
        let to = self.keeper.folder().join("postgres");
        run(Command::new("cp")
            .args(["-rH", "--reflink=auto"])
            .arg(from)
            .arg(&to))?;
        Ok(to.join("bin"))
    }

    async fn accepts_connections(&self) -> Result<()> {
        let waiting = tokio::time::timeout(PATIENCE, async {
            while let Err(error) = self.admin("postgres").await {
                if !self.keeper.is_alive() {
                    return Err(error);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        });
        match waiting.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.context(format!(
                "{} ended at its start:\n{}",
                self.version,
                self.keeper.log_tail()
            ))),
            Err(_) => bail!(
                "{} accepts no one:\n{}",
                self.version,
                self.keeper.log_tail()
            ),
        }
    }

    /// Backends are sessions of their own, so no signal to a process group reaches them.
    fn signal_backends(&self, signal: Signal) -> Result<()> {
        let Some(postmaster) = self.keeper.pid() else {
            return Ok(());
        };
        for backend in children(postmaster)? {
            match kill_process(backend, signal) {
                // It ended meanwhile.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("signal a backend"),
            }
        }
        Ok(())
    }
}

/// The server's command line; it runs in `folder`.
fn server(binaries: &Path, folder: &Path) -> Kept {
    let mut command = Account::of_servers().prefix();
    command.push(binaries.join("postgres").into());
    command.push("-D".into());
    command.push(folder.join("data").into());
    // QUIT ends backends too and frees shared memory, without a checkpoint.
    Kept {
        command,
        surroundings: Command::new("sh"),
        last_signal: "QUIT",
    }
}

/// Writes certificate and key into the data directory; returns the settings that name them.
fn write_tls(data: &Path, tls: &ServerTls) -> Result<String> {
    write(&data.join("server.crt"), &tls.certificate_pem)?;
    write(&data.join("server.key"), &tls.key_pem)?;
    let mut settings =
        "ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n".to_owned();
    if let Some(authority) = &tls.client_authority_pem {
        write(&data.join("clients.crt"), authority)?;
        settings.push_str("ssl_ca_file = 'clients.crt'\n");
    }
    Ok(settings)
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// The processes whose parent is `parent`.
fn children(parent: Pid) -> Result<Vec<Pid>> {
    let parent = parent.as_raw_pid();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("list processes")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may have ended since it was listed.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in brackets: the state, then the parent.
        let of = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1));
        if of.and_then(|of| of.parse::<i32>().ok()) == Some(parent) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Whether a server did not start because processes of an earlier one are still there.
fn is_held(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("pre-existing shared memory block")
}
