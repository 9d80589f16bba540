//! What the log does not hold is fetched at a known position, with all that leads up to it.
//!
//! # When
//!
//! A row that enters the organization by UPDATE comes without its unchanged out-of-line values, and
//! a parent that enters comes without its subtree, which did not change. Where no foreign key holds
//! children to a new parent, some may have been there before it, and were passed over.
//!
//! # How
//!
//! There is no reading of the past, so what is fetched is of a later position than the change that
//! asked for it. All source transactions up to that position then share one sink transaction with
//! the fetched rows: the sink goes from one state that the source had to another.
//!
//! 1. The transactions at hand are written as always; what the log lacks is noted ([`Wanted`]).
//! 2. A snapshot is taken on the primary ([`Primary::moment`]), with a position that lies behind
//!    all that it sees. It must see every transaction that the log has brought so far.
//! 3. Transactions are taken on from the log and written into the same sink transaction, as long as
//!    the snapshot sees them. They may want more.
//! 4. The first that it does not see ends the stretch, if no later one that it sees stands before
//!    the snapshot's position in the log; else the snapshot is of no position, which happens when
//!    transactions commit at the same time, and another is taken.
//! 5. What is wanted is read in the snapshot, by key and by scope, and written as inserts are.
//! 6. The position moves to the end of the stretch, and the sink transaction commits.
//!
//! A row that stands on the sink before step 5 was written whole by the log, so it is as the
//! snapshot has it; one that is not there but should be is wanted, or hangs on what is wanted. So
//! step 5 only adds, and nothing that is fetched is ever stale. What the stretch took away again is
//! not in the snapshot, or is there as another tenant's. One thing is taken back: where a parent's own
//! row was still to be fetched while what it hangs on left, the sink could not tell that what came of
//! its subtree in the stretch went too.
//!
//! # Why a snapshot and not a slot
//!
//! A temporary slot would export a snapshot of an exact position too. But its making waits for every
//! transaction that is writing, for hours if one is; it takes a slot and a walsender that may not be
//! free; and where a schema has no foreign keys it would be one for every new parent. A snapshot
//! takes a round trip, holds no log, leaves nothing behind, and the log names each transaction by the
//! id by which the snapshot knows it. On a standby a snapshot does not know them, so it is taken on
//! the primary, whose log is the same.
//!
//! # Why most new parents need no fetch
//!
//! A child that came before its parent either came behind the position at which this mover began:
//! then it was delivered and passed over, and its parent's id was noted
//! ([`Membership::may_be_passed_over`]). Or it was there before: then its row is of a transaction
//! below the *horizon*, an id that was given out to nobody at that position, unless it was changed
//! since, and so delivered. So a new parent whose id was not noted, and onto which no row of the
//! source refers that is older than the horizon, had no children. That is one indexed query for all
//! new parents of a sink transaction ([`Primary::came_before`]), none where foreign keys are
//! enforced, and a stretch only where it finds something. A mover that begins where the copy ended
//! knows the horizon of that position from the sink's record, so that it catches up without asking
//! for fetches; one that comes back later takes the newest id, which lies behind its position: rows
//! of the time between count as old, and are fetched without need.
//!
//! What is given up: a child that had come before its parent, when the mover was not there, and is
//! gone or moved again by the time that the source is asked, is never seen on the sink.
//!
//! # What it costs
//!
//! The sink transaction stays open until the mover has read up to the snapshot's position: some
//! milliseconds, or all that the mover is behind. Memory stays fixed: transactions are written as
//! they come, fetched rows are relayed, and only the wanted keys are held, up to a bound.
//!
//! # When it is cut off
//!
//! Before the commit nothing of it is on the sink: the position stands before the stretch, all of it
//! comes again, and another snapshot is taken. On the source there is a read-only transaction, which
//! ends with its connection. A successor takes the unit over as from any transaction: by epoch.
//!
//! [`Wanted`]: super::fetch::Wanted
//! [`Primary::moment`]: super::primary::Primary::moment
//! [`Primary::came_before`]: super::primary::Primary::came_before
//! [`Membership::may_be_passed_over`]: super::membership::Membership::may_be_passed_over

use std::time::Duration;

