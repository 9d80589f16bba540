//! What needs no server: the command line, the files, and what is said of services that are away.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::stage::{PROGRAM, SECRET, Stage};

/// A typing mistake never starts anything, and is told from a failure by its status.
#[tokio::test]
async fn a_command_line_that_cannot_be_read_is_a_matter_of_usage() -> Result<()> {
    let stage = Stage::alone()?;
    let wrong: [&[&str]; 11] = [
        &["moev"],
        &["move", "start"],
        &["move", "start", "--org", ""],
        &["move", "start", "--org", "1", "--eviction", "later"],
        &["move", "start", "--org", "1", "--max-pause", "0"],
        &["move", "status", "--org", "1", "--move", "2"],
        &["move", "status", "--move", "not-a-uuid"],
        &["move", "abort", "--org", "1"],
        &["histories", "save", "file.json"],
        &["move", "list", "--limit", "0"],
        &["move", "pause", "--org", "1", "--timeout", "0"],
    ];
    for arguments in wrong {
        let said = stage.run(arguments).await?;
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.errors);
        assert!(said.output.is_empty() && !said.errors.is_empty());

        let for_programs = arguments.iter().chain(&["--output", "json"]);
        let said = stage.run(for_programs).await?;
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.errors);
        let told: serde_json::Value = serde_json::from_str(&said.errors)?;
        let parts = [&told["error"], &told["retried"], &told["to_do"]];
        assert!(parts.iter().all(|part| part.is_string()), "{told}");
    }
    Ok(())
}

/// A program reads what is missing and how the command is used, each in its place.
#[tokio::test]
async fn a_program_is_told_how_a_command_is_used() -> Result<()> {
    let stage = Stage::alone()?;
    let said = stage.run(["--output=json", "move", "pause"]).await?;
    let told: serde_json::Value = serde_json::from_str(&said.errors)?;
    let (error, to_do) = (told["error"].to_string(), told["to_do"].to_string());
    assert!(
        error.contains("--org <ID>") && !error.contains("Usage"),
        "{told}"
    );
    assert!(to_do.contains("monarch move pause"), "{told}");
    let help = stage
        .run(["move", "pause", "--help", "--output", "json"])
        .await?;
    assert_eq!(help.code, 0, "{}", help.errors);
    assert!(help.output.contains("Usage:"), "{}", help.output);
    Ok(())
}

/// Both files are found by option, by variable, and in the folder, in this order.
#[tokio::test]
async fn the_files_are_found_where_they_are_said_to_be() -> Result<()> {
    let stage = Stage::alone()?;
    let here = stage.run(["config", "check"]).await?;
    assert_eq!(here.code, 0, "{}", here.errors);
    assert!(
        here.output.contains("not moved: feature"),
        "{}",
        here.output
    );

    let elsewhere = stage.folder().join("elsewhere.yaml");
    let mut command = stage.command();
    command.args(["config", "check"]);
    let by_variable = command.env("MONARCH_FLEET", &elsewhere).output()?;
    assert_eq!(by_variable.status.code(), Some(2));
    let errors = String::from_utf8(by_variable.stderr)?;
    assert!(errors.contains("elsewhere.yaml"), "{errors}");

    std::fs::copy(stage.folder().join("fleet.yaml"), &elsewhere)?;
    let by_option = stage
        .run([
            "config",
            "check",
            "--fleet",
            "elsewhere.yaml",
            "--output",
            "json",
        ])
        .await?;
    assert_eq!(by_option.code, 0, "{}", by_option.errors);
    assert_eq!(
        by_option.json()?["cells"],
        serde_json::json!(["us1", "us2"])
    );
    Ok(())
}

/// What a variable gives need not be given: no complaint lists it, and no shell offers files where
/// an organization is asked for.
#[test]
fn what_is_told_of_the_command_line_asks_for_nothing_more() -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command
        .env("MONARCH_FLEET", "f")
        .env("MONARCH_MANIFEST", "m");
    let said = command.args(["move", "pause"]).output()?;
    let errors = String::from_utf8(said.stderr)?;
    assert!(
        errors.contains("--org") && !errors.contains("--fleet"),
        "{errors}"
    );

    let script = Command::new(PROGRAM)
        .args(["completions", "fish"])
        .output()?;
    let script = String::from_utf8(script.stdout)?;
    let org = script
        .lines()
        .find(|line| line.contains("-l org "))
        .unwrap_or_default();
    assert!(org.contains(" -r -f"), "{org}");
    Ok(())
}

