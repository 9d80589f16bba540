//! The files that stand in the program. Their addresses name their content, so that a browser may
//! keep them for ever and never has an old one.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// A file.
pub(crate) struct Asset {
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
    name: LazyLock<String>,
}

pub(crate) static STYLE: Asset = Asset {
    kind: "text/css; charset=utf-8",
    text: include_str!("../../assets/dashboard.css"),
    name: LazyLock::new(|| named_by(STYLE.text, "css")),
};

pub(crate) static SCRIPT: Asset = Asset {
    kind: "text/javascript; charset=utf-8",
    text: include_str!("../../assets/dashboard.js"),
    name: LazyLock::new(|| named_by(SCRIPT.text, "js")),
};

pub(crate) static ICON: Asset = Asset {
    kind: "image/svg+xml",
    text: include_str!("../../assets/icon.svg"),
    name: LazyLock::new(|| named_by(ICON.text, "svg")),
};

impl Asset {
    pub(crate) fn address(&self) -> String {
        format!("/assets/{}", *self.name)
    }
}

fn named_by(text: &str, ending: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut name = digest.iter().take(8).fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    });
    name.push('.');
    name.push_str(ending);
    name
}

/// The file of that name.
pub(crate) fn named(name: &str) -> Option<&'static Asset> {
    let all = [&STYLE, &SCRIPT, &ICON];
    all.into_iter().find(|asset| *asset.name == name)
}
