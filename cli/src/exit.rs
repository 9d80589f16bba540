//! What the program's exit status says: the one place where the codes are chosen and described.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// It failed, or findings forbid it.
    Failed,
    /// The command line or a file of the configuration cannot be used.
    Usage,
    /// The move, or the ledger, is not in a state for it.
    NotReady,
    /// A service that it needs was not reached.
    Unreachable,
}

impl Exit {
    pub(crate) const ALL: [Exit; 5] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::NotReady,
        Exit::Unreachable,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotReady => 3,
            Exit::Unreachable => 4,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done as asked",
            Exit::Failed => {
                "failed, or forbidden by what was found; a watched move did not finalize"
            }
            Exit::Usage => "the command line or the configuration cannot be used",
            Exit::NotReady => "refused: the move or the ledger is not in a state for it",
            Exit::Unreachable => "Temporal, the ledger or a database was not reached",
        }
    }

    /// The codes, for `monarch --help`.
    pub(crate) fn described() -> String {
        let lines = Exit::ALL.map(|exit| format!("  {}  {}", exit.code(), exit.meaning()));
        format!("Exit status:\n{}", lines.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts rely on the page as much as on the program.
    #[test]
    fn the_page_on_the_command_line_has_every_status() {
        let page = include_str!("../../docs/cli.md");
        for exit in Exit::ALL {
            let line = format!("| {} | {} |", exit.code(), exit.meaning());
            assert!(page.contains(&line), "docs/cli.md lacks {line}");
        }
    }
}
