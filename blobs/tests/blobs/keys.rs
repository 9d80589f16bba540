//! Keys are data.

use monarch_blobs::{BlobKey, problem};

use crate::fixture::{Folder, Ground, Kinds, moto, open};

/// A key as a client spells it that tidies nothing up.
fn encoded(key: &str) -> String {
    key.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// Guards the other tenants' objects: over S3 a key of any shape names its own object, and arrives
/// under the same key. What stands under a name that a tidier would make of it is left alone.
#[tokio::test]
async fn a_key_names_its_own_object_and_no_other() {
    let (ground, moto) = (Ground::new().await, moto().await);
    let (from, to) = (moto.bucket().await.unwrap(), moto.bucket().await.unwrap());
    let long = "ü".repeat(512);
    let keys = [
        " leading and trailing ",
        "a//b",
        "a/b",
        "a/",
        "back\\slash",
        "100%/%2F%2e%2e/+plus?query#fragment&x=y",
        "日本語/🦀/é/e\u{301}",
        "'\"`~!@$^*()[]{}|;:,<>",
        &long,
    ];
    for key in keys {
        let (status, _) = moto
            .ask(
                "PUT",
                &format!("/{from}/{}", encoded(key)),
                &format!("of {key}"),
            )
            .await
            .unwrap();
        assert_eq!(status, 200, "{key}");
    }
    ground.record(&keys).await;
    let source = open(&format!("s3://{from}"), moto.variables()).await;
    let sink = open(&format!("s3://{to}"), moto.variables()).await;
    let pass = ground.pass(&source, &sink).await;
    assert_eq!(pass.copied, keys.len() as u64, "{pass:?}");
    for key in keys {
        let (status, body) = moto
            .ask("GET", &format!("/{to}/{}", encoded(key)), "")
            .await
            .unwrap();
        assert_eq!((status, body), (200, format!("of {key}")), "{key}");
    }
}

/// Guards the same on a service that takes a slash for a beginning like any other.
#[tokio::test]
async fn a_leading_slash_is_part_of_the_key() {
    let (ground, moto, to) = (Ground::new().await, moto().await, Folder::new().await);
    let from = moto.bucket().await.unwrap();
    let source = open(&format!("s3://{from}"), moto.variables()).await;
    moto.ask("PUT", &format!("/{from}/a"), "of a")
        .await
        .unwrap();
    moto.ask("PUT", &format!("/{from}//a"), "of /a")
        .await
        .unwrap();
    let sink_bucket = moto.bucket().await.unwrap();
    let sink = open(&format!("s3://{sink_bucket}"), moto.variables()).await;
    ground.record(&["a", "/a"]).await;
    assert_eq!(ground.pass(&source, &sink).await.copied, 2);
    for key in ["a", "/a"] {
        let (_, body) = moto
            .ask("GET", &format!("/{sink_bucket}/{key}"), "")
            .await
            .unwrap();
        assert_eq!(body, format!("of {key}"));
    }
    // A folder has one file for both, so it gets the one that it can hold.
    let ground = Ground::new().await;
    ground.record(&["a", "/a"]).await;
    let pass = ground.pass(&source, &to.bucket).await;
    assert_eq!((pass.copied, pass.troubled), (1, 1));
    assert_eq!(to.read("a").unwrap(), b"of a");
}

/// Guards whatever lies outside a bucket: a key that a store cannot hold is refused by name, holds
/// the cut-over back, and touches nothing.
#[tokio::test]
async fn a_key_that_a_store_cannot_hold_is_refused_by_name() {
    let kinds = Kinds::new().await;
    let outside = kinds.files.folder.path().parent().unwrap().join("escaped");
    let too_long = "x".repeat(1_025);
    let keys = [
        "../escaped",
        "a/../../escaped",
        "tab\tbell\u{7}",
        "",
        &too_long,
        ".",
    ];
    for (source, sink) in [
        (&kinds.s3s, &kinds.files.bucket),
        (&kinds.files.bucket, &kinds.azurite),
        (&kinds.gcs_shim, &kinds.moto),
    ] {
        let ground = Ground::new().await;
        ground.record(&keys).await;
        let pass = ground.pass(source, sink).await;
        assert_eq!(pass.troubled, keys.len() as u64, "{source:?} {pass:?}");
        for key in keys {
            let record = ground.of(key).await;
            assert_eq!(record.problem.as_deref(), Some(problem::KEY_REFUSED));
            assert!(!record.is_put);
        }
        assert!(!ground.gate().await);
    }
    assert!(!outside.exists());
    let refused = kinds.moto.check_key(&BlobKey::new("../escaped"));
    let said = refused.unwrap_err().to_string();
    assert!(
        said.contains("\"../escaped\"") && said.contains(".."),
        "{said}"
    );
}

/// Guards the move: two keys that a file system cannot have side by side do not stop the others.
#[tokio::test]
async fn a_name_that_is_a_folder_already_is_refused_alone() {
    let kinds = Kinds::new().await;
    let moto = moto().await;
    let from = moto.bucket().await.unwrap();
    for key in ["a", "a/b", "c"] {
        moto.ask("PUT", &format!("/{from}/{key}"), key)
            .await
            .unwrap();
    }
    let source = open(&format!("s3://{from}"), moto.variables()).await;
    let ground = Ground::new().await;
    ground.record(&["a", "a/b", "c"]).await;
    let pass = ground.pass(&source, &kinds.files.bucket).await;
    assert_eq!((pass.copied, pass.troubled), (2, 1), "{pass:?}");
    assert_eq!(kinds.files.read("c").unwrap(), b"c");
}
