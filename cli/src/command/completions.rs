//! `monarch completions <shell>`

use clap::{Args, CommandFactory as _};
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
    let mut command = crate::args::Arguments::command();
    generate(arguments.shell, &mut command, "monarch", &mut script);
    console::put(&script)?;
    Ok(Exit::Done)
}
