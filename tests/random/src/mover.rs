//! One unit's mover, driven as the activities drive it: copies, streams, is killed, and goes on.
//!
//! Nothing here decides anything about rows. What an attempt does is the engine's own public
//! functions in the order in which the activities call them, each attempt under an epoch of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use monarch_config::Graph;
use monarch_model::{Epoch, Lsn, Phase, chain};
use monarch_postgres::catalog::Fingerprint;
use monarch_postgres::evict::{self, Doomed, ScrubPermit};
use monarch_postgres::keys::{KeyRecorder, NoObjects};
use monarch_postgres::replication::{ExportedSlot, ReplicationConnection, SlotKind};
use monarch_postgres::scope::Scope;
use monarch_postgres::sink::{self, SinkError, TakeOver};
use monarch_postgres::slot::{self, Making};
use monarch_postgres::snapshot::{self, CopyError};
use monarch_postgres::spine::{Spine, SpineError};
use monarch_postgres::stream::{
    self, Batching, Job, Observer, Report, SinkIdentity, Spool, StreamError,
};
use monarch_postgres::{
    ConnectOptions, Session, SessionPurpose, Unit, catalog, publication, sessions,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a slot's making or an older writer is waited for: far more than either needs.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often an attempt may fail of what its predecessor's end left behind.
const ATTEMPTS_MAX: usize = 20;

/// One unit of a move, as every attempt knows it.
#[derive(Debug)]
pub struct Post {
    /// The unit.
    pub unit: Unit,
    /// The manifest.
    pub graph: Arc<Graph>,
    /// The recorded spine.
    pub spine: Arc<Spine>,
    /// The source's database, on its primary.
    pub source: ConnectOptions,
    /// The same on a standby, if changes are decoded and rows are read there.
    pub standby: Option<ConnectOptions>,
    /// The sink's database.
    pub sink: ConnectOptions,
    /// How much of a transaction is held in memory.
    pub spool_bytes: usize,
    /// How rows share statements.
    pub batching: Batching,
    epochs: AtomicI64,
    closed: AtomicBool,
    /// What the source's tables were when the copy began, as the journal would hold it.
    noted: Mutex<Option<Fingerprint>>,
}

/// The databases of a unit.
#[derive(Debug)]
pub struct Sides {
    /// The source's primary.
    pub source: ConnectOptions,
    /// Its standby, if changes are decoded there.
    pub standby: Option<ConnectOptions>,
    /// The sink.
    pub sink: ConnectOptions,
}

/// What a mover may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// It dies where it stands, and a successor starts.
    Kill,
    /// It is told to stop, and a successor starts.
    Stop,
    /// A successor starts while it lives on.
    Succeed,
}

/// How a mover ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Its unit was sealed, or it was told to end.
    Well,
    /// The move fails by name: the reason's word, and all of it.
    ByName(String, String),
    /// It failed otherwise.
    Broken(String),
}

/// How far a mover is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Whether it streams.
    pub streams: bool,
    /// Rows written or deleted on the sink by all attempts to stream.
    pub changes: u64,
    /// What the last attempt said.
    pub report: Report,
}

/// A mover with its successors.
#[derive(Debug)]
pub struct Mover {
    /// Its unit.
    pub post: Arc<Post>,
    /// How far it is.
    pub progress: watch::Receiver<Progress>,
    orders: mpsc::UnboundedSender<Disturbance>,
    end: CancellationToken,
    running: JoinHandle<Ended>,
    ended: Option<Ended>,
}

/// Why an attempt did not go on.
enum Failure {
    Ended(Ended),
    /// Trying again may help.
    Passing(String),
}

impl Post {
    /// A unit that nobody has begun to move.
    #[must_use]
    pub fn new(
        unit: Unit,
        graph: &Arc<Graph>,
        spine: &Arc<Spine>,
        sides: Sides,
        spool_bytes: usize,
        batching: Batching,
    ) -> Self {
        Self {
            unit,
            graph: Arc::clone(graph),
            spine: Arc::clone(spine),
            source: sides.source,
            standby: sides.standby,
            sink: sides.sink,
            spool_bytes,
            batching,
            epochs: AtomicI64::new(0),
            closed: AtomicBool::new(false),
            noted: Mutex::new(None),
        }
    }

