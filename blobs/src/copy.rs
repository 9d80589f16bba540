//! The copy of one object, and the proof that it is one.
//!
//! An ETag proves nothing: it depends on the parts that an object was written in. The proof is the
//! size and the SHA-256 of the bytes as they were read from the source, computed while they pass.
//! What a store takes is taken whole or not at all; a look at the source afterwards tells whether
//! the object was still the one that was read, and if not, it is copied again.
//!
//! Where one service holds both buckets and may read the one with the other's credential, it copies
//! by itself. The bytes are still read once, since nobody but us computes the digest: it is the
//! upload that is saved. That digest says what the copy ought to be; `verify` reads the sink's
//! object against it.
//!
//! An object that the sink has already is compared and never replaced, unless this very copy put it
//! there: it may be another tenant's. Equal bytes under the same key are as good as a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use monarch_ledger::{BlobCopy, BlobOutcome};
use object_store::{PutPayload, PutPayloadMut, WriteMultipart};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::bucket::{Bucket, ByteStream, Reading, ServiceCopy, Stat, hex};
use crate::error::{BlobError, Doing, FaultKind};
use crate::key::{BlobKey, Kind};
use crate::limits::{Limits, Memory, Parts, Rate};
use crate::progress::Progress;

/// Why a key cannot be copied, as the words that the ledger and the reports have.
pub mod problem {
    /// The sink has another object under the key, which this move did not put there.
    pub const DIFFERENT: &str = "different-on-sink";
    /// A bucket cannot hold the key.
    pub const KEY_REFUSED: &str = "key-refused";
    /// The store refuses the object for good, or the credential does not reach it.
    pub const REJECTED: &str = "rejected";
    /// The object was put on the sink and is gone from the source since.
    pub const GONE: &str = "gone-from-source";
    /// The sink's object is not there any more.
    pub const LOST: &str = "lost-on-sink";
    /// The source's object is not the one that was copied.
    pub const CHANGED: &str = "changed-on-source";
    /// Nobody can say whether this move put the sink's object there.
    pub const UNPROVED: &str = "unproved-on-sink";
    /// Others name the object too.
    pub const SHARED: &str = "shared-on-sink";
}

/// How often an object may change under its copy before somebody has to look.
const CHANGES: u32 = 5;

/// What is known of a key before its object is copied.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) key: BlobKey,
    /// What the sink has under the key.
    pub(crate) on_sink: Option<Stat>,
    /// Whether an earlier attempt of this move was about to put it there.
    pub(crate) was_put: bool,
}

/// Copies objects between two buckets.
pub(crate) struct Copier {
    pub(crate) source: Bucket,
    pub(crate) sink: Bucket,
    service: Option<ServiceCopy>,
    /// Lowered for good when the service refused to copy by itself.
    service_copies: AtomicBool,
    memory: Memory,
    pub(crate) rate: Rate,
    progress: Arc<Progress>,
    cancel: CancellationToken,
}

/// What was read and written.
struct Passed {
    size: u64,
    sha256: String,
    sink_tag: Option<String>,
}

/// How one try ended.
enum Try {
    /// The object is on the sink.
    Written(Stat, Passed),
    /// Somebody else made an object of this key first.
    Taken(Stat),
    /// The source has no such object.
    Missing,
    /// What is there is no object: a folder of that name.
    Blocked,
}

impl Copier {
    pub(crate) fn new(
        source: Bucket,
        sink: Bucket,
        limits: &Limits,
        progress: Arc<Progress>,
        cancel: CancellationToken,
    ) -> Self {
        let service = limits
            .service_copy
            .then(|| sink.copier_from(&source))
            .flatten();
        Self {
            service_copies: AtomicBool::new(service.is_some()),
            service,
            memory: Memory::new(limits.bytes_in_flight),
            rate: Rate::new(limits.bytes_per_second),
            source,
            sink,
            progress,
            cancel,
        }
    }

    /// Copies one object, or finds out why not.
    ///
    /// # Errors
    /// What may go away by itself, or is not about this object alone; nothing is then known about
    /// what the sink has.
    pub(crate) async fn copy(&self, task: &Task) -> Result<BlobOutcome, BlobError> {
        match &task.on_sink {
            Some(there) => self.compare(task, there).await,
            None => self.copy_until_still(task).await,
        }
    }

    async fn copy_until_still(&self, task: &Task) -> Result<BlobOutcome, BlobError> {
        let mut is_ours = false;
        for _ in 0..CHANGES {
            match self.try_once(&task.key, is_ours).await? {
                Try::Missing if is_ours => return Ok(trouble(problem::GONE, true)),
                Try::Missing => return Ok(BlobOutcome::Missing),
                Try::Blocked => return Ok(trouble(problem::KEY_REFUSED, false)),
                Try::Taken(there) => return self.compare(task, &there).await,
                Try::Written(read, passed) => {
                    is_ours = true;
                    if read.is(self.source.look(&task.key).await?.as_ref()) {
                        return Ok(copied(&read, passed, true));
                    }
                    info!(place = %self.source, "an object changed during its copy: once more");
                }
            }
        }
        Err(BlobError::Changing {
            place: self.source.place().to_owned(),
            key: task.key.clone(),
            attempts: CHANGES,
        })
    }

