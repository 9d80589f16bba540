//! The loop that moves a unit's changes: reads, hands over, reports, until told to stop.
//!
//! Two tasks. This one reads the replication stream, puts transactions together, and answers the
//! walsender; the other writes to the sink. Between them stands a queue bounded by number and by
//! bytes: when it is full nothing more is read, and the source waits. Reports to the walsender go
//! on meanwhile, since one that hears nothing hangs up, and all of a large transaction would come
//! again. What is reported as flushed is what the sink has recorded, never more.
//!
//! On a source where nothing changes no frame would come for half of `wal_sender_timeout`, and the
//! mover could not be told from a dead one. So a silent walsender is asked for a reply once a
//! second, and it is the reply that is counted: a source that hangs stays silent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use monarch_model::Lsn;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::alignment::Alignment;
use super::apply::{Applied, Applier};
use super::assemble::{Assembler, SourceTransaction};
use super::error::StreamError;
use super::intake::{Incoming, Intake};
use super::membership::Membership;
use super::pace::Pace;
use super::primary::Primary;
use super::start::{preamble, take_sink, take_slot};
use super::tables::Tables;
use super::{Job, Observer, Report, suited};
use crate::keys::Keys;
use crate::replication::{Frame, ReplicationConnection, ReplicationStream, Status, StreamOptions};
use crate::{Session, SessionPurpose};

/// What may wait for the sink, in units of 1 KiB, so that a semaphore can count it.
const QUEUE_KIB: usize = 16 * 1024;
/// How often the observer is told and the walsender is reported to, if something changed.
const TICK: Duration = Duration::from_millis(100);
/// How often the walsender is reported to in any case.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long the walsender may be silent before it is asked for a reply, and asked again.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// How long a position that is not the organization's may stand unrecorded.
const RECORD_EVERY: Duration = Duration::from_secs(1);
/// How long the walsender is given to end the stream.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What the task that writes reports.
enum Outgoing {
    /// Source transactions are done with.
    Applied(Applied),
    /// Nothing of the organization's lies before this; the sink does not record it yet.
    Passed(Lsn),
    /// The sink's record stands here: this may be acknowledged.
    Recorded(Lsn),
}

/// Moves changes until `cancel`: then what is under way is given up and comes again. Returns where
/// it stood. Aligns both sides when it is `asked` to; whoever never will drops the sender.
///
/// # Errors
///
/// See [`StreamError`]; it says whether the same may be tried again.
pub async fn run(
    job: &Job,
    observer: &mut dyn Observer,
    asked: mpsc::Receiver<Alignment>,
    cancel: &CancellationToken,
) -> Result<Report, StreamError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(Report::default()),
        started = Box::pin(start(job, asked)) => {
            let mut mover = started?;
            let result = mover.go_on(observer, cancel).await;
            mover.stop(result.is_ok()).await;
            result.map(|()| mover.report)
        }
    }
}

async fn start(job: &Job, asked: mpsc::Receiver<Alignment>) -> Result<Mover, StreamError> {
    let application = job.unit.application(job.epoch);
    let writer = SessionPurpose::writer(application.clone());
    let reader = SessionPurpose::reader(application.clone());
    let mut sink = Session::connect(&job.sink, &writer).await?;
    let (state, standing) = take_sink(&mut sink, job).await?;
    let source = Session::connect(&job.source, &reader).await?;
    take_slot(&source, &job.slot, &job.unit, job.epoch, standing).await?;
    let position = standing.position;
    let tables = Tables::load(&source, &sink, job).await?;
    let tables = Arc::new(tables);
    let membership = Membership::derive(&*sink, &tables).await?;
    let mut primary = Primary::new(&job.primary, &application, state.horizon);
    if tables.has_loose_edges() {
        primary.connect().await?;
    }
    tracing::info!(
        store = %job.unit.store, epoch = %job.epoch, %position, parents = membership.len(),
        "stream starts"
    );
    let preamble = preamble(&mut sink).await?;
    let suited = suited::load(&sink, &tables, preamble.cascades).await?;
    let connection = ReplicationConnection::connect(&job.source, &reader).await?;
    let options = StreamOptions::new(job.publications());
    let stream = connection.start(&job.slot, position, &options).await?;
    let applier = Applier {
        unit: job.unit.clone(),
        epoch: job.epoch,
        tables: Arc::clone(&tables),
        membership,
        primary,
        preamble,
        sink,
        statements: HashMap::new(),
        many: HashMap::new(),
        suited,
        pace: Pace::new(job.batching),
        keys: Keys::new(Arc::clone(&job.keys)),
    };
    let report = Report {
        received: position,
        applied: position,
        acknowledged: position,
        source_head: position,
        last_change: state.last_change,
        barrier: state.barrier,
        sink: standing.sink,
        ..Report::default()
    };
    Ok(Mover::new(job, stream, applier, asked, report))
}

