//! What preflight finds before a move.

use std::collections::HashSet;

use async_trait::async_trait;
use monarch_blobs::preflight::{BlobJob, check, check_sharing};
use monarch_blobs::{BlobError, Bucket, References};
use monarch_config::Store;
use monarch_harness::object_stores::{Interference, S3s, SECRET_KEY};
use monarch_postgres::preflight::{Finding, Severity};

use crate::fixture::{Folder, Kinds, moto, open, try_open};
use crate::removal::{Nobody, graph};

fn store() -> Store {
    graph().store(&"files".parse().unwrap()).unwrap().clone()
}

async fn found(source: Result<Bucket, BlobError>, sink: Result<Bucket, BlobError>) -> Vec<Finding> {
    let store = store();
    let (from, to) = ("us1".parse().unwrap(), "us2".parse().unwrap());
    let findings = check(&BlobJob {
        store: &store,
        from: &from,
        to: &to,
        source,
        sink,
    })
    .await;
    for finding in &findings {
        assert_eq!(finding.severity, Severity::Refuse);
        assert_eq!(finding.place.store.as_ref(), Some(&store.name));
        assert!(!format!("{finding:?}").contains(SECRET_KEY));
    }
    findings
}

fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| &*finding.code).collect()
}

/// Guards the operator's peace: what works is not complained about, and nothing is left of the look.
#[tokio::test]
async fn good_places_are_found_good_and_left_clean() {
    let kinds = Kinds::new().await;
    let to = Folder::new().await;
    let all = [
        &kinds.files.bucket,
        &kinds.s3s,
        &kinds.moto,
        &kinds.azurite,
        &kinds.gcs_shim,
    ];
    for bucket in all {
        for (source, sink) in [(bucket, &to.bucket), (&to.bucket, bucket)] {
            let findings = found(Ok(source.clone()), Ok(sink.clone())).await;
            assert_eq!(codes(&findings), [""; 0], "{bucket:?} {findings:?}");
        }
    }
    assert_eq!(std::fs::read_dir(to.folder.path()).unwrap().count(), 0);
}

/// Guards the move: a bucket that is not there is named, and not taken for one without objects.
#[tokio::test]
async fn a_bucket_that_is_not_there_is_named() {
    let kinds = Kinds::new().await;
    let moto = moto().await;
    let azurite = crate::fixture::azurite().await;
    let good = || Ok(kinds.files.bucket.clone());
    let nowhere = [
        open("s3://there-is-no-such-bucket", moto.variables()).await,
        open(
            "az://there-is-no-such-one",
            azurite.variables(&azurite.url()),
        )
        .await,
    ];
    for bucket in nowhere {
        let findings = found(Ok(bucket.clone()), good()).await;
        assert_eq!(codes(&findings), ["blob-bucket-missing"], "{findings:?}");
        let findings = found(good(), Ok(bucket)).await;
        assert_eq!(codes(&findings), ["blob-bucket-missing"], "{findings:?}");
    }
    let folder = try_open("file:///there/is/no/such/folder", Vec::new()).await;
    assert_eq!(codes(&found(folder, good()).await), ["blob-place-unusable"]);
    let nameless = try_open("az://c", Vec::new()).await;
    let findings = found(good(), nameless).await;
    assert!(findings[0].what.contains("AZURE_STORAGE_CONNECTION_STRING"));
}

/// Guards the move: a credential that does not do is found out before anything is copied.
#[tokio::test]
async fn a_credential_that_does_not_do_is_named() {
    let (server, files) = (S3s::start().await.unwrap(), Folder::new().await);
    let url = format!("s3://{}", server.bucket().unwrap());
    let stranger = || server.variables_of_a_stranger();
    let good = || Ok(files.bucket.clone());
    let findings = found(Ok(open(&url, stranger()).await), good()).await;
    assert_eq!(codes(&findings), ["blob-cannot-read"], "{findings:?}");
    let findings = found(good(), Ok(open(&url, stranger()).await)).await;
    assert_eq!(codes(&findings), ["blob-cannot-write"], "{findings:?}");
    assert!(findings[0].mend.as_deref().unwrap().contains("write"));
}

/// Guards the only copy: one place under one name, one inside the other, and one under two names.
#[tokio::test]
async fn two_places_that_are_one_are_found_out() {
    let moto = moto().await;
    let bucket = moto.bucket().await.unwrap();
    let between = Interference::before(&moto.url()).await.unwrap();
    let plain = async |path: &str| {
        let url = format!("s3://{bucket}{path}");
        Ok(open(&url, moto.variables()).await)
    };
    let alias = open(
        &format!("s3://{bucket}/x"),
        moto.variables_at(&between.url()),
    )
    .await;
    let same = [
        (plain("/x").await, plain("/x/").await),
        (plain("").await, plain("/x").await),
        (plain("/x/y").await, plain("/x").await),
        (plain("/x").await, Ok(alias)),
    ];
    for (source, sink) in same {
        let findings = found(source, sink).await;
        assert_eq!(codes(&findings), ["blob-source-is-sink"], "{findings:?}");
    }
    assert!(
        found(plain("/x").await, plain("/xy").await)
            .await
            .is_empty()
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
    let at = async |name: &str| {
        let url = format!("file://{}/{name}", folder.path().display());
        try_open(&url, Vec::new()).await
    };
    let findings = found(at("real").await, at("link").await).await;
    assert_eq!(codes(&findings), ["blob-source-is-sink"]);
}

/// Guards other organizations: a store that says its keys are exclusive is not believed blindly.
#[tokio::test]
async fn keys_that_others_name_too_forbid_eviction() {
    struct All;
    #[async_trait]
    impl References for All {
        async fn shared(&self, keys: &[&str]) -> Result<HashSet<String>, BlobError> {
            Ok(keys.iter().skip(1).map(|key| (*key).to_owned()).collect())
        }
    }
    let (store, cell) = (store(), "us1".parse().unwrap());
    let finding = check_sharing(&store, &cell, &["a", "b", "c"], &All)
        .await
        .unwrap();
    let finding = finding.unwrap();
    assert_eq!(finding.code, "blob-keys-shared");
    assert!(finding.what.starts_with("2 of 3"), "{}", finding.what);
    let nobody = check_sharing(&store, &cell, &["a"], &Nobody).await.unwrap();
    assert!(nobody.is_none());
}
