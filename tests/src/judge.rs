//! What must be so when a move has ended, however it ended.

use std::time::Duration;

use anyhow::{Result, ensure};
use monarch_demo::observe::{Census, Whose, census, leftovers};
use monarch_demo::{Cell, Fleet, Organization, tables};

use crate::PATIENCE;

/// The rows of evil-corp in a cell.
///
/// # Errors
///
/// When a database does not answer.
pub async fn org_on(cell: &Cell) -> Result<Census> {
    census(cell, &tables(&Organization::EVIL_CORP), Whose::Theirs).await
}

/// The rows of everybody but evil-corp, on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbours {
    source: Census,
    sink: Census,
}

impl Neighbours {
    /// What they have now.
    ///
    /// # Errors
    ///
    /// When a database does not answer.
    pub async fn of(fleet: &Fleet) -> Result<Self> {
        let tables = tables(&Organization::EVIL_CORP);
        Ok(Self {
            source: census(&fleet.source, &tables, Whose::Others).await?,
            sink: census(&fleet.sink, &tables, Whose::Others).await?,
        })
    }

    /// Fails when a row of theirs on the sink is not what it was.
    ///
    /// # Errors
    ///
    /// As said, and when a database does not answer.
    pub async fn assert_untouched_on_sink(&self, fleet: &Fleet) -> Result<()> {
        let now = Self::of(fleet).await?;
        ensure!(
            now.sink == self.sink,
            "others' rows changed on the sink: {}",
            told(&self.sink, &now.sink)
        );
        Ok(())
    }

    /// Fails when a row of theirs is not what it was, on either side.
    ///
    /// # Errors
    ///
    /// As [`Self::assert_untouched_on_sink`].
    pub async fn assert_untouched(&self, fleet: &Fleet) -> Result<()> {
        self.assert_untouched_on_sink(fleet).await?;
        let now = Self::of(fleet).await?;
        ensure!(
            now.source == self.source,
            "others' rows changed on the source: {}",
            told(&self.source, &now.source)
        );
        Ok(())
    }
}

/// Waits until neither cell has a slot, publication, origin, position row, prepared transaction or
/// session of a move. A server takes a moment to see that a connection is gone; nothing else may
/// take any time once a move has ended.
///
/// # Errors
///
/// When something stays; the message lists it.
pub async fn assert_nothing_left(fleet: &Fleet) -> Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE / 6;
    loop {
        let mut left = leftovers(&fleet.source).await?;
        left.extend(leftovers(&fleet.sink).await?);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < deadline,
            "left behind: {left:#?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether a text has a value in it, in the clear or within Base64, which is how Temporal shows
/// payloads.
#[must_use]
pub fn tells(text: &str, value: &str) -> bool {
    let encoded = |before| text.contains(&within_base64(value, before));
    text.contains(value) || (0..3).any(encoded)
}

/// What of a value's Base64 is the same whatever stands around it, if `before` bytes of the first
/// group of three are not its own.
fn within_base64(value: &str, before: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = vec![0; before];
    bytes.extend(value.bytes());
    let digits = bytes.chunks_exact(3).flat_map(|three| {
        let bits = three
            .iter()
            .fold(0, |bits, &byte| (bits << 8) | usize::from(byte));
        [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift) & 63]))
    });
    // The digits that bits of what stands before have a part in.
    let shared = [0, 2, 3][before];
    digits.skip(shared).collect()
}

/// The tables that differ, with both counts.
fn told(before: &Census, after: &Census) -> String {
    let mut lines = Vec::new();
    for (store, tables) in before {
        for (table, rows) in tables {
            let now = after.get(store).and_then(|tables| tables.get(table));
            if now != Some(rows) {
                let now = now.map(ToString::to_string).unwrap_or_default();
                lines.push(format!("{store} {table}: {rows} -> {now}"));
            }
        }
    }
    lines.join("; ")
}
