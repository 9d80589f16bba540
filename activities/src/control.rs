//! The control plane: whoever holds back an organization's writes and changes its routing.
//!
//! Four commands, run without a shell, each idempotent, with a timeout. Each reads on its standard
//! input one JSON object:
//!
//! ```json
//! {"action": "flip", "organization": "1", "from": "us1", "to": "us2", "move_token": "…/1"}
//! ```
//!
//! and ends with
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done, or done before |
//! | 3 | refused for good: the token was revoked, or the routing names a third cell |
//! | other | not done; try again |
//!
//! `where` prints the cell that the routing names. `unfence` revokes its token first and lifts the
//! fence then: a flip that arrives later with that token must be refused (code 3). Each attempt to
//! cut over has a token of its own.

use std::process::Stdio;
use std::time::Duration;

use monarch_config::Control;
use monarch_ledger::Move;
use monarch_model::CellName;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The exit code of a command that will not do it, however often it is asked.
const REFUSED: i32 = 3;

/// A command of the control plane did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The program could not be run, or its pipes broke.
    #[error("run the `{action}` command {program:?}")]
    Run {
        /// `fence`, `unfence`, `flip` or `where`.
        action: &'static str,
        /// The program as `fleet.yaml` names it.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It took too long and was killed.
    #[error("the `{action}` command did not end within {} s and was killed", timeout.as_secs())]
    Timeout {
        /// Which command.
        action: &'static str,
        /// `control.timeout` of `fleet.yaml`.
        timeout: Duration,
    },
    /// It did not do it this time.
    #[error("the `{action}` command ended with exit code {code}; it is tried again")]
    Failed {
        /// Which command.
        action: &'static str,
        /// Its exit code; -1 if a signal ended it.
        code: i32,
    },
    /// It will not do it.
    #[error("the `{action}` command refused (exit code 3)")]
    Refused {
        /// Which command.
        action: &'static str,
    },
    /// `where` printed something that names no cell of the fleet.
    #[error("the `where` command names {printed:?}, which is neither {from} nor {to}")]
    Elsewhere {
        /// What it printed, cut to 64 characters.
        printed: String,
        /// The source cell.
        from: CellName,
        /// The sink cell.
        to: CellName,
    },
    /// The fleet has a control database, which this version does not speak to.
    #[error("`control.dsn` is not supported by this version: give the four commands instead")]
    Database,
}

impl ControlError {
    /// Whether asking again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            ControlError::Run { .. }
            | ControlError::Timeout { .. }
            | ControlError::Failed { .. } => true,
            ControlError::Refused { .. }
            | ControlError::Elsewhere { .. }
            | ControlError::Database => false,
        }
    }
}

/// What a command reads.
#[derive(Serialize)]
struct Order<'a> {
    action: &'static str,
    organization: &'a str,
    from: &'a CellName,
    to: &'a CellName,
    move_token: String,
}

/// The control plane on behalf of one attempt to cut one move over.
pub(crate) struct Plane<'a> {
    control: &'a Control,
    of: &'a Move,
    attempt: u32,
}

impl<'a> Plane<'a> {
    pub(crate) fn new(control: &'a Control, of: &'a Move, attempt: u32) -> Self {
        Self {
            control,
            of,
            attempt,
        }
    }

    /// Stops the organization's writes on the source.
    pub(crate) async fn fence(&self) -> Result<(), ControlError> {
        self.run("fence", |commands| commands.fence).await.map(drop)
    }

    /// Revokes the token and lets the organization write on the source again.
    pub(crate) async fn unfence(&self) -> Result<(), ControlError> {
        self.run("unfence", |commands| commands.unfence)
            .await
            .map(drop)
    }

    /// Routes the organization to the sink.
    pub(crate) async fn flip(&self) -> Result<(), ControlError> {
        self.run("flip", |commands| commands.flip).await.map(drop)
    }

    /// Reads the routing back: whether it names the sink.
    pub(crate) async fn names_sink(&self) -> Result<bool, ControlError> {
        let printed = self.run("where", |commands| commands.where_).await?;
        let printed = printed.trim();
        if printed == self.of.sink_cell.as_str() {
            Ok(true)
        } else if printed == self.of.source_cell.as_str() {
            Ok(false)
        } else {
            Err(ControlError::Elsewhere {
                printed: printed.chars().take(64).collect(),
                from: self.of.source_cell.clone(),
                to: self.of.sink_cell.clone(),
            })
        }
    }

    /// Runs one command to its end and returns what it printed.
    async fn run(
        &self,
        action: &'static str,
        choose: impl FnOnce(Commands<'a>) -> &'a [String],
    ) -> Result<String, ControlError> {
        let commands = Commands::of(self.control)?;
        let timeout = commands.timeout;
        let command = choose(commands);
        let order = Order {
            action,
            organization: self.of.org.as_str(),
            from: &self.of.source_cell,
            to: &self.of.sink_cell,
            move_token: format!("{}/{}", self.of.token, self.attempt),
        };
        let input = serde_json::to_vec(&order).unwrap_or_default();
        tokio::time::timeout(timeout, execute(action, command, &input))
            .await
            .map_err(|_| ControlError::Timeout { action, timeout })?
    }
}

/// The four commands of the fleet.
struct Commands<'a> {
    fence: &'a [String],
    unfence: &'a [String],
    flip: &'a [String],
    where_: &'a [String],
    timeout: Duration,
}

impl<'a> Commands<'a> {
    fn of(control: &'a Control) -> Result<Self, ControlError> {
        match control {
            Control::Commands {
                fence,
                unfence,
                flip,
                where_,
                timeout,
            } => Ok(Self {
                fence,
                unfence,
                flip,
                where_,
                timeout: *timeout,
            }),
            Control::Database(_) => Err(ControlError::Database),
        }
    }
}

async fn execute(
    action: &'static str,
    command: &[String],
    input: &[u8],
) -> Result<String, ControlError> {
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
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its order may have ended already; its exit code tells.
        let _ = stdin.write_all(input).await;
    }
    let output = child.wait_with_output().await.map_err(broken)?;
    match output.status.code().unwrap_or(-1) {
        0 => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        REFUSED => Err(ControlError::Refused { action }),
        code => Err(ControlError::Failed { action, code }),
    }
}
