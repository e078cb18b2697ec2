//! Cove judged from outside: MCP programs that other people wrote run against the real binary, and the tests read
//! their results. `cargo xtask test --all` installs them. One test binary, so that it is linked once.

mod adopt;
mod client_conformance;
mod client_process;
mod conformance;
mod cove_server;
mod import;
mod inspector;
mod install;
mod judges;
mod network;
mod newest_node;
mod older_transport;
mod sdk_client;
mod sign_in;
mod surface;
mod tokens;
mod upstreams;

use cove_testkit::TestProgram;

fn cove() -> TestProgram {
    TestProgram::new(env!("CARGO_BIN_EXE_cove"))
}

/// Deadlines only catch programs that hang: they are far above what a busy machine needs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
