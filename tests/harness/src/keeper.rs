//! Keeps a server no longer than its user lives.
//!
//! A destructor does not run when a process is killed, and a static is never dropped, so a server
//! cannot be left to its handle alone. Each one is therefore the child of a small shell of its own,
//! the keeper, which reads commands from a pipe that only we hold. When the pipe ends, because the
//! handle was dropped or because the kernel closed it for a dead process, the keeper ends the server
//! and removes its folder.
//!
//! The keeper makes the folder too: what it does not know of, it could not remove. And it alone
//! reaps the server, so that a process id can never belong to somebody else while we send signals
//! to it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::name::fresh_name;

/// Its arguments: the folder, the signal that ends the server at the end of input, the command.
/// Traps are set so that a lost reader does not end the keeper before its work is done; children
/// do not inherit them.
const SCRIPT: &str = r#"
folder=$1 last_signal=$2 server=
shift 2
trap : HUP INT TERM PIPE
mkdir -m 0755 "$folder" && : >"$folder/log" || exit 1
echo made
while read -r word; do
  case $word in
    start) "$@" >>"$folder/log" 2>&1 </dev/null & server=$!; echo "$server" ;;
    reap) wait "$server"; echo "$?"; server= ;;
  esac
done
if [ -n "$server" ]; then
  kill -"$last_signal" "$server"
  kill -CONT "$server"
  wait "$server"
fi 2>/dev/null
for try in 1 2 3 4 5 6 7 8 9; do
  rm -rf "$folder" 2>/dev/null && exit
  sleep 0.2
done
rm -rf "$folder"
"#;

/// How often a process is looked at while we wait for it.
const LOOK: Duration = Duration::from_millis(10);

/// What a keeper runs.
pub(crate) struct Kept {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// A bare `sh`, in the environment and folder that the program is to have.
    pub(crate) surroundings: Command,
    /// Sent to the server when we are gone.
    pub(crate) last_signal: &'static str,
}

/// A folder, and at most one running server that lives in it.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    /// Taken by the destructor: closing it is what ends the keeper.
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    server: Option<Pid>,
}

impl Keeper {
    /// Makes the folder; `kept` is told its path. Nothing runs in it yet.
    pub(crate) fn new(name: &str, kept: impl FnOnce(&Path) -> Kept) -> Result<Self> {
        let folder = std::env::temp_dir().join(fresh_name(&format!("monarch-{name}")));
        let Kept {
            command,
            mut surroundings,
            last_signal,
        } = kept(&folder);
        let mut process = surroundings
            .arg("-c")
            .arg(SCRIPT)
            .arg("keeper")
            .arg(&folder)
            .arg(last_signal)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Out of reach of a Ctrl-C: the pipe is what ends it.
            .process_group(0)
            .spawn()
            .context("start a keeper")?;
        let commands = process.stdin.take();
        let replies = process
            .stdout
            .take()
            .map(BufReader::new)
            .context("a keeper without pipe")?;
        let mut shell = Shell {
            process,
            commands,
            replies,
            server: None,
        };
        ensure!(
            shell.reply()? == "made",
            "a keeper could not make {}",
            folder.display()
        );
        Ok(Self {
            folder,
            shell: Mutex::new(shell),
        })
    }

    /// The server's own folder, readable by every account, removed at the end.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the server's output goes.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Starts the server; it must not be running.
    pub(crate) fn start(&self) -> Result<()> {
        let mut shell = self.lock();
        ensure!(
            shell.server.is_none(),
            "{} runs already",
            self.folder.display()
        );
        let pid = shell.ask("start")?;
        let pid = pid
            .parse()
            .with_context(|| format!("read the process id {pid:?}"))?;
        shell.server = Pid::from_raw(pid);
        Ok(())
    }

    /// The process that was started and not yet waited for.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.lock().server
    }

    /// Whether the server runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.pid().is_some_and(|pid| !has_exited(pid))
    }

    /// Sends a signal to the server, when it runs.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match self.pid() {
            Some(pid) => kill_process(pid, signal).with_context(|| format!("signal {pid:?}")),
            None => Ok(()),
        }
    }

    /// Waits until the server has ended by itself or by a signal. Returns its exit status as a
    /// shell gives it, 128 + n after signal n; nothing when it does not run.
    pub(crate) async fn exit(&self) -> Result<Option<i32>> {
        let Some(pid) = self.pid() else {
            return Ok(None);
        };
        while !has_exited(pid) {
            tokio::time::sleep(LOOK).await;
        }
        let mut shell = self.lock();
        let status = shell.ask("reap")?;
        shell.server = None;
        status
            .parse()
            .map(Some)
            .with_context(|| format!("read the exit status {status:?}"))
    }

    /// The last lines of the server's output, for a message about its failure.
    pub(crate) fn log_tail(&self) -> String {
        const LINES: usize = 60;
        let bytes = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shell> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shell {
    fn ask(&mut self, command: &str) -> Result<String> {
        let pipe = self.commands.as_mut().context("the keeper has ended")?;
        writeln!(pipe, "{command}").with_context(|| format!("tell the keeper to {command}"))?;
        self.reply()
    }

    fn reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.replies
            .read_line(&mut line)
            .context("hear from the keeper")?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if in_a_test() {
            eprintln!(
                "--- {} ends with:\n{}\n---",
                self.folder.display(),
                self.log_tail()
            );
        }
        let mut shell = self.lock();
        drop(shell.commands.take());
        if let Err(error) = shell.process.wait() {
            eprintln!("wait for the keeper of {}: {error}", self.folder.display());
        }
    }
}

/// Whether a test runs us: its output is shown when it fails, and that is when a server's last words
/// are wanted. A failed test may just return an error, so that it is not seen here; cargo keeps the
/// executables of tests, and no others, in a folder `deps`.
fn in_a_test() -> bool {
    let executable = std::env::current_exe().unwrap_or_default();
    executable
        .parent()
        .is_some_and(|folder| folder.ends_with("deps"))
}

/// Whether a process is gone or waits to be reaped.
fn has_exited(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        // The state follows the program's name, which stands in brackets and may hold any sign.
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}
