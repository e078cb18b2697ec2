//! The real program and the real session, from outside: one binary, so that they are linked once.

mod bad_input;
mod doctor;
mod endurance;
mod hostile_runner;
mod interpreters;
mod layers;
mod leftovers;
mod repl;
mod run;
mod sessions;
mod terminal;
mod workloads;

use cove_testkit::Program;

fn cove() -> Program {
    Program::new(env!("CARGO_BIN_EXE_cove"))
}
