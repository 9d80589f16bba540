//! The replication slots of a unit: made within a time, never left behind.
//!
//! A slot pins the source's log and its old catalog rows for as long as it lives, so whoever makes
//! one must be sure that it is wanted: the epoch is read again afterwards, and the slot of a mover
//! that was superseded meanwhile is dropped by that mover itself. A slot's name ends in the epoch
//! that made it, so a mover can drop its own without ever touching its successor's.
//!
//! Making one waits for every transaction with a transaction id that was open when it began. That
//! may be hours: the wait is bounded, and says for whom it waits.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use monarch_model::{Epoch, Lsn};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};
use tokio_util::sync::CancellationToken;

use crate::{Doing, Error, Result, Unit};

/// How often a standby is given what it waits for.
const STANDBY_SNAPSHOT_EVERY: Duration = Duration::from_millis(200);
/// How long a walsender that was ended may take to let go of its slot.
const LET_GO_WAIT: Duration = Duration::from_secs(30);
/// How often a slot is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How many blockers are named.
const BLOCKERS_MAX: i64 = 10;

/// A replication slot as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// The database that it decodes.
    pub database: Option<String>,
    /// Who reads from it, or is making it.
    pub active_pid: Option<i32>,
    /// What was acknowledged. None while the slot is being made.
    pub confirmed_flush: Option<Lsn>,
    /// The oldest log that the server keeps for it.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// How many bytes of log may still be written before it may be lost; none if without limit.
    pub safe_wal_size_bytes: Option<i64>,
    /// Whether a standby's slot was invalidated by a conflict with recovery (Postgres 16).
    pub conflicting: bool,
    /// Why it was invalidated (Postgres 17).
    pub invalidation_reason: Option<String>,
}

impl Slot {
    /// Whether it can never be read from again.
    pub fn is_lost(&self) -> bool {
        self.conflicting
            || self.invalidation_reason.is_some()
            || self.wal_status.as_deref() == Some("lost")
    }
}

/// A transaction that the making of a slot waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// Its session; none if it is prepared.
    pub pid: Option<i32>,
    /// What its session calls itself, or its name if it is prepared.
    pub name: String,
    /// Seconds since it began, or was prepared. Unknown where our role may not see it.
    pub age_seconds: Option<i64>,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid} ({:?}", self.name)?,
            None => write!(f, "prepared transaction ({:?}", self.name)?,
        }
        match self.age_seconds {
            Some(age) => write!(f, ", open for {age} s)"),
            None => f.write_str(")"),
        }
    }
}

/// A slot was not made or not dropped.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// Old transactions did not end in time. Nothing is left of the slot.
    #[error("slot {slot}: not made within {} s, which wait for {}", .timeout.as_secs(), list(.blockers))]
    Blocked {
        /// The slot.
        slot: String,
        /// The time that was given.
        timeout: Duration,
        /// The transactions that were open at the end of it, the oldest first.
        blockers: Vec<Blocker>,
    },
    /// The mover was told to stop. Nothing is left of the slot.
    #[error("slot {slot}: told to stop")]
    Cancelled {
        /// The slot.
        slot: String,
    },
    /// A newer mover has the unit. Nothing is left of the slot.
    #[error("slot {slot}: the mover of epoch {epoch} was superseded")]
    Superseded {
        /// The slot.
        slot: String,
        /// The epoch that no longer counts.
        epoch: Epoch,
    },
    /// Whether the unit is still the mover's could not be found out. Nothing is left of the slot.
    #[error("slot {slot}: read the unit's epoch again")]
    EpochUnknown {
        /// The slot.
        slot: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The slot could not be dropped.
    #[error("slot {slot} is still there{}", reader(.active_pid))]
    StillThere {
        /// The slot.
        slot: String,
        /// Who holds it.
        active_pid: Option<i32>,
    },
    /// The database did not do what it was asked.
    #[error(transparent)]
    Asked(#[from] Error),
}

fn list(blockers: &[Blocker]) -> String {
    if blockers.is_empty() {
        return "transactions that could not be seen".to_owned();
    }
    let blockers: Vec<String> = blockers.iter().map(Blocker::to_string).collect();
    blockers.join(", ")
}

fn reader(pid: &Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", held by pid {pid}"))
}

/// What the making of a slot needs beside the replication connection that makes it.
#[derive(Clone, Copy)]
pub struct Making<'a> {
    /// The unit.
    pub unit: &'a Unit,
    /// The mover's epoch.
    pub epoch: Epoch,
    /// A session on the server that decodes.
    pub decoder: &'a Client,
    /// A session on the primary; the same one unless a standby decodes.
    pub primary: &'a Client,
    /// How long old transactions are waited for.
    pub timeout: Duration,
    /// Whether to stop.
    pub cancel: &'a CancellationToken,
}