    /// Where changes are decoded and rows are read.
    #[must_use]
    pub fn decoder(&self) -> &ConnectOptions {
        self.standby.as_ref().unwrap_or(&self.source)
    }

    /// What is no longer as it was noted of the source's tables; looked at behind the barrier, as
    /// the activities do.
    ///
    /// # Errors
    ///
    /// When the source does not answer.
    pub async fn changes_of_schema(&self) -> Result<Vec<String>> {
        let source = self.session(&self.source, self.newest()).await?;
        let tables = self.graph.walk(&self.unit.store);
        let now = catalog::load(&*source, &tables).await?.fingerprint();
        let noted = self.noted.lock().map(|noted| noted.clone());
        let Ok(Some(noted)) = noted else {
            bail!("{}: nothing was noted of its tables", self.unit.store);
        };
        let changes = Fingerprint::changes(&noted, &now).into_iter();
        Ok(changes
            .map(|(table, line)| format!("{table}: {line}"))
            .collect())
    }

    /// The next epoch, as the ledger would hand it out.
    pub fn next_epoch(&self) -> Epoch {
        Epoch(self.epochs.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Hands out no more epochs to movers: the move is sealed, or given up. The ledger does it by
    /// the move's phase.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn movers_epoch(&self) -> Result<Epoch, Failure> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Ended(Ended::Well));
        }
        Ok(self.next_epoch())
    }

    fn newest(&self) -> Epoch {
        Epoch(self.epochs.load(Ordering::SeqCst))
    }

    /// A session that writes on the source or the sink.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn session(&self, to: &ConnectOptions, epoch: Epoch) -> Result<Session> {
        let purpose = SessionPurpose::writer(self.unit.application(epoch));
        Ok(Session::connect(to, &purpose).await?)
    }

    /// What is the organization's in a database of this unit.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn doomed(&self, session: &Session) -> Result<Vec<Doomed>> {
        let tables = self.graph.walk(&self.unit.store);
        let catalog = catalog::load(&**session, &tables).await?;
        let scope = self.scope(&catalog)?;
        Ok(evict::doomed(
            &self.graph,
            &self.unit.store,
            &scope,
            &catalog,
        )?)
    }

    /// The unit's scope by the types of a catalog.
    ///
    /// # Errors
    ///
    /// When it cannot be put into SQL.
    pub fn scope(&self, catalog: &catalog::Catalog) -> Result<Scope> {
        let Unit { org, store, .. } = &self.unit;
        Ok(Scope::new(&self.graph, store, org, &self.spine, catalog)?)
    }

    /// Deletes the unit from the sink under a new epoch; `for_good` its row too.
    ///
    /// # Errors
    ///
    /// When the sink refuses.
    pub async fn scrub(&self, epoch: Epoch, for_good: bool) -> Result<Session> {
        let mut sink = self.session(&self.sink, epoch).await?;
        let doomed = self.doomed(&sink).await?;
        let permit = ScrubPermit::in_phase(Phase::Active).context("a scrub is permitted")?;
        let unit = &self.unit;
        let mut nobody = |_: &monarch_model::TableName, _: u64| {};
        if for_good {
            evict::scrub(&mut sink, unit, epoch, &doomed, &permit, &mut nobody).await?;
        } else {
            evict::scrub_rows(&mut sink, unit, epoch, &doomed, &permit, &mut nobody).await?;
        }
        Ok(sink)
    }

    /// Takes the unit over on the sink.
    ///
    /// # Errors
    ///
    /// When an older writer does not let go.
    pub async fn take_over(&self, epoch: Epoch) -> Result<Session> {
        let mut sink = self.session(&self.sink, epoch).await?;
        match sink::take_over(&mut sink, &self.unit, epoch, PATIENCE).await? {
            TakeOver::Held(_) => Ok(sink),
            TakeOver::Superseded { by } => bail!("superseded by epoch {by}"),
        }
    }

    /// Drops what the unit has on the source, and looks for it in vain.
    ///
    /// # Errors
    ///
    /// When it stays.
    pub async fn drop_slots(&self, epoch: Epoch) -> Result<()> {
        let mut primary = self.session(&self.source, epoch).await?;
        let decoder = self.session(self.decoder(), epoch).await?;
        for server in [&primary, &decoder] {
            sessions::end_older(server, &self.unit, epoch).await?;
            slot::drop_all(server, &self.unit).await?;
        }
        publication::drop_all(&mut primary, &self.unit).await?;
        let mut slots = slot::of_unit(&primary, &self.unit).await?;
        slots.extend(slot::of_unit(&decoder, &self.unit).await?);
        let publications = publication::of_unit(&primary, &self.unit).await?;
        if !slots.is_empty() || !publications.is_empty() {
            bail!("left on the source: {slots:?} {publications:?}");
        }
        Ok(())
    }

    /// What a stream, or the reading of its tail, is given.
    #[must_use]
    pub fn job(&self, epoch: Epoch, slot: &str) -> Job {
        Job {
            unit: self.unit.clone(),
            epoch,
            graph: Arc::clone(&self.graph),
            spine: Arc::clone(&self.spine),
            source: self.decoder().clone(),
            primary: self.source.clone(),
            sink: self.sink.clone(),
            slot: slot.to_owned(),
            acknowledged: None,
            sink_identity: None,
            spool: Spool {
                memory_bytes: self.spool_bytes,
                ..Spool::new(std::env::temp_dir())
            },
            keys: Arc::new(NoObjects),
            batching: self.batching,
        }
    }
}

