//! Which way an outbox flows.
//!
//! A row of a cell's outbox is handled in the cell and pushes towards control; a row of control's is
//! handled in control and pushes towards one cell, whose name it carries. All else is the same, so
//! everything here is written once, for a [`Silo`].

use std::fmt;
use std::hash::Hash;

mod sealed {
    pub trait Sealed {}
}

/// A side that keeps an outbox: [`Cell`] or [`Control`].
pub trait Silo:
    sealed::Sealed + Copy + Eq + Ord + Hash + fmt::Debug + Send + Sync + Sized + 'static
{
    /// What a message says about where it goes, beyond its shard.
    type Target: Target;

    /// `cell` or `control`, for people.
    const NAME: &'static str;

    /// The table that holds the outbox where no other is named.
    const TABLE: &'static str;

    /// The table that holds the tombstones that arrive here, where no other is named.
    const TOMBSTONES: &'static str;

    /// Whether a message carries the name of a cell.
    const TARGETED: bool;
}

/// The side of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cell {}

/// The side of control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Control {}

impl sealed::Sealed for Cell {}
impl sealed::Sealed for Control {}

impl Silo for Cell {
    type Target = Here;
    const NAME: &'static str = "cell";
    const TABLE: &'static str = "sentry_regionoutbox";
    const TOMBSTONES: &'static str = "sentry_regiontombstone";
    const TARGETED: bool = false;
}

impl Silo for Control {
    type Target = CellName;
    const NAME: &'static str = "control";
    const TABLE: &'static str = "sentry_controloutbox";
    const TOMBSTONES: &'static str = "sentry_controltombstone";
    const TARGETED: bool = true;
}

/// Where a message goes, beyond its shard.
pub trait Target:
    sealed::Sealed + Clone + Eq + Ord + Hash + fmt::Debug + Send + Sync + Sized + 'static
{
    /// The cell that it names.
    fn cell(&self) -> Option<&CellName>;

    /// What a row names; nothing where a name is needed and the row has none, or has one that no
    /// cell can have.
    fn from_row(cell: Option<String>) -> Option<Self>;
}

/// A cell's message names no target: it is for control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Here;

/// The name of a cell, as control's tables have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName(String);

/// A name that no cell can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cell's name has 1 to 48 printable characters, and this one has {length}")]
pub struct BadCellName {
    /// Its length, in characters.
    pub length: usize,
}

impl CellName {
    /// A cell's name.
    ///
    /// # Errors
    ///
    /// When it is empty, longer than 48 characters (what the column holds) or not printable.
    pub fn new(name: impl Into<String>) -> Result<Self, BadCellName> {
        let name = name.into();
        let length = name.chars().count();
        if (1..=48).contains(&length) && !name.chars().any(char::is_control) {
            Ok(Self(name))
        } else {
            Err(BadCellName { length })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for CellName {
    type Err = BadCellName;

    fn from_str(name: &str) -> Result<Self, BadCellName> {
        Self::new(name)
    }
}

impl sealed::Sealed for Here {}
impl sealed::Sealed for CellName {}

impl Target for Here {
    fn cell(&self) -> Option<&CellName> {
        None
    }

    fn from_row(_: Option<String>) -> Option<Self> {
        Some(Self)
    }
}

impl Target for CellName {
    fn cell(&self) -> Option<&CellName> {
        Some(self)
    }

    fn from_row(cell: Option<String>) -> Option<Self> {
        Self::new(cell?).ok()
    }
}
