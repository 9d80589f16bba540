//! The keys of objects that an organization's rows name, and what became of each.
//!
//! An organization may have millions, so nothing here is ever read as a whole: keys are recorded in
//! batches as rows pass, walked in pages, and answered for in batches. A page goes on after a
//! [`BlobCursor`], in the order of the keys' digests, which is as good as random: a part of the walk
//! is a fair sample of the whole.
//!
//! Recording needs no epoch, since it only ever adds, and a key too many costs a look at a bucket.
//! Whatever is said about a key afterwards is fenced by the blob unit's epoch, above all
//! [`Ledger::intend_blob_puts`]: once a scrub has taken its epoch, no older mover may begin to put
//! an object.

use std::collections::BTreeMap;

use monarch_model::{Epoch, MoveId, StoreName, TableName};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::connection::Ledger;
use crate::error::LedgerError;
use crate::records::{column, parsed};
use crate::units::lock_unit_of;

/// A place in the walk over a store's keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobCursor(Vec<u8>);

/// Which keys of a store are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobChoice {
    /// Those that are not copied, the missing and the troubled among them: a later look may find
    /// what an earlier one did not.
    Uncopied,
    /// Those that nobody has looked for yet.
    Fresh,
    /// Those that are copied.
    Copied,
    /// Those that cannot be copied, or whose copy could not be proved.
    Troubled,
    /// Those whose object on the source was copied and is not yet deleted.
    ToEvict,
    /// Those whose object on the sink this move put there, or was about to, and that is not yet
    /// taken back.
    ToScrub,
}

/// What the copy of an object was proved to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobCopy {
    /// Its size.
    pub size_bytes: u64,
    /// Its SHA-256, in lower-case hexadecimal.
    pub sha256: String,
    /// What the source said of the object that was read, for a comparison when it is evicted.
    pub source_tag: String,
    /// What the sink said of the copy, where it did.
    pub sink_tag: Option<String>,
}

/// A recorded key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRecord {
    /// The key, as it stands in the row.
    pub key: String,
    /// The table of the row that named it first.
    pub table: TableName,
    /// Whether this move put the object on the sink, or was about to.
    pub is_put: bool,
    /// What was copied.
    pub copied: Option<BlobCopy>,
    /// Whether the source had no such object at the last look.
    pub is_missing: bool,
    /// Why the key is in trouble, as a word.
    pub problem: Option<String>,
}

/// A part of the walk.
#[derive(Debug, Clone)]
pub struct BlobPage {
    /// The keys.
    pub records: Vec<BlobRecord>,
    /// Where the walk goes on; none at its end.
    pub next: Option<BlobCursor>,
}

/// What became of a key that a mover looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobOutcome {
    /// The sink has the object, proved.
    Copied {
        /// What was proved.
        copy: BlobCopy,
        /// Whether this move put it there; else the sink had an equal one.
        is_put: bool,
    },
    /// The source has no such object. Nothing was put on the sink.
    Missing,
    /// The object cannot be copied.
    Problem {
        /// Why, as a word.
        code: &'static str,
        /// Whether an object of this move may stand on the sink nevertheless.
        is_put: bool,
    },
}

/// What was done with keys, beside copying them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobMark {
    /// The sink's object was read again and is what was copied.
    Verified,
    /// The source's object was deleted.
    Evicted,
    /// The sink's object was taken back, or was not there to be.
    Scrubbed,
}

/// A store's keys in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobCounts {
    /// Recorded.
    pub recorded: u64,
    /// Copied.
    pub copied: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
    /// Not copied, since the source has no such object.
    pub missing: u64,
    /// Not copied for another reason that a person has to look at.
    pub troubled: u64,
    /// Of the copied, those that were read again.
    pub verified: u64,
    /// Deleted on the source.
    pub evicted: u64,
    /// Taken back from the sink.
    pub scrubbed: u64,
}

impl BlobCounts {
    /// How many keys hold the cut-over back: those without a copy, the missing ones only where
    /// they are not accepted.
    pub fn blocking(&self, missing_is_accepted: bool) -> u64 {
        let uncopied = self.recorded.saturating_sub(self.copied);
        if missing_is_accepted {
            uncopied.saturating_sub(self.missing)
        } else {
            uncopied
        }
    }
}

