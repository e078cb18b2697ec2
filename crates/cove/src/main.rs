//! One binary, four roles. The role is chosen before any thread exists, because the jail must clone itself and may
//! only do so while it is alone.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use cove::cli::tables::{PrintStyle, print_output, print_remark};
use cove::cli::{self, CliAction};
use cove::config::misspelled_variables;
use cove_core::error::{Failure, display_path};
use cove_core::process_env::ProcessEnv;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    // Sandboxes have this program on their search path under these names.
    let name = Path::new(&program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == "mcp" {
        return cove_runner::mcp_main();
    }
    if cove_jail::guest::INSTALLER_COMMANDS.contains(&name) {
        return cove_runner::installer_main(name);
    }
    match std::env::args_os().nth(1).as_deref().and_then(|role| role.to_str()) {
        Some("jail") => return cove_jail::enter::main(),
        Some("runner") => return runner(std::env::args_os().skip(2)),
        _ => {}
    }
    cove_jail::forbid_own_core_files();
    match cove_jail::use_built_in_name_lookups()
        .map_err(|error| Failure::operator("could not set up name lookups").because(error))
        .and_then(|()| ProcessEnv::read())
        .and_then(|env| run(&std::env::args_os().collect::<Vec<_>>(), &env))
    {
        Ok(code) => code,
        Err(error) => {
            print_remark(PrintStyle::of_stderr().paint_report(&error.report().to_string()));
            error.exit_code()
        }
    }
}

/// Runs the runner's role. With `--data=BYTES` the runner limits its own memory first: the engine cannot set that
/// limit, because its container runtime would fail under it. With `--rlimits=JSON` it sets the other limits of a process,
/// for engines that leave them out. With `--filter` it installs Cove's system call filter on itself, for engines that
/// cannot install one. The filter comes last.
fn runner(flags: impl Iterator<Item = OsString>) -> ExitCode {
    cove_jail::forbid_core_files();
    let limited = flags.into_iter().try_for_each(|flag| {
        let unreadable = || "could not read the limit".to_owned();
        let done = match flag.to_str().and_then(|flag| flag.split_once('=')) {
            Some(("--data", bytes)) => cove_jail::limit_data(bytes.parse().map_err(|_| unreadable())?),
            Some(("--rlimits", all)) => {
                cove_jail::limit_processes(&serde_json::from_str::<Vec<_>>(all).map_err(|_| unreadable())?)
            }
            None if flag == "--filter" => cove_jail::confine(),
            _ => return Err("could not understand what the runner is asked for".to_owned()),
        };
        done.map_err(|failure| format!("{failure}\ncaused by: {}", failure.cause))
    });
    match limited {
        Ok(()) => cove_runner::main(),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "could not start the runner\ncaused by: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[OsString], env: &ProcessEnv) -> Result<ExitCode, Failure> {
    if let Some((text, code)) = cli::completions::answer(args, env) {
        return print_output(&text).map(|()| code);
    }
    let action = cli::parse_command_line(args.iter().cloned(), env)?;
    // A server has a log of its own.
    if !matches!(action, CliAction::Serve(_)) {
        misspelled_variables(env).iter().for_each(|warning| print_remark(format!("warning: {warning}")));
    }
    act(action)
}

fn act(action: CliAction) -> Result<ExitCode, Failure> {
    let (text, code) = match action {
        CliAction::Serve(context) => return cli::serve::run(*context),
        CliAction::Run(args, context) => return cli::run::run(args, *context),
        CliAction::Repl(args, context) => return cli::repl::run(args, *context),
        CliAction::Tools(request, context) => return cli::tools::run(request, &context),
        CliAction::Doctor(context) => cli::doctor::run(*context)?,
        CliAction::Images(command, context) => cli::images::run(command, &context)?,
        CliAction::Net(command, context) => cli::net::run(command, &context)?,
        CliAction::Packages(command, context) => cli::packages::run(command, &context)?,
        CliAction::Servers(command, context) => cli::servers::run(command, *context)?,
        CliAction::Secrets(command, context) => (cli::secrets::run(command, &context)?, ExitCode::SUCCESS),
        CliAction::Print(text) => {
            let text = if PrintStyle::of_stdout().colours { text.ansi().to_string() } else { text.to_string() };
            (text, ExitCode::SUCCESS)
        }
        CliAction::SeccompProfile => (format!("{}\n", cove_jail::seccomp::host_profile()), ExitCode::SUCCESS),
        CliAction::Explain(context) => (cli::explain::render(&context)?, ExitCode::SUCCESS),
        CliAction::ConfigShow(context) => {
            (cli::config_show::render(&context, PrintStyle::of_stdout())?, ExitCode::SUCCESS)
        }
        CliAction::ConfigPath(path) => (format!("{}\n", display_path(&path)), ExitCode::SUCCESS),
        CliAction::ConfigInit(path) => (cli::config_file::init(&path)?, ExitCode::SUCCESS),
        CliAction::Token(args, context) => (cli::token::run(&args, &context)?, ExitCode::SUCCESS),
        CliAction::Completions(shell) => {
            let program = std::env::args_os().next().unwrap_or_default();
            let cwd = std::env::current_dir().unwrap_or_default();
            (cli::completions::render(shell, &program, &cwd)?, ExitCode::SUCCESS)
        }
        CliAction::Manual(directory) => {
            cli::manual::write(&directory)?;
            (String::new(), ExitCode::SUCCESS)
        }
        CliAction::Audit(args, context) => {
            (cli::audit::render(&args, &context, PrintStyle::of_stdout())?, ExitCode::SUCCESS)
        }
        CliAction::Install(request) => cli::install::run(*request)?,
    };
    print_output(&text).map(|()| code)
}
