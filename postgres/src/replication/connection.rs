//! A replication session that takes commands.

use std::fmt;

use fallible_iterator::FallibleIterator;
use monarch_model::Lsn;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;

use super::login::{Greeting, log_in, unwritable};
use super::stream::{ReplicationStream, StreamOptions};
use super::wire::Wire;
use crate::connect::{
    Canceller, ConnectOptions, Handshake, Login, Place, ServerVersion, SessionPurpose, Transport,
    connect_to_any, later_settings,
};
use crate::sql::quote_ident;
use crate::{Doing, Endpoint, Result, ServerError};

/// How long the walsender waits for a sign of life. Set here and not left to the server's or the
/// role's default: a mover reckons with it. While it decodes a large transaction of which nothing is
/// published, the walsender answers only at half of this, which must be sooner than a silent mover
/// is taken for dead.
const WAL_SENDER_TIMEOUT: (&str, &str) = ("wal_sender_timeout", "30s");

/// A replication session between commands.
///
/// Dropping it closes the socket.
pub struct ReplicationConnection {
    wire: Wire,
    version: ServerVersion,
    in_hot_standby: Option<bool>,
    process_id: i32,
    secret: i32,
    place: Place,
    /// A command was sent whose answer was not read to its end, because its future was dropped.
    in_command: bool,
}

/// Who a server is, by `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Made when the cluster was; equal on its physical standbys.
    pub system_identifier: String,
    /// Grows by one with each promotion.
    pub timeline: u32,
    /// What is written and flushed; on a standby what is replayed.
    pub position: Lsn,
}

/// Whether a slot outlives its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// It stays until it is dropped.
    Permanent,
    /// It goes with its session.
    Temporary,
}

/// A slot just made, with the snapshot of its consistent point.
///
/// The snapshot can be adopted (`set transaction snapshot`) for as long as this value lives; one
/// who has adopted it keeps it.
#[derive(Debug)]
pub struct ExportedSlot {
    /// The slot's name.
    pub slot: String,
    /// Everything committed before is in the snapshot, everything after in the stream.
    pub consistent_point: Lsn,
    /// The name under which the snapshot is adopted.
    pub snapshot: String,
    connection: ReplicationConnection,
}

impl ReplicationConnection {
    /// A replication session with the first host that gives one, primary or standby. It has the
    /// same settings as a [`Session`](crate::Session), and `wal_sender_timeout` at 30 s.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`](crate::Error::Connect), with every attempt.
    pub async fn connect(options: &ConnectOptions, purpose: &SessionPurpose) -> Result<Self> {
        let purpose = purpose.clone().or_with(WAL_SENDER_TIMEOUT);
        let (opened, place) = Box::pin(connect_to_any(options, &purpose, &Replication)).await?;
        let in_hot_standby = Replication::in_hot_standby(&opened);
        let Opened {
            wire,
            greeting,
            version,
        } = opened;
        Ok(Self {
            version,
            in_hot_standby,
            process_id: greeting.process_id,
            secret: greeting.secret,
            wire,
            place,
            in_command: false,
        })
    }

    /// Where it was had.
    pub fn endpoint(&self) -> &Endpoint {
        &self.place.endpoint
    }

    /// The server's version.
    pub fn version(&self) -> ServerVersion {
        self.version
    }

    /// Whether the server said, when the session began, that it is a standby.
    pub fn in_hot_standby(&self) -> Option<bool> {
        self.in_hot_standby
    }

    /// The walsender's process id, as in `pg_stat_replication`.
    pub fn process_id(&self) -> i32 {
        self.process_id
    }

    /// What ends this session's command from elsewhere, for example a slot's creation that waits
    /// for an old transaction.
    pub fn canceller(&self) -> Canceller {
        Canceller::bare(self.place.clone(), self.process_id, self.secret)
    }

