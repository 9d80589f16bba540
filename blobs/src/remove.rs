//! Deletes objects: the source's after a move, and the sink's after one that was given up.
//!
//! Both go key by key from the ledger, never by prefix and never by what a bucket lists: other
//! tenants' objects lie beside them. An object is deleted only if it is still the one that this move
//! read or wrote; another one stays and is named. On a versioned bucket a delete names no version,
//! so the object is kept below a delete marker.
//!
//! Each step finds what an earlier one that died left half done: what is not there any more counts
//! as deleted.

use std::collections::HashSet;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use monarch_config::{Eviction, Store, StoreKind};
use monarch_ledger::{BlobChoice, BlobMark, BlobRecord};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::bucket::{Bucket, Stat};
use crate::copy::problem;
use crate::error::BlobError;
use crate::key::BlobKey;
use crate::limits::{Limits, Rate};
use crate::mover::{BlobUnit, retried};
use crate::verify::digest;

/// Why an object stays, as a word; nothing if it is gone.
type Stays = Result<Option<&'static str>, BlobError>;

/// How many keys that stay a report names.
const NAMED: usize = 100;

/// The leave to delete a store's objects on the source. Only a store that says so gives it.
#[derive(Debug, Clone, Copy)]
pub struct EvictionPermit(());

impl EvictionPermit {
    /// The leave for `store`; none unless it moves and declares its keys its organization's own.
    pub fn of(store: &Store) -> Option<Self> {
        let deletes = matches!(
            store.kind,
            StoreKind::Blob {
                eviction: Eviction::Delete,
                ..
            }
        );
        (store.migrate && deletes).then_some(Self(()))
    }
}

/// Who else names objects.
#[async_trait]
pub trait References: Send + Sync {
    /// Those of `keys` that a row of somebody else names.
    async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError>;
}

/// What deleting came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Objects that are gone, by us or before us.
    pub gone: u64,
    /// Objects that stay, since they are not what this move read or wrote.
    pub kept: u64,
    /// The first of them, each with why, as a word.
    pub named: Vec<(String, String)>,
    /// Whether every key was dealt with, rather than the work called off.
    pub is_whole: bool,
}

/// Deletes the organization's objects on the source. To be called before its rows are deleted:
/// afterwards nothing would name what is left.
///
/// # Errors
/// When a bucket or the ledger does not answer.
pub async fn evict(
    unit: &BlobUnit,
    source: &Bucket,
    _permit: EvictionPermit,
    limits: &Limits,
    cancel: &CancellationToken,
) -> Result<Removed, BlobError> {
    let work = Work {
        unit,
        limits,
        cancel,
        choice: BlobChoice::ToEvict,
        mark: BlobMark::Evicted,
    };
    work.walk(&Evicting { source }).await
}

/// What becomes of one key.
#[async_trait]
trait Remove: Sync {
    /// Those of a page's keys that others name: asked once for a page, since each question may cost
    /// the database a walk over a table.
    async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError>;

    async fn remove(&self, record: &BlobRecord, is_shared: bool) -> Stays;
}

/// Where objects are evicted from.
struct Evicting<'a> {
    source: &'a Bucket,
}

#[async_trait]
impl Remove for Evicting<'_> {
    /// The store declares that nobody does; preflight has looked at a sample.
    async fn shared(&self, _: &[&str]) -> Result<HashSet<String>, BlobError> {
        Ok(HashSet::new())
    }

    async fn remove(&self, record: &BlobRecord, _: bool) -> Stays {
        let key = BlobKey::new(record.key.as_str());
        let Some(copy) = &record.copied else {
            return Ok(None);
        };
        match self.source.look(&key).await? {
            None => Ok(None),
            Some(there) if there.tag != copy.source_tag => Ok(Some(problem::CHANGED)),
            Some(_) => self.source.delete(&key).await.map(|()| None),
        }
    }
}

/// Takes back from the sink what this move put there, for a move that is given up. To be called
/// after the rows are scrubbed: what still names an object then is somebody else's row, and the
/// object stays.
///
/// # Errors
/// When a bucket, the ledger or the sink's database does not answer.
pub async fn scrub(
    unit: &BlobUnit,
    source: &Bucket,
    sink: &Bucket,
    references: &dyn References,
    limits: &Limits,
    cancel: &CancellationToken,
) -> Result<Removed, BlobError> {
    let taking = TakingBack {
        source,
        sink,
        references,
        rate: Rate::new(limits.bytes_per_second),
    };
    let work = Work {
        unit,
        limits,
        cancel,
        choice: BlobChoice::ToScrub,
        mark: BlobMark::Scrubbed,
    };
    work.walk(&taking).await
}

