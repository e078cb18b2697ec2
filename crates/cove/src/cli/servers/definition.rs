//! The command lines of `cove servers`: what they can say, and what one says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cli::{all_settings, json, json_flag, one, texts};
use crate::config::{Config, Surroundings};
use crate::error::{Error, shown};
use crate::upstream::definition::Places;

use super::{Added, Asked, What, checked};

pub fn command() -> Command {
    Command::new("servers")
        .about("Show and change the upstream servers that code can call")
        .subcommand_required(true)
        .args(places().map(|arg| arg.hide(true)))
        .subcommand(
            Command::new("list")
                .about("List every server with its state and where it is defined, and what is wrong with the rest")
                .arg(json_flag("Print one object"))
                .args(places()),
        )
        .subcommand(
            Command::new("add")
                .about("Define a server, in a file of its own in `~/.config/cove/servers.d`")
                .after_help(
                    "Values may have `${VARIABLE}` and `${VARIABLE:-default}`, which are put in when the server is \
                     started: quote them for your shell. The file is readable for you alone.",
                )
                .arg(name("Name of the server: letters, digits, `_`, `.` and `-`").required(true))
                .arg(pairs("env", "Variable that the server is started with"))
                .arg(text("description", "TEXT", "What it is for, as agents are told"))
                .arg(text("cwd", "DIR", "Directory that it is started in"))
                .arg(text("url", "URL", "Address of a server over HTTP, instead of a command"))
                .arg(pairs("header", "Header that the server is sent with every request").conflicts_with("command"))
                .arg(
                    flag("allow-http", "Let the address be plain `http` on another machine").conflicts_with("command"),
                )
                .arg(flag("force", "Replace the server of that name that was added before"))
                .arg(
                    Arg::new("command")
                        .value_name("COMMAND")
                        .help("Command that starts the server, with its arguments")
                        .last(true)
                        .num_args(1..)
                        .required_unless_present("url")
                        .conflicts_with_all(["url"])
                        .value_parser(ValueParser::os_string()),
                )
                .mut_arg("env", |arg| arg.conflicts_with("url"))
                .mut_arg("cwd", |arg| arg.conflicts_with("url"))
                .args(places()),
        )
        .subcommand(
            Command::new("remove")
                .about("Remove a server that `add` defined; for others, say where they are defined")
                .arg(name("Name of the server").required(true))
                .args(places()),
        )
        .subcommand(
            Command::new("refresh")
                .about("Start servers and keep the lists of their tools, so that they are found without a start")
                .arg(name("Servers to start; all of them if none is named").num_args(0..))
                .arg(json_flag("Print an array of objects"))
                .args(places()),
        )
        .subcommand(
            Command::new("trust")
                .about("Use the servers that a project defines itself (`./.mcp.json`, `./mcp-servers`, `./cove.toml`)")
                .arg(directory())
                .args(places()),
        )
        .subcommand(
            Command::new("untrust")
                .about("Use them no longer")
                .arg(directory())
                .args(places()),
        )
}

/// The settings that decide what is read and where lists are kept.
fn places() -> impl Iterator<Item = Arg> {
    all_settings().filter(|arg| matches!(arg.get_id().as_str(), "config" | "state-dir"))
}

fn name(help: &'static str) -> Arg {
    Arg::new("name").value_name("NAME").help(help).value_parser(ValueParser::os_string())
}

fn text(id: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(placeholder).help(help).value_parser(ValueParser::os_string())
}

fn pairs(id: &'static str, help: &'static str) -> Arg {
    text(id, "KEY=VALUE", help).action(ArgAction::Append).allow_hyphen_values(true)
}

fn flag(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).help(help).action(ArgAction::SetTrue)
}

fn directory() -> Arg {
    Arg::new("directory")
        .value_name("DIR")
        .help("Directory of the project")
        .default_value(".")
        .value_parser(ValueParser::path_buf())
}

pub fn asked(what: &str, own: &ArgMatches, config: &Config, around: &Surroundings) -> Result<Asked, Error> {
    let named = || Ok::<_, Error>(one(own, "name")?.unwrap_or_default());
    let directory = || own.get_one::<PathBuf>("directory").cloned().unwrap_or_default();
    let what = match what {
        "list" => What::List { json: json(own, around)? },
        "add" => What::Add(added(own)?),
        "remove" => What::Remove { name: named()? },
        "refresh" => What::Refresh { names: texts(own, "name")?, json: json(own, around)? },
        "trust" => What::Trust { directory: directory() },
        "untrust" => What::Untrust { directory: directory() },
        other => return Err(Error::internal(format!("could not find the command `servers {other}`"))),
    };
    let places = Places::of(config.file.clone(), config.server.state_dir.clone(), around);
    Ok(Asked { what, places, around: around.clone() })
}

fn added(own: &ArgMatches) -> Result<Added, Error> {
    let name = one(own, "name")?.unwrap_or_default();
    checked(&name)?;
    Ok(Added {
        name,
        command: texts(own, "command")?,
        env: table(own, "env")?,
        cwd: one(own, "cwd")?,
        url: one(own, "url")?,
        headers: table(own, "header")?,
        allow_http: own.get_flag("allow-http"),
        description: one(own, "description")?,
        replace: own.get_flag("force"),
    })
}

fn table(own: &ArgMatches, id: &str) -> Result<BTreeMap<String, String>, Error> {
    let mut table = BTreeMap::new();
    for (number, pair) in texts(own, id)?.into_iter().enumerate() {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                table.insert(key.to_owned(), value.to_owned());
            }
            // What is written may be the secret itself, so it is not repeated.
            _ => {
                return Err(Error::usage(format!("could not read the `--{id}` number {}", number + 1))
                    .because("it has no name and `=` before its value")
                    .with_hint(format!(
                        "write `--{id} {}`",
                        shown(if id == "env" { "TOKEN=${TOKEN}" } else { "Authorization='Bearer ${TOKEN}'" })
                    )));
            }
        }
    }
    Ok(table)
}
