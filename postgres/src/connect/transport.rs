//! A socket to a server, secured or not, as both kinds of connection use it.

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;

use super::options::Keepalives;
use super::tls::end_point_binding;
use crate::ServerError;

/// How an authentication request begins that asks for the password as it is.
const CLEARTEXT_REQUEST: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 3];

/// Where a server listens.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Tcp(SocketAddr),
    /// The socket's own path.
    Unix(PathBuf),
}

/// What is done about encryption in one attempt.
#[derive(Debug, Clone)]
pub(super) enum Encryption {
    Plain,
    /// TLS is asked for; a server that has none is taken without it unless it is `required`.
    Tls {
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        direct: bool,
        required: bool,
    },
}

/// How long silence on a socket may last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) keepalives: Option<Keepalives>,
    /// How long sent bytes may go unacknowledged; zero is the system's own limit.
    pub(super) tcp_user_timeout: Duration,
}

/// A socket that is open and, if so agreed, encrypted.
#[derive(Debug)]
pub(crate) struct Transport {
    stream: Stream,
    binding: Option<Vec<u8>>,
    /// The first bytes that came over an open network, until it is known that they do not ask for
    /// a password in clear text.
    opening: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<RustlsStream<TcpStream>>),
}

impl Transport {
    /// Opens a socket and sets up its encryption.
    pub(super) async fn open(
        address: &Address,
        encryption: &Encryption,
        patience: Patience,
    ) -> Result<Self, ServerError> {
        let socket = match address {
            Address::Unix(path) => {
                let socket = UnixStream::connect(path).await.map_err(not_open)?;
                return Ok(Self::bare(Stream::Unix(socket), false));
            }
            Address::Tcp(address) => TcpStream::connect(address).await.map_err(not_open)?,
        };
        configure(&socket, patience).map_err(not_open)?;
        match encryption {
            Encryption::Plain => Ok(Self::bare(Stream::Tcp(socket), true)),
            Encryption::Tls {
                config,
                name,
                direct,
                required,
            } => {
                let mut socket = socket;
                if !direct && !asks_for_tls(&mut socket).await? {
                    if *required {
                        return Err(ServerError::Tls("the server has no TLS".to_owned()));
                    }
                    return Ok(Self::bare(Stream::Tcp(socket), true));
                }
                let connector = TlsConnector::from(Arc::clone(config));
                let secured = connector
                    .connect(name.clone(), socket)
                    .await
                    .map_err(|error| ServerError::Tls(error.to_string()))?;
                Ok(Self::secured(secured))
            }
        }
    }

    fn bare(stream: Stream, over_network: bool) -> Self {
        Self {
            stream,
            binding: None,
            opening: over_network.then(Vec::new),
        }
    }

    fn secured(stream: RustlsStream<TcpStream>) -> Self {
        let certificates = stream.get_ref().1.peer_certificates();
        let binding = certificates
            .and_then(<[_]>::first)
            .and_then(|certificate| end_point_binding(certificate));
        Self {
            stream: Stream::Tls(Box::new(stream)),
            binding,
            opening: None,
        }
    }

    /// What SCRAM binds to on this connection; none without TLS.
    pub(crate) fn binding(&self) -> Option<&[u8]> {
        self.binding.as_deref()
    }

    /// Refuses a request for the password in clear text over a network without TLS, where anybody
    /// who answers could ask.
    fn look_at_opening(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(seen) = &mut self.opening else {
            return Ok(());
        };
        let missing = CLEARTEXT_REQUEST.len() - seen.len();
        seen.extend(read.iter().take(missing));
        if *seen == CLEARTEXT_REQUEST {
            return Err(io::Error::other(ServerError::Authentication(
                "the server asks for the password in clear text, and there is no TLS".to_owned(),
            )));
        }
        if !CLEARTEXT_REQUEST.starts_with(seen) {
            self.opening = None;
        }
        Ok(())
    }
}

fn not_open(error: io::Error) -> ServerError {
    ServerError::Io(error.to_string())
}

fn configure(socket: &TcpStream, patience: Patience) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    if let Some(keepalives) = patience.keepalives {
        let settings = TcpKeepalive::new()
            .with_time(keepalives.idle)
            .with_interval(keepalives.interval)
            .with_retries(keepalives.count);
        socket.set_tcp_keepalive(&settings)?;
    }
    #[cfg(target_os = "linux")]
    if !patience.tcp_user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(patience.tcp_user_timeout))?;
    }
    Ok(())
}

/// Asks the server for TLS and says whether it agrees. Only one byte is read: what an attacker sent
/// behind it would otherwise be taken for something said under TLS.
async fn asks_for_tls(socket: &mut TcpStream) -> Result<bool, ServerError> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    socket.write_all(&request).await?;
    match socket.read_u8().await? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        _ => Err(ServerError::Protocol(
            "the answer to a request for TLS is neither yes nor no".into(),
        )),
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        Poll::Ready(self.look_at_opening(&buf.filled()[before..]))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl TlsStream for Transport {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.binding {
            Some(hash) => ChannelBinding::tls_server_end_point(hash.clone()),
            None => ChannelBinding::none(),
        }
    }
}

/// Tells the driver that encryption is settled: it takes the transport as it is.
pub(super) struct AlreadySettled;

impl TlsConnect<Transport> for AlreadySettled {
    type Stream = Transport;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Transport, Self::Error>>;

    fn connect(self, stream: Transport) -> Self::Future {
        ready(Ok(stream))
    }
}
