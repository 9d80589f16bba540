//! What is deleted, and above all what is not.

use std::collections::HashSet;

use async_trait::async_trait;
use monarch_blobs::{
    BlobError, CellReferences, EvictionPermit, References, Rows, Walked, evict, problem, scrub,
    tables_naming,
};
use monarch_config::{Graph, manifest_from_str};
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_ledger::BlobMark;
use monarch_postgres::scope::Scope;
use monarch_postgres::spine::Spine;
use monarch_postgres::{ConnectOptions, Session, SessionPurpose, catalog};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Folder, Ground, moto, open, quick};

/// Nobody else names anything.
pub(crate) struct Nobody;

#[async_trait]
impl References for Nobody {
    async fn shared(&self, _: &[&str]) -> Result<HashSet<String>, BlobError> {
        Ok(HashSet::new())
    }
}

pub(crate) fn graph() -> Graph {
    manifest_from_str(
        "manifest.yaml",
        "root: organization\n\
         stores:\n  default: {type: postgres}\n  files: {type: blob_store, eviction: delete}\n\
         relationships:\n\
         \x20 organization: {store: default, primary_key: [id]}\n\
         \x20 attachment:\n\
         \x20   store: default\n\
         \x20   primary_key: [id]\n\
         \x20   refs: {org_id: {parent: organization}, object_key: {blob: files}}\n",
    )
    .unwrap()
}

fn permit() -> EvictionPermit {
    EvictionPermit::of(graph().store(&"files".parse().unwrap()).unwrap()).unwrap()
}

/// Guards promise 8 for objects: only what was copied is deleted, and only if it is still the same;
/// the rest is named. Again is the same.
#[tokio::test]
async fn eviction_deletes_what_was_copied_if_it_is_the_same() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    for key in ["gone", "kept", "changed", "org2/neighbour"] {
        from.write(key, key.as_bytes());
    }
    ground.record(&["gone", "changed", "missing"]).await;
    assert_eq!(ground.pass(&from.bucket, &to.bucket).await.copied, 2);
    from.write("changed", b"written after the copy");
    let (unit, cancel) = (ground.unit(), CancellationToken::new());
    for round in 0..2 {
        let removed = evict(&unit, &from.bucket, permit(), &quick(), &cancel)
            .await
            .unwrap();
        let gone = if round == 0 { 1 } else { 0 };
        assert_eq!((removed.gone, removed.kept), (gone, 1), "{round}");
        let named = ("changed".to_owned(), problem::CHANGED.to_owned());
        assert_eq!(removed.named, [named]);
        assert!(removed.is_whole);
    }
    assert!(from.read("gone").is_none());
    for key in ["kept", "changed", "org2/neighbour"] {
        assert!(from.read(key).is_some(), "{key}");
    }
    assert_eq!(to.read("gone").unwrap(), b"gone");
    let counts = ground.counts().await;
    assert_eq!((counts.evicted, counts.troubled), (1, 1));
}

/// Guards the operator who wants it back: a versioned bucket keeps the object below a marker.
#[tokio::test]
async fn a_versioned_bucket_gets_a_delete_marker() {
    let (ground, moto, to) = (Ground::new().await, moto().await, Folder::new().await);
    let bucket = moto.bucket().await.unwrap();
    moto.keep_versions(&bucket).await.unwrap();
    for key in ["a", "/slash"] {
        moto.ask("PUT", &format!("/{bucket}/{key}"), "bytes")
            .await
            .unwrap();
    }
    let source = open(&format!("s3://{bucket}"), moto.variables()).await;
    let sink = open(
        &format!("s3://{}", moto.bucket().await.unwrap()),
        moto.variables(),
    )
    .await;
    ground.record(&["a", "/slash"]).await;
    assert_eq!(ground.pass(&source, &sink).await.copied, 2);
    let (unit, cancel) = (ground.unit(), CancellationToken::new());
    let removed = evict(&unit, &source, permit(), &quick(), &cancel)
        .await
        .unwrap();
    assert_eq!((removed.gone, removed.kept), (2, 0));
    let versions = moto.versions(&bucket, "").await.unwrap();
    assert_eq!(versions.matches("<DeleteMarker>").count(), 2, "{versions}");
    assert_eq!(versions.matches("<Version>").count(), 2, "{versions}");
    assert_eq!(ground.pass(&source, &to.bucket).await.copied, 0);
}

