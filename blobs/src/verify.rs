//! Reads the sink's objects again and compares them with what was copied.

use futures::stream::{self, StreamExt};
use monarch_ledger::{BlobChoice, BlobMark, BlobRecord};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::bucket::{Bucket, hex};
use crate::copy::problem;
use crate::error::{BlobError, Doing};
use crate::key::BlobKey;
use crate::limits::{Limits, Rate};
use crate::mover::{BlobUnit, retried};

/// How many wrong keys a report names.
const NAMED: usize = 100;

/// How many objects are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// So many, chosen at random; fewer where there are no more.
    Sample(u32),
    /// All that are copied.
    All,
}

/// What reading again found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Objects read.
    pub checked: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that are not what was copied.
    pub wrong: u64,
    /// The first of them, each with what is wrong, as a word.
    pub named: Vec<(String, String)>,
}

/// Reads objects of the sink again, marks those that are what was copied, and names the others.
///
/// # Errors
/// When the bucket or the ledger does not answer.
pub async fn verify(
    unit: &BlobUnit,
    sink: &Bucket,
    which: Which,
    limits: &Limits,
    cancel: &CancellationToken,
) -> Result<Verified, BlobError> {
    let rate = Rate::new(limits.bytes_per_second);
    let mut verified = Verified::default();
    if let Which::Sample(size) = which {
        let places: Vec<[u8; 32]> = (0..size).map(|_| rand::random()).collect();
        let sampled = unit
            .ledger
            .sample_blob_keys(unit.move_id, &unit.store, &places)
            .await?;
        for part in sampled.chunks(limits.page.max(1) as usize) {
            page(unit, sink, part, limits, &rate, cancel, &mut verified).await?;
        }
        return Ok(verified);
    }
    let mut after = None;
    loop {
        let next = unit
            .ledger
            .blob_keys(
                unit.move_id,
                &unit.store,
                BlobChoice::Copied,
                after.as_ref(),
                limits.page,
            )
            .await?;
        page(
            unit,
            sink,
            &next.records,
            limits,
            &rate,
            cancel,
            &mut verified,
        )
        .await?;
        match next.next {
            Some(cursor) => after = Some(cursor),
            None => return Ok(verified),
        }
    }
}

async fn page(
    unit: &BlobUnit,
    sink: &Bucket,
    records: &[BlobRecord],
    limits: &Limits,
    rate: &Rate,
    cancel: &CancellationToken,
    verified: &mut Verified,
) -> Result<(), BlobError> {
    let checks = records.iter().map(|record| async move {
        let verdict = retried(limits, cancel, || check(sink, record, rate)).await?;
        Ok::<_, BlobError>((record, verdict))
    });
    let mut checks = stream::iter(checks).buffer_unordered(limits.objects.max(1));
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    while let Some(checked) = checks.next().await {
        let (record, (bytes, verdict)) = checked?;
        verified.checked += 1;
        verified.bytes += bytes;
        match verdict {
            None => right.push(record.key.as_str()),
            Some(code) => {
                verified.wrong += 1;
                if verified.named.len() < NAMED {
                    verified.named.push((record.key.clone(), code.to_owned()));
                }
                wrong.push((record.key.as_str(), code));
            }
        }
    }
    let BlobUnit {
        ledger,
        move_id,
        store,
        epoch,
    } = unit;
    if !right.is_empty() {
        ledger
            .mark_blobs(*move_id, store, *epoch, BlobMark::Verified, &right)
            .await?;
    }
    if !wrong.is_empty() {
        ledger
            .record_blob_problems(*move_id, store, *epoch, &wrong)
            .await?;
    }
    Ok(())
}

/// The bytes that were read, and what is wrong with the object.
async fn check(
    sink: &Bucket,
    record: &BlobRecord,
    rate: &Rate,
) -> Result<(u64, Option<&'static str>), BlobError> {
    let Some(copy) = &record.copied else {
        return Ok((0, None));
    };
    let key = BlobKey::new(record.key.as_str());
    let Some((bytes, sha256)) = digest(sink, &key, rate).await? else {
        return Ok((0, Some(problem::LOST)));
    };
    let is_right = bytes == copy.size_bytes && sha256 == copy.sha256;
    Ok((bytes, (!is_right).then_some(problem::DIFFERENT)))
}

/// Size and SHA-256 of an object, if there is one.
pub(crate) async fn digest(
    bucket: &Bucket,
    key: &BlobKey,
    rate: &Rate,
) -> Result<Option<(u64, String)>, BlobError> {
    let Some(reading) = bucket.read(key).await? else {
        return Ok(None);
    };
    let (mut size, mut hash) = (0_u64, Sha256::new());
    let mut bytes = reading.bytes;
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk.map_err(|error| bucket.failed(Doing::Read, key, &error))?;
        rate.take(chunk.len()).await;
        size += chunk.len() as u64;
        hash.update(&chunk);
    }
    Ok(Some((size, hex(&hash.finalize()))))
}
