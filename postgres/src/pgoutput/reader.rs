//! Bytes, integers and names out of a message.

use monarch_model::Lsn;

use crate::PgTime;

/// A message that pgoutput does not send, or not in this protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pgoutput message {}, byte {offset}: {problem}", kind.escape_ascii())]
pub struct DecodeError {
    /// The message's first byte.
    pub kind: u8,
    /// Where in the message it stops making sense, from 0.
    pub offset: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

/// Reads a message from front to back.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    pub(super) fn error(&self, problem: &'static str) -> DecodeError {
        DecodeError {
            kind: self.message.first().copied().unwrap_or(0),
            offset: self.at,
            problem,
        }
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        // `at` never passes the end.
        self.message.get(self.at..).unwrap_or_default()
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, _)) = self.rest().split_at_checked(length) else {
            return Err(self.error("it ends too early"));
        };
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.rest().first_chunk() {
            Some(array) => {
                self.at += N;
                Ok(*array)
            }
            None => Err(self.error("it ends too early")),
        }
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn)
    }

    pub(super) fn time(&mut self) -> Result<PgTime, DecodeError> {
        self.array().map(i64::from_be_bytes).map(PgTime)
    }

    /// Text up to a NUL.
    pub(super) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let rest = self.rest();
        let Some(length) = rest.iter().position(|&byte| byte == 0) else {
            return Err(self.error("a name that does not end"));
        };
        let Ok(name) = std::str::from_utf8(&rest[..length]) else {
            return Err(self.error("a name that is not UTF-8"));
        };
        self.at += length + 1;
        Ok(name)
    }

    /// A length of four bytes and as many bytes.
    pub(super) fn sized(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()?;
        // A length that does not fit into memory does not fit into the message either.
        self.bytes(usize::try_from(length).unwrap_or(usize::MAX))
    }

    pub(super) fn end(&self) -> Result<(), DecodeError> {
        if self.rest().is_empty() {
            Ok(())
        } else {
            Err(self.error("bytes after its end"))
        }
    }
}
