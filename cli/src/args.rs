//! The command line.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use monarch_config::Fleet;
use monarch_model::{CellName, MoveId, OrgId, TableName};

use crate::command::{
    blobs_list, blobs_verify, completions, config_check, control_init, dashboard, histories_save,
    ledger_init, manifest, move_, outbox, plan, preflight, sweep, worker,
};
use crate::console::Output;
use crate::exit::Exit;
use crate::failure::Failure;

/// Moves one organization, live, from one cell to another.
#[derive(Debug, Parser)]
#[command(name = "monarch", version, after_long_help = after_long_help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    // The variables are read by us: what clap has from a variable it lists in every complaint as if
    // it had to be given.
    /// What is moved: the tables and how they hang together [env: MONARCH_MANIFEST] [default:
    /// manifest.yaml]
    #[arg(long, global = true, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Between what: the cells, the ledger, the routing [env: MONARCH_FLEET] [default: fleet.yaml]
    #[arg(long, global = true, value_name = "FILE")]
    fleet: Option<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

impl Global {
    /// Where the manifest is.
    pub(crate) fn manifest(&self) -> PathBuf {
        file(self.manifest.as_ref(), "MONARCH_MANIFEST", "manifest.yaml")
    }

    /// Where the fleet is.
    pub(crate) fn fleet(&self) -> PathBuf {
        file(self.fleet.as_ref(), "MONARCH_FLEET", "fleet.yaml")
    }
}

impl fmt::Display for Global {
    /// The options that name files, as they were given, each with a blank before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (option, given) in [("manifest", &self.manifest), ("fleet", &self.fleet)] {
            if let Some(path) = given {
                write!(f, " --{option} {}", as_a_word(&path.to_string_lossy()))?;
            }
        }
        Ok(())
    }
}

