//! A move with one blob store, and buckets at both ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use monarch_blobs::{BlobUnit, Bucket, Environment, Limits, Mover, Pass, Walked};
use monarch_config::{BlobPlace, Dsn};
use monarch_harness::object_stores::{Azurite, GcsShim, Moto, S3s};
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_ledger::{BlobChoice, BlobCounts, BlobRecord, Ledger, NewMove, Purpose};
use monarch_model::{Epoch, MoveId, StoreName};
use monarch_postgres::spine::Spine;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A ledger with a move that has a blob store `files`, in a database of its own.
pub(crate) struct Ground {
    pub(crate) ledger: Ledger,
    pub(crate) dsn: String,
    pub(crate) admin: Client,
    pub(crate) move_id: MoveId,
    pub(crate) store: StoreName,
    pub(crate) epoch: Epoch,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let cluster = shared::cluster(PgVersion::V17).await;
        let database = fresh_name("ledger");
        let dsn = cluster.create_database(&database).await.unwrap();
        let ledger = Ledger::connect(&Dsn::new(&dsn)).await.unwrap();
        ledger.init().await.unwrap();
        let store: StoreName = "files".parse().unwrap();
        let new = NewMove {
            id: MoveId(Uuid::new_v4()),
            org: "1".parse().unwrap(),
            source_cell: "a".parse().unwrap(),
            sink_cell: "b".parse().unwrap(),
            workflow_id: "org-move-1".to_owned(),
            run_id: Uuid::new_v4().to_string(),
            stores: vec!["default".parse().unwrap()],
            blob_stores: vec![store.clone()],
            spine: Spine::from_ids([].into()),
            options: serde_json::json!({}),
            token: Uuid::new_v4(),
        };
        ledger.register(&new).await.unwrap();
        let epoch = ledger
            .next_epoch(new.id, &store, Purpose::Mover)
            .await
            .unwrap();
        Self {
            admin: cluster.admin(&database).await.unwrap(),
            ledger,
            dsn,
            move_id: new.id,
            store,
            epoch,
        }
    }

    pub(crate) fn unit(&self) -> BlobUnit {
        BlobUnit {
            ledger: self.ledger.clone(),
            move_id: self.move_id,
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }

    /// The unit under a new epoch for a scrub: the move is given up.
    pub(crate) async fn scrubbing(&self) -> BlobUnit {
        self.admin
            .execute("update monarch_ledger.move set phase = 'aborting'", &[])
            .await
            .unwrap();
        let epoch = self
            .ledger
            .next_epoch(self.move_id, &self.store, Purpose::Scrub)
            .await
            .unwrap();
        BlobUnit {
            epoch,
            ..self.unit()
        }
    }

    pub(crate) async fn record<K: AsRef<str>>(&self, keys: &[K]) {
        let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        let table = "attachment".parse().unwrap();
        self.ledger
            .record_blob_keys(self.move_id, &self.store, &table, &keys)
            .await
            .unwrap();
    }

    pub(crate) fn mover(&self, source: &Bucket, sink: &Bucket, limits: Limits) -> Mover {
        let cancel = CancellationToken::new();
        Mover::new(self.unit(), source.clone(), sink.clone(), limits, cancel)
    }

    pub(crate) async fn pass(&self, source: &Bucket, sink: &Bucket) -> Pass {
        self.mover(source, sink, quick())
            .pass(Walked::All)
            .await
            .unwrap()
    }

    /// What the ledger has of one key.
    pub(crate) async fn of(&self, key: &str) -> BlobRecord {
        for choice in [BlobChoice::Uncopied, BlobChoice::Copied] {
            let page = self
                .ledger
                .blob_keys(self.move_id, &self.store, choice, None, 10_000)
                .await
                .unwrap();
            if let Some(record) = page.records.into_iter().find(|record| record.key == key) {
                return record;
            }
        }
        panic!("{key} is not recorded");
    }

    pub(crate) async fn counts(&self) -> BlobCounts {
        let mut counts = self.ledger.blob_counts(self.move_id).await.unwrap();
        counts.remove(&self.store).unwrap_or_default()
    }

    pub(crate) async fn gate(&self) -> bool {
        self.ledger
            .blobs_are_copied(self.move_id, &self.store, false)
            .await
            .unwrap()
    }
}

