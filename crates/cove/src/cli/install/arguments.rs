//! The command lines of `cove install` and `cove uninstall`: their flags, and the requests parsed from them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::{CliAction, parse_command_line, wants_json};
use crate::config::{Config, SETTINGS, Setting, SettingFlags};
use cove_core::error::{Failure, display_value};
use cove_core::keyword::Keyword;
use cove_core::process_env::ProcessEnv;
use cove_server::http;

use super::clients::{self, CLIENTS};
use super::server_url::{self, SecretToken, ServerUrl, UrlCredential, UrlReach};
use super::{
    AdoptionRule, AdoptionSelection, ClientSelection, DEFAULT_NAME, EntryRequest, InstallAction, InstallRequest,
    InstallScope, RequestedServer,
};

const MAX_NAME: usize = 64;

/// Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`
#[derive(clap::Args)]
#[command(after_help = "Uses the client's own command if there is one (`claude mcp add-json`, `codex mcp add`, `code \
                  --add-mcp`, `gemini mcp add`). Otherwise edits the client's file in place: comments, order and \
                  layout stay, and the old content is kept as FILE.cove-backup. Running it twice changes nothing.")]
pub(in crate::cli) struct InstallArgs {
    /// Clients to register with; without one, lists the known clients
    #[arg(value_name = "CLIENT")]
    clients: Vec<String>,
    /// Register with every client that is found on this machine
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    /// List the known clients, which of them seem to be installed, and where their files are
    #[arg(long, conflicts_with_all = ["clients", "all", "print", "dry_run"])]
    list: bool,
    #[command(flatten)]
    flags: EntryFlags,
    /// Register a server that runs already, such as `http://127.0.0.1:8765/mcp`, instead of a command
    #[arg(long, conflicts_with_all = ["server_args", "reset"])]
    url: Option<String>,
    /// File with the token of that server [default: Cove's own, if the server is on this machine]
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<String>,
    /// Write no token, for a server that wants none
    #[arg(long, requires = "url", conflicts_with = "token_file")]
    no_token: bool,
    /// Drop the arguments or the URL of an earlier install, which otherwise stay
    #[arg(long)]
    reset: bool,
    /// Put the client's other servers behind Cove: each that starts under Cove leaves the client's file, until `cove
    /// uninstall` puts it back
    #[arg(long, conflicts_with_all = ["url", "print", "list"])]
    adopt: bool,
    /// Adopt also the servers that do not start
    #[arg(long, requires = "adopt")]
    even_failing: bool,
    /// Adopt servers that take a value from a command, such as `headersHelper`, without asking
    #[arg(long, requires = "adopt")]
    yes: bool,
    /// Print the entry, ready to paste, and write nothing
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Print the list of clients, or with `--adopt` what was done, as an array of objects [env: COVE_JSON]
    #[arg(long)]
    json: bool,
    /// Arguments that the client starts `cove serve` with
    #[arg(last = true, num_args = 0.., value_name = "SERVER-ARGS")]
    server_args: Option<Vec<String>>,
}

