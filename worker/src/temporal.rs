//! A client of Temporal from the environment, as Temporal's users know it: `TEMPORAL_ADDRESS`,
//! `TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, `TEMPORAL_TLS…`, and the profile of a configuration
//! file (`TEMPORAL_CONFIG_FILE`, `TEMPORAL_PROFILE`).

use std::error::Error;
use std::time::Duration;

use monarch_model::chain;
use temporalio_client::envconfig::LoadClientConfigProfileOptions;
use temporalio_client::errors::ClientConnectError;
use temporalio_client::tonic::{Code, Status};
use temporalio_client::{Client, ClientOptions};
use tracing::{info, warn};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The environment, or the configuration file that it names, cannot be used.
    #[error("the configuration of the Temporal client cannot be used: {0}")]
    Config(String),
    /// Nobody answers at the address. It may be tried again.
    #[error("Temporal at {address} cannot be reached: {reason}")]
    Unreachable {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// The server does not let us in.
    #[error("Temporal at {address} refuses us: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
}

impl ConnectError {
    /// Whether the same attempt may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// Whether the same request may succeed later without anybody's help.
pub fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Unknown
    )
}

/// Whether the server says that the namespace, not what was looked for in it, is not there.
pub fn names_namespace(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().starts_with("Namespace ")
}

/// Connects once. `identity` is how we call ourselves in Temporal's Web UI.
///
/// # Errors
/// When there is no server, it refuses, or the environment cannot be used.
pub async fn connect(identity: &str) -> Result<Client, ConnectError> {
    let (mut connection, client) =
        ClientOptions::load_from_config(LoadClientConfigProfileOptions::default())
            .map_err(|error| ConnectError::Config(first_line(&error)))?;
    identity.clone_into(&mut connection.identity);
    connection.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    let address = connection.target.to_string();
    let address = address.trim_end_matches('/').to_owned();
    let connecting = Client::connect(connection, client);
    match tokio::time::timeout(2 * CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| told(&error, address)),
        Err(_) => Err(ConnectError::Unreachable {
            address,
            reason: format!("no answer within {} s", 2 * CONNECT_TIMEOUT.as_secs()),
        }),
    }
}

/// Connects, and tries again while nobody answers, saying so each time.
///
/// # Errors
/// When the server refuses or the environment cannot be used.
pub async fn connect_patiently(identity: &str) -> Result<Client, ConnectError> {
    let mut pause = Duration::from_millis(500);
    loop {
        match connect(identity).await {
            Ok(client) => {
                let namespace = &client.options().namespace;
                info!(namespace, "connected to Temporal");
                return Ok(client);
            }
            Err(error) if error.is_transient() => {
                warn!(%error, retry_in_ms = pause.as_millis(), "not connected to Temporal");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What the library says, without the values of headers and without the lines of a configuration
/// file: both may hold keys.
fn told(error: &ClientConnectError, address: String) -> ConnectError {
    match error {
        ClientConnectError::SystemInfoCallError(status)
            if matches!(
                status.code(),
                Code::PermissionDenied | Code::Unauthenticated
            ) =>
        {
            ConnectError::Refused {
                address,
                reason: status.message().to_owned(),
            }
        }
        ClientConnectError::SystemInfoCallError(status) => ConnectError::Unreachable {
            address,
            reason: status.message().to_owned(),
        },
        ClientConnectError::TonicTransportError(error) => ConnectError::Unreachable {
            address,
            reason: chain(error),
        },
        ClientConnectError::DnsResolutionError { host, source } => ConnectError::Unreachable {
            address,
            reason: format!("{host} has no address: {source}"),
        },
        ClientConnectError::InvalidHeaders(_) => {
            ConnectError::Config("a TEMPORAL_GRPC_META_ variable is no valid header".to_owned())
        }
        ClientConnectError::InvalidUri(_) => {
            ConnectError::Config(format!("{address} is no address"))
        }
        other => ConnectError::Config(first_line(other)),
    }
}

fn first_line(error: &dyn Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
