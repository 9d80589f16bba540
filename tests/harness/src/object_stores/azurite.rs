//! Azurite, Microsoft's own server of Azure Blob Storage for tests.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;

use super::http::request;
use crate::cluster::PATIENCE;
use crate::install::object_store;
use crate::keeper::{Keeper, Kept};
use crate::name::{free_port, fresh_name};

const ACCOUNT: &str = "devstoreaccount1";

/// The key that every Azurite has, as its documentation says.
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running server with its objects in files. It ends, with them, when the handle drops or our
/// process dies.
#[derive(Debug)]
pub struct Azurite {
    port: u16,
    keeper: Keeper,
}

impl Azurite {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or does not start; the message ends with its log.
    pub async fn start() -> Result<Self> {
        let program = object_store("azurite")?.join("node_modules/.bin/azurite-blob");
        let port = free_port()?;
        let keeper = Keeper::new("azurite", |folder| Kept {
            command: vec![
                program.into(),
                "--silent".into(),
                "--skipApiVersionCheck".into(),
                "--disableTelemetry".into(),
                "--blobHost".into(),
                "127.0.0.1".into(),
                "--blobPort".into(),
                port.to_string().into(),
                "--location".into(),
                folder.join("objects").into(),
            ],
            surroundings: Command::new("sh"),
            last_signal: "KILL",
        })?;
        let azurite = Self { port, keeper };
        azurite.keeper.start()?;
        azurite.answers().await?;
        Ok(azurite)
    }

    /// Ends the server and starts it again, on the same port and objects.
    ///
    /// # Errors
    ///
    /// When it does not start; the message ends with its log.
    pub async fn restart(&self) -> Result<()> {
        self.keeper.signal(Signal::TERM)?;
        self.keeper.exit().await?;
        self.keeper.start()?;
        self.answers().await
    }

    /// Makes a container of a fresh name.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn container(&self) -> Result<String> {
        const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
        const VERSION: &str = "2021-12-02";
        let name = fresh_name("container").replace('_', "-");
        let signed = format!(
            "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{DATE}\nx-ms-version:{VERSION}\n\
             /{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        );
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &STANDARD.decode(KEY)?);
        let signature = STANDARD.encode(ring::hmac::sign(&key, signed.as_bytes()));
        let authorization = format!("SharedKey {ACCOUNT}:{signature}");
        let target = format!("/{ACCOUNT}/{name}?restype=container");
        let headers = [
            ("x-ms-date", DATE),
            ("x-ms-version", VERSION),
            ("authorization", authorization.as_str()),
        ];
        let answer = request(self.port, "PUT", &target, &headers, "").await?;
        let status = answer.status;
        ensure!(status == 201, "make a container: {status} {}", answer.body);
        Ok(name)
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The variables by which Azure's clients find it, or what stands before it at `url`.
    #[must_use]
    pub fn variables(&self, url: &str) -> Vec<(String, String)> {
        let connection =
            format!("AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT};");
        vec![("AZURE_STORAGE_CONNECTION_STRING".to_owned(), connection)]
    }

    async fn answers(&self) -> Result<()> {
        let ask = || request(self.port, "GET", "/", &[], "");
        let waiting = tokio::time::timeout(PATIENCE, async {
            while self.keeper.is_alive() && ask().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        waiting.await.context("Azurite does not answer")?;
        ensure!(
            self.keeper.is_alive(),
            "Azurite ended:\n{}",
            self.keeper.log_tail()
        );
        Ok(())
    }
}
