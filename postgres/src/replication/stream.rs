//! A started stream.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes};
use monarch_model::Lsn;
use postgres_protocol::message::backend::{
    COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, ERROR_RESPONSE_TAG, READY_FOR_QUERY_TAG,
};
use postgres_protocol::message::frontend;

use super::connection::ReplicationConnection;
use crate::{Doing, Endpoint, PgTime, Result, ServerError};

/// The longest message that is read, unless given: half of what a row may take on the server, and
/// four times what one value of 64 MB takes.
const MESSAGE_LIMIT_BYTES: u64 = 512 * 1024 * 1024;

/// How a slot is to be streamed.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// The publications whose changes are sent.
    pub publications: Vec<String>,
    /// Whether large transactions are sent before their outcome is known (protocol 2), or at their
    /// commit only (protocol 1).
    pub streaming: bool,
    /// The longest message that is read, in bytes; a longer one ends the stream with
    /// [`ServerError::MessageTooLarge`].
    pub message_limit_bytes: u64,
}

impl StreamOptions {
    /// Streams these publications, large transactions early.
    pub fn new<I: IntoIterator<Item: Into<String>>>(publications: I) -> Self {
        Self {
            publications: publications.into_iter().map(Into::into).collect(),
            streaming: true,
            message_limit_bytes: MESSAGE_LIMIT_BYTES,
        }
    }

    /// What pgoutput is told. Values are asked for as text: the binary form of a type may differ
    /// between versions.
    pub(super) fn plugin_options(&self) -> String {
        let names: Vec<String> = self
            .publications
            .iter()
            .map(|name| crate::sql::quote_ident(name))
            .collect();
        let (protocol, streaming) = if self.streaming {
            ("2", ", streaming 'on'")
        } else {
            ("1", "")
        };
        // The literals of replication commands know no escapes but the doubled quote.
        let names = names.join(",").replace('\'', "''");
        format!(
            "proto_version '{protocol}', publication_names '{names}', messages 'true', \
             binary 'false'{streaming}"
        )
    }
}

/// What comes in a stream, in the order in which the walsender sends it.
#[derive(Clone, PartialEq, Eq)]
pub enum Frame {
    /// A message of the output plugin.
    XLogData {
        /// Where in the log the change is; zero for messages that are not in it.
        start: Lsn,
        /// The end of the log on the server.
        end: Lsn,
        /// The server's clock when it was sent.
        clock: PgTime,
        /// The plugin's message: see [`crate::pgoutput::decode`].
        data: Bytes,
    },
    /// A sign of life. Everything before `end` that the publications want has been sent.
    Keepalive {
        /// How far the walsender has read the log.
        end: Lsn,
        /// The server's clock when it was sent.
        clock: PgTime,
        /// Whether the server wants a [status](ReplicationStream::send_status) at once, or will
        /// hang up.
        reply_requested: bool,
    },
}

impl fmt::Debug for Frame {
    /// Without the data, which has row values in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frame::XLogData { start, data, .. } => {
                write!(f, "XLogData({} bytes at {start})", data.len())
            }
            Frame::Keepalive {
                end,
                reply_requested,
                ..
            } => write!(f, "Keepalive(to {end}, reply requested: {reply_requested})"),
        }
    }
}

/// What a consumer has, each as the position after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// What it has received.
    pub write: Lsn,
    /// What it has made durable. The slot moves here and never sends it again.
    pub flush: Lsn,
    /// What is visible to others on its side.
    pub apply: Lsn,
}

/// A stream of changes. Dropping it closes the socket, and the slot is free again.
pub struct ReplicationStream {
    connection: ReplicationConnection,
    message_limit_bytes: u64,
}

impl ReplicationStream {
    pub(super) fn new(connection: ReplicationConnection, message_limit_bytes: u64) -> Self {
        Self {
            connection,
            message_limit_bytes,
        }
    }

    /// Where it comes from.
    pub fn endpoint(&self) -> &Endpoint {
        self.connection.endpoint()
    }

    /// The walsender's process id, as in `pg_stat_replication`.
    pub fn process_id(&self) -> i32 {
        self.connection.process_id()
    }

