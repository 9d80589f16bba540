//! What goes to Temporal and comes back, on a real server.

use anyhow::Result;
use monarch_harness::{Temporal, shared};

use crate::ledger::register;
use crate::stage::{Stage, in_ledger, until_said};

/// Starts the workflow of a move as its users do, with nobody there to run it.
async fn started(namespace: &str, org: &str) -> Result<()> {
    let id = format!("org-move-{org}");
    let input = format!("{{\"org_id\": \"{org}\"}}");
    let words = [
        "workflow",
        "start",
        "--type",
        "OrgMove",
        "--task-queue",
        "monarch",
        "--workflow-id",
        &id,
        "--input",
        &input,
    ];
    let ended = shared::temporal().await.cli(namespace, words).await?;
    anyhow::ensure!(ended.status.success(), "{ended:?}");
    Ok(())
}

/// Guards promise 6 at the door: a second move is refused before it begins, and the first named.
#[tokio::test]
async fn a_second_move_is_refused_by_name() -> Result<()> {
    let (stage, dsn) = Stage::with_ledger().await?;
    let (stage, namespace) = stage.with_temporal().await?;
    stage.run(["ledger", "init"]).await?;
    started(&namespace, "evil-corp").await?;

    let again = stage.run(["move", "start", "--org", "evil-corp"]).await?;
    assert_eq!(again.code, 3, "{}", again.errors);
    assert!(
        again.errors.contains("org-move-evil-corp runs"),
        "{}",
        again.errors
    );

    let id = register(&dsn, "evil-corp").await?.to_string();
    let other = stage.run(["move", "start", "--org", "other"]).await?;
    assert_eq!(other.code, 3, "{}", other.errors);
    for part in [id.as_str(), "evil-corp", "active"] {
        assert!(
            other.errors.contains(part),
            "{part} is missing: {}",
            other.errors
        );
    }
    Ok(())
}

/// A command for a move that is not there says so, with a status that is not "unreachable".
#[tokio::test]
async fn nothing_is_asked_of_a_workflow_that_does_not_run() -> Result<()> {
    let (stage, _) = Stage::with_ledger().await?;
    let (stage, _) = stage.with_temporal().await?;
    stage.run(["ledger", "init"]).await?;
    let commands: [&[&str]; 6] = [
        &["move", "cut-over", "--org", "1", "--writes-stopped"],
        &["move", "pause", "--org", "1"],
        &["move", "resume", "--org", "1"],
        &["move", "evict", "--org", "1"],
        &["move", "abort", "--org", "1", "--reason", "late"],
        &["move", "adopt", "--org", "1"],
    ];
    for arguments in commands {
        let said = stage.run(arguments).await?;
        assert_eq!(said.code, 3, "{arguments:?}: {}", said.errors);
    }
    let swept = stage.run(["sweep"]).await?;
    assert_eq!(swept.code, 0, "{}", swept.errors);
    Ok(())
}

/// Who asks something of a move that is over is told how it ended, not that it is misspelled.
#[tokio::test]
async fn a_move_that_has_ended_says_how() -> Result<()> {
    let (stage, dsn) = Stage::with_ledger().await?;
    let (stage, _) = stage.with_temporal().await?;
    stage.run(["ledger", "init"]).await?;
    let id = register(&dsn, "evil-corp").await?.to_string();
    for (phase, cell) in [("finalized", "us2"), ("aborted", "us1")] {
        let end = format!("update monarch_ledger.move set phase = '{phase}', ended_at = now()");
        in_ledger(&dsn, &end).await?;
        let commands: [&[&str]; 5] = [
            &["cut-over", "--writes-stopped"],
            &["pause"],
            &["resume"],
            &["evict"],
            &["abort", "--reason", "late"],
        ];
        for words in commands {
            let whole = ["move", words[0], "--org", "evil-corp"];
            let said = stage.run(whole.iter().chain(&words[1..])).await?;
            assert_eq!(said.code, 3, "{words:?}: {}", said.errors);
            for part in [
                &id,
                phase,
                &format!("lives in {cell}"),
                "monarch move start",
            ] {
                assert!(said.errors.contains(part), "{part}: {}", said.errors);
            }
            assert!(!said.errors.contains("spelled"), "{}", said.errors);
        }
    }
    Ok(())
}

