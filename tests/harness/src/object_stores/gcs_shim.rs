//! A shim in the place of Google Cloud Storage: its XML API is S3's but for the names of headers, so
//! an S3 server behind other names exercises a client's path. It proves nothing about Google.

use std::convert::Infallible;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::s3s::{Folder, service};
use crate::name::{free_port, fresh_name};

/// A running shim. It ends, with its objects, when the handle drops or the test ends.
#[derive(Debug)]
pub struct GcsShim {
    port: u16,
    folder: Folder,
    serving: JoinHandle<()>,
}

impl GcsShim {
    /// Starts a shim.
    ///
    /// # Errors
    ///
    /// When there is no port or folder for it.
    pub async fn start() -> Result<Self> {
        let (port, folder) = (free_port()?, Folder::new("monarch-gcs-shim")?);
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let s3 = service(&folder.0, None)?;
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                let s3 = s3.clone();
                connections.spawn(async move {
                    let translate = service_fn(move |request| answer(s3.clone(), request));
                    let server = Builder::new(TokioExecutor::new());
                    let _ = server
                        .serve_connection(TokioIo::new(socket), translate)
                        .await;
                });
            }
        });
        Ok(Self {
            port,
            folder,
            serving,
        })
    }

    /// Makes a bucket of a fresh name.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn bucket(&self) -> Result<String> {
        let name = fresh_name("bucket").replace('_', "-");
        std::fs::create_dir(self.folder.0.join(&name)).context("make a bucket")?;
        Ok(name)
    }

    /// The variables by which Google's clients find it.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let host = format!("127.0.0.1:{}", self.port);
        vec![("STORAGE_EMULATOR_HOST".to_owned(), host)]
    }
}

impl Drop for GcsShim {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Hands a request to S3 under S3's names, and the answer back under Google's.
async fn answer(
    s3: s3s::service::S3Service,
    mut request: Request<Incoming>,
) -> Result<Response<s3s::Body>, Infallible> {
    let headers = request.headers_mut();
    headers.remove("authorization");
    if headers.remove("x-goog-if-generation-match").is_some() {
        headers.insert("if-none-match", HeaderValue::from_static("*"));
    }
    rename(headers, "x-goog-", "x-amz-");
    match Service::call(&s3, request).await {
        Ok(mut response) => {
            rename(response.headers_mut(), "x-amz-", "x-goog-");
            let generation = HeaderValue::from_static("1");
            response
                .headers_mut()
                .insert("x-goog-generation", generation);
            Ok(response)
        }
        Err(error) => {
            let mut response = Response::new(s3s::Body::from(format!("{error:?}")));
            *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
            Ok(response)
        }
    }
}

fn rename(headers: &mut HeaderMap, from: &str, to: &str) {
    let renamed: Vec<(HeaderName, HeaderName, HeaderValue)> = headers
        .iter()
        .filter_map(|(name, value)| {
            let rest = name.as_str().strip_prefix(from)?;
            let new = format!("{to}{rest}").parse().ok()?;
            Some((name.clone(), new, value.clone()))
        })
        .collect();
    for (old, new, value) in renamed {
        headers.remove(old);
        headers.insert(new, value);
    }
}