    /// The next frame. Dropping the future, as `select!` does, loses nothing.
    ///
    /// # Errors
    ///
    /// When the stream ends, for whatever reason: it has no end of its own.
    pub async fn next(&mut self) -> Result<Frame> {
        poll_fn(|cx| self.poll_next(cx))
            .await
            .doing("read the replication stream")
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, ServerError>> {
        let limit = self.message_limit_bytes;
        let wire = self.connection.wire();
        // A status whose sending was given up half-way goes out first.
        if let Poll::Ready(Err(error)) = wire.poll_send(cx) {
            return Poll::Ready(Err(error));
        }
        loop {
            let framed = ready!(wire.poll_framed(cx, limit))?;
            match framed.tag {
                COPY_DATA_TAG => return Poll::Ready(frame(wire.take(framed))),
                COPY_DONE_TAG | COMMAND_COMPLETE_TAG | READY_FOR_QUERY_TAG => {
                    return Poll::Ready(Err(ServerError::StreamEnded));
                }
                ERROR_RESPONSE_TAG => return Poll::Ready(Err(wire.take_refusal()?)),
                _ => drop(wire.take(framed)),
            }
        }
    }

    /// Tells the server what we have. With `reply_requested` it answers with a keepalive.
    ///
    /// Given up half-way, the rest of it goes out with the next call of anything.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    pub async fn send_status(&mut self, status: Status, reply_requested: bool) -> Result<()> {
        let wire = self.connection.wire();
        let out = wire.output();
        let positions = [status.write, status.flush, status.apply];
        out.put_u8(COPY_DATA_TAG);
        out.put_i32(4 + 1 + 3 * 8 + 8 + 1);
        out.put_u8(b'r');
        for Lsn(position) in positions {
            out.put_u64(position);
        }
        out.put_i64(PgTime::now().0);
        out.put_u8(reply_requested.into());
        wire.send().await.doing("report to the walsender")
    }

    /// Ends the stream in the way that the protocol has for it. What is still under way is thrown
    /// away; it was not acknowledged and comes again.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    pub async fn stop(mut self) -> Result<ReplicationConnection> {
        self.drain().await.doing("stop the replication stream")?;
        Ok(self.connection.between_commands())
    }

    async fn drain(&mut self) -> Result<(), ServerError> {
        let limit = self.message_limit_bytes;
        let wire = self.connection.wire();
        frontend::copy_done(wire.output());
        wire.send().await?;
        loop {
            let framed = poll_fn(|cx| wire.poll_framed(cx, limit)).await?;
            match framed.tag {
                ERROR_RESPONSE_TAG => return Err(wire.take_refusal()?),
                READY_FOR_QUERY_TAG => {
                    wire.take(framed);
                    return Ok(());
                }
                _ => drop(wire.take(framed)),
            }
        }
    }
}

impl fmt::Debug for ReplicationStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicationStream")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// Reads a message of the stream.
fn frame(mut body: Bytes) -> Result<Frame, ServerError> {
    let short = || ServerError::Protocol("a replication message that ends too early".into());
    match body.try_get_u8() {
        Ok(b'w') if body.remaining() >= 24 => Ok(Frame::XLogData {
            start: Lsn(body.get_u64()),
            end: Lsn(body.get_u64()),
            clock: PgTime(body.get_i64()),
            data: body,
        }),
        Ok(b'k') if body.remaining() >= 17 => Ok(Frame::Keepalive {
            end: Lsn(body.get_u64()),
            clock: PgTime(body.get_i64()),
            reply_requested: body.get_u8() != 0,
        }),
        Ok(b'w' | b'k') | Err(_) => Err(short()),
        Ok(_) => Err(ServerError::Protocol(
            "a replication message of a kind that logical streams do not have".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publication_names_are_quoted_for_the_list_and_for_the_literal() {
        let options = StreamOptions::new(["a\"b", "it's"]);
        let text = options.plugin_options();
        assert!(
            text.contains(r#"publication_names '"a""b","it''s"'"#),
            "{text}"
        );
    }

    #[test]
    fn a_frame_that_ends_too_early_is_refused() {
        let mut whole = vec![b'w'];
        whole.extend([0; 24]);
        assert!(frame(Bytes::from(whole.clone())).is_ok());
        for length in 0..whole.len() {
            assert!(frame(Bytes::copy_from_slice(&whole[..length])).is_err());
        }
        let mut keepalive = vec![b'k'];
        keepalive.extend([0; 16]);
        assert!(frame(Bytes::from(keepalive)).is_err());
        assert!(frame(Bytes::from_static(b"?")).is_err());
    }
}
