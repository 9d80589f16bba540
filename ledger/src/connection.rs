//! How the ledger is reached: a few connections, made when needed, replaced when lost.
//!
//! A connection goes back to the others only after it did what was asked of it. Whatever ends in
//! an error, or is cancelled half-way, takes its connection along: the server rolls back, and no
//! later caller meets a session in an unknown state.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::error::LedgerError;

/// How many connections one process holds to the ledger at most. Requests are short and wait for
/// each other.
const CONNECTIONS: usize = 4;

/// Settings that hold whatever the role's defaults are. The ledger's promises rest on a commit
/// being durable and on a wait being bounded; where the cluster asks for more than local
/// durability, that stays.
const SESSION: &str = "
    set search_path = pg_catalog;
    set default_transaction_isolation = 'read committed';
    set default_transaction_read_only = off;
    set statement_timeout = '30s';
    set lock_timeout = '10s';
    set idle_in_transaction_session_timeout = '60s';
    set row_security = off;
    set bytea_output = hex;
    select set_config('synchronous_commit', 'on', false)
     where current_setting('synchronous_commit') = 'off'";

/// Makes one connection to the ledger's database and drives it in the background.
pub type Dial =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Client, tokio_postgres::Error>> + Send + Sync>;

/// The ledger. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Ledger {
    pool: Arc<Pool>,
}

struct Pool {
    dial: Dial,
    idle: Mutex<Vec<Client>>,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// A ledger that is reached by `dial`. Connects when first used.
    pub fn new(dial: Dial) -> Self {
        Self {
            pool: Arc::new(Pool {
                dial,
                idle: Mutex::new(Vec::new()),
                permits: Arc::new(Semaphore::new(CONNECTIONS)),
            }),
        }
    }

    /// Takes a connection that answered just now.
    pub(crate) async fn lease(&self, doing: &'static str) -> Result<Lease, LedgerError> {
        let permit = Arc::clone(&self.pool.permits)
            .acquire_owned()
            .await
            .unwrap_or_else(|_| unreachable!("the semaphore is never closed"));
        while let Some(client) = self.pool.pop() {
            if client.check_connection().await.is_ok() {
                return Ok(self.leased(client, permit));
            }
        }
        let client = (self.pool.dial)()
            .await
            .map_err(LedgerError::database(doing))?;
        client
            .batch_execute(SESSION)
            .await
            .map_err(LedgerError::database(doing))?;
        Ok(self.leased(client, permit))
    }

    fn leased(&self, client: Client, permit: OwnedSemaphorePermit) -> Lease {
        Lease {
            client,
            pool: Arc::clone(&self.pool),
            _permit: permit,
        }
    }
}

impl Pool {
    fn pop(&self) -> Option<Client> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }
}

/// One connection, for the time of one request.
pub(crate) struct Lease {
    client: Client,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn begin(
        &mut self,
        doing: &'static str,
    ) -> Result<Transaction<'_>, LedgerError> {
        self.client
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .start()
            .await
            .map_err(LedgerError::database(doing))
    }

    /// Gives the connection back: it did what was asked.
    pub(crate) fn give_back(self) {
        self.pool
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.client);
    }
}
