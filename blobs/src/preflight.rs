//! Looks, before a move, whether a store's objects can be moved at all.
//!
//! What is found is told as the databases' preflight tells it ([`monarch_postgres::preflight`]).
//! The sink is written to, once, under a random name below `.monarch-preflight-`, and that is taken
//! away again: nothing else proves that a credential can write, and nothing else proves that two
//! places with different names are not one, since the object then shows up in both. The source is
//! not written to; it is asked for an object of that name, and, where eviction deletes, to delete
//! one that was never there.

use std::borrow::Cow;

use monarch_config::{Eviction, Store, StoreKind};
use monarch_model::CellName;
use monarch_postgres::preflight::{Finding, Place, Severity};
use object_store::{Attributes, PutPayload};

use crate::bucket::Bucket;
use crate::error::{BlobError, FaultKind};
use crate::key::{BlobKey, Kind};
use crate::remove::References;

/// A blob store of a move, opened at both ends.
#[derive(Debug)]
pub struct BlobJob<'a> {
    /// The store.
    pub store: &'a Store,
    /// The cell that the organization leaves.
    pub from: &'a CellName,
    /// The cell where it arrives.
    pub to: &'a CellName,
    /// The source's bucket, or why it could not be opened.
    pub source: Result<Bucket, BlobError>,
    /// The sink's bucket, or why it could not be opened.
    pub sink: Result<Bucket, BlobError>,
}

/// Looks at both ends of a store.
pub async fn check(job: &BlobJob<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (cell, opened) in [(job.from, &job.source), (job.to, &job.sink)] {
        if let Err(error) = opened {
            findings.push(refuse(
                "blob-place-unusable",
                job.place(cell),
                error.to_string(),
                "Objects can be neither read nor written there",
            ));
        }
    }
    let (Ok(source), Ok(sink)) = (&job.source, &job.sink) else {
        return findings;
    };
    if source.location().overlaps(sink.location()) {
        findings.push(job.same_place());
        return findings;
    }
    let probe = BlobKey::new(format!(
        ".monarch-preflight-{:032x}",
        rand::random::<u128>()
    ));
    findings.extend(job.check_source(source, &probe).await);
    findings.extend(job.check_sink(source, sink, &probe).await);
    findings
}

/// Looks whether others name keys that a store declares its organization's own: at a sample of the
/// organization's keys.
///
/// # Errors
/// When a database does not answer.
pub async fn check_sharing(
    store: &Store,
    from: &CellName,
    sample: &[&str],
    others: &dyn References,
) -> Result<Option<Finding>, BlobError> {
    if !deletes(store) || sample.is_empty() {
        return Ok(None);
    }
    let shared = others.shared(sample).await?;
    Ok((!shared.is_empty()).then(|| {
        refuse(
            "blob-keys-shared",
            place(store, from),
            format!(
                "{} of {} keys looked at are named by other organizations' rows too",
                shared.len(),
                sample.len()
            ),
            "Eviction would delete objects that other organizations need",
        )
        .mend("eviction: keep in manifest.yaml")
    }))
}

impl BlobJob<'_> {
    fn place(&self, cell: &CellName) -> Place {
        place(self.store, cell)
    }

    fn same_place(&self) -> Finding {
        refuse(
            "blob-source-is-sink",
            self.place(self.to),
            "both cells keep the store's objects in one place".to_owned(),
            "An object would be its own copy: eviction or a scrub would delete the only one",
        )
        .mend("migrate: false in manifest.yaml, if both cells are to share the objects")
    }

    async fn check_source(&self, source: &Bucket, probe: &BlobKey) -> Vec<Finding> {
        let mut findings = Vec::new();
        match source.read(probe).await {
            Ok(_) => {}
            Err(error) => findings.push(self.unusable(self.from, "read", &error)),
        }
        if findings.is_empty()
            && deletes(self.store)
            && source.kind() != Kind::Files
            && let Err(error) = source.delete(probe).await
        {
            findings.push(
                refuse(
                    "blob-cannot-delete",
                    self.place(self.from),
                    error.to_string(),
                    "The organization's objects could not be evicted after the move",
                )
                .mend("a credential that may delete, or eviction: keep in manifest.yaml"),
            );
        }
        findings
    }

    async fn check_sink(&self, source: &Bucket, sink: &Bucket, probe: &BlobKey) -> Vec<Finding> {
        let payload = PutPayload::from_static(b"monarch");
        if let Err(error) = sink.put(probe, payload, Attributes::new(), false).await {
            return vec![self.unusable(self.to, "write", &error)];
        }
        let mut findings = Vec::new();
        if matches!(source.look(probe).await, Ok(Some(_))) {
            findings.push(self.same_place());
        }
        match sink.look(probe).await {
            Ok(Some(_)) => {}
            Ok(None) => findings.push(refuse(
                "blob-write-not-read-back",
                self.place(self.to),
                "an object that was written is not there".to_owned(),
                "Nothing that is written there can be proved",
            )),
            Err(error) => findings.push(self.unusable(self.to, "read", &error)),
        }
        if let Err(error) = sink.delete(probe).await {
            findings.push(
                refuse(
                    "blob-cannot-delete",
                    self.place(self.to),
                    error.to_string(),
                    "A move that is given up could not be taken back from the sink",
                )
                .mend("a credential that may delete"),
            );
        }
        findings
    }

    fn unusable(&self, cell: &CellName, doing: &str, error: &BlobError) -> Finding {
        let kind = error.fault().map(|fault| fault.kind);
        let (code, mend) = match kind {
            Some(FaultKind::NotFound) => ("blob-bucket-missing", "a bucket that is there"),
            Some(FaultKind::Denied) if doing == "write" => {
                ("blob-cannot-write", "a credential that may write")
            }
            Some(FaultKind::Denied) => (
                "blob-cannot-read",
                "a credential that may read, and list: without, a missing object looks forbidden",
            ),
            _ => ("blob-place-unusable", "a place that answers"),
        };
        refuse(
            code,
            self.place(cell),
            error.to_string(),
            "The organization's objects could not be copied",
        )
        .mend(mend)
    }
}

fn deletes(store: &Store) -> bool {
    matches!(
        store.kind,
        StoreKind::Blob {
            eviction: Eviction::Delete,
            ..
        }
    )
}

fn place(store: &Store, cell: &CellName) -> Place {
    Place {
        cell: Some(cell.clone()),
        store: Some(store.name.clone()),
        ..Place::default()
    }
}

fn refuse(code: &'static str, place: Place, what: String, why: &'static str) -> Finding {
    Finding {
        severity: Severity::Refuse,
        code: Cow::Borrowed(code),
        place,
        what,
        why: Cow::Borrowed(why),
        mend: None,
    }
}
