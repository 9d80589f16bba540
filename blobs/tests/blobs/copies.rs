//! What a copy is.

use monarch_blobs::{EvictionPermit, Limits, Walked, Which, problem, verify};
use monarch_harness::object_stores::Interference;
use tokio_util::sync::CancellationToken;

use crate::fixture::{
    Folder, Ground, Kinds, bring, moto, noise, open, quick, sha256, shared_files, try_open,
};

/// Guards promise 1 for objects: small, empty, large and oddly named ones arrive as they were, over
/// every kind of store, with size and digest on record.
#[tokio::test]
async fn an_object_arrives_over_every_kind_of_store() {
    let kinds = Kinds::new().await;
    let files = shared_files();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    for (name, bytes) in &*files {
        kinds.files.write(name, bytes);
    }
    let way = [
        &kinds.files.bucket,
        &kinds.s3s,
        &kinds.azurite,
        &kinds.moto,
        &kinds.gcs_shim,
    ];
    for step in way.windows(2) {
        let pass = bring(step[0], step[1], &names).await;
        assert_eq!(pass.copied, 4, "{:?} to {:?}: {pass:?}", step[0], step[1]);
        assert!(pass.is_whole);
    }
    let (ground, back) = (Ground::new().await, Folder::new().await);
    ground.record(&names).await;
    assert_eq!(ground.pass(&kinds.gcs_shim, &back.bucket).await.copied, 4);
    for (name, bytes) in &*files {
        assert_eq!(back.read(name).as_deref(), Some(&bytes[..]), "{name}");
        let copy = ground.of(name).await.copied.unwrap();
        assert_eq!(copy.size_bytes, bytes.len() as u64);
        assert_eq!(copy.sha256, sha256(bytes));
    }
    assert!(ground.gate().await);
}

/// Guards the objects' meaning: content type and metadata go along, of small and of large ones.
#[tokio::test]
async fn content_type_and_metadata_are_kept() {
    let kinds = Kinds::new().await;
    let moto = moto().await;
    let from = moto.bucket().await.unwrap();
    for (key, body) in [("small", "x".repeat(10)), ("large", "y".repeat(9 << 20))] {
        let headers = [
            ("content-type", "text/x-monarch"),
            ("cache-control", "max-age=7"),
            ("x-amz-meta-owner", "butterfly"),
        ];
        let status = moto
            .put(&format!("/{from}/{key}"), &headers, &body)
            .await
            .unwrap();
        assert_eq!(status, 200);
    }
    let to = moto.bucket().await.unwrap();
    let source = open(&format!("s3://{from}"), moto.variables()).await;
    let sink = open(&format!("s3://{to}"), moto.variables()).await;
    // By way of the other stores and back.
    let way = [&source, &kinds.azurite, &kinds.s3s, &kinds.gcs_shim, &sink];
    for step in way.windows(2) {
        let ground = Ground::new().await;
        ground.record(&["small", "large"]).await;
        assert_eq!(ground.pass(step[0], step[1]).await.copied, 2);
    }
    for key in ["small", "large"] {
        let head = moto.head(&format!("/{to}/{key}")).await.unwrap();
        let head = head.to_ascii_lowercase();
        for kept in [
            "content-type: text/x-monarch",
            "cache-control: max-age=7",
            "x-amz-meta-owner: butterfly",
        ] {
            assert!(head.contains(kept), "{key} lost {kept}: {head}");
        }
    }
}

/// Guards the sink's other tenants, and promise 4: an equal object counts as copied and stays
/// theirs, a different one stays as it is and is named.
#[tokio::test]
async fn an_object_that_the_sink_has_is_compared_and_never_replaced() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    for folder in [&from, &to] {
        folder.write("equal", b"same");
    }
    from.write("different", b"ours");
    to.write("different", b"else");
    from.write("longer", b"ours, longer");
    to.write("longer", b"theirs");
    ground.record(&["equal", "different", "longer"]).await;
    let pass = ground.pass(&from.bucket, &to.bucket).await;
    assert_eq!((pass.copied, pass.troubled), (1, 2));
    let equal = ground.of("equal").await;
    assert!(equal.copied.is_some() && !equal.is_put);
    for (key, theirs) in [("different", &b"else"[..]), ("longer", b"theirs")] {
        let record = ground.of(key).await;
        assert_eq!(record.problem.as_deref(), Some(problem::DIFFERENT));
        assert!(!record.is_put);
        assert_eq!(to.read(key).as_deref(), Some(theirs));
    }
    assert!(!ground.gate().await);
    // Mended by hand, it goes well.
    std::fs::remove_file(to.folder.path().join("different")).unwrap();
    std::fs::remove_file(to.folder.path().join("longer")).unwrap();
    assert_eq!(ground.pass(&from.bucket, &to.bucket).await.copied, 2);
    assert!(ground.gate().await);
}

