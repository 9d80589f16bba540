//! A window of the browser, by WebDriver: one request of HTTP for each thing that a person does.
//!
//! By hand, since it is so little: the crates that speak it bring a library of Unicode along whose
//! macros change what the whole workspace is compiled with.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monarch_harness::Browser;
use reqwest::Method;
use serde_json::{Value, json};

/// The name of an element's id in WebDriver's answers, which the standard chose to be unlikely.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One window.
pub(crate) struct Window {
    client: reqwest::Client,
    session: String,
}

/// What a request to a window came to.
pub(crate) enum Pressed {
    Done,
    /// The element was swapped between the look and the click.
    Gone,
}

impl Window {
    pub(crate) async fn open(browser: &Browser, size: (u32, u32), is_dark: bool) -> Result<Self> {
        // Of several tests in a process one is the first; the others find it done.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(60))
            .build()?;
        let mut window = Self {
            client,
            session: format!("{}/session", browser.address()),
        };
        let wishes = browser.capabilities(size, is_dark);
        let wishes = json!({ "capabilities": { "alwaysMatch": wishes } });
        let opened = window
            .ask(Method::POST, "", &wishes)
            .await
            .context("open a window")?;
        let id = opened["sessionId"]
            .as_str()
            .context("a session without id")?;
        window.session = format!("{}/{id}", window.session);
        Ok(window)
    }

    pub(crate) async fn goto(&self, address: &str) -> Result<()> {
        let asked = self
            .ask(Method::POST, "/url", &json!({ "url": address }))
            .await;
        asked.map(drop).with_context(|| format!("open {address}"))
    }

    pub(crate) async fn reload(&self) -> Result<()> {
        self.ask(Method::POST, "/refresh", &json!({}))
            .await
            .map(drop)
    }

    pub(crate) async fn fill(&self, selector: &str, text: &str) -> Result<()> {
        let element = self.find(selector).await?;
        let clear = format!("/element/{element}/clear");
        self.ask(Method::POST, &clear, &json!({})).await?;
        let keys = format!("/element/{element}/value");
        self.ask(Method::POST, &keys, &json!({ "text": text }))
            .await
            .map(drop)
    }

    pub(crate) async fn press(&self, selector: &str) -> Result<Pressed> {
        let element = self.find(selector).await?;
        let click = format!("/element/{element}/click");
        match self.ask(Method::POST, &click, &json!({})).await {
            Ok(_) => Ok(Pressed::Done),
            Err(error) if error.to_string().contains("stale element") => Ok(Pressed::Gone),
            Err(error) => Err(error.context(format!("press {selector}"))),
        }
    }

    /// Runs a script on the page, and returns what it returns.
    pub(crate) async fn execute(&self, script: &str) -> Result<Value> {
        let script = json!({ "script": script, "args": [] });
        self.ask(Method::POST, "/execute/sync", &script).await
    }

    /// The same for a script that calls its last argument when it is done.
    pub(crate) async fn execute_async(&self, script: &str) -> Result<Value> {
        let script = json!({ "script": script, "args": [] });
        self.ask(Method::POST, "/execute/async", &script).await
    }

    /// A picture of what is seen of the page, as PNG.
    pub(crate) async fn picture(&self) -> Result<Vec<u8>> {
        let picture = self.ask(Method::GET, "/screenshot", &Value::Null).await?;
        let picture = picture.as_str().context("a picture that is no text")?;
        STANDARD.decode(picture).context("read a picture")
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.ask(Method::DELETE, "", &Value::Null).await.map(drop)
    }

    async fn find(&self, selector: &str) -> Result<String> {
        let by = json!({ "using": "css selector", "value": selector });
        let found = self.ask(Method::POST, "/element", &by).await?;
        let id = found[ELEMENT].as_str();
        id.map(str::to_owned)
            .with_context(|| format!("no element {selector}"))
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.session));
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        let answer = request.send().await.context("reach the browser's driver")?;
        let status = answer.status();
        let text = answer.text().await.context("read the driver's answer")?;
        let answer: Value = serde_json::from_str(&text).context("read the driver's answer")?;
        let value = answer["value"].clone();
        if !status.is_success() {
            bail!("{}: {}", value["error"], value["message"]);
        }
        Ok(value)
    }
}
