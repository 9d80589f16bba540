//! A key as data, and what each kind of bucket can hold of it.
//!
//! A key comes out of a row and may be any text. It names exactly one object or none: a library that
//! tidies it up (`a//b`, `/a`, `a/../b`) would read another tenant's object and report success. So
//! a key is either spelled to the store as it is, byte for byte, or refused by name.

use std::fmt;

use object_store::path::{Path, PathPart};

/// The key of an object, as it stands in a row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobKey(String);

impl BlobKey {
    /// Any text is a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobKey {
    /// In quotes, with control characters, bidirectional marks and quotes escaped: a key must not
    /// be able to forge a line of a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// No bucket holds a longer key.
        const SHOWN: usize = 1_024;
        let shown: String = self.0.chars().take(SHOWN).collect();
        write!(f, "{shown:?}")?;
        if shown.len() < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a bucket cannot hold a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is empty.
    #[error("it is empty")]
    Empty,
    /// It is too long.
    #[error("{found} bytes with the place's prefix, at most {limit}")]
    TooLong {
        /// Its length.
        found: usize,
        /// The store's limit.
        limit: usize,
    },
    /// A part between slashes is too long for a file's name.
    #[error("a part of {found} bytes between slashes, at most {limit}")]
    LongPart {
        /// The part's length.
        found: usize,
        /// The file system's limit.
        limit: usize,
    },
    /// A part between slashes is `.` or `..`.
    #[error("a part between slashes is . or ..: on the way such a name becomes another")]
    Dots,
    /// It has control characters.
    #[error("it has control characters")]
    Control,
    /// It begins or ends with a slash, or has two in a row.
    #[error("it begins or ends with a slash, or has two in a row")]
    Slashes,
    /// It has a backslash, which this store takes for a slash.
    #[error("it has a backslash, which this store takes for a slash")]
    Backslash,
    /// A part ends with a dot, which this store drops.
    #[error("a part of it ends with a dot, which this store drops")]
    TrailingDot,
    /// It looks like one of the library's own files in the making.
    #[error("it ends in # and digits, the mark of a file in the making")]
    Staging,
}

/// What kind of store holds the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Files,
    S3,
    Gcs,
    Azure,
}

/// How a key is spelled to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Below the bucket.
    InBucket(Path),
    /// Below the service: the bucket's name is the first part. The library cannot spell a leading
    /// slash by itself.
    InService(Path),
}

/// How `key` is spelled below `prefix`, which is empty or ends with a slash, in `bucket`.
pub(crate) fn spell(
    kind: Kind,
    bucket: &str,
    prefix: &str,
    key: &BlobKey,
) -> Result<Spelling, Refusal> {
    if key.0.is_empty() {
        return Err(Refusal::Empty);
    }
    let whole = format!("{prefix}{}", key.0);
    check_length(kind, &whole)?;
    for part in whole.split('/') {
        check_part(kind, part)?;
    }
    match kind {
        Kind::Files => {
            let parts: Vec<&str> = whole.split('/').collect();
            if parts.contains(&"") {
                return Err(Refusal::Slashes);
            }
            let last = parts.last().copied().unwrap_or_default();
            if let Some((_, digits)) = last.split_once('#')
                && !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit())
            {
                return Err(Refusal::Staging);
            }
        }
        Kind::Azure if whole.contains('\\') => return Err(Refusal::Backslash),
        Kind::Azure | Kind::Gcs if whole.starts_with('/') => return Err(Refusal::Slashes),
        Kind::Azure if whole.ends_with('/') => return Err(Refusal::Slashes),
        Kind::S3 if whole.starts_with('/') => {
            return Ok(Spelling::InService(exact(&format!("{bucket}/{whole}"))?));
        }
        Kind::S3 | Kind::Gcs | Kind::Azure => {}
    }
    Ok(Spelling::InBucket(exact(&whole)?))
}

fn check_length(kind: Kind, whole: &str) -> Result<(), Refusal> {
    let (found, limit) = match kind {
        // What a path may be, less room for the folder that the place names.
        Kind::Files => (whole.len(), 3_072),
        Kind::S3 | Kind::Gcs => (whole.len(), 1_024),
        // Azure counts characters as UTF-16 has them.
        Kind::Azure => (whole.encode_utf16().count(), 1_024),
    };
    if found > limit {
        return Err(Refusal::TooLong { found, limit });
    }
    Ok(())
}