/// Guards the gate: a missing object is recorded as such, and copied once it is there.
#[tokio::test]
async fn a_missing_object_is_recorded_until_it_appears() {
    let kinds = Kinds::new().await;
    for source in [&kinds.s3s, &kinds.moto, &kinds.azurite, &kinds.gcs_shim] {
        let (ground, to) = (Ground::new().await, Folder::new().await);
        ground.record(&["nowhere"]).await;
        let pass = ground.pass(source, &to.bucket).await;
        assert_eq!((pass.missing, pass.copied), (1, 0), "{source:?}");
        let record = ground.of("nowhere").await;
        assert!(record.is_missing && !record.is_put);
        assert!(!ground.gate().await);
        kinds.files.write("nowhere", b"here");
        assert_eq!(
            bring(&kinds.files.bucket, source, &["nowhere"])
                .await
                .copied,
            1
        );
        assert_eq!(ground.pass(source, &to.bucket).await.copied, 1);
        assert!(ground.gate().await);
    }
}

/// Guards the organization's objects: of a bucket that is not there no key is missing, not even
/// where missing ones are accepted.
#[tokio::test]
async fn a_bucket_that_is_gone_is_not_one_without_objects() {
    let (moto, to) = (moto().await, Folder::new().await);
    let gone = Folder::new().await;
    std::fs::remove_dir(gone.folder.path()).unwrap();
    let nowhere = open("s3://there-is-no-such-bucket", moto.variables()).await;
    for source in [&gone.bucket, &nowhere] {
        let ground = Ground::new().await;
        ground.record(&["a", "b"]).await;
        let mover = ground.mover(source, &to.bucket, quick());
        let error = mover.pass(Walked::All).await.unwrap_err();
        assert!(!error.is_transient(), "{error}");
        let counts = ground.counts().await;
        assert_eq!((counts.missing, counts.copied), (0, 0), "{source:?}");
        assert_eq!(counts.blocking(true), 2);
    }
}

/// Guards promise 1: what is recorded of an object that changes under its copy is what the source
/// has in the end.
#[tokio::test]
async fn an_object_that_changes_during_its_copy_is_copied_again() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    let (old, new) = (noise(1, 12 << 20), noise(2, 12 << 20));
    from.write("moving", &old);
    ground.record(&["moving"]).await;
    let limits = Limits {
        bytes_per_second: std::num::NonZeroU64::new(16 << 20),
        ..quick()
    };
    let mover = ground.mover(&from.bucket, &to.bucket, limits);
    let progress = std::sync::Arc::clone(mover.progress());
    let change = async {
        while progress.snapshot().bytes_read == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        from.write("moving.new", &new);
        let folder = from.folder.path();
        std::fs::rename(folder.join("moving.new"), folder.join("moving")).unwrap();
    };
    let (pass, ()) = tokio::join!(mover.pass(Walked::All), change);
    assert_eq!(pass.unwrap().copied, 1);
    assert!(to.read("moving").unwrap() == new);
    let copy = ground.of("moving").await.copied.unwrap();
    assert_eq!(copy.sha256, sha256(&new));
    assert!(progress.snapshot().bytes_read > 12 << 20, "read twice");
}

/// Guards the sink's other tenants: an object that somebody puts there under the same key while ours
/// is on its way stays, whether ours would be written whole or in parts.
#[tokio::test]
async fn an_object_that_others_put_during_a_copy_is_not_replaced() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    for (key, bytes) in [("whole", 4 << 20), ("in parts", 12 << 20)] {
        from.write(key, &noise(1, bytes));
        let theirs = noise(2, bytes);
        ground.record(&[key]).await;
        let limits = Limits {
            bytes_per_second: std::num::NonZeroU64::new(bytes as u64),
            ..quick()
        };
        let mover = ground.mover(&from.bucket, &to.bucket, limits);
        let progress = std::sync::Arc::clone(mover.progress());
        let put = async {
            while progress.snapshot().bytes_read == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            to.write("theirs", &theirs);
            let folder = to.folder.path();
            std::fs::rename(folder.join("theirs"), folder.join(key)).unwrap();
        };
        let (pass, ()) = tokio::join!(mover.pass(Walked::Fresh), put);
        assert_eq!(pass.unwrap().troubled, 1, "{key}");
        assert!(to.read(key).unwrap() == theirs, "{key} was replaced");
        let record = ground.of(key).await;
        assert_eq!(record.problem.as_deref(), Some(problem::DIFFERENT));
        assert!(!record.is_put, "{key}");
    }
}

