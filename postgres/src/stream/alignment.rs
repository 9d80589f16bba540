//! Both sides as of one position, while the stream goes on.
//!
//! A comparison needs a state of the source and the same state of the sink, and while rows come
//! there is no moment at which two servers have it by themselves. So the mover is asked: it takes a
//! snapshot on the source's primary, writes all that the snapshot sees and nothing that it does not,
//! as for a fetch (`stretch`), and when that is committed, and before it writes anything more, a
//! snapshot is taken on the sink. Both sessions go back to whoever asked, who reads as long as he
//! likes; the mover goes on at once.
//!
//! What it costs: the stream stands still for as long as a fetch takes, and the two snapshots hold
//! back vacuum on both servers for as long as they are read. The source is read on its primary, also
//! where a standby is decoded: only there a snapshot is known by transaction ids.
//!
//! It must not cost the stream itself. If the source cannot be asked, or no snapshot of it can be
//! matched with the log in time, whoever asked is told so, what was written meanwhile is committed,
//! and the mover goes on. Who asks does so when the mover has caught up: all that it lags behind the
//! snapshot would share one sink transaction.

use std::time::Duration;

use monarch_model::{Lsn, TableName};
use tokio::sync::oneshot;

use super::error::StreamError;
use crate::sql::qualified;
use crate::{Doing, Error, Session};

/// How long a snapshot of the source is waited for that sees all that the log has brought.
pub(super) const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);
/// How often a snapshot may be of no position of the log.
pub(super) const TRIES: u32 = 100;

/// Asks a mover to bring both sides to one position. Who asks drops the other end to withdraw.
pub struct Alignment {
    pub(super) source: Session,
    pub(super) sink: Session,
    pub(super) reply: oneshot::Sender<Result<Aligned, StreamError>>,
}

/// Two sessions, each in a read-only transaction, that see the organization's rows of one state of
/// the source.
pub struct Aligned {
    /// On the source's primary.
    pub source: Session,
    /// On the sink.
    pub sink: Session,
    /// Where in the source's log that state is.
    pub position: Lsn,
}

impl Alignment {
    /// To be sent to a mover. `source` is a session on the source's primary, `sink` one in a
    /// transaction that has no snapshot yet ([`await_snapshot`]). The other end gets an error where
    /// a snapshot could not be taken, and is dropped where the mover ended first.
    pub fn new(
        source: Session,
        sink: Session,
    ) -> (Self, oneshot::Receiver<Result<Aligned, StreamError>>) {
        let (reply, answer) = oneshot::channel();
        let alignment = Self {
            source,
            sink,
            reply,
        };
        (alignment, answer)
    }
}

/// Begins the transaction in which the sink will be read. The tables are locked before the
/// snapshot is taken: one that somebody rewrites in between would look empty in it.
pub async fn await_snapshot<'t>(
    sink: &Session,
    tables: impl IntoIterator<Item = &'t TableName>,
) -> Result<(), Error> {
    let tables: Vec<String> = tables.into_iter().map(qualified).collect();
    let begin = format!(
        "begin isolation level repeatable read, read only; lock table {} in access share mode",
        tables.join(", ")
    );
    sink.batch_execute(&begin)
        .await
        .doing("begin to read on the sink")
}

/// Takes the snapshot of the sink; `source` has its own.
pub(super) async fn aligned(
    source: Session,
    sink: Session,
    position: Lsn,
) -> Result<Aligned, StreamError> {
    sink.batch_execute("select pg_catalog.pg_current_snapshot()")
        .await
        .doing("take a snapshot of the sink")?;
    Ok(Aligned {
        source,
        sink,
        position,
    })
}