    /// Reads the object and writes it, in the way that fits its size and the service.
    async fn try_once(&self, key: &BlobKey, is_ours: bool) -> Result<Try, BlobError> {
        let Some(reading) = self.source.read(key).await? else {
            return Ok(Try::Missing);
        };
        let read = reading.stat.clone();
        let _room = self.memory.take(Parts::memory(read.size)).await;
        let by_service = self.service_copies.load(Ordering::Relaxed)
            && read.size <= ServiceCopy::LARGEST
            // Small objects are quicker written than asked for.
            && Parts::of(read.size).is_some();
        if by_service && let Some(service) = &self.service {
            match self.ask_service(service, key).await? {
                true => {
                    let (size, sha256) = self.digest(&self.source, key, reading).await?;
                    let sink_tag = self.look_back(key, size).await?;
                    let passed = Passed {
                        size,
                        sha256,
                        sink_tag,
                    };
                    return Ok(Try::Written(read, passed));
                }
                false => self.service_copies.store(false, Ordering::Relaxed),
            }
        }
        let written = match Parts::of(read.size) {
            None => self.write_whole(key, reading, is_ours).await?,
            Some(parts) => self.write_in_parts(key, reading, parts, is_ours).await?,
        };
        match written {
            Some(passed) => Ok(Try::Written(read, passed)),
            None => self.taken(key).await,
        }
    }

