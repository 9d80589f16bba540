//! A walk over the tree that knows the path of keys it took, so that every fault can name it.

use std::collections::HashMap;

use crate::document::{Key, Node, Value};
use crate::fault::{Place, Report, quoted};

/// A node and the keys that lead to it.
#[derive(Debug, Clone)]
pub(crate) struct At<'a> {
    pub(crate) node: &'a Node,
    /// The line is that of the key, or of the node where it has none.
    pub(crate) place: Place,
}

/// A mapping whose keys are names of the operator's choosing, each once.
pub(crate) type Entries<'a> = Vec<(&'a str, At<'a>)>;

impl<'a> At<'a> {
    pub(crate) fn root(node: &'a Node) -> Self {
        Self {
            node,
            place: Place {
                key: String::new(),
                line: node.line,
            },
        }
    }

    fn child(&self, key: &'a Key, node: &'a Node) -> Self {
        Self {
            node,
            place: self.key_place(key),
        }
    }

    fn key_place(&self, key: &Key) -> Place {
        let name = if key.text.contains(['.', '=', '"']) || key.text.len() > 80 {
            quoted(&key.text)
        } else {
            key.text.clone()
        };
        let path = if self.place.key.is_empty() {
            name
        } else {
            format!("{}.{name}", self.place.key)
        };
        Place {
            key: path,
            line: key.line,
        }
    }

    /// Where the value stands, which may be lines below its key.
    pub(crate) fn value_place(&self) -> Place {
        Place {
            key: self.place.key.clone(),
            line: self.node.line,
        }
    }

    fn wrong_type(&self, expected: &str, report: &mut Report) {
        let found = format!("found {}", self.node.value.kind());
        let expected = match &self.node.value {
            Value::Number(_) | Value::Flag(..) if expected.starts_with("text") => {
                format!("{expected} (put it in quotes)")
            }
            _ => expected.to_owned(),
        };
        report.fault(&self.value_place(), found, expected);
    }

    /// The entries of a mapping, each key once. A repeated key is a fault, and its first value
    /// stands.
    pub(crate) fn entries(&self, expected: &str, report: &mut Report) -> Option<Entries<'a>> {
        let Value::Map(entries) = &self.node.value else {
            self.wrong_type(expected, report);
            return None;
        };
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
        let mut once = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            match seen.get(key.text.as_str()) {
                Some(line) => report.fault(
                    &self.key_place(key),
                    "repeated key",
                    format!("each key once (first on line {line})"),
                ),
                None => {
                    seen.insert(&key.text, key.line);
                    once.push((key.text.as_str(), self.child(key, node)));
                }
            }
        }
        Some(once)
    }

    /// The values of a mapping with fixed keys; any other key is a fault.
    pub(crate) fn fields(&self, known: &[&'static str], report: &mut Report) -> Option<Fields<'a>> {
        let listed = known.join(", ");
        let entries = self.entries(&format!("a mapping with {listed}"), report)?;
        let mut values = HashMap::new();
        for (name, at) in entries {
            if !known.contains(&name) {
                let expected = format!("one of {listed}");
                let known = known.iter().copied();
                report.unknown(&at.place, name, "unknown key", expected, known);
            } else if !matches!(at.node.value, Value::Null) {
                values.insert(name, at);
            }
        }
        Some(Fields {
            place: self.place.clone(),
            values,
        })
    }

    /// The items of a list.
    pub(crate) fn list(&self, expected: &str, report: &mut Report) -> Option<Vec<At<'a>>> {
        let Value::List(items) = &self.node.value else {
            self.wrong_type(expected, report);
            return None;
        };
        let at = |(index, node): (usize, &'a Node)| At {
            node,
            place: Place {
                key: format!("{}[{index}]", self.place.key),
                line: node.line,
            },
        };
        Some(items.iter().enumerate().map(at).collect())
    }

    /// A text that says something.
    pub(crate) fn text(&self, report: &mut Report) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) if !text.is_empty() => Some(text),
            Value::Text(_) => {
                report.fault(&self.value_place(), "found empty text", "text");
                None
            }
            _ => {
                self.wrong_type("text", report);
                None
            }
        }
    }

    /// A text or a number, as it was written.
    pub(crate) fn written(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            _ => None,
        }
    }

    /// A text that is a name of type `T`.
    pub(crate) fn name<T>(&self, report: &mut Report) -> Option<T>
    where
        T: std::str::FromStr<Err = monarch_model::InvalidId>,
    {
        parse_name(self.text(report)?, &self.value_place(), report)
    }

    /// True or false.
    pub(crate) fn flag(&self, report: &mut Report) -> Option<bool> {
        match self.node.value {
            Value::Flag(flag, _) => Some(flag),
            _ => {
                self.wrong_type("true or false", report);
                None
            }
        }
    }
}

/// A key or text as a name of type `T`.
pub(crate) fn parse_name<T>(text: &str, place: &Place, report: &mut Report) -> Option<T>
where
    T: std::str::FromStr<Err = monarch_model::InvalidId>,
{
    match text.parse() {
        Ok(name) => Some(name),
        Err(invalid) => {
            let expected = invalid.expected.trim_start_matches("expected ");
            let found = format!("{} is no {}", quoted(text), invalid.what);
            report.fault(place, found, expected);
            None
        }
    }
}

/// The values of a mapping with fixed keys. A key without a value is as good as absent.
pub(crate) struct Fields<'a> {
    pub(crate) place: Place,
    values: HashMap<&'a str, At<'a>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn optional(&self, key: &str) -> Option<&At<'a>> {
        self.values.get(key)
    }

    pub(crate) fn required(
        &self,
        key: &str,
        expected: &str,
        report: &mut Report,
    ) -> Option<&At<'a>> {
        let value = self.values.get(key);
        if value.is_none() {
            let place = Place {
                key: if self.place.key.is_empty() {
                    key.to_owned()
                } else {
                    format!("{}.{key}", self.place.key)
                },
                line: self.place.line,
            };
            report.fault(&place, "missing", expected);
        }
        value
    }
}