impl Mover {
    /// Starts to move a unit. The first copy dies after `copy_dies_after`, if it takes so long.
    #[must_use]
    pub fn start(post: Arc<Post>, copy_dies_after: Option<Duration>) -> Self {
        let (told, progress) = watch::channel(Progress::default());
        let (orders, taken) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let carrying = Carrying {
            post: Arc::clone(&post),
            told: Arc::new(told),
            end: end.clone(),
            slot: None,
            acknowledged: None,
            identity: None,
            older: Vec::new(),
        };
        let running = tokio::spawn(carrying.carry(taken, copy_dies_after));
        Self {
            post,
            progress,
            orders,
            end,
            running,
            ended: None,
        }
    }

    /// Disturbs it.
    pub fn disturb(&self, how: Disturbance) {
        // One that has ended cannot be disturbed.
        let _ = self.orders.send(how);
    }

    /// How it ended, if it has.
    pub async fn has_ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() && self.running.is_finished() {
            self.ended = Some(self.joined().await);
        }
        self.ended.clone()
    }

    /// Tells it to end, and waits until it has.
    pub async fn end(&mut self) -> Ended {
        self.end.cancel();
        if self.ended.is_none() {
            self.ended = Some(self.joined().await);
        }
        self.ended.clone().unwrap_or(Ended::Well)
    }

    async fn joined(&mut self) -> Ended {
        match (&mut self.running).await {
            Ok(ended) => ended,
            Err(panic) => Ended::Broken(panic.to_string()),
        }
    }

    /// The slot that it streams.
    #[must_use]
    pub fn slot_prefix(&self) -> String {
        self.post.unit.prefix()
    }
}

struct Carrying {
    post: Arc<Post>,
    told: Arc<watch::Sender<Progress>>,
    end: CancellationToken,
    /// Once the copy is complete.
    slot: Option<String>,
    acknowledged: Option<Lsn>,
    identity: Option<SinkIdentity>,
    /// Those that live on beside their successor.
    older: Vec<JoinHandle<Result<Report, StreamError>>>,
}