/// Between which buckets objects are taken back.
struct TakingBack<'a> {
    source: &'a Bucket,
    sink: &'a Bucket,
    references: &'a dyn References,
    rate: Rate,
}

#[async_trait]
impl Remove for TakingBack<'_> {
    async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError> {
        self.references.shared(keys).await
    }

    async fn remove(&self, record: &BlobRecord, is_shared: bool) -> Stays {
        let key = BlobKey::new(record.key.as_str());
        if self.sink.check_key(&key).is_err() {
            return Ok(None);
        }
        let Some(there) = self.sink.look(&key).await? else {
            return Ok(None);
        };
        if !self.is_ours(record, &there, &key).await? {
            let code = match record.copied {
                Some(_) => problem::DIFFERENT,
                None => problem::UNPROVED,
            };
            return Ok(Some(code));
        }
        if is_shared {
            return Ok(Some(problem::SHARED));
        }
        self.sink.delete(&key).await.map(|()| None)
    }
}

impl TakingBack<'_> {
    /// Whether the sink's object is the one that this move put there. Where the mover died before
    /// it could record what it wrote, the source's object, which is still there, says what it was.
    async fn is_ours(
        &self,
        record: &BlobRecord,
        there: &Stat,
        key: &BlobKey,
    ) -> Result<bool, BlobError> {
        if let Some(copy) = &record.copied
            && copy.sink_tag.is_some()
            && copy.sink_tag == there.e_tag
        {
            return Ok(there.size == copy.size_bytes);
        }
        let written = match &record.copied {
            Some(copy) => Some((copy.size_bytes, copy.sha256.clone())),
            None => digest(self.source, key, &self.rate).await?,
        };
        Ok(written.is_some() && written == digest(self.sink, key, &self.rate).await?)
    }
}

/// A walk over keys whose objects are deleted.
struct Work<'a> {
    unit: &'a BlobUnit,
    limits: &'a Limits,
    cancel: &'a CancellationToken,
    choice: BlobChoice,
    mark: BlobMark,
}

impl Work<'_> {
    async fn walk(&self, how: &dyn Remove) -> Result<Removed, BlobError> {
        let BlobUnit {
            ledger,
            move_id,
            store,
            ..
        } = self.unit;
        let (mut removed, mut after) = (Removed::default(), None);
        while !self.cancel.is_cancelled() {
            let page = ledger
                .blob_keys(
                    *move_id,
                    store,
                    self.choice,
                    after.as_ref(),
                    self.limits.page,
                )
                .await?;
            match self.page(&page.records, how, &mut removed).await {
                // What was deleted and not marked is found gone by the next walk.
                Err(BlobError::Cancelled) => break,
                done => done?,
            }
            match page.next {
                Some(next) => after = Some(next),
                None => {
                    removed.is_whole = true;
                    break;
                }
            }
        }
        Ok(removed)
    }

    async fn page(
        &self,
        records: &[BlobRecord],
        how: &dyn Remove,
        removed: &mut Removed,
    ) -> Result<(), BlobError> {
        let keys: Vec<&str> = records.iter().map(|record| record.key.as_str()).collect();
        let shared = match keys.is_empty() {
            true => HashSet::new(),
            false => how.shared(&keys).await?,
        };
        let shared = &shared;
        let removals = records.iter().map(|record| async move {
            let is_shared = shared.contains(&record.key);
            let remove = || how.remove(record, is_shared);
            let kept = retried(self.limits, self.cancel, remove).await?;
            Ok::<_, BlobError>((record, kept))
        });
        let mut removals = stream::iter(removals).buffer_unordered(self.limits.objects.max(1));
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        while let Some(removal) = removals.next().await {
            match removal? {
                (record, None) => gone.push(record.key.as_str()),
                (record, Some(code)) => {
                    if removed.named.len() < NAMED {
                        removed.named.push((record.key.clone(), code.to_owned()));
                    }
                    kept.push((record.key.as_str(), code));
                }
            }
        }
        removed.gone += gone.len() as u64;
        removed.kept += kept.len() as u64;
        let BlobUnit {
            ledger,
            move_id,
            store,
            epoch,
        } = self.unit;
        if !gone.is_empty() {
            ledger
                .mark_blobs(*move_id, store, *epoch, self.mark, &gone)
                .await?;
        }
        if !kept.is_empty() {
            ledger
                .record_blob_problems(*move_id, store, *epoch, &kept)
                .await?;
        }
        Ok(())
    }
}
