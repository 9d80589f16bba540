//! The `monarch` program: what an operator starts, watches and steers moves with, and what hosts
//! them.
//!
//! A file per command under [`command`]. Each takes its arguments and a [`context::Context`] and
//! gives an [`exit::Exit`] or a [`failure::Failure`]; nothing else ends the process. What a command
//! prints goes through [`console`], so that a reader who has seen enough (`monarch move list |
//! head`) ends it quietly.

mod args;
mod command;
mod console;
mod context;
mod exit;
mod failure;
mod findings;
mod move_text;
mod org_move;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use args::Arguments;
use console::Output;
use context::Context;
use exit::Exit;
use failure::Failure;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return misread(&error),
    };
    let output = arguments.global.output;
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            return told(
                &Failure::failed(format!("start the program: {error}")),
                output,
            );
        }
    };
    let context = Context::new(arguments.global);
    let ended = runtime.block_on(command::run(arguments.command, &context));
    // A look-up of a name cannot be called off, and may take minutes.
    runtime.shutdown_background();
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => told(&failure, output),
    }
}

/// Help and versions are printed as they are, and so is what is wrong with the command line, unless
/// programs are to read it.
fn misread(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Done.into();
    }
    if !asks_for_json(std::env::args_os()) {
        let _ = error.print();
        return Exit::Usage.into();
    }
    let (what, usage) = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => (
            "no command is given".to_owned(),
            "see `monarch help`".to_owned(),
        ),
        _ => parts(&error.render().to_string()),
    };
    told(&Failure::usage(what).advising(usage), Output::Json)
}

/// What is wrong, and how the command is used.
fn parts(rendered: &str) -> (String, String) {
    let rendered = rendered.trim_start_matches("error: ");
    let (what, rest) = rendered.split_once("\n\nUsage: ").unwrap_or((rendered, ""));
    let usage = rest.split("\n\n").next().unwrap_or_default().trim();
    let usage = if usage.is_empty() {
        "see `monarch help`".to_owned()
    } else {
        format!("use it as: {usage}")
    };
    (what.trim().to_owned(), usage)
}

/// Whether `--output json` is among arguments that could not be read otherwise.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut is_value = false;
    let mut json = false;
    for argument in arguments.take_while(|argument| argument != "--") {
        if is_value || argument.to_string_lossy().starts_with("--output=") {
            json = argument == "json" || argument == "--output=json";
        }
        is_value = argument == "--output";
    }
    json
}

fn told(failure: &Failure, output: Output) -> ExitCode {
    console::complain(failure, output);
    failure.exit().into()
}
