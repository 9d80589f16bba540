//! A child process can be watched, stopped and killed.

use std::process::Command;

use anyhow::Result;
use monarch_harness::{Program, monarch_binary};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("WORD", "told");
    command
}

/// Status, output and environment of a child reach the test.
#[tokio::test]
async fn a_program_ends_with_its_status_and_output() -> Result<()> {
    let program = Program::start("told", &shell("echo $WORD; echo aside >&2; exit 3"))?;
    assert_eq!(program.wait().await?, Some(3));
    assert_eq!(program.output()?, "told\naside\n");
    assert_eq!(program.wait().await?, None, "waited for once");
    Ok(())
}

/// A program that cleans up at SIGTERM can be told from one that was killed.
#[tokio::test]
async fn a_terminated_program_has_its_say_and_a_killed_one_has_not() -> Result<()> {
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let (asked, killed) = (
        Program::start("a", &shell(script))?,
        Program::start("b", &shell(script))?,
    );
    for program in [&asked, &killed] {
        while program.output()?.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert_eq!(asked.terminate().await?, Some(0));
    assert_eq!(asked.output()?, "up\nbye\n");
    killed.kill_9().await?;
    assert_eq!(killed.output()?, "up\n");
    assert!(!killed.is_alive());
    Ok(())
}

/// A paused program does nothing, but is not dead: what a zombie mover is made of.
#[tokio::test]
async fn a_paused_program_goes_on_when_resumed() -> Result<()> {
    let program = Program::start("paused", &shell("while :; do echo on; sleep 0.02; done"))?;
    while program.output()?.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    program.pause()?;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let before = program.output()?;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(program.output()?, before);
    assert!(program.is_alive());
    program.resume()?;
    while program.output()? == before {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The program under test is built from the present source.
#[tokio::test]
async fn monarch_can_be_run() -> Result<()> {
    let program = Program::start("monarch", Command::new(monarch_binary()?).arg("--help"))?;
    assert!(
        program.wait().await?.is_some_and(|status| status < 126),
        "{}",
        program.output()?
    );
    Ok(())
}
