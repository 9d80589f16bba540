//! The `monarch` program.

fn main() {}
