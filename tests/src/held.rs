//! A command of the control plane that is held up, so that a test can do something meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{PATIENCE, Scene};

/// Waits to be let go, then does what it was asked to.
const BEFORE: &str = r#"  : >"$here/reached-$1"
  while [ ! -e "$here/let-go-$1" ]; do sleep 0.05; done
  "$here/$1-proper" "$@"
  code=$?
  : >"$here/gone-$1"
  exit $code
"#;

/// Does what it was asked to, then waits to be let go before it says so.
const AFTER: &str = r#"  "$here/$1-proper" "$@" || exit
  : >"$here/reached-$1"
  while [ ! -e "$here/let-go-$1" ]; do sleep 0.05; done
  : >"$here/gone-$1"
  exit 0
"#;

/// Does what it was asked to, then dies without an answer; asked again, it refuses for good.
const WITHOUT_ANSWER: &str = r#"  [ ! -e "$here/reached-$1" ] || exit 3
  "$here/$1-proper" "$@" || exit
  : >"$here/reached-$1"
  kill -9 $$
"#;

/// A command that stands before the control plane's own.
#[derive(Debug)]
pub struct Held {
    folder: PathBuf,
    action: &'static str,
}

impl Held {
    /// Lets `action` (`fence`, `unfence`, `flip` or `where`) wait before it does anything.
    ///
    /// # Errors
    ///
    /// When the script cannot be written.
    pub fn before(scene: &Scene<'_>, action: &'static str) -> Result<Self> {
        Self::standing(scene, action, BEFORE)
    }

    /// Lets `action` wait once it is done, before anybody hears of it.
    ///
    /// # Errors
    ///
    /// As [`Self::before`].
    pub fn after(scene: &Scene<'_>, action: &'static str) -> Result<Self> {
        Self::standing(scene, action, AFTER)
    }

    /// Lets `action` happen once, of which nobody ever hears by an answer.
    ///
    /// # Errors
    ///
    /// As [`Self::before`].
    pub fn without_answer(scene: &Scene<'_>, action: &'static str) -> Result<Self> {
        Self::standing(scene, action, WITHOUT_ANSWER)
    }

    fn standing(scene: &Scene<'_>, action: &'static str, how: &str) -> Result<Self> {
        let folder = scene.fleet.control.folder().to_owned();
        let routing = folder.join("routing");
        let proper = format!("{action}-proper");
        fs::rename(&routing, folder.join(&proper))
            .context("put the control plane's script aside")?;
        let script = format!(
            "#!/bin/sh\nhere=$(dirname \"$0\")\nif [ \"$1\" = {action} ]; then\n{how}fi\n\
             exec \"$here/{proper}\" \"$@\"\n"
        );
        // Written aside and renamed: a script that is being written cannot be run.
        let new = folder.join("routing.new");
        fs::write(&new, script).context("write a script")?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
            .context("make a script executable")?;
        fs::rename(&new, &routing).context("put a script before the control plane's")?;
        Ok(Self { folder, action })
    }

    fn mark(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{what}-{}", self.action))
    }

    async fn until(&self, what: &str) -> Result<()> {
        let mark = self.mark(what);
        let look = async {
            while !mark.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look)
            .await
            .with_context(|| format!("the {} never was {what}", self.action))
    }

    /// Waits until the command was asked for, and is held.
    ///
    /// # Errors
    ///
    /// When that does not happen.
    pub async fn reached(&self) -> Result<()> {
        self.until("reached").await
    }

    /// Lets it go, and every one that comes after it.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn let_go(&self) -> Result<()> {
        fs::write(self.mark("let-go"), "").with_context(|| format!("let the {} go", self.action))
    }

    /// Waits until one that was let go has ended.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn gone(&self) -> Result<()> {
        self.until("gone").await
    }
}
