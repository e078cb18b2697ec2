//! The command lines of `cove install` and `cove uninstall`: their flags, and the requests parsed from them.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::{CliAction, parse_command_line, wants_json};
use cove_core::error::{Failure, display_value};
use cove_core::keyword::Keyword;
use cove_core::process_env::ProcessEnv;

use super::{DEFAULT_NAME, EntryRequest, InstallAction, InstallRequest, InstallScope};

const MAX_NAME: usize = 64;

/// Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`
#[derive(clap::Args)]
#[command(after_help = "Uses the client's own command if there is one (`claude mcp add-json`, `codex mcp add`, `code \
                  --add-mcp`, `gemini mcp add`). Otherwise edits the client's file in place: comments, order and \
                  layout stay, and the old content is kept as FILE.cove-backup. Running it twice changes nothing.")]
pub(in crate::cli) struct InstallArgs {
    /// Client to register with; without one, lists the known clients
    client: Option<String>,
    /// List the known clients, which of them seem to be installed, and where their files are
    #[arg(long, conflicts_with_all = ["client", "print", "dry_run"])]
    list: bool,
    #[command(flatten)]
    flags: EntryFlags,
    /// Print the entry, ready to paste, and write nothing
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Print the list of clients as an array of objects [env: COVE_JSON]
    #[arg(long)]
    json: bool,
    /// Arguments that the client starts `cove serve` with
    #[arg(last = true, num_args = 0.., value_name = "SERVER-ARGS")]
    server_args: Vec<String>,
}

/// Remove Cove from a client's configuration
#[derive(clap::Args)]
pub(in crate::cli) struct UninstallArgs {
    /// Client to remove it from
    client: String,
    #[command(flatten)]
    flags: EntryFlags,
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct EntryFlags {
    /// Name of the entry: letters, digits, `_` and `-`
    #[arg(long, default_value = DEFAULT_NAME)]
    pub name: String,
    /// Who gets it: you everywhere, everyone in this project, or (Claude Code) you in this project
    #[arg(long, default_value = "user", value_parser = scope_values())]
    pub scope: InstallScope,
    /// Show the change as a diff and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replace or remove an entry of that name even if it does not start `cove`
    #[arg(long)]
    pub force: bool,
    /// Edit the file even if the client has a command for this
    #[arg(long)]
    pub no_client_command: bool,
}

fn scope_values() -> impl TypedValueParser<Value = InstallScope> {
    let scope = |name: String| InstallScope::parse(&name).map_err(|refusal| refusal.cause);
    PossibleValuesParser::new(InstallScope::ALL.map(InstallScope::as_str)).try_map(scope)
}

/// The request of an `install` command line.
pub(in crate::cli) fn install_request(args: InstallArgs, env: &ProcessEnv) -> Result<InstallRequest, Failure> {
    let InstallArgs { client, flags, print, json, server_args, list: _ } = args;
    let Some(client) = client else {
        let needs_client = [
            ("print", print),
            ("dry-run", flags.dry_run),
            ("force", flags.force),
            ("no-client-command", flags.no_client_command),
        ];
        if let Some((flag, _)) = needs_client.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage(format!("could not use `--{flag}` without a client"))
                .because("it concerns the file of one client")
                .with_hint("name a client from `cove install --list`"));
        }
        return Ok(InstallRequest::List { json: json || wants_json(env)?, env: env.clone() });
    };
    if json {
        return Err(Failure::usage("could not use `--json` with a client")
            .because("it is for the list of clients")
            .with_hint("leave out `--json`"));
    }
    check_server_args(&server_args, env)?;
    check_name(&flags.name)?;
    let action = if print { InstallAction::Print } else { InstallAction::Install };
    Ok(InstallRequest::Change(EntryRequest { client, action, flags, server_args, env: env.clone() }))
}

/// The request of an `uninstall` command line.
pub(in crate::cli) fn uninstall_request(args: UninstallArgs, env: &ProcessEnv) -> Result<InstallRequest, Failure> {
    let UninstallArgs { client, flags } = args;
    check_name(&flags.name)?;
    let action = InstallAction::Uninstall;
    Ok(InstallRequest::Change(EntryRequest { client, action, flags, server_args: Vec::new(), env: env.clone() }))
}

/// The name becomes a key in three formats, an argument of the clients' commands, and part of tool names.
fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let cause = match name {
        "" => "it is empty",
        name if name.len() > MAX_NAME => "it is longer than 64 characters",
        name if !name.chars().all(is_plain) => "it has characters other than letters, digits, `_` and `-`",
        // A client's command would read it as a flag.
        name if name.starts_with('-') => "it begins with `-`",
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("could not use `--name {}`", display_value(name)))
        .because(cause)
        .with_hint("choose a name such as `cove` or `cove-2`"))
}

/// Refuses arguments with which the server would not start: clients do not show why a server failed.
fn check_server_args(args: &[String], env: &ProcessEnv) -> Result<(), Failure> {
    if args.iter().any(|arg| arg == "--http" || arg.starts_with("--http=")) {
        return Err(Failure::usage("could not register a server with `--http`")
            .because("clients start it on standard input and output")
            .with_hint("leave `--http` out; to serve over HTTP, run `cove serve --http` yourself"));
    }
    if args.is_empty() {
        return Ok(());
    }
    // The client starts the server with another environment.
    let mut env = env.clone();
    env.env.retain(|name, _| !name.starts_with("COVE_"));
    let line = ["cove", "serve"].into_iter().map(OsString::from).chain(args.iter().map(OsString::from));
    match parse_command_line(line, &env)? {
        CliAction::Print(_) => {
            Err(Failure::usage(format!("could not use `{}` for `cove serve`", display_value(&args.join(" "))))
                .because("it prints a text and exits")
                .with_hint("leave it out"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
