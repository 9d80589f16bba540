//! A session for statements.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_postgres::config::{ChannelBinding as DriverBinding, SslMode, SslNegotiation};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Connection};

use super::attempt::{Handshake, Login, Place, connect_to_any};
use super::options::{ChannelBinding, ConnectOptions};
use super::settings;
use super::transport::{AlreadySettled, Transport};
use crate::{Doing, Endpoint, Error, ServerError};

/// What a session is for.
#[derive(Debug, Clone)]
pub struct SessionPurpose {
    /// What it calls itself in `pg_stat_activity`; see `monarch_model::names::application`.
    pub application_name: String,
    /// Whether it keeps a snapshot for long, and is therefore not given up at a short break of the
    /// network.
    pub holds_snapshot: bool,
    /// Whether it may write.
    pub role: SessionRole,
    given: Vec<(&'static str, String)>,
}

/// Whether a session may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRole {
    /// Its transactions are read-only unless they say otherwise.
    Reader,
    /// Its transactions may write, whatever the role's default.
    Writer,
}

impl SessionPurpose {
    /// A session that only reads.
    pub fn reader(application_name: impl Into<String>) -> Self {
        Self {
            application_name: application_name.into(),
            holds_snapshot: false,
            role: SessionRole::Reader,
            given: Vec::new(),
        }
    }

    /// A session that writes.
    pub fn writer(application_name: impl Into<String>) -> Self {
        Self {
            role: SessionRole::Writer,
            ..Self::reader(application_name)
        }
    }

    /// The same, for a session that keeps a snapshot for long.
    #[must_use]
    pub fn holding_snapshot(mut self) -> Self {
        self.holds_snapshot = true;
        self
    }

    /// The same, with a setting in the place of the canonical one, for example a `lock_timeout`.
    #[must_use]
    pub fn with(mut self, setting: &'static str, value: impl Into<String>) -> Self {
        self.given.push((setting, value.into()));
        self
    }

