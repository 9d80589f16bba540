//! A real browser without a screen, driven by WebDriver.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cluster::PATIENCE;
use crate::install::chromium;
use crate::keeper::{Keeper, Kept};
use crate::name::{free_port, fresh_name};

/// A driver that opens Chromium for each of its sessions. Both end when the handle drops or our
/// process dies: a browser that is spoken to by a pipe goes when the pipe does.
#[derive(Debug)]
pub struct Browser {
    port: u16,
    axe: PathBuf,
    keeper: Keeper,
}

impl Browser {
    /// Starts the driver and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it cannot be installed or does not start; the message ends with its log.
    pub async fn start() -> Result<Self> {
        let axe = chromium()?.join("axe.min.js");
        let port = free_port()?;
        let keeper = Keeper::new("browser", |_| Kept {
            command: vec![
                OsString::from("chromedriver"),
                OsString::from(format!("--port={port}")),
            ],
            surroundings: Command::new("sh"),
            last_signal: "TERM",
        })?;
        keeper.start()?;
        let browser = Self { port, axe, keeper };
        let listens = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_err()
            {
                if !browser.keeper.is_alive() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, listens).await.is_ok();
        if !in_time || !browser.keeper.is_alive() {
            bail!(
                "chromedriver does not serve:\n{}",
                browser.keeper.log_tail()
            );
        }
        Ok(browser)
    }

    /// Where WebDriver is spoken.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a session asks for, with a screen of this size. Its pages see a reader who wants it dark,
    /// or not.
    #[must_use]
    pub fn capabilities(&self, (width, height): (u32, u32), is_dark: bool) -> Value {
        let profile = self.keeper.folder().join(fresh_name("profile"));
        let scheme = if is_dark { 0 } else { 1 };
        let arguments = [
            "--headless=new".to_owned(),
            // It refuses root, which CI is, and our own page is all that is opened.
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--remote-debugging-pipe".to_owned(),
            format!("--user-data-dir={}", profile.display()),
            format!("--window-size={width},{height}"),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        let screen = json!({ "width": width, "height": height, "pixelRatio": 1.0, "touch": false });
        json!({ "goog:chromeOptions": {
            "args": arguments,
            // A window cannot be as narrow as a phone.
            "mobileEmulation": { "deviceMetrics": screen },
        } })
    }

    /// The script of axe-core, which finds what keeps people from reading a page.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn axe(&self) -> Result<String> {
        let file = self.axe.display().to_string();
        std::fs::read_to_string(&self.axe).with_context(|| format!("read {file}"))
    }
}
