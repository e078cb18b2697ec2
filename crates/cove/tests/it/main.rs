//! The real program and the real session, tested from outside: one test binary, so that they are linked once.

mod agent_code;
mod bad_input;
mod broker;
mod calls;
mod chaos;
mod command_line;
mod doctor;
mod egress;
mod elicitation;
mod endurance;
mod fair_share;
mod guest_api;
mod hidden_text;
mod hostile_calls;
mod hostile_runner;
mod images;
mod import;
#[path = "../egress_attacks/inspected_api.rs"]
mod inspected_api;
mod inspected_requests;
mod install;
mod interpreters;
mod layers;
mod leftovers;
mod memory;
mod name_door;
mod packages;
mod parameter_headers;
mod pins;
mod process;
mod protocol_edge;
mod ready_sessions;
mod registry;
mod repl;
mod repl_editing;
mod run;
mod runner;
mod script_files;
mod secrets;
mod serve;
mod serve_http;
mod server_features;
mod server_mistakes;
mod server_requests;
mod server_starts;
mod servers;
mod session_pool;
mod sessions;
mod shared_downloads;
mod shells;
mod sign_in;
mod state_files;
mod terminal;
mod tls;
mod token_revocation;
mod tool_documentation;
mod upstream_budget;
mod upstream_isolation;
mod workloads;

use std::time::{Duration, Instant};

use cove_testkit::TestProgram;

fn cove() -> TestProgram {
    TestProgram::new(env!("CARGO_BIN_EXE_cove"))
}

/// Waits long enough for any machine. Fails if the condition never becomes true.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
