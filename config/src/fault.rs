//! What is wrong with the files, all at once: an operator should mend a file in one go, not be
//! sent back to it fault by fault.

use std::fmt;

/// One thing that is wrong, and where. Never holds the text of a DSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, as it was given.
    pub file: String,
    /// The line, from 1; none when the file could not be read at all.
    pub line: Option<usize>,
    /// The path of keys to the fault, as `stores.default.type`; empty for the file itself. A key
    /// that holds a dot stands in double quotes.
    pub key: String,
    /// What was found there.
    pub found: String,
    /// What would have been accepted.
    pub expected: String,
    /// A name that is there and differs by little from the one that is not.
    pub suggestion: Option<String>,
}

impl fmt::Display for Fault {
    /// `manifest.yaml:7: stores.default.typ: unknown key, expected … (did you mean "type"?)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}, expected {}", self.found, self.expected)?;
        match &self.suggestion {
            Some(name) => write!(f, " (did you mean {name:?}?)"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong, by file and line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// The faults, by file and line.
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }

    /// These faults, then those of another file.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl fmt::Display for Faults {
    /// One fault a line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Where in a file something stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) line: usize,
}

/// The faults of one file, while it is being read.
pub(crate) struct Report {
    file: String,
    faults: Vec<Fault>,
}

/// Looking for near misses costs a comparison with every name; past this many faults the reader
/// has seen the pattern, and a hostile file costs no more.
const SUGGESTIONS: usize = 100;

impl Report {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            faults: Vec::new(),
        }
    }

    /// Adds a fault of the file as a whole.
    pub(crate) fn file_fault(
        &mut self,
        line: Option<usize>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.faults.push(Fault {
            file: self.file.clone(),
            line,
            key: String::new(),
            found: found.into(),
            expected: expected.into(),
            suggestion: None,
        });
    }

    /// Adds a fault at `place`.
    pub(crate) fn fault(
        &mut self,
        place: &Place,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.file_fault(Some(place.line), found, expected);
        if let Some(fault) = self.faults.last_mut() {
            fault.key.clone_from(&place.key);
        }
    }

    /// Adds a fault at `place` about `name`, which is none of `known`.
    pub(crate) fn unknown<'a>(
        &mut self,
        place: &Place,
        name: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        self.fault(place, found, expected);
        if self.faults.len() <= SUGGESTIONS {
            self.suggest(near_miss(name, known));
        }
    }

    /// Says of the fault just added what may have been meant.
    pub(crate) fn suggest(&mut self, meant: Option<String>) {
        if let Some(fault) = self.faults.last_mut() {
            fault.suggestion = meant;
        }
    }

    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// The faults by line.
    pub(crate) fn into_faults(mut self) -> Faults {
        self.faults.sort_by_key(|fault| fault.line);
        Faults(self.faults)
    }
}

/// The name nearest to `name`, if it could be a slip of the hand: another case, or one edit per
/// three characters.
pub fn near_miss<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    /// Comparing costs the product of the lengths, and is done for every name.
    const CHARS: usize = 64;
    const NAMES: usize = 2_000;
    let length = name.chars().count();
    if length > CHARS {
        return None;
    }
    let allowed = (length / 3).max(1);
    known
        .into_iter()
        .take(NAMES)
        .filter(|known| known.len() <= 4 * CHARS)
        .filter_map(|known| {
            let distance = if known.eq_ignore_ascii_case(name) {
                0
            } else {
                strsim::damerau_levenshtein(known, name)
            };
            (distance <= allowed).then_some((distance, known))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known.to_owned())
}

/// A name from a file in quotes, or a word for it where it may be a DSN that slipped into the
/// place of a name.
pub(crate) fn quoted(text: &str) -> String {
    const CHARS: usize = 80;
    if text.contains("://") || text.contains('=') {
        return "(not shown: it may be a DSN)".to_owned();
    }
    let mut shown: String = text.chars().take(CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_hand_is_a_near_miss_and_another_word_is_not() {
        let known = ["group", "project", "grouphash"];
        assert_eq!(near_miss("groop", known).as_deref(), Some("group"));
        assert_eq!(near_miss("PROJECT", known).as_deref(), Some("project"));
        assert_eq!(near_miss("gruophash", known).as_deref(), Some("grouphash"));
        assert_eq!(near_miss("team", known), None);
        assert_eq!(near_miss("de", ["us"]), None);
    }
}