/// Remove Cove from a client's configuration
#[derive(clap::Args)]
pub(in crate::cli) struct UninstallArgs {
    /// Clients to remove it from
    #[arg(value_name = "CLIENT", required_unless_present = "all")]
    clients: Vec<String>,
    /// Remove it from every client whose file exists
    #[arg(long, conflicts_with = "clients")]
    all: bool,
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

pub(in crate::cli) fn scope_values() -> impl TypedValueParser<Value = InstallScope> {
    let scope = |name: String| InstallScope::parse(&name).map_err(|refusal| refusal.cause);
    PossibleValuesParser::new(InstallScope::ALL.map(InstallScope::as_str)).try_map(scope)
}

/// The request of an `install` command line. `last_word` is the last word of that line: `--` at the end means no server
/// arguments, which the parser does not report.
pub(in crate::cli) fn install_request(
    args: InstallArgs,
    last_word: Option<&OsStr>,
    env: &ProcessEnv,
) -> Result<InstallRequest, Failure> {
    let InstallArgs { clients, all, flags, url, token_file, no_token, reset, print, json, server_args, .. } = args;
    if clients.is_empty() && !all {
        let needs_client = [
            ("--print", print),
            ("--dry-run", flags.dry_run),
            ("--force", flags.force),
            ("--no-client-command", flags.no_client_command),
            ("--url", url.is_some()),
            ("--reset", reset),
            ("--adopt", args.adopt),
        ];
        if let Some((flag, _)) = needs_client.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage(format!("could not use `{flag}` without a client"))
                .because("it concerns the file of one client")
                .with_hint("name a client from `cove install --list`, or use `--all`"));
        }
        return Ok(InstallRequest::List { json: json || wants_json(env)?, env: env.clone() });
    }
    if json && !args.adopt {
        return Err(Failure::usage("could not use `--json` with a client")
            .because("it is for the list of clients and for `--adopt`")
            .with_hint("leave out `--json`"));
    }
    let selection = if args.even_failing { AdoptionSelection::All } else { AdoptionSelection::Started };
    let adoption = args.adopt.then_some(AdoptionRule { selection, allows_commands: args.yes });
    check_name(&flags.name)?;
    let server = match (url, server_args) {
        (Some(url), _) => {
            let token = match token_file {
                _ if no_token => TokenChoice::Absent,
                Some(file) => TokenChoice::File(file),
                None => TokenChoice::Own,
            };
            RequestedServer::Url(server_url(url, token, flags.scope, env)?)
        }
        (None, Some(args)) => RequestedServer::Command(check_server_args(&args, env)?),
        (None, None) if reset || last_word.is_some_and(|word| word == "--") => RequestedServer::Command(Vec::new()),
        (None, None) => RequestedServer::Earlier,
    };
    let action = if print { InstallAction::Print } else { InstallAction::Install };
    let clients = if all { ClientSelection::Present } else { select_clients(&clients)? };
    let json = args.adopt && (json || wants_json(env)?);
    Ok(InstallRequest::Change(EntryRequest { clients, action, flags, server, adoption, json, env: env.clone() }))
}

/// The request of an `uninstall` command line.
pub(in crate::cli) fn uninstall_request(args: UninstallArgs, env: &ProcessEnv) -> Result<InstallRequest, Failure> {
    let UninstallArgs { clients, all, flags } = args;
    check_name(&flags.name)?;
    let clients = if all { ClientSelection::Present } else { select_clients(&clients)? };
    let (action, server) = (InstallAction::Uninstall, RequestedServer::Earlier);
    let (adoption, json) = (None, false);
    Ok(InstallRequest::Change(EntryRequest { clients, action, flags, server, adoption, json, env: env.clone() }))
}

/// The clients that a command line names, each once. Fails at the first name that no client has, so that a typing error
/// changes nothing.
pub(super) fn select_clients(words: &[String]) -> Result<ClientSelection, Failure> {
    let mut ids: Vec<&'static str> = Vec::new();
    for word in words {
        let client = clients::find(word).map_err(|near| unknown_client(word, near))?;
        if !ids.contains(&client.id()) {
            ids.push(client.id());
        }
    }
    Ok(ClientSelection::Named(ids))
}

pub(super) fn unknown_client(word: &str, near: Option<&str>) -> Failure {
    let known: Vec<&str> = CLIENTS.iter().map(|client| client.id()).collect();
    let near = if word == "all" { Some("--all") } else { near };
    let meant = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
    Failure::usage(format!("could not find the client `{}`", display_value(word)))
        .because("no client has that name")
        .with_hint(format!("{meant}known clients are {}", known.join(", ")))
}

/// Which token the user wants in the entry for a `--url`.
enum TokenChoice {
    /// Cove's own, if the server is on this machine.
    Own,
    File(String),
    Absent,
}

