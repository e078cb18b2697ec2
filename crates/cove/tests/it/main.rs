//! The real program and the real session, tested from outside: one test binary, so that they are linked once.

mod agent_code;
mod bad_input;
mod broker;
mod calls;
mod command_line;
mod doctor;
mod elicitation;
mod endurance;
mod guest_api;
mod hostile_calls;
mod hostile_runner;
mod images;
mod install;
mod interpreters;
mod layers;
mod leftovers;
mod packages;
mod process;
mod repl;
mod repl_editing;
mod run;
mod runner;
mod script_files;
mod serve;
mod serve_http;
mod server_features;
mod server_mistakes;
mod server_starts;
mod servers;
mod sessions;
mod terminal;
mod tls;
mod tool_documentation;
mod workloads;

use std::time::{Duration, Instant};

use cove_testkit::TestProgram;

fn cove() -> TestProgram {
    TestProgram::new(env!("CARGO_BIN_EXE_cove"))
}

/// Waits long enough for any machine. Fails if the condition never becomes true.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
