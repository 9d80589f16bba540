//! Trying hosts, addresses and kinds of encryption until one gives the session that was asked for.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;

use super::options::{ChannelBinding, ConnectOptions, Host, Target};
use super::session::SessionPurpose;
use super::settings::{self, Setting};
use super::tls::{Negotiation, SslMode};
use super::transport::{Address, Encryption, Patience, Transport};
use crate::{Endpoint, Error, FailedAttempt, ServerError};

/// How long sent bytes may go unacknowledged. A connection that holds a snapshot may not be lost to
/// a short break of the network: hours of copying hang on it.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(60);
const TCP_USER_TIMEOUT_WITH_SNAPSHOT: Duration = Duration::from_secs(600);

/// What is said to a server at the start of a session.
pub(crate) struct Login<'a> {
    pub(crate) user: &'a str,
    pub(crate) dbname: &'a str,
    pub(crate) password: Option<&'a str>,
    pub(crate) application_name: &'a str,
    /// The startup packet's `options`.
    pub(crate) options: String,
    /// All settings, of which the newer ones are set by a statement right after the start.
    pub(crate) settings: &'a [Setting],
    pub(crate) channel_binding: ChannelBinding,
}

/// The half of a connection that differs: what is said over an open socket.
pub(crate) trait Handshake: Sync {
    /// What comes of it.
    type Opened: Send;

    /// Starts a session; the connect timeout is kept by the caller.
    fn open(
        &self,
        transport: Transport,
        login: &Login<'_>,
    ) -> impl Future<Output = Result<Self::Opened, ServerError>> + Send;

    /// Whether the server said that it is a standby.
    fn in_hot_standby(opened: &Self::Opened) -> Option<bool>;
}

/// Where a session was had, so that a request to cancel its statement can go there too.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) endpoint: Endpoint,
    address: Address,
    encryption: Encryption,
    patience: Patience,
    limit: Option<Duration>,
}

impl Place {
    /// Opens another socket to the same place.
    pub(super) async fn open_again(&self) -> Result<Transport, ServerError> {
        let open = Transport::open(&self.address, &self.encryption, self.patience);
        within(self.limit, open).await
    }
}

/// A session with the first server that gives one.
pub(crate) async fn connect_to_any<H: Handshake>(
    options: &ConnectOptions,
    purpose: &SessionPurpose,
    handshake: &H,
) -> Result<(H::Opened, Place), Error> {
    let mut settings = settings::canonical(purpose);
    match try_all(options, purpose, &settings, handshake).await {
        // The role's own timeout struck before it could be set: say it in the startup packet,
        // since the server has just shown that it knows the setting.
        Err(error) if settings::told_early_by(&error, &mut settings) => {
            try_all(options, purpose, &settings, handshake).await
        }
        result => result,
    }
}

async fn try_all<H: Handshake>(
    options: &ConnectOptions,
    purpose: &SessionPurpose,
    settings: &[Setting],
    handshake: &H,
) -> Result<(H::Opened, Place), Error> {
    let mut failed = Vec::new();
    for target in options.target.passes() {
        for host in in_order(options) {
            match try_host(options, purpose, settings, handshake, host, *target).await {
                Ok(found) => return Ok(found),
                Err(errors) => {
                    let endpoint = host.endpoint();
                    failed.extend(errors.into_iter().map(|error| FailedAttempt {
                        endpoint: endpoint.clone(),
                        error,
                    }));
                }
            }
        }
    }
    // There is always a host, and a host that gives no session gives an error.
    let last = failed.pop().unwrap_or_else(|| FailedAttempt {
        endpoint: options.hosts[0].endpoint(),
        error: ServerError::Closed,
    });
    Err(Error::Connect {
        endpoint: last.endpoint,
        earlier: failed,
        source: last.error,
    })
}

async fn try_host<H: Handshake>(
    options: &ConnectOptions,
    purpose: &SessionPurpose,
    settings: &[Setting],
    handshake: &H,
    host: &Host,
    target: Target,
) -> Result<(H::Opened, Place), Vec<ServerError>> {
    let login = Login {
        user: &options.user,
        dbname: &options.dbname,
        password: host.password.as_ref().map(|password| password.expose()),
        application_name: &purpose.application_name,
        options: settings::startup_options(options.options.as_deref(), settings),
        settings,
        channel_binding: options.channel_binding,
    };
    let limit = options.connect_timeout;
    let addresses = within(limit, addresses(host)).await.map_err(|e| vec![e])?;
    let encryptions = encryptions(options, host).map_err(|e| vec![e])?;
    let mut failed = Vec::new();
    for address in addresses {
        for encryption in &encryptions {
            let place = Place {
                endpoint: host.endpoint(),
                address: address.clone(),
                encryption: encryption.clone(),
                patience: patience(options, purpose),
                limit,
            };
            let attempt = async {
                let transport = Box::pin(place.open_again()).await?;
                handshake.open(transport, &login).await
            };
            let result = within(limit, Box::pin(attempt)).await;
            match result.and_then(|opened| target.takes::<H>(opened)) {
                Ok(opened) => return Ok((opened, place)),
                Err(error) => failed.push(error),
            }
            if !other_encryption_may_help(failed.last()) {
                break;
            }
        }
    }
    Err(failed)
}

