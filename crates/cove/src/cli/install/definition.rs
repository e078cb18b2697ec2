//! The command lines of `cove install` and `cove uninstall`: what they can say, and what one says.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cli::{Action, json, json_flag, one, parse, texts};
use crate::config::Surroundings;
use crate::error::{Error, shown};

use super::{Asked, DEFAULT_NAME, Others, Outcome, Request, Scope, Way};

const MAX_NAME: usize = 64;

pub fn install_command() -> Command {
    Command::new("install")
        .about("Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`")
        .after_help(
            "The client's own command does it where it has one (`claude mcp add-json`, `codex mcp add`, \
             `code --add-mcp`, `gemini mcp add`). Otherwise the file is edited in place: comments, order and \
             layout stay, and what was there is kept beside it as FILE.cove-backup. Running it twice changes \
             nothing.",
        )
        .arg(client("Client to register with; without one, the known clients are listed"))
        .arg(
            Arg::new("list")
                .long("list")
                .help("List the known clients, which seem to be here, and where their files are")
                .conflicts_with_all(["client", "print", "dry-run"])
                .action(ArgAction::SetTrue),
        )
        .args(shared())
        .arg(
            Arg::new("print")
                .long("print")
                .help("Print the entry, ready to paste; nothing is written")
                .conflicts_with("dry-run")
                .action(ArgAction::SetTrue),
        )
        .arg(json_flag("Print the list of clients as an array of objects"))
        .arg(
            Arg::new("args")
                .value_name("SERVER-ARGS")
                .help("Arguments that the client starts `cove serve` with")
                .last(true)
                .num_args(0..)
                .value_parser(ValueParser::os_string()),
        )
}

pub fn uninstall_command() -> Command {
    Command::new("uninstall")
        .about("Take Cove out of a client's configuration again")
        .arg(client("Client to take it out of").required(true))
        .args(shared())
}

fn client(help: &'static str) -> Arg {
    Arg::new("client").value_name("CLIENT").help(help).value_parser(ValueParser::os_string())
}

fn shared() -> [Arg; 5] {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
    };
    [
        Arg::new("name")
            .long("name")
            .value_name("NAME")
            .help("Name of the entry: letters, digits, `_` and `-`")
            .default_value(DEFAULT_NAME)
            .value_parser(ValueParser::os_string()),
        Arg::new("scope")
            .long("scope")
            .value_name("SCOPE")
            .help("Whom it is for: you everywhere, everyone in this project, or (Claude Code) you in this project")
            .default_value("user")
            .value_parser(PossibleValuesParser::new(["user", "project", "local"])),
        flag("dry-run", "Show the change as a diff; nothing is written"),
        flag("force", "Also touch an entry of that name which does not start `cove`"),
        flag("no-client-command", "Edit the file even if the client has a command for it"),
    ]
}

pub fn asked_to_install(own: &ArgMatches, around: &Surroundings) -> Result<Asked, Error> {
    let Some(client) = one(own, "client")? else {
        let wants_one = ["print", "dry-run", "force", "no-client-command"];
        if let Some(flag) = wants_one.into_iter().find(|flag| own.get_flag(flag)) {
            return Err(Error::usage(format!("could not use `--{flag}` without a client"))
                .because("it is about one client's file")
                .with_hint("name one of those that `cove install --list` shows"));
        }
        return Ok(Asked::List { json: json(own, around)?, around: around.clone() });
    };
    if own.get_flag("json") {
        return Err(Error::usage("could not use `--json` with a client")
            .because("it is for the list of clients")
            .with_hint("leave out one of them"));
    }
    let outcome = match (own.get_flag("print"), own.get_flag("dry-run")) {
        (true, _) => Outcome::Print,
        (_, true) => Outcome::DryRun,
        _ => Outcome::Write,
    };
    let server_args = texts(own, "args")?;
    check_server_args(&server_args, around)?;
    Ok(Asked::Install(request(own, client, outcome, server_args, around)?))
}

pub fn asked_to_uninstall(own: &ArgMatches, around: &Surroundings) -> Result<Asked, Error> {
    let Some(client) = one(own, "client")? else {
        return Err(Error::internal("could not find the client that the command line names"));
    };
    let outcome = if own.get_flag("dry-run") { Outcome::DryRun } else { Outcome::Write };
    Ok(Asked::Uninstall(request(own, client, outcome, Vec::new(), around)?))
}

fn request(
    own: &ArgMatches,
    client: String,
    outcome: Outcome,
    server_args: Vec<String>,
    around: &Surroundings,
) -> Result<Request, Error> {
    let name = one(own, "name")?.unwrap_or_else(|| DEFAULT_NAME.to_owned());
    check_name(&name)?;
    let scope = match own.get_one::<String>("scope").map(String::as_str) {
        Some("project") => Scope::Project,
        Some("local") => Scope::Local,
        _ => Scope::User,
    };
    Ok(Request {
        client,
        name,
        scope,
        outcome,
        others: if own.get_flag("force") { Others::Replace } else { Others::Keep },
        way: if own.get_flag("no-client-command") { Way::File } else { Way::Command },
        server_args,
        around: around.clone(),
    })
}

/// The name becomes a key in three formats, a word of other programs' command lines, and a part of tool names.
fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let cause = match name {
        "" => "it is empty",
        name if name.len() > MAX_NAME => "it is longer than 64 letters",
        name if !name.chars().all(is_plain) => "it has other characters than letters, digits, `_` and `-`",
        // A client's command would take it for a flag.
        name if name.starts_with('-') => "it begins with `-`",
        _ => return Ok(()),
    };
    Err(Error::usage(format!("could not use `--name {}`", shown(name)))
        .because(cause)
        .with_hint("choose a name such as `cove` or `cove-2`"))
}

/// A client shows nobody why a server did not start, so that what would keep it from starting is refused here.
fn check_server_args(args: &[String], around: &Surroundings) -> Result<(), Error> {
    if args.iter().any(|arg| arg == "--http" || arg.starts_with("--http=")) {
        return Err(Error::usage("could not register a server with `--http`")
            .because("a client starts it on standard input and output")
            .with_hint("leave `--http` out; over HTTP, run `cove serve --http` yourself"));
    }
    if args.is_empty() {
        return Ok(());
    }
    // The client has an environment of its own.
    let mut around = around.clone();
    around.env.retain(|name, _| !name.starts_with("COVE_"));
    let line = ["cove", "serve"].into_iter().map(OsString::from).chain(args.iter().map(OsString::from));
    match parse(line, &around)? {
        Action::Print(_) => {
            Err(Error::usage(format!("could not use `{}` for `cove serve`", shown(&args.join(" "))))
                .because("it prints something and ends")
                .with_hint("leave it out"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
