//! Reads what the source's log still holds behind the seal, and writes nothing.
//!
//! A slot may deliver again, after a crash of the source, what was applied long ago, and the
//! organization already lives on the sink: nothing of it may land. What is new is judged by the
//! membership at the seal and counted per table; any such change forbids eviction.
//!
//! The end of the tail is a mark that this reader leaves itself, behind a snapshot of the primary:
//! all that the snapshot sees was committed before the mark, and so was read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use monarch_model::{Lsn, TableName};
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::Statement;
use uuid::Uuid;

use super::assemble::{Assembler, SourceTransaction};
use super::change::Change;
use super::error::{StartOver, StreamError};
use super::event::{Event, read_event};
use super::membership::Membership;
use super::start::{Standing, take_slot};
use super::statement::{Param, exists_sql};
use super::tables::{TableIndex, Tables};
use super::{Action, Before, Job, mark};
use crate::replication::{Frame, ReplicationConnection, Status, StreamOptions};
use crate::{ConnectOptions, Doing, Session, SessionPurpose, drain, sink};

/// How often the walsender is told that the reader lives.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What stood behind the seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Changes of the organization that the sink does not have, by table. Empty is as it should be.
    pub late_changes: BTreeMap<TableName, u64>,
    /// Where the tail was read to.
    pub head: Lsn,
    /// A snapshot of the source's primary, as `pg_current_snapshot()` prints it: all that it sees
    /// is on the sink or counted here.
    pub snapshot: String,
}

/// Reads the slot of a sealed unit to the head of the source's log, whose `primary` may be another
/// server than the one that decodes.
///
/// # Errors
///
/// See [`StreamError`]. Nothing was changed; it may be done again.
pub async fn read_tail(job: &Job, primary: &ConnectOptions) -> Result<Tail, StreamError> {
    let reader = SessionPurpose::reader(job.unit.application(job.epoch));
    let sink = Session::connect(&job.sink, &reader).await?;
    let state = sink::read(&*sink, &job.unit).await?;
    let position = state
        .and_then(|state| state.position)
        .ok_or(StartOver::NotCopied)?;
    let source = Session::connect(&job.source, &reader).await?;
    let standing = Standing {
        position,
        promoted: false,
        sink: None,
    };
    take_slot(&source, &job.slot, &job.unit, job.epoch, standing).await?;
    let tables = Arc::new(Tables::load(&source, &sink, job).await?);
    let membership = Membership::sealed(&*sink, &tables, &job.unit).await?;
    let connection = ReplicationConnection::connect(&job.source, &reader).await?;
    let options = StreamOptions::new(job.publications());
    let mut stream = connection.start(&job.slot, position, &options).await?;

    let (snapshot, nonce) = leave_mark(job, primary).await?;
    let mut assembler = Assembler::new(Arc::clone(&tables), job.spool.clone(), position);
    let mut judge = Judge {
        job,
        tables: &tables,
        membership,
        sink: &sink,
        statements: BTreeMap::new(),
        late: BTreeMap::new(),
    };
    let mut tick = interval(REPORT_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut received = position;
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let status = Status { write: received, flush: position, apply: position };
                stream.send_status(status, false).await?;
            }
            frame = stream.next() => {
                let Frame::XLogData { start, data, .. } = frame? else { continue };
                received = received.max(start);
                let Some(transaction) = assembler.push(&data)? else { continue };
                if judge.transaction(&transaction, nonce).await? {
                    return Ok(Tail {
                        late_changes: judge.late,
                        head: transaction.end,
                        snapshot,
                    });
                }
            }
        }
    }
}

/// Takes a snapshot of the primary and leaves a mark behind it.
async fn leave_mark(job: &Job, primary: &ConnectOptions) -> Result<(String, Uuid), StreamError> {
    let writer = SessionPurpose::writer(job.unit.application(job.epoch));
    let primary = Session::connect(primary, &writer).await?;
    let doing = "take a snapshot of the source";
    let row = primary
        .query_one("select pg_catalog.pg_current_snapshot()::text", &[])
        .await
        .doing(doing)?;
    let snapshot = row.try_get(0).doing(doing)?;
    let nonce = Uuid::new_v4();
    drain::emit_barrier(&primary, job.unit.move_id, &job.unit.store, nonce).await?;
    primary.close().await;
    Ok((snapshot, nonce))
}

struct Judge<'a> {
    job: &'a Job,
    tables: &'a Tables,
    membership: Membership,
    sink: &'a Session,
    statements: BTreeMap<TableIndex, Statement>,
    late: BTreeMap<TableName, u64>,
}

impl Judge<'_> {
    /// Counts what is the organization's; whether the mark was met.
    async fn transaction(
        &mut self,
        transaction: &SourceTransaction,
        nonce: Uuid,
    ) -> Result<bool, StreamError> {
        let mut replay = transaction.recording.replay();
        let mut met = false;
        while let Some(frame) = replay.next_frame()? {
            match read_event(frame, &transaction.recording, self.tables)? {
                Event::Change(change) => self.change(&change).await?,
                Event::Truncate(tables) => {
                    for index in tables {
                        self.count(index);
                    }
                }
                Event::Message { content } => {
                    met |= mark::nonce_for(&content, &self.job.unit) == Some(nonce);
                }
                Event::Other => {}
            }
        }
        Ok(met)
    }

    async fn change(&mut self, change: &Change) -> Result<(), StreamError> {
        let table = &self.tables.all[change.table];
        let case = change.case(table, &self.membership);
        let late = match case.decide() {
            Action::Ignore => false,
            // The log does not say whose row it was; the sink may.
            Action::Delete(_) | Action::Update(_) if case.before == Before::Unknown => {
                self.is_on_sink(change).await?
            }
            _ => true,
        };
        if late {
            self.count(change.table);
        }
        Ok(())
    }

    fn count(&mut self, index: TableIndex) {
        let table = &self.tables.all[index].name;
        *self.late.entry(table.clone()).or_default() += 1;
    }

    /// Whether the organization has a row of the old key on the sink.
    async fn is_on_sink(&mut self, change: &Change) -> Result<bool, StreamError> {
        let table = &self.tables.all[change.table];
        let Some(key) = change.old_key(table) else {
            return Ok(true);
        };
        let doing = || format!("look for a row of {} on the sink", table.name);
        let statement = match self.statements.get(&change.table) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.sink.prepare(&exists_sql(table)).await.doing(doing())?;
                self.statements.insert(change.table, statement.clone());
                statement
            }
        };
        let key: Vec<Param> = key.into_iter().map(Param::Text).collect();
        let found = self
            .sink
            .execute_raw(&statement, key)
            .await
            .doing(doing())?;
        Ok(found > 0)
    }
}