impl Making<'_> {
    /// Sees a slot through: `command` is the replication connection's `CREATE_REPLICATION_SLOT`
    /// under the name [`Unit::slot`], and `still_mine` reads the unit's epoch from the ledger.
    /// Unless it returns the command's result, no slot is left. The replication connection cannot
    /// be used after an error.
    pub async fn create<T, M, F>(
        &self,
        command: impl Future<Output = Result<T>>,
        still_mine: M,
    ) -> std::result::Result<T, SlotError>
    where
        M: FnOnce() -> F,
        F: Future<Output = std::result::Result<bool, Box<dyn std::error::Error + Send + Sync>>>,
    {
        let made = match self.within_time(command).await {
            Ok(made) => made,
            Err(error) => {
                self.drop_own().await?;
                return Err(error);
            }
        };
        let slot = self.unit.slot(self.epoch);
        let error = match still_mine().await {
            Ok(true) => return Ok(made),
            Ok(false) => SlotError::Superseded {
                slot,
                epoch: self.epoch,
            },
            Err(source) => SlotError::EpochUnknown { slot, source },
        };
        self.drop_own().await?;
        Err(error)
    }

    async fn within_time<T>(
        &self,
        command: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, SlotError> {
        let on_standby = in_recovery(self.decoder).await?;
        let mut command = pin!(command);
        let mut timeout = pin!(sleep(self.timeout));
        let mut standby_snapshot = interval(STANDBY_SNAPSHOT_EVERY);
        standby_snapshot.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                made = &mut command => return Ok(made?),
                () = self.cancel.cancelled() => {
                    return Err(SlotError::Cancelled { slot: self.unit.slot(self.epoch) });
                }
                () = &mut timeout => {
                    return Err(SlotError::Blocked {
                        slot: self.unit.slot(self.epoch),
                        timeout: self.timeout,
                        blockers: blockers(self.primary).await?,
                    });
                }
                _ = standby_snapshot.tick(), if on_standby => log_standby_snapshot(self.primary).await?,
            }
        }
    }

    /// The walsender goes first: it may not have begun yet with what it was told, and would make
    /// the slot after it was looked for.
    async fn drop_own(&self) -> std::result::Result<(), SlotError> {
        let slot = self.unit.slot(self.epoch);
        end_walsenders(self.decoder, &slot, |epoch| epoch == self.epoch, self.unit).await?;
        drop_one(self.decoder, &slot).await
    }
}

async fn in_recovery(client: &Client) -> Result<bool> {
    client
        .query_one("select pg_catalog.pg_is_in_recovery()", &[])
        .await
        .and_then(|row| row.try_get(0))
        .doing("ask whether the server is a standby")
}

/// A standby can only begin to decode at a record of the running transactions, which a quiet
/// primary writes seldom.
async fn log_standby_snapshot(primary: &Client) -> Result<()> {
    primary
        .execute("select pg_catalog.pg_log_standby_snapshot()", &[])
        .await
        .doing("log a standby snapshot on the primary")?;
    Ok(())
}

/// The open transactions with a transaction id, the oldest first.
pub(crate) async fn blockers(primary: &Client) -> Result<Vec<Blocker>> {
    let doing = "look for open transactions";
    let rows = primary
        .query(
            "select l.pid, coalesce(p.gid, a.application_name, '') as name,
                    extract(epoch from clock_timestamp() - coalesce(p.prepared, a.xact_start))::int8
                      as age_seconds
             from pg_catalog.pg_locks l
             left join pg_catalog.pg_stat_activity a on a.pid = l.pid
             left join pg_catalog.pg_prepared_xacts p
               on l.pid is null and p.transaction = l.transactionid
             where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
               and l.pid is distinct from pg_backend_pid()
             order by age_seconds desc nulls last, l.pid
             limit $1",
            &[&BLOCKERS_MAX],
        )
        .await
        .doing(doing)?;
    let blocker = |row: &Row| -> std::result::Result<Blocker, tokio_postgres::Error> {
        Ok(Blocker {
            pid: row.try_get("pid")?,
            name: row.try_get("name")?,
            age_seconds: row.try_get("age_seconds")?,
        })
    };
    rows.iter().map(|row| blocker(row).doing(doing)).collect()
}

/// The slot of that name on the server of `client`.
pub async fn inspect(client: &Client, name: &str) -> Result<Option<Slot>> {
    let slots = list_slots(client, name).await?;
    Ok(slots.into_iter().find(|slot| slot.name == name))
}

/// The unit's slots on the server of `client`, whatever epoch made them.
pub async fn of_unit(client: &Client, unit: &Unit) -> Result<Vec<Slot>> {
    let mut slots = list_slots(client, &unit.prefix()).await?;
    slots.retain(|slot| unit.epoch_in(&slot.name).is_some());
    Ok(slots)
}