/// Guards the network between: within one service the bytes are read for their digest and never
/// sent; the copy is no less proved.
#[tokio::test]
async fn a_service_copies_by_itself_and_the_copy_is_proved() {
    let (ground, moto, files) = (Ground::new().await, moto().await, Folder::new().await);
    let between = Interference::before(&moto.url()).await.unwrap();
    let bucket = async || {
        let url = format!("s3://{}", moto.bucket().await.unwrap());
        open(&url, moto.variables_at(&between.url())).await
    };
    let (source, sink) = (bucket().await, bucket().await);
    let large = noise(9, 9 << 20);
    files.write("large", &large);
    bring(&files.bucket, &source, &["large"]).await;
    let before = between.seen().len();
    ground.record(&["large"]).await;
    assert_eq!(ground.pass(&source, &sink).await.copied, 1);
    let seen = between.seen();
    let lines: Vec<&str> = seen[before..]
        .iter()
        .map(|seen| seen.line.as_str())
        .collect();
    let written = lines.iter().filter(|line| line.starts_with("PUT "));
    assert_eq!(written.count(), 1, "{lines:?}");
    assert!(
        !lines.iter().any(|line| line.starts_with("POST ")),
        "{lines:?}"
    );
    let copy = ground.of("large").await.copied.unwrap();
    assert_eq!(copy.sha256, sha256(&large));
    let verified = verify(
        &ground.unit(),
        &sink,
        Which::All,
        &quick(),
        &CancellationToken::new(),
    )
    .await
    .unwrap();
    assert_eq!((verified.checked, verified.wrong), (1, 0));
}

/// Guards the proof: reading again finds what was changed or lost since, in a sample of everything
/// as in all.
#[tokio::test]
async fn reading_again_finds_damage() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    let keys: Vec<String> = (0..40).map(|n| format!("k/{n}")).collect();
    for key in &keys {
        from.write(key, key.as_bytes());
    }
    ground.record(&keys).await;
    ground.pass(&from.bucket, &to.bucket).await;
    let (unit, cancel) = (ground.unit(), CancellationToken::new());
    let read = async |which| {
        verify(&unit, &to.bucket, which, &quick(), &cancel)
            .await
            .unwrap()
    };
    let all = read(Which::All).await;
    assert_eq!((all.checked, all.wrong, all.bytes > 0), (40, 0, true));
    assert_eq!(ground.counts().await.verified, 40);
    let sample = read(Which::Sample(10)).await;
    assert!(sample.checked > 0 && sample.checked <= 10);
    to.write("k/7", b"x/7");
    std::fs::remove_file(to.folder.path().join("k/8")).unwrap();
    for which in [Which::All, Which::Sample(4_000)] {
        let mut found = read(which).await;
        found.named.sort();
        let named: Vec<(&str, &str)> = found
            .named
            .iter()
            .map(|(key, code)| (key.as_str(), code.as_str()))
            .collect();
        let expected = [("k/7", problem::DIFFERENT), ("k/8", problem::LOST)];
        assert_eq!(named, expected, "{which:?}");
    }
    assert_eq!(ground.counts().await.troubled, 2);
}

/// Guards promise 10: neither a bucket nor an error of one shows a credential; and AWS's profiles
/// are read as its own tools do.
#[tokio::test]
async fn credentials_come_from_profiles_and_are_never_shown() {
    use monarch_harness::object_stores::{ACCESS_KEY, S3s, SECRET_KEY};
    let (server, folder) = (S3s::start().await.unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("credentials");
    let text = format!(
        "[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n\
         [cell]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n\
         region = us-east-1\nendpoint_url = {}\n",
        server.url()
    );
    std::fs::write(&file, text).unwrap();
    let url = format!("s3://{}", server.bucket().unwrap());
    let variables = |profile: &str| {
        [
            ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()),
            ("AWS_PROFILE", profile),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    };
    let (ground, files) = (Ground::new().await, Folder::new().await);
    files.write("a", b"a");
    ground.record(&["a"]).await;
    let bucket = open(&url, variables("cell")).await;
    assert_eq!(ground.pass(&files.bucket, &bucket).await.copied, 1);

    let unknown = try_open(&url, variables("nope")).await.unwrap_err();
    let stranger = open(&url, server.variables_of_a_stranger()).await;
    let ground = Ground::new().await;
    ground.record(&["a"]).await;
    let pass = ground.pass(&stranger, &files.bucket).await;
    assert_eq!(pass.copied, 0);
    let shown = format!("{bucket:?} {bucket} {stranger:?} {unknown:?} {unknown}");
    for secret in [ACCESS_KEY, SECRET_KEY, "stranger"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // What the manifest does not allow is not done by accident.
    let keep = monarch_config::manifest_from_str(
        "m",
        "root: o\nstores: {d: {type: postgres}, f: {type: blob_store, eviction: keep}}\n\
         relationships: {o: {store: d, primary_key: [id]}}\n",
    );
    let keep = keep.unwrap();
    let store = keep.store(&"f".parse().unwrap()).unwrap();
    assert!(EvictionPermit::of(store).is_none());
}