    /// Who the server is.
    ///
    /// # Errors
    ///
    /// When the session fails.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity> {
        let rows = self.command("IDENTIFY_SYSTEM").await;
        rows.and_then(|rows| {
            let [identifier, timeline, position] = only_row(rows)?;
            Ok(SystemIdentity {
                system_identifier: present(identifier)?,
                timeline: present(timeline)?.parse().map_err(|_| odd_answer())?,
                position: present(position)?.parse().map_err(|_| odd_answer())?,
            })
        })
        .doing("identify the server")
    }

    /// Makes a pgoutput slot and exports the snapshot of its consistent point.
    ///
    /// The server waits until every transaction that was writing when it began has ended; that can
    /// take as long as they do, and a walsender that waits does not notice that its client is gone.
    /// Dropping the future therefore asks the server to give up too, which leaves no slot unless it
    /// was being finished at that very moment: whoever gives up a permanent slot drops it by name.
    ///
    /// # Errors
    ///
    /// `42710` if there is a slot of this name, `53400` if all slots are taken, `42501` without the
    /// right to replicate, and when the session fails.
    pub async fn create_slot(mut self, slot: &str, kind: SlotKind) -> Result<ExportedSlot> {
        let temporary = match kind {
            SlotKind::Permanent => "",
            SlotKind::Temporary => " TEMPORARY",
        };
        let command = format!(
            "CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput (SNAPSHOT 'export')",
            quote_ident(slot)
        );
        let waiting = CancelOnDrop(Some(self.canceller()));
        let rows = self.command(&command).await;
        waiting.disarm();
        rows.and_then(|rows| {
            let [slot, consistent_point, snapshot] = only_row(rows)?;
            Ok(ExportedSlot {
                slot: present(slot)?,
                consistent_point: present(consistent_point)?
                    .parse()
                    .map_err(|_| odd_answer())?,
                snapshot: present(snapshot)?,
                connection: self,
            })
        })
        .doing(format!("create slot {slot}"))
    }

    /// Drops a slot; it must not be in use.
    ///
    /// # Errors
    ///
    /// `42704` if there is none, `55006` while it is in use, and when the session fails.
    pub async fn drop_slot(&mut self, slot: &str) -> Result<()> {
        let command = format!("DROP_REPLICATION_SLOT {}", quote_ident(slot));
        let done = self.command(&command).await;
        done.map(drop).doing(format!("drop slot {slot}"))
    }

    /// Starts to stream a slot. What the slot has confirmed is not sent again, however early
    /// `from` is; [`Lsn::default`] begins where the slot stands.
    ///
    /// # Errors
    ///
    /// `42704` if there is no such slot, `55006` while it is in use, `55000` if it is lost, and
    /// when the session fails. A missing publication is an error of the stream's first change.
    pub async fn start(
        mut self,
        slot: &str,
        from: Lsn,
        options: &StreamOptions,
    ) -> Result<ReplicationStream> {
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL {from} ({})",
            quote_ident(slot),
            options.plugin_options()
        );
        self.begin_copy(&command)
            .await
            .doing(format!("start streaming slot {slot}"))?;
        Ok(ReplicationStream::new(self, options.message_limit_bytes))
    }

    /// Sends a command and reads its answer to the end.
    async fn command(&mut self, command: &str) -> Result<Vec<Row>, ServerError> {
        self.say(command).await?;
        let (mut rows, mut refused) = (Vec::new(), None);
        loop {
            match self.wire.message().await? {
                Message::DataRow(body) => rows.push(row(&body)?),
                Message::ErrorResponse(body) => refused = Some(ServerError::from(&body)),
                Message::ReadyForQuery(_) => break,
                _ => {}
            }
        }
        self.in_command = false;
        match refused {
            Some(error) => Err(error),
            None => Ok(rows),
        }
    }

    /// Sends a command that turns the session into a stream.
    async fn begin_copy(&mut self, command: &str) -> Result<(), ServerError> {
        self.say(command).await?;
        let mut refused = None;
        loop {
            let framed = self.wire.next_framed().await?;
            // The protocol crate does not know this message; its body is of no interest.
            if framed.tag == b'W' {
                self.wire.take(framed);
                return Ok(());
            }
            match self.wire.message().await? {
                Message::ErrorResponse(body) => refused = Some(ServerError::from(&body)),
                Message::ReadyForQuery(_) => {
                    self.in_command = false;
                    return Err(refused.unwrap_or_else(odd_answer));
                }
                _ => {}
            }
        }
    }

    async fn say(&mut self, command: &str) -> Result<(), ServerError> {
        if self.in_command {
            return Err(ServerError::Protocol(
                "an earlier command of this session was given up half-way".into(),
            ));
        }
        self.in_command = true;
        frontend::query(command, self.wire.output()).map_err(unwritable)?;
        self.wire.send().await
    }

    pub(super) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// The stream was read to its end: commands may be sent again.
    pub(super) fn between_commands(mut self) -> Self {
        self.in_command = false;
        self
    }
}