/// Waiting for a worker has an end; and a move whose workflow is gone is told from one that goes on:
/// nothing will come of it until somebody takes it up.
#[tokio::test]
async fn a_move_that_nobody_drives_is_named_by_every_command() -> Result<()> {
    let (stage, dsn) = Stage::with_ledger().await?;
    let (stage, namespace) = stage.with_temporal().await?;
    stage.run(["ledger", "init"]).await?;
    started(&namespace, "evil-corp").await?;
    register(&dsn, "evil-corp").await?;
    let pause = ["move", "pause", "--org", "evil-corp", "--timeout", "1"];
    let silent = stage.run(pause).await?;
    assert_eq!(silent.code, 4, "{}", silent.errors);
    assert!(
        silent.errors.contains("nothing was asked"),
        "{}",
        silent.errors
    );

    let id = "org-move-evil-corp";
    let terminate = ["workflow", "terminate", "--workflow-id", id];
    let ended = shared::temporal().await.cli(&namespace, terminate).await?;
    anyhow::ensure!(ended.status.success(), "{ended:?}");
    let abort = ["move", "abort", "--org", "evil-corp", "--reason", "late"];
    let asked: [(&[&str], i32); 4] = [
        (&["move", "status", "--org", "evil-corp"], 0),
        (&["move", "watch"], 1),
        (&pause, 3),
        (&abort, 3),
    ];
    for (words, code) in asked {
        let said = stage.run(words).await?;
        let text = format!("{}{}", said.output, said.errors);
        assert_eq!(said.code, code, "{words:?}: {text}");
        for part in [
            "nobody drives",
            "was terminated",
            "monarch sweep",
            "monarch move adopt",
        ] {
            assert!(text.contains(part), "{words:?} lacks {part}: {text}");
        }
    }
    Ok(())
}

/// A namespace that is not there is a mistake in the environment, not a move that is missing.
#[tokio::test]
async fn a_missing_namespace_is_told_from_a_missing_move() -> Result<()> {
    let mut stage = Stage::alone()?;
    stage.at_temporal(&shared::temporal().await.address(), "nowhere-at-all");
    let said = stage.run(["move", "pause", "--org", "1"]).await?;
    assert_eq!(said.code, 2, "{}", said.errors);
    assert!(
        said.errors.contains("TEMPORAL_NAMESPACE"),
        "{}",
        said.errors
    );
    Ok(())
}

/// What is replayed in CI is what was saved here: the file reads back with every event.
#[tokio::test]
async fn a_saved_history_reads_back() -> Result<()> {
    let (stage, namespace) = Stage::alone()?.with_temporal().await?;
    started(&namespace, "9").await?;
    let said = stage
        .run(["histories", "save", "--org", "9", "nine.json"])
        .await?;
    assert_eq!(said.code, 0, "{}", said.errors);
    let bytes = std::fs::read(stage.folder().join("nine.json"))?;
    let history = temporalio_client::WorkflowHistory::from_json(&bytes)?;
    assert_eq!(history.workflow_id(), Some("org-move-9"));
    assert!(!history.into_events().await?.is_empty());
    Ok(())
}

/// A worker makes what a move needs of a namespace, once, and ends at SIGTERM as it should.
#[tokio::test]
async fn a_worker_prepares_its_namespace_and_ends_when_told() -> Result<()> {
    let (stage, _) = Stage::with_ledger().await?;
    let (stage, namespace) = stage.with_temporal().await?;
    stage.run(["ledger", "init"]).await?;
    let temporal = shared::temporal().await;
    // Twice: what is there already is left as it is.
    for _ in 0..2 {
        let worker = stage.worker(&["--queue", "monarch", "--grace", "1"])?;
        until_said(&worker, "polling").await?;
        assert_eq!(worker.terminate().await?, Some(0), "{}", worker.output()?);
    }
    let query = "OrgId = 'a' and MovePhase = 'b' and SourceCell = 'c' and SinkCell = 'd'";
    let listed = temporal
        .cli(&namespace, ["workflow", "list", "--query", query])
        .await?;
    assert!(listed.status.success(), "{listed:?}");
    let schedule = ["schedule", "describe", "--schedule-id", "monarch-sweep"];
    let described = temporal.cli(&namespace, schedule).await?;
    assert!(described.status.success(), "{described:?}");
    let described = String::from_utf8(described.stdout)?;
    assert!(
        described.contains("Skip") && described.contains("Sweep"),
        "{described}"
    );
    Ok(())
}

/// A worker may be up before Temporal is: it says what it waits for, and goes on. Told to stop it
/// ends, also when there is nobody to take its leave of.
#[tokio::test]
async fn a_worker_waits_for_temporal_and_says_so() -> Result<()> {
    let temporal = Temporal::start().await?;
    let namespace = temporal.namespace().await?;
    let (mut stage, _) = Stage::with_ledger().await?;
    stage.at_temporal(&temporal.address(), &namespace);
    stage.run(["ledger", "init"]).await?;
    temporal.kill_9().await?;
    let worker = stage.worker(&["--cell", "us2", "--grace", "1"])?;
    until_said(&worker, "not connected to Temporal").await?;
    temporal.restart().await?;
    until_said(&worker, "polling").await?;
    for line in worker.output()?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        assert!(line["level"].is_string(), "{line}");
    }
    temporal.kill_9().await?;
    assert_eq!(worker.terminate().await?, Some(0));
    Ok(())
}