impl Ledger {
    /// Records the keys that rows of `table` name, and returns how many were new. Keys that are
    /// known stay as they are. One statement: the caller bounds the batch, a few thousand at most.
    pub async fn record_blob_keys(
        &self,
        move_id: MoveId,
        store: &StoreName,
        table: &TableName,
        keys: &[String],
    ) -> Result<u64, LedgerError> {
        const DOING: &str = "record keys of objects";
        if keys.is_empty() {
            return Ok(0);
        }
        let lease = self.lease().await?;
        let recorded = lease
            .client()
            .execute(
                RECORD,
                &[&move_id.0, &store.as_str(), &table.as_str(), &keys],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        Ok(recorded)
    }

    /// The next keys of a walk, at most `limit`: the first ones without a cursor.
    pub async fn blob_keys(
        &self,
        move_id: MoveId,
        store: &StoreName,
        choice: BlobChoice,
        after: Option<&BlobCursor>,
        limit: u32,
    ) -> Result<BlobPage, LedgerError> {
        const DOING: &str = "read keys of objects";
        let query = format!(
            "{READ} where k.move_id = $1 and k.store = $2 and k.digest > $3 and {}
              order by k.digest limit $4",
            condition(choice)
        );
        // No digest is empty, so the empty one stands before them all.
        let after = after.map_or(&[][..], |cursor| &cursor.0);
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(
                &query,
                &[&move_id.0, &store.as_str(), &after, &i64::from(limit)],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        let next = match rows.last() {
            Some(row) if rows.len() == limit as usize => Some(BlobCursor(column(row, "digest")?)),
            _ => None,
        };
        let records = rows.iter().map(read).collect::<Result<_, _>>()?;
        Ok(BlobPage { records, next })
    }

    /// Copied keys, one after each of these places at most, each once. Random places make a random
    /// sample.
    pub async fn sample_blob_keys(
        &self,
        move_id: MoveId,
        store: &StoreName,
        places: &[[u8; 32]],
    ) -> Result<Vec<BlobRecord>, LedgerError> {
        const DOING: &str = "read a sample of keys";
        let places: Vec<&[u8]> = places.iter().map(<[u8; 32]>::as_slice).collect();
        let query = format!(
            "select distinct on (k.digest) k.* from unnest($3::bytea[]) p (place)
               cross join lateral ({READ}
                 where k.move_id = $1 and k.store = $2 and k.digest >= p.place and {}
                 order by k.digest limit 1) k
              order by k.digest",
            condition(BlobChoice::Copied)
        );
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(&query, &[&move_id.0, &store.as_str(), &places])
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter().map(read).collect()
    }

    /// Notes that the holder of `epoch` is about to put these keys' objects on the sink, which has
    /// none of them: the intent, before the effect.
    pub async fn intend_blob_puts(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        keys: &[&str],
    ) -> Result<(), LedgerError> {
        const DOING: &str = "note the objects that will be put";
        self.blobs_of(DOING, (move_id, store, epoch), INTEND, &[&keys])
            .await
    }

    /// Records what became of keys. Who said that a key is copied is not contradicted: only keys
    /// that are not copied change.
    pub async fn record_blob_outcomes(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        outcomes: &[(&str, BlobOutcome)],
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record what became of objects";
        let columns = Columns::of(outcomes);
        self.blobs_of(
            DOING,
            (move_id, store, epoch),
            OUTCOMES,
            &[
                &columns.keys,
                &columns.sizes,
                &columns.digests,
                &columns.tags,
                &columns.sink_tags,
                &columns.missing,
                &columns.problems,
                &columns.put,
            ],
        )
        .await
    }

    /// Records that these copied keys are in trouble: their copy could not be proved again, or may
    /// not be evicted.
    pub async fn record_blob_problems(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        problems: &[(&str, &'static str)],
    ) -> Result<(), LedgerError> {
        const DOING: &str = "record trouble with objects";
        let (keys, codes): (Vec<&str>, Vec<&str>) = problems.iter().copied().unzip();
        self.blobs_of(DOING, (move_id, store, epoch), PROBLEMS, &[&keys, &codes])
            .await
    }

    /// Marks keys as verified, evicted or scrubbed. A mark takes an earlier problem away.
    pub async fn mark_blobs(
        &self,
        move_id: MoveId,
        store: &StoreName,
        epoch: Epoch,
        mark: BlobMark,
        keys: &[&str],
    ) -> Result<(), LedgerError> {
        const DOING: &str = "mark objects";
        let sql = match mark {
            BlobMark::Verified => VERIFIED,
            BlobMark::Evicted => EVICTED,
            BlobMark::Scrubbed => SCRUBBED,
        };
        self.blobs_of(DOING, (move_id, store, epoch), sql, &[&keys])
            .await
    }

    /// The keys of a move in numbers, by store. Reads every key: for a look now and then.
    pub async fn blob_counts(
        &self,
        move_id: MoveId,
    ) -> Result<BTreeMap<StoreName, BlobCounts>, LedgerError> {
        const DOING: &str = "count the keys of objects";
        let lease = self.lease().await?;
        let rows = lease
            .client()
            .query(COUNTS, &[&move_id.0])
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        rows.iter()
            .map(|row| Ok((parsed(row, "store")?, read_counts(row)?)))
            .collect()
    }

    /// The gate of the cut-over: whether the store has no key that holds it back, as
    /// [`BlobCounts::blocking`] says. Reads one key at most.
    pub async fn blobs_are_copied(
        &self,
        move_id: MoveId,
        store: &StoreName,
        missing_is_accepted: bool,
    ) -> Result<bool, LedgerError> {
        const DOING: &str = "look for keys without a copy";
        let lease = self.lease().await?;
        let row = lease
            .client()
            .query_one(
                "select not exists (
                    select from monarch_ledger.blob_key
                     where move_id = $1 and store = $2 and copied_at is null
                       and not ($3 and missing_at is not null)) as all_copied",
                &[&move_id.0, &store.as_str(), &missing_is_accepted],
            )
            .await
            .map_err(LedgerError::database(DOING))?;
        lease.give_back();
        column(&row, "all_copied")
    }

    /// One statement about keys, for the holder of the unit's newest epoch.
    async fn blobs_of(
        &self,
        doing: &'static str,
        (move_id, store, epoch): (MoveId, &StoreName, Epoch),
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), LedgerError> {
        let mut lease = self.lease().await?;
        let tx = lease.begin(doing).await?;
        lock_unit_of(&tx, move_id, store, epoch).await?;
        let store = store.as_str();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&move_id.0, &store];
        params.extend_from_slice(values);
        tx.execute(sql, &params)
            .await
            .map_err(LedgerError::database(doing))?;
        tx.commit().await.map_err(LedgerError::database(doing))?;
        lease.give_back();
        Ok(())
    }
}

const RECORD: &str = "
    insert into monarch_ledger.blob_key (move_id, store, table_name, key, digest)
    select $1, $2, $3, k, sha256(convert_to(k, 'UTF8')) from unnest($4::text[]) k
    on conflict do nothing";

const READ: &str = "
    select k.key, k.table_name, k.digest, k.size_bytes, k.sha256, k.source_tag, k.sink_tag, k.problem,
           k.put_at is not null as is_put, k.missing_at is not null as is_missing
      from monarch_ledger.blob_key k";

/// The condition of a choice on the rows `k`.
fn condition(choice: BlobChoice) -> &'static str {
    match choice {
        BlobChoice::Uncopied => "k.copied_at is null",
        BlobChoice::Fresh => "k.copied_at is null and k.missing_at is null and k.problem is null",
        BlobChoice::Copied => "k.copied_at is not null",
        BlobChoice::Troubled => "(k.missing_at is not null or k.problem is not null)",
        BlobChoice::ToEvict => "k.copied_at is not null and k.evicted_at is null",
        BlobChoice::ToScrub => "k.put_at is not null and k.scrubbed_at is null",
    }
}

const INTEND: &str = "
    update monarch_ledger.blob_key k set put_at = clock_timestamp()
      from unnest($3::text[]) n (key)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(n.key, 'UTF8'))
       and k.copied_at is null and k.put_at is null";