    /// Whether the service copied the object; false if it cannot or may not.
    async fn ask_service(&self, service: &ServiceCopy, key: &BlobKey) -> Result<bool, BlobError> {
        match service.copy(key).await {
            Ok(()) => Ok(true),
            Err(error) => match error.fault().map(|fault| fault.kind) {
                Some(
                    FaultKind::Denied
                    | FaultKind::NotFound
                    | FaultKind::Unsupported
                    | FaultKind::Rejected,
                ) => {
                    debug!(sink = %self.sink, error = %error, "the service does not copy by itself");
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    /// None if an object was there and the store said so.
    async fn write_whole(
        &self,
        key: &BlobKey,
        reading: Reading,
        is_ours: bool,
    ) -> Result<Option<Passed>, BlobError> {
        let (mut payload, mut hash) = (PutPayloadMut::new(), Sha256::new());
        let mut bytes = reading.bytes;
        while let Some(chunk) = self.next(&self.source, key, &mut bytes).await? {
            hash.update(&chunk);
            payload.push(chunk);
        }
        let payload = PutPayload::from(payload);
        let size = payload.content_length() as u64;
        let put = self
            .sink
            .put(key, payload, reading.attributes, !is_ours)
            .await;
        let sink_tag = match put {
            Ok(tag) => tag,
            Err(error) if is_conflict(&error) && !is_ours => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Passed {
            size,
            sha256: hex(&hash.finalize()),
            sink_tag,
        }))
    }

    /// None if an object was there before the last part had come.
    async fn write_in_parts(
        &self,
        key: &BlobKey,
        reading: Reading,
        parts: Parts,
        is_ours: bool,
    ) -> Result<Option<Passed>, BlobError> {
        let part_bytes = usize::try_from(parts.bytes).unwrap_or(usize::MAX);
        let mut upload = self
            .sink
            .put_in_parts(key, reading.attributes.clone(), part_bytes)
            .await?;
        let filled = self.fill(key, reading, parts, &mut upload).await;
        let (size, sha256) = match filled {
            // The store knows no "only if there is none" for parts, so this is asked last.
            Ok(_) if !is_ours && self.sink.look(key).await?.is_some() => {
                self.abandon(upload).await;
                return Ok(None);
            }
            Ok(passed) => passed,
            Err(error) => {
                self.abandon(upload).await;
                return Err(error);
            }
        };
        let finished = upload.finish().await;
        let put = finished.map_err(|error| self.sink.failed(Doing::Write, key, &error))?;
        let looked = self.look_back(key, size).await?;
        Ok(Some(Passed {
            size,
            sha256,
            sink_tag: put.e_tag.or(looked),
        }))
    }

    async fn fill(
        &self,
        key: &BlobKey,
        reading: Reading,
        parts: Parts,
        upload: &mut WriteMultipart,
    ) -> Result<(u64, String), BlobError> {
        let at_once = usize::try_from(parts.at_once).unwrap_or(1);
        let part_bytes = usize::try_from(parts.bytes).unwrap_or(usize::MAX);
        let (mut size, mut hash) = (0_u64, Sha256::new());
        let mut bytes = reading.bytes;
        // A part of its own, so that no small slice keeps a large buffer of the connection alive.
        let mut part = BytesMut::with_capacity(part_bytes);
        while let Some(chunk) = self.next(&self.source, key, &mut bytes).await? {
            size += chunk.len() as u64;
            hash.update(&chunk);
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let fits = rest.len().min(part_bytes - part.len());
                part.extend_from_slice(&rest[..fits]);
                rest = &rest[fits..];
                if part.len() == part_bytes {
                    self.room(key, upload, at_once).await?;
                    upload.put(part.freeze());
                    part = BytesMut::with_capacity(part_bytes);
                }
            }
        }
        self.room(key, upload, at_once).await?;
        upload.put(part.freeze());
        Ok((size, hex(&hash.finalize())))
    }

    async fn room(
        &self,
        key: &BlobKey,
        upload: &mut WriteMultipart,
        at_once: usize,
    ) -> Result<(), BlobError> {
        let waited = upload.wait_for_capacity(at_once).await;
        waited.map_err(|error| self.sink.failed(Doing::Write, key, &error))
    }

    /// Parts that nobody finishes cost money until a rule of the bucket removes them.
    async fn abandon(&self, upload: WriteMultipart) {
        if upload.abort().await.is_err() {
            debug!(sink = %self.sink, "parts of an upload are left for the bucket's own rule");
        }
    }

    /// The object that somebody else made; it may be gone again.
    async fn taken(&self, key: &BlobKey) -> Result<Try, BlobError> {
        match self.sink.look(key).await? {
            Some(there) => Ok(Try::Taken(there)),
            None if self.sink.kind() == Kind::Files => Ok(Try::Blocked),
            None => Err(BlobError::Torn {
                place: self.sink.place().to_owned(),
                key: key.clone(),
                found: 0,
                written: 0,
            }),
        }
    }

    /// Reads back what the sink has, of which only the size can be told without reading it all.
    async fn look_back(&self, key: &BlobKey, written: u64) -> Result<Option<String>, BlobError> {
        match self.sink.look(key).await? {
            Some(there) if there.size == written => Ok(there.e_tag),
            there => Err(BlobError::Torn {
                place: self.sink.place().to_owned(),
                key: key.clone(),
                found: there.map_or(0, |there| there.size),
                written,
            }),
        }
    }

    /// Reads both objects. It is ours if an earlier attempt was about to put it there, or if this
    /// one was and lost the reply: the sink had none when that was noted.
    async fn compare(&self, task: &Task, there: &Stat) -> Result<BlobOutcome, BlobError> {
        let key = &task.key;
        let is_put = task.was_put || task.on_sink.is_none();
        let Some(reading) = self.source.read(key).await? else {
            return Ok(match is_put {
                true => trouble(problem::GONE, true),
                false => BlobOutcome::Missing,
            });
        };
        let read = reading.stat.clone();
        if read.size != there.size {
            return Ok(trouble(problem::DIFFERENT, false));
        }
        let (size, sha256) = self.digest(&self.source, key, reading).await?;
        let Some(reading) = self.sink.read(key).await? else {
            return Err(BlobError::Torn {
                place: self.sink.place().to_owned(),
                key: key.clone(),
                found: 0,
                written: size,
            });
        };
        let sink_tag = reading.stat.e_tag.clone();
        let (_, found) = self.digest(&self.sink, key, reading).await?;
        if found != sha256 {
            return Ok(trouble(problem::DIFFERENT, false));
        }
        let passed = Passed {
            size,
            sha256,
            sink_tag,
        };
        Ok(copied(&read, passed, is_put))
    }

    async fn digest(
        &self,
        bucket: &Bucket,
        key: &BlobKey,
        reading: Reading,
    ) -> Result<(u64, String), BlobError> {
        let (mut size, mut hash) = (0_u64, Sha256::new());
        let mut bytes = reading.bytes;
        while let Some(chunk) = self.next(bucket, key, &mut bytes).await? {
            size += chunk.len() as u64;
            hash.update(&chunk);
        }
        Ok((size, hex(&hash.finalize())))
    }

    /// The next bytes of an object, as fast as they may come, unless the work is called off.
    async fn next(
        &self,
        bucket: &Bucket,
        key: &BlobKey,
        bytes: &mut ByteStream,
    ) -> Result<Option<Bytes>, BlobError> {
        let chunk = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(BlobError::Cancelled),
            chunk = bytes.next() => chunk,
        };
        let Some(chunk) = chunk else {
            return Ok(None);
        };
        let chunk = chunk.map_err(|error| bucket.failed(Doing::Read, key, &error))?;
        self.rate.take(chunk.len()).await;
        self.progress.read_bytes(chunk.len() as u64);
        Ok(Some(chunk))
    }
}

fn is_conflict(error: &BlobError) -> bool {
    error
        .fault()
        .is_some_and(|fault| fault.kind == FaultKind::Conflict)
}

fn copied(read: &Stat, passed: Passed, is_put: bool) -> BlobOutcome {
    BlobOutcome::Copied {
        copy: BlobCopy {
            size_bytes: passed.size,
            sha256: passed.sha256,
            source_tag: read.tag.clone(),
            sink_tag: passed.sink_tag,
        },
        is_put,
    }
}

pub(crate) fn trouble(code: &'static str, is_put: bool) -> BlobOutcome {
    BlobOutcome::Problem { code, is_put }
}
