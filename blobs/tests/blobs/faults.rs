//! Servers that restart, connections that are cut, services that ask for patience, and movers that
//! are killed.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monarch_blobs::{BlobUnit, Limits, Mover, Walked};
use monarch_config::Dsn;
use monarch_harness::Program;
use monarch_harness::object_stores::{Azurite, Interference, S3s};
use monarch_ledger::Ledger;
use monarch_model::{Epoch, MoveId};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Folder, Ground, bring, noise, open, quick, sha256};

/// Slow enough that something can happen meanwhile.
fn slow() -> Limits {
    Limits {
        bytes_per_second: std::num::NonZeroU64::new(12 << 20),
        attempts: 40,
        ..quick()
    }
}

async fn under_way(mover: &Mover, bytes: u64) {
    while mover.progress().snapshot().bytes_read < bytes {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Guards promise 4: a source that goes away in the middle of an object, and comes back, costs time.
#[tokio::test]
async fn a_source_that_restarts_during_a_copy_is_waited_for() {
    let (ground, server, to) = (
        Ground::new().await,
        S3s::start().await.unwrap(),
        Folder::new().await,
    );
    let source = open(
        &format!("s3://{}", server.bucket().unwrap()),
        server.variables(),
    )
    .await;
    let files = Folder::new().await;
    let bytes = noise(5, 12 << 20);
    files.write("large", &bytes);
    assert_eq!(bring(&files.bucket, &source, &["large"]).await.copied, 1);
    ground.record(&["large"]).await;
    let mover = ground.mover(&source, &to.bucket, slow());
    let restart = async {
        under_way(&mover, 1).await;
        server.stop();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.start_again().await.unwrap();
    };
    let (pass, ()) = tokio::join!(mover.pass(Walked::All), restart);
    assert_eq!(pass.unwrap().copied, 1);
    assert_eq!(sha256(&to.read("large").unwrap()), sha256(&bytes));
}

/// Guards the same for a sink, which may forget the parts that it had.
#[tokio::test]
async fn a_sink_that_restarts_during_a_copy_is_written_to_again() {
    let (ground, server, from) = (
        Ground::new().await,
        Azurite::start().await.unwrap(),
        Folder::new().await,
    );
    let container = server.container().await.unwrap();
    let variables = server.variables(&server.url());
    let sink = open(&format!("az://{container}"), variables).await;
    let bytes = noise(6, 26 << 20);
    from.write("large", &bytes);
    ground.record(&["large"]).await;
    let mover = ground.mover(&from.bucket, &sink, slow());
    let restart = async {
        under_way(&mover, 17 << 20).await;
        server.restart().await.unwrap();
    };
    let (pass, ()) = tokio::join!(mover.pass(Walked::All), restart);
    assert_eq!(pass.unwrap().copied, 1);
    let back = Folder::new().await;
    assert_eq!(bring(&sink, &back.bucket, &["large"]).await.copied, 1);
    assert_eq!(sha256(&back.read("large").unwrap()), sha256(&bytes));
}

/// Guards the digest: bytes of a connection that is cut are taken up where it was, each once.
#[tokio::test]
async fn a_connection_that_is_cut_costs_no_byte_and_doubles_none() {
    let (ground, server, to) = (
        Ground::new().await,
        S3s::start().await.unwrap(),
        Folder::new().await,
    );
    let between = Interference::before(&server.url()).await.unwrap();
    let url = format!("s3://{}", server.bucket().unwrap());
    let source = open(&url, server.variables_at(&between.url())).await;
    let files = Folder::new().await;
    let (large, small) = (noise(7, 10 << 20), noise(8, 300_000));
    files.write("large", &large);
    files.write("small", &small);
    bring(&files.bucket, &source, &["large", "small"]).await;
    ground.record(&["large", "small"]).await;
    between.cut_reads(6, 200_000);
    assert_eq!(ground.pass(&source, &to.bucket).await.copied, 2);
    assert!(to.read("large").unwrap() == large);
    assert!(to.read("small").unwrap() == small);
    for (key, bytes) in [("large", &large), ("small", &small)] {
        let copy = ground.of(key).await.copied.unwrap();
        assert_eq!(copy.sha256, sha256(bytes));
    }
}

/// Guards the store's other users: when it asks for fewer requests, all of ours wait as long as it
/// says, and everything arrives.
#[tokio::test]
async fn a_store_that_asks_for_patience_gets_it_from_every_request() {
    let (ground, server, from) = (
        Ground::new().await,
        S3s::start().await.unwrap(),
        Folder::new().await,
    );
    let between = Interference::before(&server.url()).await.unwrap();
    let url = format!("s3://{}", server.bucket().unwrap());
    let sink = open(&url, server.variables_at(&between.url())).await;
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| from.write(key, key.as_bytes()));
    ground.record(&keys).await;
    between.slow_down(1, Some(1));
    assert_eq!(ground.pass(&from.bucket, &sink).await.copied, 60);
    assert_eq!(sink.slow_downs(), 1);
    let seen = between.seen();
    let refused = seen.iter().find(|seen| seen.is_refused).unwrap();
    // Those that were sent before the answer had come are let be.
    let sent_before = Duration::from_millis(100);
    let pause = seen
        .iter()
        .filter(|seen| seen.at > refused.at + sent_before)
        .map(|seen| seen.at - refused.at)
        .min()
        .unwrap();
    assert!(pause >= Duration::from_millis(900), "{pause:?}");

    // Also when it does not say for how long, and asks again.
    let ground = Ground::new().await;
    ground.record(&keys).await;
    between.slow_down(6, None);
    let to = Folder::new().await;
    assert_eq!(ground.pass(&sink, &to.bucket).await.copied, 60);
    assert_eq!(sink.slow_downs(), 7);
}

/// Guards the end of a worker: a walk that is called off stops in the middle of an object, leaves
/// nothing half done on the sink, and the next one goes on.
#[tokio::test]
async fn a_walk_that_is_called_off_is_taken_up_again() {
    let (ground, from, to) = (
        Ground::new().await,
        Folder::new().await,
        Folder::new().await,
    );
    let keys: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| from.write(key, key.as_bytes()));
    from.write("large", &noise(3, 64 << 20));
    ground.record(&keys).await;
    ground.record(&["large"]).await;
    let cancel = CancellationToken::new();
    let mover = Mover::new(
        ground.unit(),
        from.bucket.clone(),
        to.bucket.clone(),
        slow(),
        cancel.clone(),
    );
    let call_off = async {
        under_way(&mover, 5 << 20).await;
        cancel.cancel();
    };
    let begun = Instant::now();
    let (pass, ()) = tokio::join!(mover.pass(Walked::All), call_off);
    let pass = pass.unwrap();
    assert!(!pass.is_whole && begun.elapsed() < Duration::from_secs(60));
    assert_eq!(ground.counts().await.copied, pass.copied);
    assert!(to.read("large").is_none());
    let left = std::fs::read_dir(to.folder.path()).unwrap();
    let staged = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains('#')
    });
    assert_eq!(staged.count(), 0);
    assert_eq!(
        ground.pass(&from.bucket, &to.bucket).await.copied,
        31 - pass.copied
    );
}