/// Limits for a test: waits are short.
pub(crate) fn quick() -> Limits {
    Limits {
        objects: 8,
        first_backoff: Duration::from_millis(50),
        longest_backoff: Duration::from_millis(500),
        attempts: 12,
        ..Limits::default()
    }
}

pub(crate) async fn open(url: &str, variables: Vec<(String, String)>) -> Bucket {
    try_open(url, variables).await.unwrap()
}

pub(crate) async fn try_open(
    url: &str,
    variables: Vec<(String, String)>,
) -> Result<Bucket, monarch_blobs::BlobError> {
    let place = BlobPlace::Url(url.to_owned());
    Bucket::open(&place, &Environment::of(variables)).await
}

/// A folder as a bucket.
pub(crate) struct Folder {
    pub(crate) folder: TempDir,
    pub(crate) bucket: Bucket,
}

impl Folder {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = BlobPlace::FilePath(folder.path().to_owned());
        let bucket = Bucket::open(&place, &Environment::default()).await.unwrap();
        Self { folder, bucket }
    }

    pub(crate) fn write(&self, key: &str, bytes: &[u8]) {
        let path = self.folder.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.folder.path().join(key)).ok()
    }
}

/// The servers that are slow to start, one of each for all tests.
pub(crate) async fn moto() -> &'static Moto {
    static MOTO: OnceCell<Moto> = OnceCell::const_new();
    MOTO.get_or_init(async || Moto::start().await.unwrap())
        .await
}

pub(crate) async fn azurite() -> &'static Azurite {
    static AZURITE: OnceCell<Azurite> = OnceCell::const_new();
    AZURITE
        .get_or_init(async || Azurite::start().await.unwrap())
        .await
}

/// A bucket of each kind, in servers that the handle keeps.
pub(crate) struct Kinds {
    pub(crate) files: Folder,
    pub(crate) s3s: Bucket,
    pub(crate) moto: Bucket,
    pub(crate) azurite: Bucket,
    pub(crate) gcs_shim: Bucket,
    _s3s: S3s,
    _gcs_shim: GcsShim,
}

impl Kinds {
    pub(crate) async fn new() -> Self {
        let (s3s, shim) = (S3s::start().await.unwrap(), GcsShim::start().await.unwrap());
        let moto = moto().await;
        let azurite = azurite().await;
        let bucket = s3s.bucket().unwrap();
        let shimmed = shim.bucket().unwrap();
        Self {
            files: Folder::new().await,
            s3s: open(&format!("s3://{bucket}/some/prefix"), s3s.variables()).await,
            moto: open(
                &format!("s3://{}", moto.bucket().await.unwrap()),
                moto.variables(),
            )
            .await,
            azurite: open(
                &format!("az://{}/p", azurite.container().await.unwrap()),
                azurite.variables(&azurite.url()),
            )
            .await,
            gcs_shim: open(&format!("gs://{shimmed}"), shim.variables()).await,
            _s3s: s3s,
            _gcs_shim: shim,
        }
    }
}

/// Bytes that no two objects share.
pub(crate) fn noise(seed: u64, size: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A move between two buckets by way of a folder: what comes out is compared with what went in.
pub(crate) async fn bring(from: &Bucket, to: &Bucket, keys: &[&str]) -> Pass {
    let ground = Ground::new().await;
    ground.record(keys).await;
    ground.pass(from, to).await
}

pub(crate) fn shared_files() -> Arc<[(&'static str, Bytes)]> {
    [
        ("small", noise(1, 100)),
        ("folder/empty", Bytes::new()),
        ("folder/ä ö 🦀 100%.bin", noise(2, 70_000)),
        ("large", noise(3, (17 << 20) + 5)),
    ]
    .into()
}
