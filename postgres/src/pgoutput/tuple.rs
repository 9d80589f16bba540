//! The values of a row.

use super::reader::{DecodeError, Reader};

/// One value of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// Stored out of line and not changed: the message does not have it.
    Unchanged,
    /// In the type's text form.
    Text(&'a [u8]),
    /// In the type's binary form, which is not asked for.
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The text form, where the message has it.
    pub fn text(self) -> Option<&'a [u8]> {
        match self {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged | Value::Binary(_) => None,
        }
    }
}

impl std::fmt::Debug for Value<'_> {
    /// Of what kind it is and how long, and not what it is: it is somebody's.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Unchanged => f.write_str("Unchanged"),
            Value::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Value::Binary(binary) => write!(f, "Binary({} bytes)", binary.len()),
        }
    }
}

/// The values of a row, in the order of the relation's columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    /// Checked: `count` values and nothing else.
    bytes: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Takes a row out of a message, after having looked at all of it.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16()?;
        let start = reader.rest();
        for _ in 0..count {
            value(reader)?;
        }
        let length = start.len() - reader.rest().len();
        Ok(Self {
            count,
            bytes: &start[..length],
        })
    }

    /// How many values there are; a table without columns has none.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order.
    pub fn values(&self) -> Values<'a> {
        Values {
            left: self.count,
            reader: Reader::new(self.bytes),
        }
    }

    /// The value at `position`, from 0. It reads all that come before: to look at many, take
    /// [`values`](Self::values).
    pub fn get(&self, position: usize) -> Option<Value<'a>> {
        self.values().nth(position)
    }
}

impl std::fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.values()
    }
}

/// The values of a row, one after the other.
#[derive(Clone)]
pub struct Values<'a> {
    left: u16,
    reader: Reader<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The row was looked at when it was read: this does not fail.
        value(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

fn value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
    let unknown = reader.error("a value of unknown kind");
    match reader.u8()? {
        b'n' => Ok(Value::Null),
        b'u' => Ok(Value::Unchanged),
        b't' => reader.sized().map(Value::Text),
        b'b' => reader.sized().map(Value::Binary),
        _ => Err(unknown),
    }
}
