//! The four commands, run without a shell, each with a timeout.

use std::process::Stdio;
use std::time::Duration;

use monarch_config::Control;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::ControlError;

/// The exit code of a command that will not do it, however often it is asked.
const REFUSED: i32 = 3;

/// What a command reads.
#[derive(Serialize)]
pub(super) struct Order<'a> {
    pub(super) action: &'static str,
    pub(super) organization: &'a str,
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    pub(super) move_token: String,
}

/// The four commands of the fleet.
pub(super) struct Commands<'a> {
    fence: &'a [String],
    unfence: &'a [String],
    flip: &'a [String],
    where_: &'a [String],
    timeout: Duration,
}

impl<'a> Commands<'a> {
    /// Those of the fleet, if it names commands.
    pub(super) fn of(control: &'a Control) -> Option<Self> {
        match control {
            Control::Commands {
                fence,
                unfence,
                flip,
                where_,
                timeout,
            } => Some(Self {
                fence,
                unfence,
                flip,
                where_,
                timeout: *timeout,
            }),
            Control::Database(_) => None,
        }
    }

    /// The program of each.
    pub(super) fn programs(&self) -> impl Iterator<Item = &'a str> {
        let commands = [self.fence, self.unfence, self.flip, self.where_];
        commands
            .into_iter()
            .map(|command| command.first().map_or("", String::as_str))
    }

    /// Runs one command to its end and returns what it printed.
    pub(super) async fn run(&self, order: &Order<'_>) -> Result<String, ControlError> {
        let action = order.action;
        let command = match action {
            "fence" => self.fence,
            "unfence" => self.unfence,
            "flip" => self.flip,
            _ => self.where_,
        };
        let input = serde_json::to_vec(order).unwrap_or_default();
        match execute(action, command, &input, self.timeout).await? {
            (0, said) => Ok(said),
            (REFUSED, _) => Err(ControlError::Refused {
                action,
                why: "exit code 3".to_owned(),
            }),
            (code, _) => Err(ControlError::Failed { action, code }),
        }
    }
}

/// Runs a program to its end, `input` on its standard input; its exit code, -1 if a signal ended it,
/// and what it printed.
pub(crate) async fn execute(
    action: &'static str,
    command: &[String],
    input: &[u8],
    timeout: Duration,
) -> Result<(i32, String), ControlError> {
    tokio::time::timeout(timeout, executed(action, command, input))
        .await
        .map_err(|_| ControlError::Timeout { action, timeout })?
}

async fn executed(
    action: &'static str,
    command: &[String],
    input: &[u8],
) -> Result<(i32, String), ControlError> {
    let program = command.first().map_or("", String::as_str);
    let broken = |source| ControlError::Run {
        action,
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(command.iter().skip(1))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(broken)?;
    let stdin = child.stdin.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A command that does not read its order may have ended already; its exit code tells.
            let _ = stdin.write_all(input).await;
        }
    };
    // Side by side: a command may say much before it has read all.
    let ((), output) = tokio::join!(feed, child.wait_with_output());
    let output = output.map_err(broken)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output.status.code().unwrap_or(-1), said))
}