impl ExportedSlot {
    /// Ends the export and gives the session back, for example to start the stream.
    pub fn release(self) -> ReplicationConnection {
        self.connection
    }

    /// The exporting session's server.
    pub fn endpoint(&self) -> &Endpoint {
        self.connection.endpoint()
    }

    /// Waits until the exporting session is lost, and says why; as long as it is not, this never
    /// ends. It may be dropped and called again.
    pub async fn lost(&mut self) -> ServerError {
        // Nothing is asked of the server, so all that can come are notices and the end.
        loop {
            match self.connection.wire.message().await {
                Ok(Message::ErrorResponse(body)) => return (&body).into(),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }
}

/// Asks the server to give up a command whose future is dropped.
struct CancelOnDrop(Option<Canceller>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(canceller) = self.0.take() else {
            return;
        };
        // Without a runtime the process is at its end, and takes its sockets with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = canceller.cancel().await {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "a slot's creation was given up and not cancelled");
                }
            });
        }
    }
}

impl fmt::Debug for ReplicationConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicationConnection")
            .field("endpoint", &self.place.endpoint)
            .field("version", &self.version)
            .field("process_id", &self.process_id)
            .finish_non_exhaustive()
    }
}

type Row = Vec<Option<String>>;

fn row(body: &DataRowBody) -> Result<Row, ServerError> {
    let value = |range: Option<std::ops::Range<usize>>| {
        Ok(range.map(|range| String::from_utf8_lossy(&body.buffer()[range]).into_owned()))
    };
    body.ranges().map(value).collect().map_err(|_| odd_answer())
}

/// The first columns of the one row that a command answers with.
fn only_row<const N: usize>(mut rows: Vec<Row>) -> Result<[Option<String>; N], ServerError> {
    let mut row = rows
        .pop()
        .filter(|_| rows.is_empty())
        .ok_or_else(odd_answer)?;
    row.truncate(N);
    row.try_into().map_err(|_| odd_answer())
}

fn present(value: Option<String>) -> Result<String, ServerError> {
    value.ok_or_else(odd_answer)
}

fn odd_answer() -> ServerError {
    ServerError::Protocol("an answer to a replication command that is not as documented".into())
}

fn version(greeting: &Greeting) -> Result<ServerVersion, ServerError> {
    greeting
        .parameters
        .get("server_version")
        .and_then(|report| ServerVersion::parse(report))
        .ok_or(ServerError::Protocol(
            "the server does not say its version".into(),
        ))
}

struct Opened {
    wire: Wire,
    greeting: Greeting,
    version: ServerVersion,
}

/// The handshake of a replication session.
struct Replication;

impl Handshake for Replication {
    type Opened = Opened;

    async fn open(&self, transport: Transport, login: &Login<'_>) -> Result<Opened, ServerError> {
        let mut wire = Wire::new(transport);
        let greeting = log_in(&mut wire, login).await?;
        let version = version(&greeting)?;
        let later = later_settings(login.settings, version.0);
        frontend::query(&later, wire.output()).map_err(unwritable)?;
        wire.send().await?;
        let mut refused = None;
        loop {
            match wire.message().await? {
                Message::ErrorResponse(body) => refused = Some(ServerError::from(&body)),
                Message::ReadyForQuery(_) => break,
                _ => {}
            }
        }
        match refused {
            Some(error) => Err(error),
            None => Ok(Opened {
                wire,
                greeting,
                version,
            }),
        }
    }

    fn in_hot_standby(opened: &Opened) -> Option<bool> {
        let report = opened.greeting.parameters.get("in_hot_standby");
        report.map(|value| value == "on")
    }
}
