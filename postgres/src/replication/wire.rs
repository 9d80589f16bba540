//! Messages over a transport, with the memory that they may take.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::message::backend::{Header, Message};
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::ServerError;
use crate::connect::Transport;

/// The least room that a read from the socket is given.
const READ_BYTES: usize = 64 * 1024;
/// How much room is made at a time for a message that has been announced: an announcement alone
/// does not take its length in memory.
const GROW_BYTES: usize = 4 * 1024 * 1024;
/// The tag and the length before a message's body.
const HEADER_BYTES: usize = 5;
/// The longest answer to a command. Rows of the replication commands and errors are short.
const ANSWER_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

pub(super) struct Wire {
    transport: Transport,
    input: BytesMut,
    output: BytesMut,
}

/// A message that lies in the input in full.
#[derive(Clone, Copy)]
pub(super) struct Framed {
    pub(super) tag: u8,
    total: usize,
}

impl Wire {
    pub(super) fn new(transport: Transport) -> Self {
        Self {
            transport,
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    pub(super) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Where messages are written before they are [sent](Self::poll_send).
    pub(super) fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Sends what was written. Given up half-way, it goes on where it was when polled again.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ServerError>> {
        while !self.output.is_empty() {
            let sent = ready!(Pin::new(&mut self.transport).poll_write(cx, &self.output))?;
            if sent == 0 {
                return Poll::Ready(Err(ServerError::Closed));
            }
            self.output.advance(sent);
        }
        ready!(Pin::new(&mut self.transport).poll_flush(cx))?;
        Poll::Ready(Ok(()))
    }

    pub(super) async fn send(&mut self) -> Result<(), ServerError> {
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Reads until a whole message lies in the input. Given up half-way, nothing is lost.
    pub(super) fn poll_framed(
        &mut self,
        cx: &mut Context<'_>,
        limit_bytes: u64,
    ) -> Poll<Result<Framed, ServerError>> {
        loop {
            let header = Header::parse(&self.input)
                .map_err(|_| ServerError::Protocol("a message without a length".into()))?;
            let mut missing = READ_BYTES;
            if let Some(header) = header {
                // The length counts itself but not the tag, and is at least 4.
                let length = header.len().unsigned_abs();
                let bytes = u64::from(length);
                if bytes > limit_bytes {
                    return Poll::Ready(Err(ServerError::MessageTooLarge { bytes, limit_bytes }));
                }
                let total = length as usize + 1;
                if self.input.len() >= total {
                    let tag = header.tag();
                    return Poll::Ready(Ok(Framed { tag, total }));
                }
                missing = (total - self.input.len()).clamp(READ_BYTES, GROW_BYTES);
            }
            ready!(self.poll_more(cx, missing))?;
        }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<(), ServerError>> {
        if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
            self.input.reserve(room);
        }
        // This future keeps no state between polls.
        let read = pin!(self.transport.read_buf(&mut self.input));
        match ready!(read.poll(cx))? {
            0 => Poll::Ready(Err(ServerError::Closed)),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Takes the body of a message out of the input, without a copy.
    pub(super) fn take(&mut self, framed: Framed) -> Bytes {
        let mut message = self.input.split_to(framed.total);
        message.advance(HEADER_BYTES);
        message.freeze()
    }

    /// Waits until an answer lies in the input, and looks at its tag only.
    pub(super) async fn next_framed(&mut self) -> Result<Framed, ServerError> {
        poll_fn(|cx| self.poll_framed(cx, ANSWER_LIMIT_BYTES)).await
    }

    /// Takes an error response that lies in the input.
    pub(super) fn take_refusal(&mut self) -> Result<ServerError, ServerError> {
        match self.parse()? {
            Message::ErrorResponse(body) => Ok((&body).into()),
            _ => Err(unreadable()),
        }
    }

    /// The next message of a conversation, notices and the like left out.
    pub(super) async fn message(&mut self) -> Result<Message, ServerError> {
        loop {
            self.next_framed().await?;
            match self.parse()? {
                Message::NoticeResponse(_) | Message::NotificationResponse(_) => {}
                message => return Ok(message),
            }
        }
    }

    fn parse(&mut self) -> Result<Message, ServerError> {
        match Message::parse(&mut self.input) {
            Ok(Some(message)) => Ok(message),
            Ok(None) | Err(_) => Err(unreadable()),
        }
    }
}

fn unreadable() -> ServerError {
    ServerError::Protocol("a message that cannot be read".into())
}
