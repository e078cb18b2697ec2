//! Cove judged from outside: the programs that other people wrote for MCP are set on the real binary, and their verdicts
//! are read. `cargo xtask test` installs them; one binary, so that they are linked once.

mod child;
mod conformance;
mod drive;
mod inspector;
mod install;
mod judges;
mod server;
mod surface;
mod tokens;
mod upstreams;

use cove_testkit::Program;

fn cove() -> Program {
    Program::new(env!("CARGO_BIN_EXE_cove"))
}

/// Deadlines are for what hangs: far above what a busy machine needs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
