//! Getting a session that behaves the same on every server.
//!
//! One road leads to a server, for statements ([`Session`]) and for replication
//! ([`crate::replication`]) alike: the connection string is understood as libpq does
//! ([`ConnectOptions`]), hosts are tried in turn, TLS is set up by `sslmode`, and every session
//! starts with the same settings, whatever the defaults of its role or database ([`settings`]).
//! tokio-postgres takes over a stream that is already open and secured, because it knows neither
//! the verifying modes nor `.pgpass`, and has no replication mode.

mod attempt;
mod options;
mod passfile;
mod session;
pub mod settings;
mod tls;
mod transport;

pub use monarch_config::DsnError;

pub(crate) use attempt::{Handshake, Login, Place, connect_to_any};
pub(crate) use options::ChannelBinding;
pub use options::{ConnectOptions, Environment};
pub use session::{Canceller, ServerVersion, Session, SessionPurpose, SessionRole};
pub(crate) use settings::later_settings;
pub(crate) use transport::Transport;
