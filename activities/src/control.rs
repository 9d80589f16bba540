//! The control plane: whoever holds back an organization's writes and changes its routing.
//!
//! It is a database ([`database`]), or four commands ([`commands`]), each idempotent. A command reads
//! on its standard input one JSON object:
//!
//! ```json
//! {"action": "flip", "organization": "1", "from": "us1", "to": "us2", "move_token": "…/1"}
//! ```
//!
//! and ends with
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done, or done before |
//! | 3 | refused for good: the token was revoked, or the routing names a third cell |
//! | other | not done; try again |
//!
//! `where` prints the cell that the routing names. `unfence` revokes its token first and lifts the
//! fence then: a flip that arrives later with that token must be refused (code 3). Each attempt to
//! cut over has a token of its own.

pub(crate) mod commands;
mod database;
mod preflight;

use std::time::Duration;

use monarch_config::{Control, Fleet};
use monarch_ledger::Move;
use monarch_model::CellName;

use crate::routing::RoutingError;
use commands::{Commands, Order};
use database::{Change, Database};
pub(crate) use preflight::preflight;

/// The control plane did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The program could not be run, or its pipes broke.
    #[error("run the `{action}` command {program:?}")]
    Run {
        /// `fence`, `unfence`, `flip`, `where`, or `deliver` of an outbox.
        action: &'static str,
        /// The program as `fleet.yaml` names it.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It took too long and was killed.
    #[error("the `{action}` command did not end within {} s and was killed", timeout.as_secs())]
    Timeout {
        /// Which command.
        action: &'static str,
        /// The command's `timeout` in `fleet.yaml`.
        timeout: Duration,
    },
    /// It did not do it this time.
    #[error("the `{action}` command ended with exit code {code}; it is tried again")]
    Failed {
        /// Which command.
        action: &'static str,
        /// Its exit code; -1 if a signal ended it.
        code: i32,
    },
    /// It will not do it.
    #[error("the control plane refused to {action} ({why})")]
    Refused {
        /// Which of the four.
        action: &'static str,
        /// What it said.
        why: String,
    },
    /// The routing names a cell that has no part in the move, or none.
    #[error("the routing names {named:?}, which is neither {from} nor {to}")]
    Elsewhere {
        /// What it names, cut to 64 characters.
        named: String,
        /// The source cell.
        from: CellName,
        /// The sink cell.
        to: CellName,
    },
    /// The control database did not do its part.
    #[error("the control database")]
    Database(#[from] monarch_postgres::Error),
    /// The routing is changed, and a cell has not heard of it yet.
    #[error("cell {cell} has not taken delivery of the routing: {why}")]
    NotDelivered {
        /// The cell.
        cell: CellName,
        /// Why not.
        why: String,
    },
    /// An outbox did not do its part.
    #[error("the outbox: {0}")]
    Outbox(String),
    /// The fleet cannot be told of a routing.
    #[error("the routing")]
    Routing(#[from] RoutingError),
    /// An organization whose key is no number has no place in the control database.
    #[error("organization {organization} is no number, as the control database has them")]
    NotANumber {
        /// The organization.
        organization: String,
    },
}

impl ControlError {
    /// Whether asking again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            ControlError::Run { .. }
            | ControlError::Timeout { .. }
            | ControlError::Failed { .. }
            | ControlError::Outbox(_)
            | ControlError::NotDelivered { .. } => true,
            ControlError::Database(error) => error.is_transient(),
            ControlError::Refused { .. }
            | ControlError::Routing(_)
            | ControlError::Elsewhere { .. }
            | ControlError::NotANumber { .. } => false,
        }
    }
}

/// The control plane on behalf of one attempt to cut one move over.
pub(crate) struct Plane<'a> {
    control: &'a Control,
    fleet: &'a Fleet,
    of: &'a Move,
    attempt: u32,
}

impl<'a> Plane<'a> {
    pub(crate) fn new(control: &'a Control, fleet: &'a Fleet, of: &'a Move, attempt: u32) -> Self {
        Self {
            control,
            fleet,
            of,
            attempt,
        }
    }

    /// Stops the organization's writes on the source.
    pub(crate) async fn fence(&self) -> Result<(), ControlError> {
        match self.database() {
            Some(database) => database.change(Change::Fence).await,
            None => self.run("fence").await.map(drop),
        }
    }

    /// Revokes the token and lets the organization write on the source again.
    pub(crate) async fn unfence(&self) -> Result<(), ControlError> {
        match self.database() {
            Some(database) => database.change(Change::Unfence).await,
            None => self.run("unfence").await.map(drop),
        }
    }

    /// Routes the organization to the sink.
    pub(crate) async fn flip(&self) -> Result<(), ControlError> {
        match self.database() {
            Some(database) => database.change(Change::Flip).await,
            None => self.run("flip").await.map(drop),
        }
    }

    /// Waits until both cells have heard of the routing; a program that is told where to route
    /// needs nothing more.
    pub(crate) async fn delivered(&self) -> Result<(), ControlError> {
        match self.database() {
            Some(database) => database.delivered().await,
            None => Ok(()),
        }
    }

    /// Reads the routing back: whether it names the sink.
    pub(crate) async fn names_sink(&self) -> Result<bool, ControlError> {
        let named = match self.database() {
            Some(database) => database.named().await?,
            None => self.run("where").await?,
        };
        let named = named.trim();
        if named == self.of.sink_cell.as_str() {
            Ok(true)
        } else if named == self.of.source_cell.as_str() {
            Ok(false)
        } else {
            Err(ControlError::Elsewhere {
                named: named.chars().take(64).collect(),
                from: self.of.source_cell.clone(),
                to: self.of.sink_cell.clone(),
            })
        }
    }

    fn token(&self) -> String {
        format!("{}/{}", self.of.token, self.attempt)
    }

    fn database(&self) -> Option<Database<'_>> {
        match self.control {
            Control::Database(dsn) => Some(Database {
                dsn,
                fleet: self.fleet,
                of: self.of,
                token: self.token(),
            }),
            Control::Commands { .. } => None,
        }
    }

    async fn run(&self, action: &'static str) -> Result<String, ControlError> {
        let Some(commands) = Commands::of(self.control) else {
            return Ok(String::new());
        };
        let order = Order {
            action,
            organization: self.of.org.as_str(),
            from: self.of.source_cell.as_str(),
            to: self.of.sink_cell.as_str(),
            move_token: self.token(),
        };
        commands.run(&order).await
    }
}
