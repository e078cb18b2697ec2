//! All automation of the project, as `cargo xtask COMMAND`, with one file per command. Nothing here is shipped, and
//! the product and its tests need nothing from here at run time.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod advisories;
mod attempts;
mod bench;
mod cargo;
mod ci;
mod containers;
mod dist;
mod fuzz;
mod judges;
mod licences;
mod sources;
mod test;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [-- ARGS]           set up what the tests need, run them, and count; ARGS go to `cargo test`
  test --all [-- ARGS]     also the tests that need Docker, Podman or other people's MCP programs: sets these up
  test --full [-- ARGS]    also what takes hours
  ci                       everything CI asks for: format, lints, tidy, licences, sources, all tests
  containers               start the Docker and Podman of the tests, say where they are, and stay
  tidy                     what the compiler does not check: file openings, names, links, named tests, dependencies
  licences                 every dependency's licence against the list in `deny.toml`
  sources                  where every dependency comes from, and which are banned, against `deny.toml`
  advisories [--required]  known vulnerabilities, with cargo-deny; `--required`, for a release, fails without its database
  dist [--profile P] [--out DIR] [--image]
                           build the program as it is published and pack it in every way (P: `dist` or `release`)
  bench [NAME [ARGS]]      run a benchmark, or list them
  bench --report [ROUNDS [REPEATS] | --from-measured]
                           measure Cove beside its peers and write `docs/benchmarks.md`, or write it from the kept times
  fuzz [TARGET] [SECONDS]  run a fuzz target, or all in turn, for so much processor time (60 s), and record it
";

/// The message of a failure that was reported already.
const ALREADY_SAID: &str = "";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test", rest @ ..] => match test::TestOptions::parse(rest) {
            Ok(options) => test::run(&options),
            Err(unknown) => return refuse(&unknown),
        },
        ["ci"] => ci::run(),
        ["containers"] => test::prepare_as_root().and_then(containers::run),
        ["tidy"] => tidy::run(),
        ["licences"] => licences::run(),
        ["sources"] => sources::run(),
        ["advisories"] => advisories::run(advisories::DatabaseNeed::Optional),
        ["advisories", "--required"] => advisories::run(advisories::DatabaseNeed::Required),
        ["dist", rest @ ..] => match dist::DistOptions::parse(rest) {
            Ok(options) => test::provide(&options.programs(), "packages").and_then(|()| dist::run(&options)),
            Err(unknown) => return refuse(&unknown),
        },
        ["bench"] => bench::list(),
        ["bench", "--report", "--from-measured"] => bench::write_report(),
        ["bench", "--report", numbers @ ..] => bench::measure_report(numbers),
        ["bench", name, rest @ ..] => bench::run(name, rest),
        ["fuzz", rest @ ..] => match fuzz::FuzzOptions::parse(rest) {
            Ok(options) => fuzz::run(&options),
            Err(unknown) => return refuse(&unknown),
        },
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => return refuse("a command is missing"),
        unknown => return refuse(&format!("could not understand `{}`", unknown.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn complain(message: &str) {
    if message != ALREADY_SAID {
        eprintln!("{message}");
    }
}

fn refuse(what: &str) -> ExitCode {
    eprint!("{what}\n\n{USAGE}");
    ExitCode::from(2)
}
