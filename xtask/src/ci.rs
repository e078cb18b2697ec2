//! `cargo xtask ci`: everything that CI runs, in one command that works on any machine. Every part runs even after a
//! failure, and the end names the parts that failed.

use std::time::{Duration, Instant};

use crate::{cargo, licences, sources, test, tidy};

struct CiPart {
    name: &'static str,
    took: Duration,
    outcome: Result<(), String>,
}

pub(crate) fn run() -> Result<(), String> {
    let parts = [
        timed("format", format),
        timed("lints", lints),
        timed("tidy", tidy::run),
        timed("licences", licences::run),
        timed("sources", sources::run),
        timed("tests", || test::run(&test::TestOptions::at(test::TestLevel::All))),
    ];
    println!();
    for part in &parts {
        let verdict = if part.outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{:<10}{verdict:<8}{:.1} s", part.name, part.took.as_secs_f64());
    }
    let failed: Vec<_> = parts.iter().filter(|part| part.outcome.is_err()).map(|part| part.name).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("ci failed: {}", failed.join(", "))) }
}

fn timed(name: &'static str, part: impl FnOnce() -> Result<(), String>) -> CiPart {
    println!("== {name}");
    let start = Instant::now();
    let outcome = part();
    // Printed here and not only at the end, because the reason belongs beside the output that it explains.
    if let Err(message) = &outcome {
        crate::complain(message);
    }
    CiPart { name, took: start.elapsed(), outcome }
}

fn format() -> Result<(), String> {
    component("fmt", "rustfmt")?;
    cargo::run(&["fmt", "--all", "--check"]).map_err(|message| format!("{message}\nhint: `cargo fmt --all`"))
}

fn lints() -> Result<(), String> {
    component("clippy", "clippy")?;
    cargo::run(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn component(command: &str, name: &str) -> Result<(), String> {
    if cargo::has(command) {
        return Ok(());
    }
    Err(format!("could not find `cargo {command}`\nhint: `rustup component add {name}`"))
}
