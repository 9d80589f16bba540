//! A table's name. It is read apart once, here, so that no query is ever built from a name whose
//! dot may or may not have been a separator.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::InvalidId;

/// A table, told by its schema and its name as the catalog writes them.
///
/// Written `table`, or `schema.table` outside `public`. Nothing is folded to lower case. A part
/// that holds a dot or a double quote is written in double quotes, with a quote inside doubled,
/// as in SQL: `"my.table"`, `app."say ""hi"""`. Two spellings of one table are equal, and both
/// print as the shortest one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TableName {
    text: String,
    schema: String,
    relation: String,
}

const WHAT: &str = "table name";
const EXPECTED: &str = "expected table or schema.table, each part 1 to 63 bytes without control \
                        characters, in double quotes if it holds a dot or a quote";
const DEFAULT_SCHEMA: &str = "public";
/// What Postgres keeps of an identifier.
const PART_BYTES: usize = 63;

impl TableName {
    /// The table `relation` of `schema`, both as the catalog writes them, without quotes.
    pub fn new(schema: &str, relation: &str) -> Result<Self, InvalidId> {
        if !is_part(schema) || !is_part(relation) {
            return Err(InvalidId::new(WHAT, relation, EXPECTED));
        }
        let text = if schema == DEFAULT_SCHEMA {
            written(relation)
        } else {
            format!("{}.{}", written(schema), written(relation))
        };
        Ok(Self {
            text,
            schema: schema.to_owned(),
            relation: relation.to_owned(),
        })
    }

    /// The name in its shortest spelling. It is not quoted for SQL.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The schema as `pg_namespace` writes it; `public` where none was written.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table as `pg_class` writes it, without its schema.
    pub fn relation(&self) -> &str {
        &self.relation
    }
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.len() <= PART_BYTES && !part.chars().any(char::is_control)
}

fn written(part: &str) -> String {
    if part.contains(['.', '"']) {
        format!("\"{}\"", part.replace('"', "\"\""))
    } else {
        part.to_owned()
    }
}

/// Takes the first part off `text`: what it says, and what follows the dot after it.
fn split_part(text: &str) -> Option<(String, Option<&str>)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (part, rest) = match text.split_once('.') {
            Some((part, rest)) => (part, Some(rest)),
            None => (text, None),
        };
        return (!part.contains('"')).then(|| (part.to_owned(), rest));
    };
    let mut part = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != '"' {
            part.push(c);
        } else if chars.next_if(|(_, next)| *next == '"').is_some() {
            part.push('"');
        } else {
            let rest = &quoted[at + 1..];
            if rest.is_empty() {
                return Some((part, None));
            }
            return rest.strip_prefix('.').map(|rest| (part, Some(rest)));
        }
    }
    None
}

impl FromStr for TableName {
    type Err = InvalidId;

    fn from_str(s: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new(WHAT, s, EXPECTED);
        let (first, rest) = split_part(s).ok_or_else(invalid)?;
        let Some(rest) = rest else {
            return Self::new(DEFAULT_SCHEMA, &first).map_err(|_| invalid());
        };
        match split_part(rest).ok_or_else(invalid)? {
            (relation, None) => Self::new(&first, &relation).map_err(|_| invalid()),
            (_, Some(_)) => Err(invalid()),
        }
    }
}

impl TryFrom<String> for TableName {
    type Error = InvalidId;

    fn try_from(s: String) -> Result<Self, InvalidId> {
        s.parse()
    }
}

impl From<TableName> for String {
    fn from(name: TableName) -> String {
        name.text
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(String, String, String)> {
        let name: TableName = text.parse().ok()?;
        Some((
            name.schema().to_owned(),
            name.relation().to_owned(),
            name.to_string(),
        ))
    }

    /// Guards promise 1: a dot in a name never sends a statement to another table.
    #[test]
    fn a_dot_separates_only_outside_quotes() {
        let is = |text: &str, schema: &str, relation: &str, written: &str| {
            let expected = (schema.into(), relation.into(), written.into());
            assert_eq!(parts(text), Some(expected), "{text}");
        };
        is("users", "public", "users", "users");
        is("public.users", "public", "users", "users");
        is("\"users\"", "public", "users", "users");
        is("app.Users", "app", "Users", "app.Users");
        is("\"my.table\"", "public", "my.table", "\"my.table\"");
        is(
            "app.\"say \"\"hi\"\"\"",
            "app",
            "say \"hi\"",
            "app.\"say \"\"hi\"\"\"",
        );
        is("\"a.b\".\"c.d\"", "a.b", "c.d", "\"a.b\".\"c.d\"");
        is("größe", "public", "größe", "größe");
    }

    #[test]
    fn a_name_that_postgres_could_not_keep_is_refused() {
        let long = "x".repeat(64);
        for bad in [
            "", ".", "a.", ".a", "a.b.c", "\"", "\"\"", "\"a", "\"a\"b", "a\"b", "a\nb", &long,
        ] {
            assert_eq!(parts(bad), None, "{bad:?} was taken");
        }
    }

    #[test]
    fn a_name_reads_back_as_it_prints() {
        for (schema, relation) in [("public", "a\".b"), ("x.y", "\"\""), ("Public", "t")] {
            let name = TableName::new(schema, relation).unwrap();
            assert_eq!(name.as_str().parse(), Ok(name));
        }
    }
}