/// A text as a shell takes it for one word.
fn as_a_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A file as it was given, else by a variable, else by its usual name.
fn file(given: Option<&PathBuf>, variable: &str, usual: &str) -> PathBuf {
    let told = || std::env::var_os(variable).filter(|path| !path.is_empty());
    match given {
        Some(path) => path.clone(),
        None => told().unwrap_or_else(|| usual.into()).into(),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The two files of the configuration
    #[command(subcommand)]
    Config(Config),
    /// A manifest for a schema that is there already
    #[command(subcommand)]
    Manifest(manifest::Command),
    /// Looks at every database and bucket of a move and reports what would stop it
    Preflight(preflight::Arguments),
    /// Shows what a move would do, and changes nothing
    Plan(plan::Arguments),
    /// The ledger, where Monarch keeps what it knows of its moves
    #[command(subcommand)]
    Ledger(Ledger),
    /// The control database, which says where an organization lives
    #[command(subcommand)]
    Control(Control),
    /// Hosts moves, until it is told to stop
    Worker(worker::Arguments),
    /// Serves a page on which moves are watched and steered
    Dashboard(dashboard::Arguments),
    /// Starts, watches and steers a move
    #[command(subcommand)]
    Move(move_::Command),
    /// The objects that a move copies beside its rows
    #[command(subcommand)]
    Blobs(Blobs),
    /// Looks into the outbox of a cell or of control, and steers it
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// Ends moves that nobody drives any more, as the schedule does
    Sweep(sweep::Arguments),
    /// Histories of workflows, for replay
    #[command(subcommand)]
    Histories(Histories),
    /// Prints a script that completes commands in a shell
    Completions(completions::Arguments),
    /// Shows a move on real servers
    #[cfg(feature = "demo")]
    Demo(crate::command::demo::Arguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Reads both files and reports every fault at once
    Check(config_check::Arguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// Makes the ledger's schema, or brings it up to date
    Init(ledger_init::Arguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Control {
    /// Makes what fences and routing need there and in every cell, where it is missing
    Init(control_init::Arguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Blobs {
    /// Lists keys of objects: those that hold a cut-over back, above all
    List(blobs_list::Arguments),
    /// Reads copied objects again and compares them with what was copied
    Verify(blobs_verify::Arguments),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Histories {
    /// Saves the history of a workflow in the form that replay reads
    Save(histories_save::Arguments),
}

/// An organization.
#[derive(Debug, Clone, Args)]
pub(crate) struct Organization {
    /// The organization: the key of its root row, an integer, a uuid or text
    #[arg(long, value_name = "ID")]
    pub(crate) org: OrgId,
}

/// Which cells an organization would leave and reach.
#[derive(Debug, Clone, Args)]
pub(crate) struct Route {
    /// The cell that it leaves; `from` of the fleet unless given
    #[arg(long, value_name = "CELL")]
    pub(crate) from: Option<CellName>,
    /// The cell that it goes to; `to` of the fleet unless given
    #[arg(long, value_name = "CELL")]
    pub(crate) to: Option<CellName>,
}

impl Route {
    /// Both cells, each of which the fleet has.
    pub(crate) fn within(&self, fleet: &Fleet) -> Result<(CellName, CellName), Failure> {
        let end = |given: &Option<CellName>, usual: &Option<CellName>, option: &str| {
            let name = given.clone().or_else(|| usual.clone()).ok_or_else(|| {
                Failure::usage(format!("neither --{option} nor the fleet names a cell"))
            })?;
            if fleet.cell(&name).is_some() {
                return Ok(name);
            }
            let known: Vec<&str> = fleet.cells.iter().map(|cell| cell.name.as_str()).collect();
            Err(Failure::usage(format!("the fleet has no cell {name}"))
                .advising(format!("name one of {}", known.join(", "))))
        };
        Ok((
            end(&self.from, &fleet.from, "from")?,
            end(&self.to, &fleet.to, "to")?,
        ))
    }
}

impl fmt::Display for Route {
    /// The options as they were given, each with a blank before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (option, given) in [("from", &self.from), ("to", &self.to)] {
            if let Some(cell) = given {
                write!(f, " --{option} {cell}")?;
            }
        }
        Ok(())
    }
}

/// What is accepted by name.
#[derive(Debug, Clone, Args)]
pub(crate) struct Accepted {
    /// A table whose rows move by their chosen edge though another of their edges names another
    /// organization; may be given again for another table
    #[arg(long = "accept-disagreeing-edges", value_name = "TABLE")]
    pub(crate) disagreeing_edges: Vec<TableName>,
}

impl fmt::Display for Accepted {
    /// The options as they were given, each with a blank before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tables = self.disagreeing_edges.iter();
        tables.try_for_each(|table| write!(f, " --accept-disagreeing-edges {table}"))
    }
}

/// A move to look at; the live one unless another is named.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct Which {
    /// The newest move of this organization; without --org and --move, the live one
    #[arg(long, value_name = "ID")]
    pub(crate) org: Option<OrgId>,
    /// The move of this id
    #[arg(long = "move", value_name = "UUID")]
    pub(crate) move_id: Option<MoveId>,
}

fn after_long_help() -> String {
    format!(
        "Temporal is reached as its own command does: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,\n\
         TEMPORAL_API_KEY, TEMPORAL_TLS…, or a profile (TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE).\n\n\
         A move, by hand:\n  \
         monarch config check\n  \
         monarch ledger init\n  \
         monarch plan --org 1\n  \
         monarch worker &\n  \
         monarch move start --org 1\n  \
         monarch move watch --org 1\n  \
         monarch move cut-over --org 1 --writes-stopped\n  \
         monarch move evict --org 1\n\n\
         {}",
        Exit::described()
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_files_are_named_again_as_a_shell_takes_them() {
        let named = |arguments: &[&str]| {
            let whole = ["monarch", "move", "list"].iter().chain(arguments);
            Arguments::try_parse_from(whole).unwrap().global.to_string()
        };
        assert_eq!(named(&[]), "");
        assert_eq!(
            named(&["--fleet", "eu/fleet.yaml"]),
            " --fleet eu/fleet.yaml"
        );
        assert_eq!(
            named(&["--fleet", "it's.yaml", "--manifest", "m.yaml"]),
            r" --manifest m.yaml --fleet 'it'\''s.yaml'"
        );
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    /// The help is what an operator finds at three in the morning: a change of it is seen.
    #[test]
    fn the_long_help_tells_the_commands_and_the_exit_status() {
        let help = Arguments::command().term_width(100).render_long_help();
        let help = help.to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        Moves one organization, live, from one cell to another

        Usage: monarch [OPTIONS] <COMMAND>

        Commands:
          config       The two files of the configuration
          manifest     A manifest for a schema that is there already
          preflight    Looks at every database and bucket of a move and reports what would stop it
          plan         Shows what a move would do, and changes nothing
          ledger       The ledger, where Monarch keeps what it knows of its moves
          control      The control database, which says where an organization lives
          worker       Hosts moves, until it is told to stop
          dashboard    Serves a page on which moves are watched and steered
          move         Starts, watches and steers a move
          blobs        The objects that a move copies beside its rows
          outbox       Looks into the outbox of a cell or of control, and steers it
          sweep        Ends moves that nobody drives any more, as the schedule does
          histories    Histories of workflows, for replay
          completions  Prints a script that completes commands in a shell
          help         Print this message or the help of the given subcommand(s)

        Options:
              --manifest <FILE>
                  What is moved: the tables and how they hang together [env: MONARCH_MANIFEST] [default:
                  manifest.yaml]

              --fleet <FILE>
                  Between what: the cells, the ledger, the routing [env: MONARCH_FLEET] [default:
                  fleet.yaml]

              --output <OUTPUT>
                  How results are printed

                  Possible values:
                  - text: For people
                  - json: One JSON document, for programs

                  [default: text]

          -h, --help
                  Print help (see a summary with '-h')

          -V, --version
                  Print version

        Temporal is reached as its own command does: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
        TEMPORAL_API_KEY, TEMPORAL_TLS…, or a profile (TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE).

        A move, by hand:
          monarch config check
          monarch ledger init
          monarch plan --org 1
          monarch worker &
          monarch move start --org 1
          monarch move watch --org 1
          monarch move cut-over --org 1 --writes-stopped
          monarch move evict --org 1

        Exit status:
          0  done as asked
          1  failed, or forbidden by what was found; a watched move did not finalize
          2  the command line or the configuration cannot be used
          3  refused: the move or the ledger is not in a state for it
          4  Temporal, the ledger or a database was not reached
        ");
    }
}
