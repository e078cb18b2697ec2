//! Every automation of the project, as `cargo xtask COMMAND`: one file per command. Nothing here is shipped, and
//! nothing that the product or its tests need at run time lives here.

#![forbid(unsafe_code)]

use std::process::ExitCode;

mod bench;
mod cargo;
mod ci;
mod containers;
mod fuzz;
mod judges;
mod licences;
mod test;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--full] [-- ARGS]  set up what the tests need, run all of them, and count; ARGS go to `cargo test`
  ci                       everything CI asks for: format, lints, tidy, licences, tests
  containers               start the Docker and Podman of the tests, say where they are, and stay
  tidy                     what the compiler does not check: file openings, names, links, named tests, dependencies
  licences                 every dependency's licence against the list in `deny.toml`
  bench [NAME [ARGS]]      run a benchmark, or list them
  fuzz [SECONDS]           run every fuzz target for so long (60 unless told)
";

/// The message of a failure that has nothing more to tell.
const ALREADY_SAID: &str = "";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test", rest @ ..] => match test::Options::parse(rest) {
            Ok(options) => test::run(&options),
            Err(unknown) => return refuse(&unknown),
        },
        ["ci"] => ci::run(),
        ["containers"] => containers::run(),
        ["tidy"] => tidy::run(),
        ["licences"] => licences::run(),
        ["bench"] => bench::list(),
        ["bench", name, rest @ ..] => bench::run(name, rest),
        ["fuzz"] => fuzz::run("60"),
        ["fuzz", seconds] if seconds.parse::<u32>().is_ok() => fuzz::run(seconds),
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
