//! YAML as a tree that remembers its lines.
//!
//! Our own walk over this tree, not serde, reads the files: serde stops at the first fault and
//! cannot say on which line a key stands. Nothing here trusts the input: size, depth and the
//! growth by aliases are bounded, and the tree is built without recursion.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::fault::Report;

/// The largest file that is read, in bytes. A thousand tables take about 150 KB.
pub(crate) const MAX_BYTES: usize = 4 << 20;
/// The deepest nesting; the files need seven levels.
const MAX_DEPTH: usize = 32;
/// The most nodes, those that aliases repeat included.
const MAX_NODES: usize = 1 << 19;
/// The most nodes that aliases repeat, and the most bytes of text: a few bytes of an alias may
/// stand for much, and what they cost must stay in proportion to the file.
const MAX_REPEATED_NODES: usize = 1 << 15;
const MAX_REPEATED_BYTES: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    /// A plain word for true or false, and the word.
    Flag(bool, String),
    /// A plain number, as it was written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, repeated keys included.
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Value {
    /// What this is, in the words of a fault.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Flag(..) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// Reads the one document of a file. None if it cannot be walked; `report` then says why.
pub(crate) fn parse(text: &str, report: &mut Report) -> Option<Node> {
    if text.len() > MAX_BYTES {
        report_size(report);
        return None;
    }
    let mut tree = Tree::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let step = match event {
            Ok((event, span)) => tree.take(event, span),
            Err(error) => Err(Refusal {
                line: error.marker().line(),
                found: format!("not YAML: {}", error.info()),
                expected: "a YAML document",
            }),
        };
        if let Err(refusal) = step {
            report.file_fault(Some(refusal.line), refusal.found, refusal.expected);
            return None;
        }
    }
    if tree.root.is_none() {
        report.file_fault(None, "the file is empty", "a mapping");
    }
    tree.root
}

/// Reports a file of more than [`MAX_BYTES`].
pub(crate) fn report_size(report: &mut Report) {
    let expected = format!("at most {MAX_BYTES} bytes");
    report.file_fault(None, "the file is too large", expected);
}

/// Why no tree could be built.
struct Refusal {
    line: usize,
    found: String,
    expected: &'static str,
}

/// A collection whose end has not been seen.
struct Open {
    line: usize,
    anchor: usize,
    /// Of itself and what it holds so far.
    size: Size,
    items: Items,
}

/// How large a node is with all that it holds.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    /// Of text.
    bytes: usize,
}

impl Size {
    fn add(&mut self, other: Size) {
        self.nodes += other.nodes;
        self.bytes += other.bytes;
    }
}

enum Items {
    List(Vec<Node>),
    Map(Vec<(Key, Node)>, Option<Key>),
}

