//! What is wrong with a connection string: where and what, never the text around it, which may be
//! part of a password.

/// A connection string, or what the environment adds to it, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DsnError {
    /// A word of a key=value string has no `=`.
    #[error(
        "word {word} of the connection string has no \"=\" (quote values with spaces: key='…')"
    )]
    NoValue {
        /// Which word, counted from 1.
        word: usize,
    },
    /// A quoted value does not end.
    #[error("the quoted value of word {word} does not end")]
    UnterminatedQuote {
        /// Which word, counted from 1.
        word: usize,
    },
    /// A part of a URI is not what a URI has there.
    #[error("the URI's {part} is malformed: {expected}")]
    Uri {
        /// Which part.
        part: &'static str,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// What follows an unquoted password is no parameter, and may be the rest of the password.
    #[error("what follows the password is no parameter (quote it: password='…')")]
    AfterPassword,
    /// A key that libpq does not have either. It is not named: what stands there may be a part of a
    /// password that was not quoted or encoded.
    #[error(
        "the connection string's parameter {number} is none that libpq has{}",
        meant(near)
    )]
    UnknownKey {
        /// Which parameter, counted from 1: in a URI, user, password, host, port and database come
        /// first, those that are given.
        number: usize,
        /// The key that libpq has and that differs by a slip of the hand.
        near: Option<String>,
    },
    /// A key that libpq has and Monarch does not.
    #[error("{origin} is not supported: {why}")]
    Unsupported {
        /// The key, or the environment variable that stands for it.
        origin: String,
        /// Why, or what to use instead.
        why: &'static str,
    },
    /// A value is not one that its key can have.
    #[error("{origin} is not valid: expected {expected}")]
    InvalidValue {
        /// The key, or the environment variable that stands for it.
        origin: String,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// Lists that belong together have different lengths.
    #[error("{what} has {given} entries for {hosts} hosts")]
    ListLength {
        /// `port` or `hostaddr`.
        what: &'static str,
        /// Its entries.
        given: usize,
        /// The hosts.
        hosts: usize,
    },
    /// A parameter needs a value of another one.
    #[error("{given} needs {needed}")]
    Conflict {
        /// The parameter and its value.
        given: &'static str,
        /// What the other one would have to be, and why.
        needed: &'static str,
    },
    /// The operating system does not know its own user, and the string names none. Known only to
    /// whoever connects.
    #[error("no user is given, and the operating system's user has no name")]
    NoUser,
}

fn meant(near: &Option<String>) -> String {
    near.as_ref()
        .map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"))
}

impl DsnError {
    /// What was found, and what would have been accepted, as a fault of a file tells it.
    pub(crate) fn told(&self) -> (String, String) {
        let quoting = "key=value, and a value with spaces in quotes: password='…'";
        let (found, expected) = match self {
            DsnError::NoValue { word } => (format!("word {word} has no \"=\""), quoting),
            DsnError::UnterminatedQuote { word } => (
                format!("the quoted value of word {word} does not end"),
                "a ' at its end, and \\' for one in it",
            ),
            DsnError::Uri { part, expected } => {
                (format!("the URI's {part} is malformed"), *expected)
            }
            DsnError::AfterPassword => (
                "what follows the password is no parameter".to_owned(),
                quoting,
            ),
            DsnError::UnknownKey { number, .. } => (
                format!(
                    "parameter {number} is unknown (not shown: it may be a part of a password)"
                ),
                "one that libpq has",
            ),
            DsnError::Unsupported { origin, why } => {
                return (format!("{origin} is not supported"), format!("none: {why}"));
            }
            DsnError::InvalidValue { origin, expected } => {
                (format!("{origin} is not valid"), *expected)
            }
            DsnError::ListLength { what, given, hosts } => (
                format!("{what} has {given} entries for {hosts} hosts"),
                "one for each host",
            ),
            DsnError::Conflict { given, needed } => ((*given).to_owned(), *needed),
            DsnError::NoUser => ("no user".to_owned(), "user=…"),
        };
        (found, expected.to_owned())
    }
}
