//! Somebody with a browser.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use monarch_harness::{Browser, Program};
use monarch_tests::{PATIENCE, Scene};
use serde_json::{Value, json};

use crate::webdriver::{Pressed, Window};

pub(crate) const TOKEN: &str = "the-operators-token-of-this-test";
pub(crate) const DESK: (u32, u32) = (1280, 900);
pub(crate) const PHONE: (u32, u32) = (390, 844);

/// A browser's window on the dashboard of a scene.
pub(crate) struct Visitor {
    window: Window,
    browser: Browser,
    pub(crate) dashboard: Program,
    address: String,
}

impl Visitor {
    /// Opens the dashboard and logs in by its form.
    pub(crate) async fn of(scene: &Scene<'_>, size: (u32, u32), is_dark: bool) -> Result<Self> {
        let (dashboard, address) = scene.operator.dashboard(TOKEN).await?;
        let browser = Browser::start().await?;
        let window = Window::open(&browser, size, is_dark).await?;
        let visitor = Self {
            window,
            browser,
            dashboard,
            address,
        };
        visitor.open("/").await?;
        visitor.fill("input[name=token]", TOKEN).await?;
        visitor.press("main button").await?;
        visitor.until("h1", "Moves").await?;
        Ok(visitor)
    }

    pub(crate) async fn open(&self, path: &str) -> Result<()> {
        self.window.goto(&format!("{}{path}", self.address)).await
    }

    pub(crate) async fn reload(&self) -> Result<()> {
        self.window.reload().await
    }

    pub(crate) async fn fill(&self, selector: &str, text: &str) -> Result<()> {
        self.window.fill(selector, text).await
    }

    /// Clicks something once it is there.
    pub(crate) async fn press(&self, selector: &str) -> Result<()> {
        let is_there = format!("!!document.querySelector({})", json!(selector));
        self.until_true(&is_there).await?;
        // What is swapped between our look and the click is found again.
        for _ in 0..20 {
            if let Pressed::Done = self.window.press(selector).await? {
                return Ok(());
            }
        }
        bail!("{selector} is swapped whenever it is pressed");
    }

    /// Waits until an element has a text, without touching the page.
    pub(crate) async fn until(&self, selector: &str, says: &str) -> Result<()> {
        let (selector, says) = (json!(selector), json!(says));
        let seen = format!(
            "[...document.querySelectorAll({selector})].some(e => e.textContent.includes({says}))"
        );
        self.until_true(&seen).await
    }

    pub(crate) async fn until_true(&self, script: &str) -> Result<()> {
        let waiting = async {
            while self.look(script).await? != Value::Bool(true) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(seen) => seen,
            Err(_) => bail!(
                "waited in vain for {script}; the page says:\n{}\nthe dashboard said:\n{}",
                self.look("document.body.innerText")
                    .await?
                    .as_str()
                    .unwrap_or_default(),
                self.dashboard.output()?
            ),
        }
    }

    /// The value of an expression on the page.
    pub(crate) async fn look(&self, script: &str) -> Result<Value> {
        let looked = self.window.execute(&format!("return {script};")).await;
        looked.with_context(|| format!("look at {script}"))
    }

    pub(crate) async fn run(&self, script: &str) -> Result<()> {
        let run = self.window.execute(script).await;
        run.map(drop).with_context(|| format!("run {script}"))
    }

    /// Fails when something keeps people from reading the page: contrast, landmarks, names.
    pub(crate) async fn everybody_can_read_it(&self) -> Result<()> {
        self.window
            .execute(&self.browser.axe()?)
            .await
            .context("load axe")?;
        let run = "const done = arguments[arguments.length - 1];
             axe.run(document).then(
               found => done(found.violations.map(v => v.id + ': ' + v.help + ' ' +
                 v.nodes.slice(0, 3).map(n => n.html.slice(0, 200)).join(' | '))),
               error => done([String(error)]));";
        let found = self.window.execute_async(run).await.context("run axe")?;
        ensure!(found == json!([]), "axe found: {found:#}");
        Ok(())
    }

    /// Fails when the page is wider than the window.
    pub(crate) async fn it_fits(&self) -> Result<()> {
        let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        let by = self.look(wide).await?;
        ensure!(
            by == json!(0),
            "the page is {by} pixels wider than the window"
        );
        Ok(())
    }

    /// Leaves a picture of the page in `target/`.
    pub(crate) async fn picture(&self, name: &str) -> Result<()> {
        let folder = target().join("dashboard");
        std::fs::create_dir_all(&folder).context("make a folder for pictures")?;
        let picture = self.window.picture().await.context("take a picture")?;
        std::fs::write(folder.join(format!("{name}.png")), picture).context("write a picture")
    }

    pub(crate) async fn leave(self) -> Result<()> {
        self.window.close().await.context("close the window")
    }
}

/// Where cargo builds.
fn target() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    // target/debug/deps/page-…
    own.ancestors()
        .nth(3)
        .map_or_else(|| PathBuf::from("target"), PathBuf::from)
}