/// A running mover.
struct Mover {
    stream: Option<ReplicationStream>,
    assembler: Assembler,
    queue: mpsc::Sender<Incoming>,
    room: Arc<Semaphore>,
    results: mpsc::UnboundedReceiver<Outgoing>,
    /// The one task that writes; it ends with the mover.
    writing: JoinSet<Result<(), StreamError>>,
    /// Rows read by the writing task.
    seen: Arc<AtomicU64>,
    report: Report,
    told: Report,
    reported: Status,
    reported_at: Instant,
    /// When the walsender was last heard, or asked for a reply.
    silent_since: Instant,
    /// A transaction that waits for room in the queue; nothing more is read meanwhile.
    waiting: Option<SourceTransaction>,
    quiet: Lsn,
}

impl Mover {
    fn new(
        job: &Job,
        stream: ReplicationStream,
        applier: Applier,
        asked: mpsc::Receiver<Alignment>,
        report: Report,
    ) -> Self {
        let position = report.acknowledged;
        let tables = Arc::clone(&applier.tables);
        let (queue, incoming) = mpsc::channel(2 * QUEUE_KIB);
        let (outgoing, results) = mpsc::unbounded_channel();
        let seen = Arc::new(AtomicU64::new(0));
        let mut writing = JoinSet::new();
        let intake = Intake::new(incoming);
        writing.spawn(write(
            applier,
            intake,
            asked,
            Outlet {
                outgoing,
                seen: Arc::clone(&seen),
            },
            position,
        ));
        Self {
            stream: Some(stream),
            assembler: Assembler::new(tables, job.spool.clone(), position),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_KIB)),
            results,
            writing,
            seen,
            told: report,
            report,
            reported: Status::default(),
            reported_at: Instant::now(),
            silent_since: Instant::now(),
            waiting: None,
            quiet: position,
        }
    }

    async fn go_on(
        &mut self,
        observer: &mut dyn Observer,
        cancel: &CancellationToken,
    ) -> Result<(), StreamError> {
        observer.observe(&self.report);
        self.tell_walsender(false).await?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some(stream) = self.stream.as_mut() else {
                return Ok(());
            };
            let room = Arc::clone(&self.room);
            let wanted = self.waiting.as_ref().map_or(0, kib);
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(()),
                ended = self.writing.join_next() => return ended_early(ended),
                Some(result) = self.results.recv() => self.take(result),
                _ = tick.tick() => {
                    self.tell_observer(observer);
                    self.tell_walsender(false).await?;
                }
                permit = room.acquire_many_owned(wanted), if self.waiting.is_some() => {
                    self.hand_over(permit.ok());
                }
                frame = stream.next(), if self.waiting.is_none() => self.read(frame?).await?,
            }
        }
    }

    /// Takes a frame of the stream.
    async fn read(&mut self, frame: Frame) -> Result<(), StreamError> {
        self.silent_since = Instant::now();
        match frame {
            Frame::XLogData {
                start, end, data, ..
            } => {
                self.report.received = self.report.received.max(start);
                self.report.source_head = self.report.source_head.max(end);
                self.waiting = self.assembler.push(&data)?;
                if let Some(transaction) = &self.waiting {
                    self.report.received = self.report.received.max(transaction.end);
                }
            }
            Frame::Keepalive {
                end,
                reply_requested,
                ..
            } => {
                self.report.keepalives += 1;
                self.report.source_head = self.report.source_head.max(end);
                if !self.assembler.is_inside() && end > self.quiet {
                    self.report.received = self.report.received.max(end);
                    // A long queue is not quiet; the next keepalive says it again.
                    let short = self.queue.capacity() > QUEUE_KIB;
                    if short && self.queue.try_send(Incoming::Quiet(end)).is_ok() {
                        self.quiet = end;
                    }
                }
                if reply_requested {
                    self.tell_walsender(true).await?;
                }
            }
        }
        Ok(())
    }

    /// Gives the waiting transaction to the task that writes.
    fn hand_over(&mut self, permit: Option<OwnedSemaphorePermit>) {
        if let (Some(transaction), Some(permit)) = (self.waiting.take(), permit) {
            // There is room, since each has at least one permit. If the task is gone, the loop
            // learns why from it.
            let _ = self
                .queue
                .try_send(Incoming::Transaction(transaction, permit));
        }
    }

    fn take(&mut self, result: Outgoing) {
        let report = &mut self.report;
        match result {
            Outgoing::Applied(applied) => {
                report.applied = report.applied.max(applied.position);
                report.last_change = applied.last_change.or(report.last_change);
                report.barrier = applied.barrier.or(report.barrier);
                report.changes += applied.changes;
                report.transactions += applied.transactions;
                report.fetches += applied.fetches;
            }
            Outgoing::Passed(position) => report.applied = report.applied.max(position),
            Outgoing::Recorded(position) => {
                report.applied = report.applied.max(position);
                report.acknowledged = report.acknowledged.max(position);
            }
        }
    }

    fn tell_observer(&mut self, observer: &mut dyn Observer) {
        self.report.rows_read = self.seen.load(Ordering::Relaxed);
        if self.report != self.told {
            self.told = self.report;
            observer.observe(&self.report);
        }
    }

    /// Reports to the walsender what is recorded, if that is news, it is time, or it asked; and
    /// asks it for a reply if it was silent. While nothing is read, it cannot be heard.
    async fn tell_walsender(&mut self, asked: bool) -> Result<(), StreamError> {
        let status = Status {
            write: self.report.received,
            flush: self.report.acknowledged,
            apply: self.report.acknowledged,
        };
        let due = self.reported_at.elapsed() >= REPORT_EVERY;
        let silent = self.waiting.is_none() && self.silent_since.elapsed() >= ASK_AFTER;
        if !(asked || due || silent || status != self.reported) {
            return Ok(());
        }
        if let Some(stream) = &mut self.stream {
            stream.send_status(status, silent).await?;
        }
        if silent {
            self.silent_since = Instant::now();
        }
        self.reported = status;
        self.reported_at = Instant::now();
        Ok(())
    }

    /// Ends both tasks. The slot is free again when this returns, or soon after.
    async fn stop(&mut self, orderly: bool) {
        self.writing.shutdown().await;
        while let Ok(result) = self.results.try_recv() {
            self.take(result);
        }
        if orderly {
            // The last word about what is recorded spares its delivery again; without it, it comes
            // again and is passed over.
            let _ = timeout(STOP_TIMEOUT, self.tell_walsender(true)).await;
            if let Some(stream) = self.stream.take() {
                let _ = timeout(STOP_TIMEOUT, stream.stop()).await;
            }
        }
        self.stream = None;
    }
}

