//! The control plane in miniature: a folder of small files and a script that Monarch runs.
//!
//! What the application asks of it is in [`ControlPlane::may_write`], and when it asks is the whole
//! point of a fence: inside the transaction, after its first write. Either the transaction holds a
//! lock on a moved table before the fence is up, and the drain waits for it, or it sees the fence
//! and rolls back.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const SCRIPT: &str = include_str!("routing.sh");

/// Who routes the organizations, and who holds back their writes.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    folder: PathBuf,
}

impl ControlPlane {
    /// Writes the script into a new folder.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let plane = Self { folder };
        let script = plane.script();
        fs::write(&script, SCRIPT).context("write the control plane's script")?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .context("make the control plane's script executable")?;
        Ok(plane)
    }

    /// Lets an organization live in a cell, without a fence.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn settle(&self, organization: i64, cell: &str) -> Result<()> {
        let home = self.home(organization);
        fs::create_dir_all(home.join("revoked")).context("make an organization's folder")?;
        fs::write(home.join("cell"), cell).context("write an organization's cell")
    }

    /// The cell that the routing names.
    ///
    /// # Errors
    ///
    /// When the organization was never [settled](Self::settle).
    pub fn cell_of(&self, organization: i64) -> Result<String> {
        fs::read_to_string(self.home(organization).join("cell"))
            .with_context(|| format!("read where organization {organization} lives"))
    }

    /// Whether a fence is up.
    #[must_use]
    pub fn is_fenced(&self, organization: i64) -> bool {
        self.home(organization).join("fence").exists()
    }

    /// Whether a transaction of this organization in this cell may commit.
    ///
    /// # Errors
    ///
    /// As [`Self::cell_of`].
    pub fn may_write(&self, organization: i64, cell: &str) -> Result<bool> {
        // The fence first: the flip changes the cell before it lifts the fence.
        Ok(!self.is_fenced(organization) && self.cell_of(organization)? == cell)
    }

    /// The part of `fleet.yaml` that names the four commands.
    pub(crate) fn yaml(&self) -> String {
        let script = self.script();
        let line = |action| format!("  {action}: [{}, {action}]\n", script.display());
        let lines: String = ["fence", "unfence", "flip", "where"].map(line).concat();
        format!("control:\n{lines}")
    }

    fn script(&self) -> PathBuf {
        self.folder.join("routing")
    }

    fn home(&self, organization: i64) -> PathBuf {
        self.folder.join(format!("org-{organization}"))
    }

    /// The folder, for who wants to look.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