/// The server of a `--url`, and how clients authenticate there. A project's file never gets a token.
fn server_url(url: String, token: TokenChoice, scope: InstallScope, env: &ProcessEnv) -> Result<ServerUrl, Failure> {
    let reach = server_url::parse(&url)?;
    if matches!(token, TokenChoice::File(_)) && reach == UrlReach::PlainText {
        return Err(Failure::usage(format!("could not use a token with `{url}`"))
            .because("over plain `http` others on the network could read it")
            .with_hint("put a proxy with TLS before the server, and use its `https` address"));
    }
    let secret = |token: String| UrlCredential::Token(SecretToken(token));
    let credential = match token {
        TokenChoice::Absent => UrlCredential::Absent,
        _ if scope == InstallScope::Project => UrlCredential::Variable,
        TokenChoice::File(file) => secret(http::read_first_token(Path::new(&make_absolute(&file, env)?))?),
        TokenChoice::Own if reach == UrlReach::Loopback => {
            let server = Config::load(&SettingFlags::default(), env)?.server;
            secret(http::client_token(&server.http, server.state_dir.as_deref(), env)?)
        }
        // A token of this machine is not for another one.
        TokenChoice::Own => UrlCredential::Absent,
    };
    Ok(ServerUrl { url, credential })
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

/// Returns the arguments with absolute paths, because the client starts the server in a folder of its own choice. Refuses
/// arguments with which the server would not start: clients do not show why a server failed.
pub(super) fn check_server_args(args: &[String], env: &ProcessEnv) -> Result<Vec<String>, Failure> {
    if args.iter().any(|arg| arg == "--http" || arg.starts_with("--http=")) {
        return Err(Failure::usage("could not register a server with `--http`")
            .because("clients start it on standard input and output")
            .with_hint("leave `--http` out; to share a server, run `cove serve --http` and register its `--url`"));
    }
    if args.is_empty() {
        return Ok(Vec::new());
    }
    let args = map_paths(args, |_, value| make_absolute(value, env))?;
    let config = serve_config(&args, env)?;
    // A value without a slash may be a name, as of a Python on the search path. The setting knows its path.
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    map_paths(&args, |setting, value| {
        let Some(setting) = setting else { return Ok(value.to_owned()) };
        let count = counts.entry(setting.key).or_default();
        let index = if setting.kind.is_list() { *count } else { 0 };
        *count += 1;
        let path = setting.show(&config).into_iter().nth(index).filter(|_| !value.contains('/'));
        Ok(path.unwrap_or_else(|| value.to_owned()))
    })
}

/// The configuration of a server with these arguments, in the environment that a client gives it.
pub(super) fn serve_config(args: &[String], env: &ProcessEnv) -> Result<Config, Failure> {
    let mut env = env.clone();
    env.env.retain(|name, _| !name.starts_with("COVE_"));
    let line = ["cove", "serve"].into_iter().map(OsString::from).chain(args.iter().map(OsString::from));
    let CliAction::Serve(context) = parse_command_line(line, &env)? else {
        return Err(Failure::usage(format!("could not use `{}` for `cove serve`", display_value(&args.join(" "))))
            .because("it prints a text and exits")
            .with_hint("leave it out"));
    };
    Ok(context.config)
}

/// The arguments with every value changed that begins with a path: that of a setting, or of `--config`.
fn map_paths(
    args: &[String],
    mut change: impl FnMut(Option<&'static Setting>, &str) -> Result<String, Failure>,
) -> Result<Vec<String>, Failure> {
    let path_flag = |flag: &str| {
        let setting = SETTINGS.iter().find(|setting| setting.names_path && setting.flag == flag);
        (setting.is_some() || flag == "--config").then_some(setting)
    };
    let mut before = None;
    let mut changed = Vec::with_capacity(args.len());
    for arg in args {
        let inline = arg.split_once('=').and_then(|(flag, value)| Some((flag, value, path_flag(flag)?)));
        changed.push(match (before.take(), inline) {
            (Some(setting), _) => change(setting, arg)?,
            (None, Some((flag, value, setting))) => format!("{flag}={}", change(setting, value)?),
            (None, None) => {
                before = path_flag(arg);
                arg.clone()
            }
        });
    }
    Ok(changed)
}

/// A value that begins with a path, with that path absolute. A word without a slash stays, unless it is `~`.
fn make_absolute(text: &str, env: &ProcessEnv) -> Result<String, Failure> {
    let below_home = if text == "~" { Some("") } else { text.strip_prefix("~/") };
    let (mut folder, mut below) = match (below_home, env.home()) {
        (Some(below), Some(home)) => (home.to_path_buf(), below),
        _ if text.starts_with('/') || !text.contains('/') => return Ok(text.to_owned()),
        _ => (env.cwd.clone(), text),
    };
    // No component of the working directory is a link, so that `..` leads to the folder above.
    loop {
        below = match (below.strip_prefix("./"), below.strip_prefix("../")) {
            (Some(below), _) => below,
            (_, Some(below)) if folder == env.cwd || env.cwd.starts_with(&folder) => {
                folder.pop();
                below
            }
            _ => break,
        };
    }
    let path = if below.is_empty() { folder } else { folder.join(below) };
    path.into_os_string().into_string().map_err(|path| {
        Failure::usage(format!("could not write `{}` into a client's file", display_value(&path.to_string_lossy())))
            .because("it is not valid UTF-8")
            .with_hint("use a path of plain letters")
    })
}

#[cfg(test)]
mod tests;