/// Guards the sink's other tenants: a scrub takes back what this move put and what its dead mover
/// had put, and leaves what was there before, what was replaced since, and what others name.
#[tokio::test]
async fn a_scrub_takes_back_what_the_move_put_and_no_more() {
    struct Others;
    #[async_trait]
    impl References for Others {
        async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError> {
            let shared = keys.iter().filter(|key| **key == "shared");
            Ok(shared.map(|key| (*key).to_owned()).collect())
        }
    }
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    let keys = ["put", "theirs", "replaced", "shared", "died", "unproved"];
    for key in keys {
        from.write(key, key.as_bytes());
    }
    to.write("theirs", b"theirs");
    to.write("neighbour", b"n");
    ground.record(&keys[..4]).await;
    assert_eq!(ground.pass(&from.bucket, &to.bucket).await.copied, 4);
    to.write("replaced", b"by another tenant");
    // A mover that died: of one object it is known that it was written, of the other it is not.
    ground.record(&keys[4..]).await;
    ground
        .ledger
        .intend_blob_puts(ground.move_id, &ground.store, ground.epoch, &keys[4..])
        .await
        .unwrap();
    to.write("died", b"died");
    to.write("unproved", b"something else");

    let (unit, cancel) = (ground.scrubbing().await, CancellationToken::new());
    for round in 0..2 {
        let mut removed = scrub(&unit, &from.bucket, &to.bucket, &Others, &quick(), &cancel)
            .await
            .unwrap();
        removed.named.sort();
        let named: Vec<(&str, &str)> = removed
            .named
            .iter()
            .map(|(key, code)| (key.as_str(), code.as_str()))
            .collect();
        let kept = [
            ("replaced", problem::DIFFERENT),
            ("shared", problem::SHARED),
            ("unproved", problem::UNPROVED),
        ];
        assert_eq!(named, kept, "{round}");
        assert_eq!(removed.gone, if round == 0 { 2 } else { 0 });
    }
    for gone in ["put", "died"] {
        assert!(to.read(gone).is_none(), "{gone}");
    }
    for left in ["theirs", "neighbour", "replaced", "shared", "unproved"] {
        assert!(to.read(left).is_some(), "{left}");
    }
    for key in keys {
        assert!(from.read(key).is_some(), "{key} on the source");
    }
}

/// Guards promise 5: a mover that lives on after the scrub has begun puts no object any more.
#[tokio::test]
async fn a_superseded_mover_puts_nothing() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    from.write("a", b"a");
    ground.record(&["a"]).await;
    let zombie = ground.mover(&from.bucket, &to.bucket, quick());
    let scrubbing = ground.scrubbing().await;
    let refused = zombie.pass(Walked::All).await.unwrap_err();
    assert!(matches!(refused, BlobError::Ledger(_)), "{refused:?}");
    assert!(!refused.is_transient() && to.read("a").is_none());
    let cancel = CancellationToken::new();
    let removed = scrub(
        &scrubbing,
        &from.bucket,
        &to.bucket,
        &Nobody,
        &quick(),
        &cancel,
    )
    .await;
    assert_eq!(removed.unwrap().gone, 0);
    let late = ground
        .ledger
        .mark_blobs(
            ground.move_id,
            &ground.store,
            ground.epoch,
            BlobMark::Evicted,
            &["a"],
        )
        .await;
    assert!(late.is_err());
}

/// Guards other organizations: whose row names a key is asked of the database, with the
/// organization's own rows left out as long as it has some.
#[tokio::test]
async fn the_rows_of_others_are_told_from_the_organizations_own() {
    let cluster = shared::cluster(PgVersion::V17).await;
    let database = fresh_name("rows");
    let dsn = cluster.create_database(&database).await.unwrap();
    let options = ConnectOptions::from_dsn(&monarch_config::Dsn::new(&dsn)).unwrap();
    let session = Session::connect(&options, &SessionPurpose::writer("test"))
        .await
        .unwrap();
    cluster
        .admin(&database)
        .await
        .unwrap()
        .batch_execute(
            "create table organization (id bigint primary key);
             create table attachment (id bigint primary key, org_id bigint, object_key text);
             insert into organization values (1), (2);
             insert into attachment values (1, 1, 'mine'), (2, 1, 'ours'), (3, 2, 'ours'),
                 (4, 2, 'theirs'), (5, null, 'nobody''s'), (6, 1, null)",
        )
        .await
        .unwrap();
    let graph = graph();
    let (default, files) = ("default".parse().unwrap(), "files".parse().unwrap());
    let walk = graph.walk(&default);
    let catalog = catalog::load(&*session, &walk).await.unwrap();
    let root = ("organization".parse().unwrap(), ["1".to_owned()].into());
    let spine = Spine::from_ids([root].into());
    let org = "1".parse().unwrap();
    let scope = Scope::new(&graph, &default, &org, &spine, &catalog).unwrap();
    let shared = async |own| {
        let references = CellReferences {
            store: &files,
            databases: vec![Rows {
                session: &session,
                tables: tables_naming(&graph, std::slice::from_ref(&default), &files),
                own,
            }],
        };
        let keys = ["mine", "ours", "theirs", "nobody's", "unknown"];
        let shared = references.shared(&keys).await.unwrap();
        let mut shared: Vec<String> = shared.into_iter().collect();
        shared.sort();
        shared
    };
    assert_eq!(shared(Some(&scope)).await, ["nobody's", "ours", "theirs"]);
    assert_eq!(shared(None).await, ["mine", "nobody's", "ours", "theirs"]);
}