const OUTCOMES: &str = "
    update monarch_ledger.blob_key k
       set size_bytes = o.size, sha256 = o.sha256, source_tag = o.tag, sink_tag = o.sink_tag,
           copied_at = case when o.sha256 is not null then clock_timestamp() end,
           missing_at = case when o.missing then coalesce(k.missing_at, clock_timestamp()) end,
           problem = o.problem,
           problem_at = case when o.problem is not null
                             then coalesce(k.problem_at, clock_timestamp()) end,
           put_at = case when o.put then coalesce(k.put_at, clock_timestamp()) end
      from unnest($3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bool[],
                  $9::text[], $10::bool[])
           o (key, size, sha256, tag, sink_tag, missing, problem, put)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(o.key, 'UTF8'))
       and k.copied_at is null";

const PROBLEMS: &str = "
    update monarch_ledger.blob_key k
       set problem = o.problem, problem_at = coalesce(k.problem_at, clock_timestamp())
      from unnest($3::text[], $4::text[]) o (key, problem)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(o.key, 'UTF8'))";

const VERIFIED: &str = "
    update monarch_ledger.blob_key k
       set verified_at = clock_timestamp(), problem = null, problem_at = null
      from unnest($3::text[]) n (key)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(n.key, 'UTF8'))
       and k.copied_at is not null";

