//! s3s-fs, an S3 server that keeps objects in files and checks every signature. It runs in our own
//! process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{ACCESS_KEY, SECRET_KEY};
use crate::name::{free_port, fresh_name};

/// A running server. It ends, with its objects, when the handle drops or the test ends.
#[derive(Debug)]
pub struct S3s {
    port: u16,
    folder: Folder,
    serving: Mutex<Option<JoinHandle<()>>>,
}

/// Removed with the handle.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(fresh_name(name));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}

/// A service over the files of a folder.
pub(super) fn service(folder: &Path, auth: Option<SimpleAuth>) -> Result<S3Service> {
    let files = s3s_fs::FileSystem::new(folder).map_err(|error| anyhow!("{error:?}"))?;
    let mut builder = S3ServiceBuilder::new(files);
    if let Some(auth) = auth {
        builder.set_auth(auth);
    }
    Ok(builder.build())
}

/// The variables by which S3 clients find a server.
pub(super) fn variables(url: &str, access_key: &str, secret_key: &str) -> Vec<(String, String)> {
    [
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", access_key),
        ("AWS_SECRET_ACCESS_KEY", secret_key),
        ("AWS_REGION", "us-east-1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

impl S3s {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// When there is no port or folder for it.
    pub async fn start() -> Result<Self> {
        let server = Self {
            port: free_port()?,
            folder: Folder::new("monarch-s3s")?,
            serving: Mutex::new(None),
        };
        server.start_again().await?;
        Ok(server)
    }

    /// Cuts every connection and answers no more; the objects stay.
    pub fn stop(&self) {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = serving.take() {
            task.abort();
        }
    }

    /// Starts a stopped server, on the same port and objects.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub async fn start_again(&self) -> Result<()> {
        let auth = SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY);
        let service = service(&self.folder.0, Some(auth))?;
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", self.port)).await {
                Ok(listener) => break listener,
                // What was stopped lets go of it in a moment.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        };
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                let service = service.clone();
                connections.spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    let socket = TokioIo::new(socket);
                    // A client that goes away is no concern of the server.
                    let _ = server.serve_connection(socket, service).await;
                });
            }
        });
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    /// Makes a bucket of a fresh name: a folder.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn bucket(&self) -> Result<String> {
        let name = fresh_name("bucket").replace('_', "-");
        fs::create_dir(self.folder.0.join(&name)).context("make a bucket")?;
        Ok(name)
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The variables by which S3 clients find it.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(&self.url(), ACCESS_KEY, SECRET_KEY)
    }

    /// The same for what stands before it at `url`.
    #[must_use]
    pub fn variables_at(&self, url: &str) -> Vec<(String, String)> {
        variables(url, ACCESS_KEY, SECRET_KEY)
    }

    /// The variables of somebody whom it does not know.
    #[must_use]
    pub fn variables_of_a_stranger(&self) -> Vec<(String, String)> {
        variables(&self.url(), "stranger", SECRET_KEY)
    }
}

impl Drop for S3s {
    fn drop(&mut self) {
        self.stop();
    }
}
