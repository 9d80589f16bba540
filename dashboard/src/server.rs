//! Connections, plain or by TLS. A client that is slow to say what it wants, or to shake hands, costs
//! a place for some seconds and holds nobody else up.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::follower;
use crate::routes::router;
use crate::site::Site;

/// Connections at once; each page that is open holds one.
const CONNECTIONS: usize = 512;
/// How long a handshake, or the head of a request, may take.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// How long open requests may take once we are told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Somebody else has the address, or it is not ours.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A file of the certificate or of its key cannot be read.
    #[error("read {} as PEM: {why}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error("use the certificate: {0}")]
    Certificate(#[from] rustls::Error),
}

/// A certificate and its key.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads both from PEM files.
    ///
    /// # Errors
    /// When one cannot be read, or they do not belong together.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, ServerError> {
        let unreadable = |file: &Path, why: &dyn std::fmt::Display| ServerError::Pem {
            file: file.to_owned(),
            why: why.to_string(),
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unreadable(certificate, &error))?;
        if chain.is_empty() {
            return Err(unreadable(certificate, &"no certificate in it"));
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, secret)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

/// The page at an address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    site: Arc<Site>,
}

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<Tls>,
        site: Site,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            tls: tls.map(|tls| TlsAcceptor::from(tls.config)),
            site: Arc::new(site),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let follower = tokio::spawn(follower::follow(Arc::clone(&self.site), stop.clone()));
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let router = router(Arc::clone(&self.site));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                break;
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            // A client that has gone again, or no file descriptor left: others may fare better.
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (tls, router) = (self.tls.clone(), router.clone());
            let stop = self.site.stop.clone();
            tokio::spawn(async move {
                connection(stream, tls, router, stop).await;
                drop(place);
            });
        }
        // Streams of events end by themselves, and then their connections.
        self.site.stop.cancel();
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        let _ = timeout(STOP_WITHIN, places.acquire_many(all)).await;
        let _ = follower.await;
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve(stream, router, stop).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HEAD_WITHIN, tls.accept(stream)).await {
                serve(stream, router, stop).await;
            }
        }
    }
}

async fn serve<S>(stream: S, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // What goes wrong on a connection is the client's to see.
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
