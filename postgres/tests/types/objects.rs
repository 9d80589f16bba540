//! Rows that name objects in buckets: every key is recorded before the row's position is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use monarch_harness::PgVersion;
use monarch_postgres::keys::{KeyRecorder, KeysNotRecorded, NamedKeys};
use monarch_postgres::snapshot::CopyError;
use monarch_postgres::stream::StreamError;

use crate::world::{Case, Move};

const CASE: Case<'static> = Case {
    manifest: "
root: organization
stores:
  default: {type: postgres}
  files: {type: blob_store, eviction: keep}
  elsewhere: {type: blob_store, eviction: keep, migrate: false}
relationships:
  organization:
    store: default
    primary_key: [id]
    refs: {avatar: {blob: files}}
  group:
    store: default
    primary_key: [id]
    refs: {organization_id: {parent: organization}}
  attachment:
    store: default
    primary_key: [id]
    refs: {group_id: {parent: group}, path: {blob: files}, stays: {blob: elsewhere}}
",
    schema: r#"
create table organization (id bigint primary key, avatar text);
create table "group" (id bigint primary key, organization_id bigint);
create table attachment (id bigint primary key, group_id bigint, path varchar(200), stays text, n int)"#,
    fill: r#"
insert into organization values ($ORG, 'avatar-$ORG');
insert into "group" values ($ORG * 10, $ORG);
insert into attachment values ($ORG * 100, $ORG * 10, 'a/$ORG ü', 'no'), ($ORG * 100 + 1, $ORG * 10, null, 'no'),
  ($ORG * 100 + 2, $ORG * 10, '', 'no'), ($ORG * 100 + 3, $ORG * 10, 'a/$ORG ü', 'no')"#,
    owned: &[
        ("organization", "id = $ORG"),
        (r#""group""#, "organization_id = $ORG"),
        (
            "attachment",
            r#"group_id in (select id from "group" where organization_id = $ORG)"#,
        ),
    ],
    ..Case::EMPTY
};

/// Keeps what it is given, unless it is out of order.
#[derive(Debug, Default)]
struct Kept {
    keys: Mutex<BTreeSet<(String, String, String)>>,
    is_out_of_order: AtomicBool,
}

impl KeyRecorder for Kept {
    fn record(&self, named: NamedKeys) -> BoxFuture<'_, Result<(), KeysNotRecorded>> {
        let NamedKeys { store, table, keys } = named;
        if self.is_out_of_order.load(Ordering::Relaxed) {
            let source = "out of order".into();
            return Box::pin(async {
                Err(KeysNotRecorded {
                    store,
                    table,
                    source,
                })
            });
        }
        let keys = keys
            .into_iter()
            .map(|key| (store.to_string(), table.to_string(), key));
        self.keys.lock().unwrap().extend(keys);
        Box::pin(async { Ok(()) })
    }
}

impl Kept {
    /// What was recorded, by table, and forgotten.
    fn taken(&self) -> Vec<(String, String)> {
        let keys = std::mem::take(&mut *self.keys.lock().unwrap());
        assert!(keys.iter().all(|(store, ..)| store == "files"), "{keys:?}");
        keys.into_iter()
            .map(|(_, table, key)| (table, key))
            .collect()
    }
}

fn named(keys: &[(&str, &str)]) -> Vec<(String, String)> {
    keys.iter()
        .map(|(table, key)| ((*table).to_owned(), (*key).to_owned()))
        .collect()
}

async fn prepare(case: &Case<'_>) -> (Move, Arc<Kept>) {
    let mut it = Move::prepare(case, PgVersion::V15, PgVersion::V14).await;
    let kept = Arc::new(Kept::default());
    it.job.keys = Arc::clone(&kept) as Arc<dyn KeyRecorder>;
    (it, kept)
}

/// Guards promise 1, which holds for objects too: whatever way a row comes in by, its key is known;
/// no other tenant's is, and none of a store that stays.
#[tokio::test]
async fn every_key_of_the_organization_is_recorded_and_no_other() {
    let (mut it, kept) = prepare(&CASE).await;
    it.copy().await.unwrap();
    assert_eq!(
        kept.taken(),
        named(&[("attachment", "a/1 ü"), ("organization", "avatar-1")])
    );
    it.follows(&[
        // Others' rows, and a row without a key.
        "insert into attachment values (210, 20, 'b/2', 'no', 1); \
         insert into attachment values (110, 10, null, 'no', 1); \
         insert into attachment values (111, 10, '', 'no', 1)",
        "insert into attachment values (112, 10, 'inserted', 'no', 1)",
        "update attachment set path = 'changed' where id = 112",
        "update organization set avatar = 'new avatar' where id = 1",
        "delete from attachment where id = 112",
    ])
    .await;
    assert_eq!(
        kept.taken(),
        named(&[
            ("attachment", "changed"),
            ("attachment", "inserted"),
            ("organization", "new avatar"),
        ])
    );
    // A parent that enters brings rows that are in no log.
    it.follows(&[r#"update "group" set organization_id = 1 where id = 20"#])
        .await;
    let entered = kept.taken();
    assert!(
        entered.contains(&("attachment".to_owned(), "a/2 ü".to_owned()))
            && entered.contains(&("attachment".to_owned(), "b/2".to_owned())),
        "{entered:?}"
    );
}

/// Guards promise 1: what could not be recorded is not on the sink either, so it comes again.
#[tokio::test]
async fn no_row_is_committed_whose_key_was_not_recorded() {
    let (mut it, kept) = prepare(&CASE).await;
    kept.is_out_of_order.store(true, Ordering::Relaxed);
    let error = it.copy().await.unwrap_err();
    assert!(matches!(error, CopyError::Keys(_)), "{error:?}");

    let (mut it, kept) = prepare(&CASE).await;
    it.copy().await.unwrap();
    kept.taken();
    kept.is_out_of_order.store(true, Ordering::Relaxed);
    let error = it
        .ends(&["insert into attachment values (113, 10, 'late', 'no', 1)"])
        .await;
    assert!(matches!(error, StreamError::Keys(_)), "{error:?}");
    assert!(error.is_transient());
    let there = "select count(*) from attachment where id = 113";
    let there: i64 = it.sink.query_one(there, &[]).await.unwrap().get(0);
    assert_eq!(there, 0, "the row is on the sink and its key nowhere");
    kept.is_out_of_order.store(false, Ordering::Relaxed);
    it.follows(&[]).await;
    assert_eq!(kept.taken(), named(&[("attachment", "late")]));
}
