//! What tests of Monarch rely on when they use and kill Temporal.

use anyhow::Result;
use monarch_harness::{Temporal, shared};

const START: [&str; 8] = [
    "workflow",
    "start",
    "--type",
    "Nothing",
    "--task-queue",
    "none",
    "--workflow-id",
    "one",
];

/// Tests that share a server do not see one another's workflows.
#[tokio::test]
async fn a_namespace_is_a_test_s_own() -> Result<()> {
    let temporal = shared::temporal().await;
    let (mine, theirs) = (temporal.namespace().await?, temporal.namespace().await?);
    let started = temporal.cli(&mine, START).await?;
    assert!(started.status.success(), "{started:?}");

    let seen = ["workflow", "describe", "--workflow-id", "one"];
    assert!(temporal.cli(&mine, seen).await?.status.success());
    assert!(!temporal.cli(&theirs, seen).await?.status.success());
    Ok(())
}

/// A workflow that a client was told of survives a crash of the server.
#[tokio::test]
async fn a_killed_server_comes_back_with_its_workflows() -> Result<()> {
    let temporal = Temporal::start().await?;
    let namespace = temporal.namespace().await?;
    assert!(temporal.cli(&namespace, START).await?.status.success());
    let address = temporal.address();

    temporal.kill_9().await?;
    let seen = ["workflow", "describe", "--workflow-id", "one"];
    assert!(!temporal.cli(&namespace, seen).await?.status.success());

    temporal.restart().await?;
    assert_eq!(temporal.address(), address);
    assert!(temporal.cli(&namespace, seen).await?.status.success());
    Ok(())
}
