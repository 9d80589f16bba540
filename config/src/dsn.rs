//! Connection strings, and the variables that fill them.

use std::fmt;

use crate::fault::quoted;

/// A libpq connection string, as `key=value` pairs or a URI, with its variables filled in.
///
/// It may hold a password, so nothing prints it: whoever connects calls [`Dsn::expose`]. That of a
/// checked fleet is one that [`Parameters`](crate::Parameters) takes.
#[derive(Clone, PartialEq, Eq)]
pub struct Dsn(String);

impl Dsn {
    /// Takes a connection string as it is, without filling in variables.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The connection string itself. It must reach no log, error, history or page.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dsn(…)")
    }
}

impl fmt::Display for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Looks a variable of the environment up.
pub type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Fills each `${NAME}` in `text` from `env`; `$${` stands for `${` itself. What is filled in is
/// not looked at again. The error says what is wrong, and never holds `text`.
pub(crate) fn fill(text: &str, env: &Env<'_>) -> Result<String, Unfilled> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            filled.push_str(&rest[..at]);
            filled.push('{');
            rest = &rest[at + 2..];
            continue;
        }
        filled.push_str(&rest[..at]);
        let (name, after) = rest[at + 2..].split_once('}').ok_or(Unfilled::Unclosed)?;
        if !is_variable(name) {
            return Err(Unfilled::NotAName);
        }
        let value = env(name).ok_or_else(|| Unfilled::NotSet(name.to_owned()))?;
        filled.push_str(&value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Why a text could not be filled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfilled {
    Unclosed,
    NotAName,
    NotSet(String),
}

impl Unfilled {
    /// What was found and what was expected.
    pub(crate) fn told(&self) -> (String, &'static str) {
        match self {
            Unfilled::Unclosed => (
                "${ without its }".to_owned(),
                "${NAME}, or $${ for the characters ${ themselves",
            ),
            Unfilled::NotAName => (
                "${…} around what is no variable's name".to_owned(),
                "${NAME} of letters, digits and underscores",
            ),
            Unfilled::NotSet(name) => (
                format!("the variable {} is not set", quoted(name)),
                "it in the environment",
            ),
        }
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "USER_1" => Some("ann".to_owned()),
            "NESTED" => Some("${USER_1}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_filled_once() {
        let filled = |text| fill(text, &env).unwrap();
        assert_eq!(
            filled("user=${USER_1} host=${USER_1}.x"),
            "user=ann host=ann.x"
        );
        assert_eq!(filled("password=${NESTED}"), "password=${USER_1}");
        assert_eq!(filled("password=$${USER_1}$"), "password=${USER_1}$");
        assert_eq!(filled("$ { } plain"), "$ { } plain");
    }

    #[test]
    fn a_variable_that_cannot_be_filled_is_named_and_nothing_else_is() {
        let refused = |text| fill(text, &env).unwrap_err();
        assert_eq!(
            refused("secret ${NONE}"),
            Unfilled::NotSet("NONE".to_owned())
        );
        assert_eq!(refused("secret ${USER_1"), Unfilled::Unclosed);
        assert_eq!(refused("secret ${a b}"), Unfilled::NotAName);
        assert_eq!(refused("secret ${}"), Unfilled::NotAName);
    }

    /// Guards promise 10.
    #[test]
    fn a_dsn_never_prints_itself() {
        let dsn = Dsn::new("password=hunter2");
        assert!(!format!("{dsn} {dsn:?} {dsn:#?}").contains("hunter2"));
    }
}
