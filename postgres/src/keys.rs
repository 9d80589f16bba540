//! Hands on the keys of objects that the organization's rows name.
//!
//! Objects never pass here, and where their keys are kept is not for this crate to know: whoever runs
//! a copy or a stream gives a [`KeyRecorder`]. What it is promised: every key that a row on the sink
//! names was recorded before the position that the row came with is. So whatever dies in between,
//! what was not recorded comes again. A key too many may be recorded, of a row that did not come
//! after all.
//!
//! Keys go in batches, a batch under way while the next one fills. Most updates leave a key as it
//! is, so the newest keys are kept in memory and not recorded again. Memory is bounded whatever the
//! number and size of the keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use monarch_config::{Graph, Table};
use monarch_model::{StoreName, TableName};
use tokio::task::JoinSet;

/// The most keys, and the most bytes of them, in a batch.
const BATCH_KEYS: usize = 2_000;
const BATCH_BYTES: usize = 1 << 20;
/// The most bytes of keys that are remembered, and what each costs beside its text.
const RECENT_BYTES: usize = 8 << 20;
const RECENT_COST: usize = 64;

/// Keeps keys, so that the objects are copied.
pub trait KeyRecorder: fmt::Debug + Send + Sync {
    /// Records the keys, durably. Doing so again does no harm.
    fn record(&self, keys: NamedKeys) -> BoxFuture<'_, Result<(), KeysNotRecorded>>;
}

/// Keys of objects that rows of one table name, each once; none is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedKeys {
    /// The blob store.
    pub store: StoreName,
    /// The table.
    pub table: TableName,
    /// The keys.
    pub keys: Vec<String>,
}

/// Keys could not be recorded; it may be tried again.
#[derive(Debug, thiserror::Error)]
#[error("record the keys of objects in {store} that {table} names")]
pub struct KeysNotRecorded {
    /// The blob store.
    pub store: StoreName,
    /// The table.
    pub table: TableName,
    /// Why.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// For a graph whose objects do not move: no key ever comes, and one that does is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObjects;

impl KeyRecorder for NoObjects {
    fn record(&self, keys: NamedKeys) -> BoxFuture<'_, Result<(), KeysNotRecorded>> {
        let NamedKeys { store, table, .. } = keys;
        let source = "nobody keeps keys here".into();
        Box::pin(async {
            Err(KeysNotRecorded {
                store,
                table,
                source,
            })
        })
    }
}

/// The columns of `table` that hold keys of objects that move, each with its blob store.
pub(crate) fn key_columns<'g>(
    graph: &'g Graph,
    table: &'g Table,
) -> impl Iterator<Item = (&'g str, &'g StoreName)> {
    let moves = |store| graph.store(store).is_some_and(|store| store.migrate);
    table
        .blobs
        .iter()
        .filter(move |blob| moves(&blob.store))
        .map(|blob| (blob.column.as_str(), &blob.store))
}

/// Collects keys on their way to the recorder.
#[derive(Debug)]
pub(crate) struct Keys {
    recorder: Arc<dyn KeyRecorder>,
    recent: HashMap<StoreName, HashSet<String>>,
    recent_bytes: usize,
    waiting: BTreeMap<(StoreName, TableName), Vec<String>>,
    waiting_keys: usize,
    waiting_bytes: usize,
    /// The one batch under way.
    under_way: JoinSet<Result<(), KeysNotRecorded>>,
}

impl Keys {
    pub(crate) fn new(recorder: Arc<dyn KeyRecorder>) -> Self {
        Self {
            recorder,
            recent: HashMap::new(),
            recent_bytes: 0,
            waiting: BTreeMap::new(),
            waiting_keys: 0,
            waiting_bytes: 0,
            under_way: JoinSet::new(),
        }
    }

    /// Takes a key that a row of `table` names. An empty one names nothing.
    pub(crate) async fn take(
        &mut self,
        store: &StoreName,
        table: &TableName,
        key: &str,
    ) -> Result<(), KeysNotRecorded> {
        if key.is_empty() || !self.is_new(store, key) {
            return Ok(());
        }
        let waiting = self.waiting.entry((store.clone(), table.clone()));
        waiting.or_default().push(key.to_owned());
        self.waiting_keys += 1;
        self.waiting_bytes += key.len();
        if self.waiting_keys >= BATCH_KEYS || self.waiting_bytes >= BATCH_BYTES {
            self.hand_on().await?;
        }
        Ok(())
    }

