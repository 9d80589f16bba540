//! How the ledger is reached: a few connections, made when needed, replaced when lost.
//!
//! A connection goes back to the others only after it did what was asked of it. Whatever ends in
//! an error, or is cancelled half-way, takes its connection along: the server rolls back, and no
//! later caller meets a session in an unknown state.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use monarch_config::Dsn;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::error::LedgerError;

/// How many connections one process holds to the ledger at most. Requests are short and wait for
/// each other.
const CONNECTIONS: usize = 4;

/// What a session of the ledger calls itself in `pg_stat_activity`.
const APPLICATION: &str = "monarch_ledger";

/// The ledger. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Ledger {
    pool: Arc<Pool>,
}

struct Pool {
    options: ConnectOptions,
    purpose: SessionPurpose,
    idle: Mutex<Vec<Session>>,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// The ledger in the database that `dsn` names, which answers; its schema is looked at by
    /// [`Ledger::schema_version`].
    pub async fn connect(dsn: &Dsn) -> Result<Self, LedgerError> {
        let options = ConnectOptions::from_dsn(dsn).map_err(monarch_postgres::Error::from)?;
        let ledger = Self::new(options);
        ledger.lease().await?.give_back();
        Ok(ledger)
    }

    /// The ledger in the database that `options` name. Connects when first used.
    ///
    /// Its requests are short: a wait is bounded, so that who is stuck behind a lost holder of a
    /// lock hears of it and asks again.
    pub fn new(options: ConnectOptions) -> Self {
        let purpose = SessionPurpose::writer(APPLICATION)
            .with("statement_timeout", "30s")
            .with("lock_timeout", "10s")
            .with("idle_in_transaction_session_timeout", "60s");
        Self {
            pool: Arc::new(Pool {
                options,
                purpose,
                idle: Mutex::new(Vec::new()),
                permits: Arc::new(Semaphore::new(CONNECTIONS)),
            }),
        }
    }

    /// Takes a connection that answered just now.
    pub(crate) async fn lease(&self) -> Result<Lease, LedgerError> {
        let permit = Arc::clone(&self.pool.permits)
            .acquire_owned()
            .await
            .unwrap_or_else(|_| unreachable!("the semaphore is never closed"));
        while let Some(session) = self.pool.pop() {
            if session.check_connection().await.is_ok() {
                return Ok(self.leased(session, permit));
            }
        }
        let session = Session::connect(&self.pool.options, &self.pool.purpose).await?;
        Ok(self.leased(session, permit))
    }

    fn leased(&self, session: Session, permit: OwnedSemaphorePermit) -> Lease {
        Lease {
            session,
            pool: Arc::clone(&self.pool),
            _permit: permit,
        }
    }
}

impl Pool {
    fn pop(&self) -> Option<Session> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
    }
}

/// One connection, for the time of one request.
pub(crate) struct Lease {
    session: Session,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn client(&self) -> &Client {
        &self.session
    }

    pub(crate) async fn begin(
        &mut self,
        doing: &'static str,
    ) -> Result<Transaction<'_>, LedgerError> {
        self.session
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
            .push(self.session);
    }
}
