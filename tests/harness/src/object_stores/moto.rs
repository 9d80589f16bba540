//! moto, an S3 server that keeps everything in memory: faithful to S3 in what it answers, slow, and
//! content with any credential.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::http::{Answer, request};
use super::{ACCESS_KEY, SECRET_KEY};
use crate::cluster::PATIENCE;
use crate::install::object_store;
use crate::keeper::{Keeper, Kept};
use crate::name::{free_port, fresh_name};

/// A running server. It ends when the handle drops or our process dies.
#[derive(Debug)]
pub struct Moto {
    port: u16,
    keeper: Keeper,
}

impl Moto {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or does not start; the message ends with its log.
    pub async fn start() -> Result<Self> {
        let packages = object_store("moto")?;
        let port = free_port()?;
        let keeper = Keeper::new("moto", |_| {
            let mut surroundings = Command::new("sh");
            surroundings.env("PYTHONPATH", &packages);
            let words = ["python3", "-m", "moto.server", "-H", "127.0.0.1", "-p"];
            let mut command: Vec<_> = words.into_iter().map(Into::into).collect();
            command.push(port.to_string().into());
            Kept {
                command,
                surroundings,
                last_signal: "KILL",
            }
        })?;
        keeper.start()?;
        let moto = Self { port, keeper };
        moto.answers().await?;
        Ok(moto)
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes a bucket of a fresh name.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn bucket(&self) -> Result<String> {
        let name = fresh_name("bucket").replace('_', "-");
        let (status, _) = self.ask("PUT", &format!("/{name}"), "").await?;
        ensure!(status == 200, "make a bucket: {status}");
        Ok(name)
    }

    /// Makes a bucket keep the versions of its objects.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn keep_versions(&self, bucket: &str) -> Result<()> {
        let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        let (status, _) = self
            .ask("PUT", &format!("/{bucket}?versioning"), body)
            .await?;
        ensure!(status == 200, "keep versions: {status}");
        Ok(())
    }

    /// What the bucket says of the versions of keys that begin so, as XML.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn versions(&self, bucket: &str, prefix: &str) -> Result<String> {
        let target = format!("/{bucket}?versions&prefix={prefix}");
        let (status, body) = self.ask("GET", &target, "").await?;
        ensure!(status == 200, "list versions: {status}");
        Ok(body)
    }

    /// The variables by which S3 clients find what stands before it at `url`.
    #[must_use]
    pub fn variables_at(&self, url: &str) -> Vec<(String, String)> {
        super::s3s::variables(url, ACCESS_KEY, SECRET_KEY)
    }

    /// The variables by which S3 clients find it.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        super::s3s::variables(&self.url(), ACCESS_KEY, SECRET_KEY)
    }

    /// Sends one request of S3 as it is spelled here, and returns status and body: a client that
    /// tidies nothing up.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn ask(&self, method: &str, target: &str, body: &str) -> Result<(u16, String)> {
        let answer = self.send(method, target, &[], body).await?;
        Ok((answer.status, answer.body))
    }

    /// Puts an object with headers of its own, and returns the status.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn put(&self, target: &str, headers: &[(&str, &str)], body: &str) -> Result<u16> {
        Ok(self.send("PUT", target, headers, body).await?.status)
    }

    /// What it says of an object: status and headers, as they came.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn head(&self, target: &str) -> Result<String> {
        Ok(self.send("HEAD", target, &[], "").await?.head)
    }

    async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        // It looks at the form of a credential only.
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0"
        );
        let mut all = vec![("authorization", authorization.as_str())];
        all.extend_from_slice(headers);
        request(self.port, method, target, &all, body).await
    }

    async fn answers(&self) -> Result<()> {
        let waiting = tokio::time::timeout(PATIENCE, async {
            while self.keeper.is_alive() && self.ask("GET", "/", "").await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        waiting.await.context("moto does not answer")?;
        ensure!(
            self.keeper.is_alive(),
            "moto ended:\n{}",
            self.keeper.log_tail()
        );
        Ok(())
    }
}
