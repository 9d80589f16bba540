//! SHA-256 over texts, as payloads and comments carry it.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// A digest in the making. Each text is preceded by its length, so that no two sequences of texts
/// run together to the same bytes.
#[derive(Default)]
pub(crate) struct TextDigest(Sha256);

impl TextDigest {
    /// The digest of one text.
    pub(crate) fn of(text: &str) -> String {
        let mut digest = Self::default();
        digest.add(text);
        digest.finish()
    }

    pub(crate) fn add(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text);
    }

    /// In hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let bytes = self.0.finalize();
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}
