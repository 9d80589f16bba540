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
//! back vacuum on both servers for as long as they are read. Both are on the primary also where the
//! source is decoded on a standby, since only there a snapshot is known by transaction ids.

use monarch_model::Lsn;
use tokio::sync::oneshot;

use crate::{Doing, Error, Session};

/// Asks a mover to bring both sides to one position. Who asks drops the other end to withdraw.
pub struct Alignment {
    pub(super) source: Session,
    pub(super) sink: Session,
    pub(super) reply: oneshot::Sender<Result<Aligned, Error>>,
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
    /// To be sent to a mover. `source` is a session on the source's primary; neither session is in
    /// a transaction. The other end gets an error where the sink's snapshot could not be taken, and
    /// is dropped where the mover ended first.
    pub fn new(
        source: Session,
        sink: Session,
    ) -> (Self, oneshot::Receiver<Result<Aligned, Error>>) {
        let (reply, answer) = oneshot::channel();
        let alignment = Self {
            source,
            sink,
            reply,
        };
        (alignment, answer)
    }
}

/// Takes a snapshot of the sink; `source` has its own.
pub(super) async fn aligned(
    source: Session,
    sink: Session,
    position: Lsn,
) -> Result<Aligned, Error> {
    sink.batch_execute(
        "begin isolation level repeatable read, read only;
         select pg_catalog.pg_current_snapshot()",
    )
    .await
    .doing("take a snapshot of the sink")?;
    Ok(Aligned {
        source,
        sink,
        position,
    })
}