const EVICTED: &str = "
    update monarch_ledger.blob_key k
       set evicted_at = clock_timestamp(), problem = null, problem_at = null
      from unnest($3::text[]) n (key)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(n.key, 'UTF8'))
       and k.copied_at is not null and k.evicted_at is null";

const SCRUBBED: &str = "
    update monarch_ledger.blob_key k
       set scrubbed_at = clock_timestamp(), problem = null, problem_at = null
      from unnest($3::text[]) n (key)
     where k.move_id = $1 and k.store = $2 and k.digest = sha256(convert_to(n.key, 'UTF8'))
       and k.put_at is not null and k.scrubbed_at is null";

const COUNTS: &str = "
    select store, count(*) as recorded, count(copied_at) as copied,
           coalesce(sum(size_bytes), 0)::bigint as copied_bytes,
           count(*) filter (where copied_at is null and missing_at is not null) as missing,
           count(problem) as troubled, count(verified_at) as verified,
           count(evicted_at) as evicted, count(scrubbed_at) as scrubbed
      from monarch_ledger.blob_key where move_id = $1 group by store";

/// Outcomes as the columns of one statement.
#[derive(Default)]
struct Columns<'a> {
    keys: Vec<&'a str>,
    sizes: Vec<Option<i64>>,
    digests: Vec<Option<&'a str>>,
    tags: Vec<Option<&'a str>>,
    sink_tags: Vec<Option<&'a str>>,
    missing: Vec<bool>,
    problems: Vec<Option<&'a str>>,
    put: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn of(outcomes: &'a [(&'a str, BlobOutcome)]) -> Self {
        let mut columns = Self::default();
        for (key, outcome) in outcomes {
            let (copy, problem, is_put) = match outcome {
                BlobOutcome::Copied { copy, is_put } => (Some(copy), None, *is_put),
                BlobOutcome::Missing => (None, None, false),
                BlobOutcome::Problem { code, is_put } => (None, Some(*code), *is_put),
            };
            columns.keys.push(key);
            columns
                .sizes
                .push(copy.map(|copy| i64::try_from(copy.size_bytes).unwrap_or(i64::MAX)));
            columns.digests.push(copy.map(|copy| copy.sha256.as_str()));
            columns.tags.push(copy.map(|copy| copy.source_tag.as_str()));
            columns
                .sink_tags
                .push(copy.and_then(|copy| copy.sink_tag.as_deref()));
            columns
                .missing
                .push(matches!(outcome, BlobOutcome::Missing));
            columns.problems.push(problem);
            columns.put.push(is_put);
        }
        columns
    }
}

fn read(row: &Row) -> Result<BlobRecord, LedgerError> {
    let size: Option<i64> = column(row, "size_bytes")?;
    let sha256: Option<String> = column(row, "sha256")?;
    let tag: Option<String> = column(row, "source_tag")?;
    let copied = match size.zip(sha256) {
        Some((size, sha256)) => Some(BlobCopy {
            size_bytes: unsigned(size, "size_bytes")?,
            sha256,
            source_tag: tag.unwrap_or_default(),
            sink_tag: column(row, "sink_tag")?,
        }),
        None => None,
    };
    Ok(BlobRecord {
        key: column(row, "key")?,
        table: parsed(row, "table_name")?,
        is_put: column(row, "is_put")?,
        copied,
        is_missing: column(row, "is_missing")?,
        problem: column(row, "problem")?,
    })
}

fn read_counts(row: &Row) -> Result<BlobCounts, LedgerError> {
    let count = |name| unsigned(column(row, name)?, name);
    Ok(BlobCounts {
        recorded: count("recorded")?,
        copied: count("copied")?,
        copied_bytes: count("copied_bytes")?,
        missing: count("missing")?,
        troubled: count("troubled")?,
        verified: count("verified")?,
        evicted: count("evicted")?,
        scrubbed: count("scrubbed")?,
    })
}

fn unsigned(n: i64, name: &'static str) -> Result<u64, LedgerError> {
    u64::try_from(n).map_err(|_| LedgerError::Unreadable { column: name })
}
