//! The real program and the real session, tested from outside: one test binary, so that they are linked once.

mod bad_input;
mod broker;
mod calls;
mod doctor;
mod endurance;
mod guest_api;
mod hostile_calls;
mod hostile_runner;
mod images;
mod install;
mod interpreters;
mod layers;
mod leftovers;
mod process;
mod repl;
mod repl_editing;
mod run;
mod runner;
mod serve;
mod serve_http;
mod servers;
mod sessions;
mod terminal;
mod tls;
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
