//! The `monarch` program: what an operator starts, watches and steers moves with, and what hosts
//! them.
//!
//! A file per command under [`command`]. Each takes its arguments and a [`context::Context`] and
//! gives an [`exit::Exit`] or a [`failure::Failure`]; nothing else ends the process. What a command
//! prints goes through [`console`], so that a reader who has seen enough (`monarch move list |
//! head`) ends it quietly.

mod advice;
mod args;
mod command;
mod console;
mod context;
mod exit;
mod failure;
mod move_view;
mod org_move;
mod units_of_measure;

use std::process::ExitCode;

use clap::Parser as _;

use args::Arguments;
use console::Output;
use context::Context;
use failure::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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
    match runtime.block_on(command::run(arguments.command, &context)) {
        Ok(exit) => exit.into(),
        Err(failure) => told(&failure, output),
    }
}

fn told(failure: &Failure, output: Output) -> ExitCode {
    console::complain(failure, output);
    failure.exit().into()
}