fn check_part(kind: Kind, part: &str) -> Result<(), Refusal> {
    const NAME: usize = 255;
    // A file in the making has a longer name for a while.
    const ROOM: usize = 4;
    if part == "." || part == ".." {
        return Err(Refusal::Dots);
    }
    if part.chars().any(|c| c.is_ascii_control()) {
        return Err(Refusal::Control);
    }
    match kind {
        Kind::Files if part.len() > NAME - ROOM => Err(Refusal::LongPart {
            found: part.len(),
            limit: NAME - ROOM,
        }),
        Kind::Azure if part.ends_with('.') => Err(Refusal::TrailingDot),
        _ => Ok(()),
    }
}

/// The path that is spelled exactly so. Empty parts are joined one by one: parsing refuses them.
fn exact(whole: &str) -> Result<Path, Refusal> {
    let mut path = Path::ROOT;
    for part in whole.split('/') {
        path = path.join(PathPart::parse(part).map_err(|_| Refusal::Control)?);
    }
    if path.as_ref() == whole {
        Ok(path)
    } else {
        Err(Refusal::Slashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 4] = [Kind::Files, Kind::S3, Kind::Gcs, Kind::Azure];

    fn spelled(kind: Kind, prefix: &str, key: &str) -> Result<String, Refusal> {
        match spell(kind, "bucket", prefix, &BlobKey::new(key))? {
            Spelling::InBucket(path) => Ok(path.to_string()),
            Spelling::InService(path) => Ok(format!("service:{path}")),
        }
    }

    /// Guards the other tenants' objects: what is accepted is spelled as it is, in every store.
    #[test]
    fn a_key_is_spelled_as_it_is_or_refused() {
        let keys = [
            "a",
            "a b/c d",
            "ä/🦀/日本",
            "100%/%2e%2E/%00",
            "a\\b",
            "~`|<>{}^[]\"'#?*&=+,;:@$!()",
            "a//b",
            "/a",
            "//",
            "a/",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "a\nb",
            "a\u{7f}",
            "a#1",
            "a.",
        ];
        for kind in ALL {
            for prefix in ["", "p/", "p/q/"] {
                for key in keys {
                    let whole = format!("{prefix}{key}");
                    match spelled(kind, prefix, key) {
                        Ok(spelled) if prefix.is_empty() && key.starts_with('/') => {
                            assert_eq!(spelled, format!("service:bucket/{key}"));
                        }
                        Ok(spelled) => assert_eq!(spelled, whole, "{kind:?}"),
                        Err(_) => {}
                    }
                }
            }
        }
    }

    #[test]
    fn each_store_refuses_what_it_cannot_hold() {
        use Refusal as R;
        for kind in ALL {
            assert_eq!(spelled(kind, "", ""), Err(R::Empty));
            for key in ["..", "../a", "a/../b", "./a"] {
                assert_eq!(spelled(kind, "p/", key), Err(R::Dots), "{kind:?} {key}");
            }
            assert_eq!(spelled(kind, "", "a\tb"), Err(R::Control));
            assert!(spelled(kind, "", "ä/b c").is_ok());
        }
        let long = "x".repeat(1_024);
        for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
            assert!(spelled(kind, "", &long).is_ok());
            let refused = R::TooLong {
                found: 1_026,
                limit: 1_024,
            };
            assert_eq!(spelled(kind, "p/", &long), Err(refused));
        }
        let part = R::LongPart {
            found: 1_024,
            limit: 251,
        };
        assert_eq!(spelled(Kind::Files, "", &long), Err(part));
        assert_eq!(spelled(Kind::Files, "", "a/b#12"), Err(R::Staging));
        assert!(spelled(Kind::Files, "", "a#1/b#x#").is_ok());
        for key in ["/a", "a/", "a//b"] {
            assert_eq!(spelled(Kind::Files, "", key), Err(R::Slashes));
            assert!(spelled(Kind::S3, "", key).is_ok());
        }
        assert_eq!(spelled(Kind::Azure, "", "a\\b"), Err(R::Backslash));
        assert_eq!(spelled(Kind::Azure, "", "a./b"), Err(R::TrailingDot));
    }

    #[test]
    fn a_key_forges_no_line_of_a_log() {
        let key = BlobKey::new("a\n\u{202e}\"b");
        assert_eq!(key.to_string(), "\"a\\n\\u{202e}\\\"b\"");
        let long = BlobKey::new("x".repeat(5_000)).to_string();
        assert!(long.len() < 1_100 && long.ends_with("(5000 bytes)"));
    }
}