/// The other encryption is tried where the server refused the session or TLS did not come about;
/// a server that is not there is not there either way.
fn other_encryption_may_help(error: Option<&ServerError>) -> bool {
    matches!(
        error,
        Some(ServerError::Refused(_) | ServerError::Tls(_) | ServerError::Closed)
    )
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, ServerError>>,
) -> Result<T, ServerError> {
    match limit {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(ServerError::Timeout(limit)),
        },
    }
}

fn patience(options: &ConnectOptions, purpose: &SessionPurpose) -> Patience {
    let default = if purpose.holds_snapshot {
        TCP_USER_TIMEOUT_WITH_SNAPSHOT
    } else {
        TCP_USER_TIMEOUT
    };
    Patience {
        keepalives: options.keepalives,
        tcp_user_timeout: options.tcp_user_timeout.unwrap_or(default),
    }
}

fn in_order(options: &ConnectOptions) -> Vec<&Host> {
    let mut hosts: Vec<&Host> = options.hosts.iter().collect();
    if options.shuffle_hosts {
        hosts.shuffle(&mut rand::rng());
    }
    hosts
}

async fn addresses(host: &Host) -> Result<Vec<Address>, ServerError> {
    if let Some(dir) = host.socket_dir() {
        let socket = format!(".s.PGSQL.{}", host.port);
        return Ok(vec![Address::Unix(dir.join(socket))]);
    }
    if let Some(address) = host.address {
        return Ok(vec![Address::Tcp((address, host.port).into())]);
    }
    let found = lookup_host((host.name.as_str(), host.port))
        .await
        .map_err(|error| ServerError::Lookup(error.to_string()))?;
    let found: Vec<Address> = found.map(Address::Tcp).collect();
    if found.is_empty() {
        return Err(ServerError::Lookup("it has no address".to_owned()));
    }
    Ok(found)
}

/// The kinds of encryption to try with a host, in order. A local socket has none.
fn encryptions(options: &ConnectOptions, host: &Host) -> Result<Vec<Encryption>, ServerError> {
    let mode = options.tls.mode;
    if mode == SslMode::Disable || host.socket_dir().is_some() {
        return Ok(vec![Encryption::Plain]);
    }
    let config = options.tls.client_config()?;
    let direct = options.tls.negotiation == Negotiation::Direct;
    let tls = |required| tls(&config, host, direct, required);
    Ok(match mode {
        SslMode::Disable => vec![Encryption::Plain],
        SslMode::Allow => vec![Encryption::Plain, tls(true)?],
        SslMode::Prefer => vec![tls(false)?, Encryption::Plain],
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => vec![tls(true)?],
    })
}

fn tls(
    config: &Arc<ClientConfig>,
    host: &Host,
    direct: bool,
    required: bool,
) -> Result<Encryption, ServerError> {
    let name = ServerName::try_from(host.name.clone()).map_err(|_| {
        ServerError::Tls("the host's name is not one that a certificate can have".to_owned())
    })?;
    Ok(Encryption::Tls {
        config: Arc::clone(config),
        name,
        direct,
        required,
    })
}

impl Host {
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            host: self.name.clone(),
            port: self.port,
        }
    }
}

impl Target {
    /// What is asked of the hosts, one round after the other.
    fn passes(self) -> &'static [Target] {
        match self {
            Target::Any => &[Target::Any],
            Target::ReadWrite | Target::Primary => &[Target::Primary],
            Target::ReadOnly | Target::Standby => &[Target::Standby],
            Target::PreferStandby => &[Target::Standby, Target::Any],
        }
    }

    fn takes<H: Handshake>(self, opened: H::Opened) -> Result<H::Opened, ServerError> {
        let wanted = match self {
            Target::Any | Target::PreferStandby => return Ok(opened),
            Target::ReadWrite | Target::Primary => false,
            Target::ReadOnly | Target::Standby => true,
        };
        let found = match H::in_hot_standby(&opened) {
            Some(standby) if standby == wanted => return Ok(opened),
            Some(true) => "a standby",
            Some(false) => "a primary",
            None => "one that does not say whether it is a standby",
        };
        Err(ServerError::WrongServer {
            wanted: if wanted { "a standby" } else { "a primary" },
            found,
        })
    }
}
