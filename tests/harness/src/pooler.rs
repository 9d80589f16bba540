//! PgBouncer in front of a cluster, in the mode that lends a server's process for one transaction.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::NoTls;

use crate::account::Account;
use crate::cluster::{Cluster, PASSWORD, PATIENCE};
use crate::install::pgbouncer;
use crate::keeper::{Keeper, Kept};
use crate::name::free_port;

/// A running pooler of transactions. It ends when the handle drops or our process dies.
#[derive(Debug)]
pub struct TransactionPooler {
    port: u16,
    keeper: Keeper,
}

impl TransactionPooler {
    /// Starts a pooler for every database of a cluster and waits until `database` can be reached.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or does not start; the message ends with its log.
    pub async fn before(cluster: &Cluster, database: &str) -> Result<Self> {
        let port = free_port()?;
        let program = pgbouncer()?;
        let keeper = Keeper::new("pgbouncer", |folder| {
            let account = Account::of_servers();
            let mut command = account.prefix();
            command.extend([program.into(), folder.join("pgbouncer.ini").into()]);
            Kept {
                command,
                surroundings: Command::new("sh"),
                last_signal: "KILL",
            }
        })?;
        let pooler = Self { port, keeper };
        pooler.configure(cluster)?;
        pooler.keeper.start()?;
        pooler.accepts_connections(database).await?;
        Ok(pooler)
    }

    /// How to connect to a database by way of the pooler.
    #[must_use]
    pub fn dsn(&self, database: &str) -> String {
        let port = self.port;
        format!("host=127.0.0.1 port={port} user=postgres password={PASSWORD} dbname={database}")
    }

    /// Whoever comes gets in: this pooler is on loopback and for one test.
    fn configure(&self, cluster: &Cluster) -> Result<()> {
        let settings = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={} user=postgres password={PASSWORD}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             ignore_startup_parameters = extra_float_digits, options\n",
            cluster.port(),
            self.port
        );
        let path: &Path = self.keeper.folder();
        fs::write(path.join("pgbouncer.ini"), settings).context("write the pooler's settings")?;
        Account::of_servers().own(path)
    }

    async fn accepts_connections(&self, database: &str) -> Result<()> {
        let dsn = self.dsn(database);
        tokio::time::timeout(PATIENCE, async {
            while tokio_postgres::connect(&dsn, NoTls).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .with_context(|| format!("the pooler accepts no one:\n{}", self.keeper.log_tail()))
    }
}
