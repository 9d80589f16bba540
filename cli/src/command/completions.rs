//! `monarch completions <shell>`

use clap::{Args, Command, CommandFactory as _, ValueHint};
use clap_complete::{Shell, generate};

use crate::console;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    let mut command = without_guesses(crate::args::Arguments::command());
    generate(arguments.shell, &mut command, "monarch", &mut script);
    console::put(&script)?;
    Ok(Exit::Done)
}

/// Where nothing is known of a value, shells offer the files of the folder: for an organization too.
fn without_guesses(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_value_hint() {
        ValueHint::Unknown if argument.get_action().takes_values() => {
            argument.value_hint(ValueHint::Other)
        }
        _ => argument,
    });
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, without_guesses)
    })
}
