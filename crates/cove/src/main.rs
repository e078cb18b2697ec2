//! One binary, four roles. The role is chosen before any thread exists, because the jail must clone itself and may
//! only do so while it is alone.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use cove::cli::{self, Action};
use cove::config::Surroundings;
use cove::error::Error;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    // The name that sandboxes have for it on their search path.
    if Path::new(&program).file_name() == Some("mcp".as_ref()) {
        return cove_runner::command();
    }
    match std::env::args_os().nth(1).as_deref().and_then(|role| role.to_str()) {
        Some("jail") => return cove_jail::enter::main(),
        Some("runner") => return runner(std::env::args_os().skip(2)),
        _ => {}
    }
    match Surroundings::of_this_process()
        .and_then(|around| cli::parse(std::env::args_os(), &around))
        .and_then(act)
    {
        Ok(code) => code,
        Err(error) => {
            // Standard error may be closed; there is nowhere else to say so.
            let _ = writeln!(std::io::stderr(), "{}", error.report());
            error.exit_code()
        }
    }
}

/// With `--data=BYTES` it holds itself to so much memory of its own, which whatever makes a container could not live
/// with; with `--filter` to our system call filter, for engines that cannot be told to. The filter comes last.
fn runner(flags: impl Iterator<Item = OsString>) -> ExitCode {
    let mut held = Ok(());
    for flag in flags {
        held = held.and_then(|()| match flag.to_str().and_then(|flag| flag.strip_prefix("--data=")) {
            Some(bytes) => {
                bytes.parse().map_err(|_| "could not read the limit".to_owned()).and_then(|bytes| {
                    cove_jail::limit_data(bytes)
                        .map_err(|failure| format!("{failure}\ncaused by: {}", failure.cause))
                })
            }
            None if flag == "--filter" => {
                cove_jail::confine().map_err(|failure| format!("{failure}\ncaused by: {}", failure.cause))
            }
            None => Err("could not understand what the runner is asked for".to_owned()),
        });
    }
    match held {
        Ok(()) => cove_runner::main(),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "could not start the runner\ncaused by: {why}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> Result<ExitCode, Error> {
    match action {
        Action::Print(text) => print(&text),
        Action::Serve { config, around } => cli::serve::run(*config, *around),
        Action::Run { run, config, around } => cli::run::run(run, config, *around),
        Action::Repl { repl, config, around } => cli::repl::run(repl, config, *around),
        Action::SeccompProfile => print(&format!("{}\n", cove_jail::seccomp::around_json())),
        Action::Explain { json, config, around } => print(&cli::explain::text(&config, &around, json)?),
        Action::Doctor { json, config, around } => cli::doctor::run(config, *around, json),
        Action::ConfigShow { json, config } => print(&cli::config_show::text(&config, json)?),
        Action::Completions { shell } => print(&cli::completions::text(shell)),
        Action::Tools { asked, json, config, around } => cli::tools::run(asked, json, &config, &around),
        Action::Audit { asked, config } => print(&cli::audit::text(&asked, &config)?),
        Action::Install(asked) => print(&cli::install::run(*asked)?),
        Action::Images(asked) => {
            let (text, code) = cli::images::run(*asked)?;
            print(&text).map(|_| code)
        }
        Action::Servers(asked) => {
            let (text, code) = cli::servers::run(*asked)?;
            print(&text).map(|_| code)
        }
    }
}

/// A reader that closed its end, such as `head`, has seen what it wanted.
fn print(text: &str) -> Result<ExitCode, Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::operator("could not write to standard output").because(error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