use monarch_model::Lsn;
use tokio::time::{sleep, timeout};

use super::error::StreamError;
use super::intake::{Incoming, Intake};
use super::primary::Moment;
use super::writer::Writer;

/// How often a snapshot may be of no position of the log, for a fetch.
pub(super) const TRIES: u32 = 1000;
/// How long until another is taken.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the log is looked into behind the end of a stretch. What is looked at keeps its share of
/// the queue: if that is full, nothing more can come.
const LOOK_AHEAD: Duration = Duration::from_secs(5);

/// Where a stretch ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    /// All before it is written.
    pub(super) position: Lsn,
    /// The source transactions that were taken.
    pub(super) transactions: u64,
}

/// Whether a snapshot is of one position of the log.
enum Seam {
    Clean,
    Torn,
}

/// How hard a moment is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// How long a snapshot is waited for that sees all that the log has brought.
    pub(super) snapshot_wait: Duration,
    /// How often a snapshot may be of no position of the log.
    pub(super) tries: u32,
}

/// What a stretch came to. All before its end is written, either way.
pub(super) enum Met {
    /// The primary's session is in the snapshot that its end is of.
    Moment,
    /// No snapshot of its end could be had.
    None(StreamError),
}

/// Fetches what `writer` wants, and writes with it what leads up to the position that it is of.
/// All up to where it `reached` is written before, and behind. The snapshot is kept; it is the
/// caller's to let go.
pub(super) async fn fetch_behind(
    writer: &mut Writer<'_>,
    intake: &mut Intake,
    reached: &mut Reached,
    effort: Effort,
) -> Result<Met, StreamError> {
    let mut met = Met::None(StreamError::NoMoment {
        blockers: Vec::new(),
    });
    for _ in 0..effort.tries {
        let moment = match writer.primary.moment(effort.snapshot_wait).await {
            Ok(moment) => moment,
            Err(error) => {
                met = Met::None(error);
                break;
            }
        };
        match read_up_to(&moment, writer, intake, reached).await? {
            Seam::Torn => sleep(PAUSE).await,
            Seam::Clean => {
                met = Met::Moment;
                break;
            }
        }
    }
    writer.settle().await?;
    writer.look().await?;
    if let Met::Moment = met {
        writer.fetch().await?;
    }
    Ok(met)
}

/// Writes what the snapshot sees, and looks on to where it cannot see any more.
async fn read_up_to(
    moment: &Moment,
    writer: &mut Writer<'_>,
    intake: &mut Intake,
    reached: &mut Reached,
) -> Result<Seam, StreamError> {
    let mut behind: Vec<Incoming> = Vec::new();
    let mut read_to = reached.position;
    let mut seam = Seam::Clean;
    while read_to < moment.until {
        let Some(next) = next(intake, behind.is_empty()).await? else {
            seam = Seam::Torn;
            break;
        };
        match next {
            Incoming::Quiet(position) => {
                read_to = read_to.max(position);
                if behind.is_empty() {
                    reached.position = reached.position.max(position);
                } else {
                    behind.push(next);
                }
            }
            Incoming::Transaction(transaction, room) => {
                read_to = read_to.max(transaction.end);
                let seen = moment.sees(transaction.xid);
                if seen && behind.is_empty() {
                    writer.transaction(&transaction).await?;
                    reached.position = reached.position.max(transaction.end);
                    reached.transactions += 1;
                } else {
                    behind.push(Incoming::Transaction(transaction, room));
                    if seen {
                        seam = Seam::Torn;
                        break;
                    }
                }
            }
        }
    }
    intake.give_back(behind);
    Ok(seam)
}

/// The next of the log. None if it does not come in time, once the stretch has found its end.
async fn next(intake: &mut Intake, in_stretch: bool) -> Result<Option<Incoming>, StreamError> {
    let ended = || StreamError::Protocol {
        what: "the task that reads ended".to_owned(),
    };
    if in_stretch {
        return intake.next().await.ok_or_else(ended).map(Some);
    }
    match timeout(LOOK_AHEAD, intake.next()).await {
        Ok(next) => next.ok_or_else(ended).map(Some),
        Err(_) => Ok(None),
    }
}