#[derive(Default)]
struct Tree {
    root: Option<Node>,
    open: Vec<Open>,
    /// What an alias stands for, with its size.
    anchors: HashMap<usize, (Node, Size)>,
    nodes: usize,
    /// Of what is held a second time.
    repeated: Size,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Refusal> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let size = Size {
                    nodes: 1,
                    bytes: text.len(),
                };
                let value = scalar(text.into_owned(), style, tag.as_deref(), line)?;
                self.count(1, line)?;
                self.place(Node { line, value }, anchor, size)
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), "seq", line)?;
                self.begin(line, anchor, Items::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), "map", line)?;
                self.begin(line, anchor, Items::Map(Vec::new(), None))
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some(&(_, size)) = self.anchors.get(&anchor) else {
                    return Err(Refusal {
                        line,
                        found: "an alias inside the node that it stands for".to_owned(),
                        expected: "an alias of an earlier node",
                    });
                };
                self.repeat(size, line)?;
                let node = self.anchors[&anchor].0.clone();
                self.place(node, 0, size)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err(Refusal {
                line,
                found: "a second document".to_owned(),
                expected: "one document in a file",
            }),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, line: usize, anchor: usize, items: Items) -> Result<(), Refusal> {
        if self.open.len() == MAX_DEPTH {
            return Err(Refusal {
                line,
                found: format!("nested deeper than {MAX_DEPTH} levels"),
                expected: "a shallower document",
            });
        }
        self.count(1, line)?;
        self.open.push(Open {
            line,
            anchor,
            size: Size { nodes: 1, bytes: 0 },
            items,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Refusal> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.items {
            Items::List(items) => Value::List(items),
            Items::Map(entries, _) => Value::Map(entries),
        };
        let node = Node {
            line: open.line,
            value,
        };
        self.place(node, open.anchor, open.size)
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), Refusal> {
        self.nodes += nodes;
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        Err(Refusal {
            line,
            found: format!("more than {MAX_NODES} nodes, with those that aliases repeat"),
            expected: "a smaller document",
        })
    }

    /// Counts what is about to be held a second time.
    fn repeat(&mut self, size: Size, line: usize) -> Result<(), Refusal> {
        self.repeated.add(size);
        let Size { nodes, bytes } = self.repeated;
        if nodes <= MAX_REPEATED_NODES && bytes <= MAX_REPEATED_BYTES {
            return self.count(size.nodes, line);
        }
        Err(Refusal {
            line,
            found: format!(
                "more than {MAX_REPEATED_NODES} nodes or {MAX_REPEATED_BYTES} bytes that aliases \
                 repeat"
            ),
            expected: "a smaller document",
        })
    }

    /// Puts a whole node where the innermost open collection wants it.
    fn place(&mut self, node: Node, anchor: usize, size: Size) -> Result<(), Refusal> {
        if anchor > 0 {
            self.repeat(size, node.line)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.size.add(size);
        match &mut open.items {
            Items::List(items) => items.push(node),
            Items::Map(entries, key) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(as_key(node)?),
            },
        }
        Ok(())
    }
}

/// The text of a key is what was written: `on` and `1` are names like any other.
fn as_key(node: Node) -> Result<Key, Refusal> {
    let line = node.line;
    let text = match node.value {
        Value::Text(text) | Value::Number(text) | Value::Flag(_, text) => text,
        Value::Null | Value::List(_) | Value::Map(_) => {
            return Err(Refusal {
                line,
                found: format!("{} as a key", node.value.kind()),
                expected: "a name",
            });
        }
    };
    Ok(Key { line, text })
}

fn refuse_tag(tag: Option<&Tag>, plain: &str, line: usize) -> Result<(), Refusal> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == plain) => Err(Refusal {
            line,
            found: "a tag".to_owned(),
            expected: "plain YAML without tags",
        }),
        _ => Ok(()),
    }
}

/// What a scalar says. The words for true and false are those of YAML 1.1 too, so that a file
/// written for a reader of that version means the same here.
fn scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<Value, Refusal> {
    if tag.is_some() {
        refuse_tag(tag, "str", line)?;
        return Ok(Value::Text(text));
    }
    if style != ScalarStyle::Plain {
        return Ok(Value::Text(text));
    }
    Ok(match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            Value::Flag(true, text)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Value::Flag(false, text)
        }
        _ if is_number(&text) => Value::Number(text),
        _ => Value::Text(text),
    })
}

fn is_number(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let mut report = Report::new("f.yaml");
        assert!(parse(text, &mut report).is_none(), "{text} was read");
        report.into_faults().to_string()
    }

    /// Guards the reader itself: no file, however made, costs more than its bound.
    #[test]
    fn depth_size_and_aliases_are_bounded() {
        assert!(fault(&"[".repeat(100)).contains("deeper than 32"));
        assert!(fault(&"- ".repeat(100_000)).contains("deeper than 32"));
        assert!(fault(&"x".repeat(MAX_BYTES + 1)).contains("too large"));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}, ", level - 1).repeat(8);
            bomb.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
        }
        assert!(fault(&bomb).contains("that aliases repeat"));
        let (many, again) = ("x, ".repeat(1_000), "*a, ".repeat(1_000));
        let wide = format!("a: &a [{many}]\nb: [{again}]\n");
        assert!(fault(&wide).contains("that aliases repeat"));
        assert!(fault("a: &a [*a]").contains("an alias inside the node"));
        // A few nodes of much text: each alias of two bytes would cost as much again.
        let text = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(100_000),
            "*a, ".repeat(1_000)
        );
        assert!(fault(&text).contains("bytes that aliases repeat"));
    }

    #[test]
    fn what_is_not_one_plain_document_is_refused_with_its_line() {
        insta::assert_snapshot!(fault(""), @"f.yaml: the file is empty, expected a mapping");
        for text in [
            "a: 1\n---\nb: 2\n",
            "a: !!python/name:os.system x",
            "a: *b",
            "a: [",
            "? [a]\n: b",
        ] {
            assert!(fault(text).starts_with("f.yaml:"), "{text}");
        }
    }
}