    /// What is remembered is recorded or on its way, and nothing is committed that overtakes it.
    fn is_new(&mut self, store: &StoreName, key: &str) -> bool {
        if self.recent_bytes >= RECENT_BYTES {
            self.recent.clear();
            self.recent_bytes = 0;
        }
        if self
            .recent
            .get(store)
            .is_some_and(|known| known.contains(key))
        {
            return false;
        }
        let known = self.recent.entry(store.clone()).or_default();
        known.insert(key.to_owned());
        self.recent_bytes += key.len() + RECENT_COST;
        true
    }

    /// Sends what waits on its way, once the batch before it has arrived.
    pub(crate) async fn hand_on(&mut self) -> Result<(), KeysNotRecorded> {
        if self.waiting_keys == 0 {
            return Ok(());
        }
        self.arrive().await?;
        let waiting = std::mem::take(&mut self.waiting);
        (self.waiting_keys, self.waiting_bytes) = (0, 0);
        let recorder = Arc::clone(&self.recorder);
        self.under_way.spawn(async move {
            for ((store, table), keys) in waiting {
                let named = NamedKeys { store, table, keys };
                recorder.record(named).await?;
            }
            Ok(())
        });
        Ok(())
    }

    /// Waits until every key that was taken is recorded.
    pub(crate) async fn settle(&mut self) -> Result<(), KeysNotRecorded> {
        self.hand_on().await?;
        self.arrive().await
    }

    async fn arrive(&mut self) -> Result<(), KeysNotRecorded> {
        while let Some(arrived) = self.under_way.join_next().await {
            match arrived {
                Ok(recorded) => recorded?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<NamedKeys>>);

    impl KeyRecorder for Kept {
        fn record(&self, keys: NamedKeys) -> BoxFuture<'_, Result<(), KeysNotRecorded>> {
            self.0.lock().unwrap().push(keys);
            Box::pin(async { Ok(()) })
        }
    }

    fn names() -> (StoreName, TableName) {
        ("files".parse().unwrap(), "public.file".parse().unwrap())
    }

    /// Guards the stream's speed: a row that is written again and again costs the recorder nothing.
    #[tokio::test]
    async fn a_key_is_recorded_once_and_an_empty_one_never() {
        let (store, table) = names();
        let kept = Arc::new(Kept::default());
        let mut keys = Keys::new(Arc::clone(&kept) as Arc<dyn KeyRecorder>);
        for key in ["a", "", "b", "a", "b"] {
            keys.take(&store, &table, key).await.unwrap();
        }
        keys.settle().await.unwrap();
        keys.take(&store, &table, "a").await.unwrap();
        keys.settle().await.unwrap();
        let kept = kept.0.lock().unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(kept[0].keys, ["a", "b"]);
    }

    /// Guards memory: a transaction of any size is recorded batch by batch.
    #[tokio::test]
    async fn keys_do_not_pile_up() {
        let (store, table) = names();
        let kept = Arc::new(Kept::default());
        let mut keys = Keys::new(Arc::clone(&kept) as Arc<dyn KeyRecorder>);
        let long = "k".repeat(100_000);
        for n in 0..200 {
            keys.take(&store, &table, &format!("{n}{long}"))
                .await
                .unwrap();
            assert!(keys.waiting_bytes < BATCH_BYTES + 2 * long.len());
            assert!(keys.recent_bytes < RECENT_BYTES + 2 * long.len());
        }
        for n in 0..3 * BATCH_KEYS {
            keys.take(&store, &table, &n.to_string()).await.unwrap();
            assert!(keys.waiting_keys <= BATCH_KEYS);
        }
        keys.settle().await.unwrap();
        let recorded: usize = kept
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|named| named.keys.len())
            .sum();
        assert_eq!(recorded, 200 + 3 * BATCH_KEYS);
    }

    /// Guards promise 1: what nobody keeps is not passed over in silence.
    #[tokio::test]
    async fn a_key_that_nobody_keeps_is_an_error() {
        let (store, table) = names();
        let mut keys = Keys::new(Arc::new(NoObjects));
        keys.take(&store, &table, "a").await.unwrap();
        assert!(keys.settle().await.is_err());
    }
}