impl Carrying {
    async fn carry(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Disturbance>,
        copy_dies_after: Option<Duration>,
    ) -> Ended {
        let mut patience = ATTEMPTS_MAX;
        let mut copy_dies_after = copy_dies_after;
        loop {
            let attempt = match self.slot.clone() {
                None => self.copy(copy_dies_after.take()).await,
                Some(slot) => self.stream(&slot, &mut orders).await,
            };
            match attempt {
                Ok(()) if self.end.is_cancelled() => return Ended::Well,
                Ok(()) => {}
                Err(Failure::Ended(ended)) => return ended,
                Err(Failure::Passing(why)) => {
                    patience -= 1;
                    if patience == 0 {
                        return Ended::Broken(format!("it fails again and again: {why}"));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn copy(&mut self, dies_after: Option<Duration>) -> Result<(), Failure> {
        let post = Arc::clone(&self.post);
        let epoch = post.movers_epoch()?;
        let mut copying = tokio::spawn(async move { Box::pin(copy(&post, epoch)).await });
        let death = async {
            match dies_after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let copied = tokio::select! {
            copied = &mut copying => copied,
            () = death => {
                copying.abort();
                let _ = copying.await;
                return Ok(());
            }
            () = self.end.cancelled() => {
                copying.abort();
                let _ = copying.await;
                return Ok(());
            }
        };
        match copied {
            Ok(Ok((slot, identity))) => {
                self.slot = Some(slot);
                self.identity = Some(identity);
                Ok(())
            }
            Ok(Err(error)) => Err(copy_failure(&error)),
            Err(panic) => Err(Failure::Ended(Ended::Broken(panic.to_string()))),
        }
    }

    async fn stream(
        &mut self,
        slot: &str,
        orders: &mut mpsc::UnboundedReceiver<Disturbance>,
    ) -> Result<(), Failure> {
        let epoch = self.post.movers_epoch()?;
        let job = Job {
            acknowledged: self.acknowledged,
            sink_identity: self.identity,
            ..self.post.job(epoch, slot)
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let before = self.told.borrow().changes;
        let mut observer = Telling {
            told: Arc::clone(&self.told),
            before,
        };
        let (_, nobody) = mpsc::channel(1);
        let mut running =
            tokio::spawn(async move { stream::run(&job, &mut observer, nobody, &stopped).await });
        let ended = tokio::select! {
            ended = &mut running => ended,
            Some(order) = orders.recv() => {
                match order {
                    Disturbance::Kill => {
                        running.abort();
                        let _ = running.await;
                    }
                    Disturbance::Stop => {
                        stop.cancel();
                        let _ = running.await;
                    }
                    Disturbance::Succeed => self.older.push(running),
                }
                self.remember();
                return Ok(());
            }
            () = self.end.cancelled() => {
                stop.cancel();
                let _ = running.await;
                for older in self.older.drain(..) {
                    older.abort();
                }
                return Ok(());
            }
        };
        self.remember();
        match ended {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.stream_failure(&error, epoch)),
            Err(panic) => Err(Failure::Ended(Ended::Broken(panic.to_string()))),
        }
    }

    /// What the ledger would have seen acknowledged.
    fn remember(&mut self) {
        let report = self.told.borrow().report;
        if report.acknowledged > Lsn::default() {
            self.acknowledged = self.acknowledged.max(Some(report.acknowledged));
        }
    }

    fn stream_failure(&self, error: &StreamError, epoch: Epoch) -> Failure {
        match error {
            StreamError::Fatal(finding) => Failure::Ended(Ended::ByName(
                finding.reason.as_str().to_owned(),
                finding.to_string(),
            )),
            StreamError::Sink(SinkError::Sealed { .. }) => Failure::Ended(Ended::Well),
            StreamError::Sink(SinkError::Superseded { .. }) if epoch < self.post.newest() => {
                Failure::Passing("superseded".to_owned())
            }
            error if error.is_transient() => Failure::Passing(chain(error)),
            StreamError::Refused { .. } => {
                Failure::Ended(Ended::ByName("row-refused".to_owned(), chain(error)))
            }
            error => Failure::Ended(Ended::Broken(chain(error))),
        }
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        for older in &self.older {
            older.abort();
        }
    }
}

fn copy_failure(error: &anyhow::Error) -> Failure {
    let told = format!("{error:#}");
    if let Some(CopyError::Spine(SpineError::StaticSpineChanged { .. })) = error.downcast_ref() {
        return Failure::Ended(Ended::ByName("static-spine-changed".to_owned(), told));
    }
    let transient = error.chain().any(|cause| {
        cause
            .downcast_ref::<monarch_postgres::Error>()
            .is_some_and(monarch_postgres::Error::is_transient)
    });
    if transient {
        Failure::Passing(told)
    } else {
        Failure::Ended(Ended::Broken(told))
    }
}

struct Telling {
    told: Arc<watch::Sender<Progress>>,
    /// Changes of earlier attempts.
    before: u64,
}

impl Observer for Telling {
    fn observe(&mut self, report: &Report) {
        self.told.send_replace(Progress {
            streams: true,
            changes: self.before + report.changes,
            report: *report,
        });
    }
}

struct Nobody;

impl snapshot::Observer for Nobody {
    fn progress(&mut self, _: &snapshot::Progress) {}
}

/// One try to copy a unit: what an earlier one left goes first.
async fn copy(post: &Post, epoch: Epoch) -> Result<(String, SinkIdentity)> {
    let unit = &post.unit;
    {
        let mut sink = post.session(&post.sink, epoch).await?;
        sink::ensure_schema(&mut sink).await?;
    }
    let mut sink = post.scrub(epoch, false).await?;
    let mut primary = post.session(&post.source, epoch).await?;
    let tables = post.graph.walk(&unit.store);
    let catalog = catalog::load(&*primary, &tables).await?;
    let mut decoder = post.session(post.decoder(), epoch).await?;
    for server in [&primary, &decoder] {
        sessions::end_older(server, unit, epoch).await?;
        slot::drop_older(server, unit, epoch).await?;
    }
    if let Ok(mut noted) = post.noted.lock() {
        *noted = Some(catalog.fingerprint());
    }
    let plan = publication::plan(unit, &post.graph, &post.scope(&catalog)?, &catalog)?;
    publication::ensure(&mut primary, &plan).await?;
    if post.standby.is_some() {
        publication::wait_replayed(&*primary, &*decoder, PATIENCE).await?;
    }
    let slot = make_slot(post, epoch, (&primary, &decoder)).await?;
    let no_objects: Arc<dyn KeyRecorder> = Arc::new(NoObjects);
    let job = snapshot::Job {
        unit,
        epoch,
        graph: &post.graph,
        spine: &post.spine,
        snapshot: &slot.snapshot,
        consistent_point: slot.consistent_point,
        keys: &no_objects,
    };
    let cancel = CancellationToken::new();
    snapshot::copy(&job, &mut decoder, &mut sink, &mut Nobody, &cancel).await?;
    let identity = stream::identify(&sink).await?;
    Ok((unit.slot(epoch), identity))
}

async fn make_slot(
    post: &Post,
    epoch: Epoch,
    (primary, decoder): (&Session, &Session),
) -> Result<ExportedSlot> {
    let unit = &post.unit;
    let purpose = SessionPurpose::reader(unit.application(epoch)).holding_snapshot();
    let replication = ReplicationConnection::connect(post.decoder(), &purpose).await?;
    let cancel = CancellationToken::new();
    let making = Making {
        unit,
        epoch,
        decoder,
        primary,
        timeout: PATIENCE,
        cancel: &cancel,
    };
    let name = unit.slot(epoch);
    let made = making
        .create(
            replication.create_slot(&name, SlotKind::Permanent),
            || async { Ok(epoch == post.newest()) },
        )
        .await?;
    Ok(made)
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Well => f.write_str("well"),
            Ended::ByName(_, told) => f.write_str(told),
            Ended::Broken(why) => write!(f, "broken: {why}"),
        }
    }
}