async fn list_slots(client: &Client, beginning: &str) -> Result<Vec<Slot>> {
    let doing = "look at the replication slots";
    // Columns that came with later versions are read by way of jsonb.
    let rows = client
        .query(
            "select s.slot_name::text, s.database::text, s.active_pid, s.confirmed_flush_lsn,
                    s.restart_lsn, s.wal_status, s.safe_wal_size,
                    coalesce((to_jsonb(s) ->> 'conflicting')::bool, false) as conflicting,
                    to_jsonb(s) ->> 'invalidation_reason' as invalidation_reason
             from pg_catalog.pg_replication_slots s
             where starts_with(s.slot_name::text, $1) order by s.slot_name",
            &[&beginning],
        )
        .await
        .doing(doing)?;
    rows.iter().map(|row| slot(row).doing(doing)).collect()
}

fn slot(row: &Row) -> std::result::Result<Slot, tokio_postgres::Error> {
    let lsn = |column: &str| -> std::result::Result<Option<Lsn>, tokio_postgres::Error> {
        let lsn: Option<PgLsn> = row.try_get(column)?;
        Ok(lsn.map(|lsn| Lsn(lsn.into())))
    };
    Ok(Slot {
        name: row.try_get("slot_name")?,
        database: row.try_get("database")?,
        active_pid: row.try_get("active_pid")?,
        confirmed_flush: lsn("confirmed_flush_lsn")?,
        restart: lsn("restart_lsn")?,
        wal_status: row.try_get("wal_status")?,
        safe_wal_size_bytes: row.try_get("safe_wal_size")?,
        conflicting: row.try_get("conflicting")?,
        invalidation_reason: row.try_get("invalidation_reason")?,
    })
}

/// Drops all slots of the unit on the server of `client`, ends their readers and makers, and looks
/// again until there is none. Doing it again is the same.
pub async fn drop_all(client: &Client, unit: &Unit) -> std::result::Result<(), SlotError> {
    loop {
        end_walsenders(client, &unit.prefix(), |_| true, unit).await?;
        let slots = of_unit(client, unit).await?;
        if slots.is_empty() {
            return Ok(());
        }
        for slot in slots {
            drop_one(client, &slot.name).await?;
        }
    }
}

/// Drops the slots that earlier epochs than `epoch` made, and no later one's. Doing it again is the
/// same.
pub async fn drop_older(
    client: &Client,
    unit: &Unit,
    epoch: Epoch,
) -> std::result::Result<(), SlotError> {
    let is_older = |made: Epoch| made < epoch;
    end_walsenders(client, &unit.prefix(), is_older, unit).await?;
    for slot in of_unit(client, unit).await? {
        if unit.epoch_in(&slot.name).is_some_and(is_older) {
            drop_one(client, &slot.name).await?;
        }
    }
    Ok(())
}

/// Drops the slot of that name if it is there: ends its walsender, waits until the slot is let go,
/// drops it and looks again. Doing it again is the same.
pub async fn drop_one(client: &Client, name: &str) -> std::result::Result<(), SlotError> {
    let deadline = Instant::now() + LET_GO_WAIT;
    loop {
        let Some(slot) = inspect(client, name).await? else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            return Err(SlotError::StillThere {
                slot: slot.name,
                active_pid: slot.active_pid,
            });
        }
        if let Some(pid) = slot.active_pid {
            client
                .execute("select pg_catalog.pg_terminate_backend($1)", &[&pid])
                .await
                .doing("end the slot's walsender")?;
            sleep(LOOK_EVERY).await;
        } else {
            drop_idle(client, name).await?;
        }
    }
}

/// Ends the unit's walsenders of some epochs, and waits until they are gone. `of` names what they
/// would hold, for the error.
async fn end_walsenders(
    client: &Client,
    of: &str,
    epochs: impl Fn(Epoch) -> bool,
    unit: &Unit,
) -> std::result::Result<(), SlotError> {
    let doing = "end the unit's walsenders";
    let deadline = Instant::now() + LET_GO_WAIT;
    loop {
        let rows = client
            .query(
                "select pid, application_name from pg_catalog.pg_stat_activity
                 where backend_type = 'walsender' and starts_with(application_name, $1)",
                &[&unit.prefix()],
            )
            .await
            .doing(doing)?;
        let mut last = None;
        for row in rows {
            let application: String = row.try_get(1).doing(doing)?;
            if unit.epoch_in(&application).is_some_and(&epochs) {
                let pid: i32 = row.try_get(0).doing(doing)?;
                client
                    .execute("select pg_catalog.pg_terminate_backend($1)", &[&pid])
                    .await
                    .doing(doing)?;
                last = Some(pid);
            }
        }
        if last.is_none() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(SlotError::StillThere {
                slot: of.to_owned(),
                active_pid: last,
            });
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn drop_idle(client: &Client, name: &str) -> Result<()> {
    let dropped = client
        .execute("select pg_catalog.pg_drop_replication_slot($1)", &[&name])
        .await
        .doing("drop the slot");
    match dropped {
        Ok(_) => Ok(()),
        // Somebody was faster, to drop it or to read from it: the next look tells.
        Err(error)
            if error.is(&SqlState::UNDEFINED_OBJECT) || error.is(&SqlState::OBJECT_IN_USE) =>
        {
            sleep(LOOK_EVERY).await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}