/// Guards promise 4 at its narrowest: a mover killed after an object was put and before that was
/// recorded. The next one finds its own object, records it as put by this move, and writes nothing.
#[tokio::test]
async fn a_mover_killed_between_upload_and_record_is_taken_up() {
    let (ground, server, from) = (
        Ground::new().await,
        S3s::start().await.unwrap(),
        Folder::new().await,
    );
    let bucket = server.bucket().unwrap();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| from.write(key, key.as_bytes()));
    from.write("large", &noise(4, 9 << 20));
    ground.record(&keys).await;
    ground.record(&["large"]).await;
    // Whoever records waits here until it is killed.
    ground
        .admin
        .batch_execute(
            "create function hold() returns trigger language plpgsql as
                 'begin perform pg_sleep(20); return new; end';
             create trigger hold before update on monarch_ledger.blob_key for each row
                 when (new.copied_at is not null) execute function hold()",
        )
        .await
        .unwrap();
    let told = serde_json::json!({
        "dsn": ground.dsn, "move_id": ground.move_id.0, "epoch": ground.epoch.0,
        "from": from.folder.path(), "to": format!("s3://{bucket}"),
        "variables": server.variables(),
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "faults::the_mover_that_is_killed", "--nocapture"])
        .env(TOLD, told.to_string());
    let child = Program::start("mover", &command).unwrap();
    let sink = open(&format!("s3://{bucket}"), server.variables()).await;
    let arrived = Folder::new().await;
    // All is there, nothing is recorded.
    let look = Ground::new().await;
    look.record(&keys).await;
    look.record(&["large"]).await;
    while !look.gate().await {
        assert!(child.is_alive(), "{}", child.output().unwrap());
        look.pass(&sink, &arrived.bucket).await;
    }
    child.kill_9().await.unwrap();
    let counts = ground.counts().await;
    assert_eq!((counts.recorded, counts.copied), (21, 0));
    ground
        .admin
        .batch_execute("drop trigger hold on monarch_ledger.blob_key")
        .await
        .unwrap();
    let between = Interference::before(&server.url()).await.unwrap();
    let watched = open(
        &format!("s3://{bucket}"),
        server.variables_at(&between.url()),
    )
    .await;
    assert_eq!(ground.pass(&from.bucket, &watched).await.copied, 21);
    let writes = between
        .seen()
        .into_iter()
        .filter(|seen| !seen.line.starts_with("GET") && !seen.line.starts_with("HEAD"));
    assert_eq!(writes.count(), 0);
    assert!(ground.of("k3").await.is_put && ground.of("large").await.is_put);
    assert!(ground.gate().await);
}

const TOLD: &str = "MONARCH_TEST_MOVER";

/// Not a test: what the test before it runs as a process of its own. Without being told what to
/// move it does nothing.
#[tokio::test]
async fn the_mover_that_is_killed() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let unit = BlobUnit {
        ledger: Ledger::connect(&Dsn::new(text("dsn"))).await.unwrap(),
        move_id: MoveId(text("move_id").parse().unwrap()),
        store: "files".parse().unwrap(),
        epoch: Epoch(told["epoch"].as_i64().unwrap()),
    };
    let variables = serde_json::from_value(told["variables"].clone()).unwrap();
    let from = open(&format!("file://{}", text("from")), Vec::new()).await;
    let to = open(&text("to"), variables).await;
    let cancel = CancellationToken::new();
    let mover = Arc::new(Mover::new(unit, from, to, quick(), cancel));
    // On another thread, as an activity's would be: the walk can be sent. It ends by being killed.
    loop {
        let mover = Arc::clone(&mover);
        let ended = tokio::spawn(async move { mover.pass(Walked::All).await })
            .await
            .unwrap();
        eprintln!("{ended:?}");
    }
}
