//! The program as its users meet it: a process with arguments, variables, output and a status.

mod ledger;
mod manifest;
mod outbox;
mod stage;
mod temporal;
mod usage;
