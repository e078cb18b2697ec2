//! The real program and the real session, from outside: one binary, so that they are linked once.

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
mod run;
mod runner;
mod serve;
mod serve_http;
mod servers;
mod sessions;
mod terminal;
mod workloads;

use std::time::{Duration, Instant};

use cove_testkit::Program;

fn cove() -> Program {
    Program::new(env!("CARGO_BIN_EXE_cove"))
}

/// Long enough for any machine; what never comes true is a failure.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