    /// The same, with a setting unless it is given.
    pub(crate) fn or_with(self, (setting, value): (&'static str, &str)) -> Self {
        if self.given.iter().any(|(given, _)| *given == setting) {
            self
        } else {
            self.with(setting, value)
        }
    }

    /// The settings given, in order; the last of two equal names counts.
    pub(super) fn given(&self) -> &[(&'static str, String)] {
        &self.given
    }
}

/// A server's major version, for example 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub u32);

impl ServerVersion {
    /// Reads the report of `server_version`, such as `15.18 (Debian 15.18-0+deb12u1)`, `18beta1`.
    pub(crate) fn parse(report: &str) -> Option<Self> {
        let digits = report.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok().map(Self)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A session for statements, with the [canonical settings](settings::canonical).
///
/// Dropping it closes the socket at once, whatever is under way: the server ends an open
/// transaction as soon as it looks. [`Session::close`] says goodbye first.
pub struct Session {
    client: Client,
    connection: Driving,
    version: ServerVersion,
    in_hot_standby: Option<bool>,
    place: Place,
}

impl Session {
    /// A session with the first host that gives one.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], with every attempt.
    pub async fn connect(
        options: &ConnectOptions,
        purpose: &SessionPurpose,
    ) -> Result<Self, Error> {
        let (opened, place) = Box::pin(connect_to_any(options, purpose, &Statements)).await?;
        Ok(Self {
            client: opened.client,
            connection: opened.connection,
            version: opened.version,
            in_hot_standby: opened.in_hot_standby,
            place,
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

    /// Whether the server said, when the session began, that it is a standby; none if it did not
    /// say, as a server before 14 or a pooler.
    pub fn in_hot_standby(&self) -> Option<bool> {
        self.in_hot_standby
    }

    /// What ends this session's statement from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            place: self.place.clone(),
            key: Key::Driver(self.client.cancel_token()),
        }
    }

    /// Ends the session in the way that the protocol has for it, after the statements that were
    /// sent.
    pub async fn close(self) {
        let Self {
            client, connection, ..
        } = self;
        drop(client);
        connection.end().await;
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("endpoint", &self.place.endpoint)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Ends the statement of a session, from anywhere.
#[derive(Clone)]
pub struct Canceller {
    place: Place,
    key: Key,
}

#[derive(Clone)]
enum Key {
    Driver(CancelToken),
    Bare { process_id: i32, secret: i32 },
}

impl Canceller {
    pub(crate) fn bare(place: Place, process_id: i32, secret: i32) -> Self {
        let key = Key::Bare { process_id, secret };
        Self { place, key }
    }

    /// Asks the server to end the session's statement, if there is one. Whether it did shows in the
    /// session alone.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.send().await.doing("cancel a statement")
    }

    async fn send(&self) -> Result<(), ServerError> {
        let mut transport = self.place.open_again().await?;
        match &self.key {
            Key::Driver(token) => Ok(token.cancel_query_raw(transport, AlreadySettled).await?),
            Key::Bare { process_id, secret } => {
                let mut request = bytes::BytesMut::new();
                postgres_protocol::message::frontend::cancel_request(
                    *process_id,
                    *secret,
                    &mut request,
                );
                transport.write_all(&request).await?;
                transport.flush().await?;
                // The server hangs up when the request has been passed on.
                let _ = transport.read(&mut [0]).await;
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller")
            .field("endpoint", &self.place.endpoint)
            .finish_non_exhaustive()
    }
}

/// The task that moves a session's bytes; dropping it closes the socket.
struct Driving(Option<JoinHandle<()>>);

impl Driving {
    fn start(mut connection: Connection<Transport, Transport>) -> Self {
        // Notices are dropped: they quote values, and the driver would log them.
        Self(Some(tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notice(notice) = message {
                    tracing::trace!(sqlstate = notice.code().code(), "notice");
                }
            }
        })))
    }

    /// Waits until the socket is closed.
    async fn end(mut self) {
        if let Some(task) = self.0.take() {
            // It does not panic, and nobody else can abort it.
            let _ = task.await;
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

struct Opened {
    client: Client,
    connection: Driving,
    version: ServerVersion,
    in_hot_standby: Option<bool>,
}

/// The handshake of a session for statements: the driver's, over a transport of ours.
struct Statements;

impl Handshake for Statements {
    type Opened = Opened;

    async fn open(&self, transport: Transport, login: &Login<'_>) -> Result<Opened, ServerError> {
        let mut config = tokio_postgres::Config::new();
        config
            .user(login.user)
            .dbname(login.dbname)
            .application_name(login.application_name)
            .options(&login.options)
            .channel_binding(match login.channel_binding {
                ChannelBinding::Disable => DriverBinding::Disable,
                ChannelBinding::Prefer => DriverBinding::Prefer,
                ChannelBinding::Require => DriverBinding::Require,
            })
            // The driver is to take the transport as it is, which it does for this pair.
            .ssl_mode(SslMode::Require)
            .ssl_negotiation(SslNegotiation::Direct);
        if let Some(password) = login.password {
            config.password(password);
        }
        let (client, connection) = config.connect_raw(transport, AlreadySettled).await?;
        let version = connection
            .parameter("server_version")
            .and_then(ServerVersion::parse)
            .ok_or(ServerError::Protocol(
                "the server does not say its version".into(),
            ))?;
        let in_hot_standby = connection
            .parameter("in_hot_standby")
            .map(|value| value == "on");
        let connection = Driving::start(connection);
        let later = settings::later_settings(login.settings, version.0);
        client.batch_execute(&later).await?;
        Ok(Opened {
            client,
            connection,
            version,
            in_hot_standby,
        })
    }

    fn in_hot_standby(opened: &Opened) -> Option<bool> {
        opened.in_hot_standby
    }
}