/// The share of the queue that a transaction takes: what it holds in memory, and something.
fn kib(transaction: &SourceTransaction) -> u32 {
    let kib = transaction.recording.memory_bytes() / 1024 + 1;
    u32::try_from(kib.min(QUEUE_KIB)).unwrap_or(1)
}

/// The task that writes ends before the mover only by an error.
fn ended_early(
    ended: Option<Result<Result<(), StreamError>, tokio::task::JoinError>>,
) -> Result<(), StreamError> {
    match ended {
        Some(Ok(Err(error))) => Err(error),
        Some(Ok(Ok(()))) | None => Ok(()),
        Some(Err(panic)) => Err(StreamError::Protocol {
            what: format!("the task that writes ended: {panic}"),
        }),
    }
}

/// What the task that writes tells the other.
struct Outlet {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    seen: Arc<AtomicU64>,
}

impl Outlet {
    fn tell(&self, news: Outgoing) {
        // The other one may have ended; this one is then ended by it.
        let _ = self.outgoing.send(news);
    }
}

/// Writes what comes, in groups, until nothing more can come. Between two groups it aligns both
/// sides, if it is asked to.
async fn write(
    mut applier: Applier,
    mut intake: Intake,
    mut asked: mpsc::Receiver<Alignment>,
    outlet: Outlet,
    position: Lsn,
) -> Result<(), StreamError> {
    let saw = || {
        outlet.seen.fetch_add(1, Ordering::Relaxed);
    };
    let mut recorded = position;
    let mut stands = position;
    let mut record_at = Instant::now();
    loop {
        if stands > recorded && Instant::now() >= record_at {
            applier.advance(stands).await?;
            recorded = stands;
            outlet.tell(Outgoing::Recorded(recorded));
        }
        if stands == recorded {
            record_at = record_at.max(Instant::now() + RECORD_EVERY);
        }
        let mut quiet = Lsn::default();
        let applied = tokio::select! {
            Some(alignment) = asked.recv() => {
                Some(applier.align(alignment, stands, &mut intake, &saw).await?)
            }
            next = timeout_at(record_at, intake.next()) => match next {
                Ok(Some(next)) => {
                    let group = intake.gather(next);
                    quiet = group.quiet;
                    match group.transactions.is_empty() {
                        true => None,
                        false => Some(applier.apply(group, &mut intake, &saw).await?),
                    }
                }
                Ok(None) => return Ok(()),
                Err(_) => continue,
            },
        };
        if let Some(applied) = applied {
            outlet.tell(Outgoing::Applied(applied));
            stands = stands.max(applied.position);
            if applied.recorded {
                recorded = stands;
                outlet.tell(Outgoing::Recorded(recorded));
            }
        }
        if quiet > stands {
            stands = quiet;
            outlet.tell(Outgoing::Passed(stands));
        }
    }
}