/// An operator mends both files in one go.
#[tokio::test]
async fn every_fault_of_both_files_is_told_at_once() -> Result<()> {
    let stage = Stage::alone()?;
    std::fs::write(
        stage.folder().join("manifest.yaml"),
        "root: x\nstroes: {}\n",
    )?;
    std::fs::write(stage.folder().join("fleet.yaml"), "frm: us1\n")?;
    let text = stage.run(["config", "check"]).await?;
    assert_eq!(text.code, 2);
    for part in [
        "manifest.yaml:2: stroes",
        "did you mean \"stores\"",
        "fleet.yaml:1: frm",
    ] {
        assert!(
            text.errors.contains(part),
            "{part} is missing: {}",
            text.errors
        );
    }
    let json = stage.run(["config", "check", "--output", "json"]).await?;
    assert_eq!(json.code, 2);
    let faults = json.json()?["faults"].as_array().map(Vec::len);
    assert!(faults.is_some_and(|n| n >= 3), "{}", json.output);

    // Every other command says the same before it does anything.
    let start = stage.run(["move", "start", "--org", "1"]).await?;
    assert_eq!(start.code, 2, "{}", start.errors);
    Ok(())
}

/// A script can tell "try later" from "never"; and no password is ever printed.
#[tokio::test]
async fn what_is_away_is_named_with_a_status_of_its_own() -> Result<()> {
    let stage = Stage::alone()?;
    let commands: [&[&str]; 7] = [
        &["ledger", "init"],
        &["move", "list"],
        &["move", "status"],
        &["move", "start", "--org", "1"],
        &["move", "cut-over", "--org", "1"],
        &["move", "abort", "--org", "1", "--reason", "late"],
        &["sweep"],
    ];
    for arguments in commands {
        let said = stage.run(arguments).await?;
        assert_eq!(said.code, 4, "{arguments:?}: {}", said.errors);
        assert!(
            said.errors.contains("to do:"),
            "{arguments:?}: {}",
            said.errors
        );
        assert!(!said.errors.contains(SECRET), "{arguments:?}");
    }
    let json = stage.run(["move", "list", "--output", "json"]).await?;
    let told: serde_json::Value = serde_json::from_str(&json.errors)?;
    assert!(
        told["error"].is_string() && told["retried"].is_string(),
        "{told}"
    );
    Ok(())
}

/// Preflight reports a database that is away among its findings, and changes nothing.
#[tokio::test]
async fn preflight_and_plan_tell_what_forbids_a_move() -> Result<()> {
    let stage = Stage::alone()?;
    for command in ["preflight", "plan"] {
        let said = stage
            .run([command, "--org", "1", "--output", "json"])
            .await?;
        assert_eq!(said.code, 1, "{command}: {}", said.errors);
        let looked = said.json()?;
        assert_eq!(looked["refused"], true);
        assert!(
            looked["findings"]
                .as_array()
                .is_some_and(|found| !found.is_empty())
        );
        assert!(!said.output.contains(SECRET) && !said.errors.contains(SECRET));
    }
    let unknown = stage
        .run(["preflight", "--org", "1", "--to", "us9"])
        .await?;
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.errors.contains("name one of us1, us2"),
        "{}",
        unknown.errors
    );
    Ok(())
}

/// A worker that hosts nothing would look like one that waits for work.
#[tokio::test]
async fn what_the_fleet_lacks_is_refused_with_the_nearest_name() -> Result<()> {
    let stage = Stage::alone()?;
    let arguments = [
        "worker", "--queue", "monarhc", "--cell", "us9", "--store", "defualt",
    ];
    let said = stage.run(arguments).await?;
    assert_eq!(said.code, 2);
    for words in [
        r#""monarhc" (did you mean "monarch"?)"#,
        r#""us9" (did you mean "us1"?)"#,
        r#""defualt" (did you mean "default"?)"#,
    ] {
        assert!(said.errors.contains(words), "{words}: {}", said.errors);
    }
    Ok(())
}

/// `monarch … | head` ends like any other tool.
#[test]
fn a_reader_who_has_seen_enough_ends_the_program_quietly() -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let ended = Command::new(PROGRAM)
        .args(["completions", "bash"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()?
        .wait_with_output()?;
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(String::from_utf8(ended.stderr)?, "");
    Ok(())
}
