//! `cove tools`: the tools of upstream servers from the shell, found, shown and called as code in a sandbox would.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::on_demand::person;
use super::{json, json_flag, one, settings_of, texts};
use crate::broker::ask::{Ask, Problem};
use crate::broker::{Broker, FEW, MAX_FOUND};
use crate::catalog::signature::Language;
use crate::config::{Config, Part, Surroundings};
use crate::error::{Error, shown};
use crate::output::harmless;
use crate::server::manual;

#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Find {
        query: String,
        limit: usize,
        language: Language,
    },
    /// A server's tools, or one of them.
    Show {
        server: String,
        tool: Option<String>,
    },
    Call(Ask),
}

pub fn command() -> Command {
    let settings = || settings_of(|part| part == Part::Calls);
    let words = |name: &'static str, placeholder: &'static str, help: &'static str| {
        Arg::new(name)
            .value_name(placeholder)
            .help(help)
            .num_args(1..)
            .value_parser(ValueParser::os_string())
            .allow_negative_numbers(true)
    };
    let value = |name: &'static str, placeholder: &'static str, help: String| {
        Arg::new(name).long(name).value_name(placeholder).help(help).value_parser(ValueParser::os_string())
    };
    Command::new("tools")
        .about("Find, show and call the tools of MCP servers")
        .subcommand_required(true)
        .args(settings().map(|arg| arg.hide(true)))
        .subcommand(
            Command::new("find")
                .about("Search the tools of all servers")
                .arg(words("words", "WORDS", "What the tool is to do").required(true))
                .arg(value("limit", "NUMBER", format!("How many to show [default: {FEW}]")))
                .arg(value(
                    "language",
                    "LANGUAGE",
                    "Of the signatures: python, node or shell [default: python]".into(),
                ))
                .arg(json_flag("Print an object"))
                .args(settings()),
        )
        .subcommand(
            Command::new("show")
                .about("Show the tools of a server, or one of them with its schema")
                .arg(words("tool", "SERVER[.TOOL]", "Server, or one of its tools").num_args(1).required(true))
                .arg(json_flag("Print an array of objects"))
                .args(settings()),
        )
        .subcommand(
            Command::new("call")
                .about("Call a tool and print its answer as JSON, text as it is")
                .arg(words("tool", "SERVER.TOOL", "Tool to call").num_args(1).required(true))
                .arg(words(
                    "arguments",
                    "KEY=VALUE",
                    "Arguments: KEY=VALUE, KEY:=JSON, KEY=@FILE, or a JSON object",
                ))
                .arg(value("call-timeout", "SECONDS", "Time that the call may take [default: 60]".into()))
                .arg(
                    Arg::new("raw")
                        .long("raw")
                        .help("Print the whole result, as the protocol has it")
                        .action(ArgAction::SetTrue),
                )
                .arg(json_flag("Print text as JSON too"))
                .args(settings()),
        )
}

pub(super) fn asked(verb: &str, own: &ArgMatches, around: &Surroundings) -> Result<(Asked, bool), Error> {
    let named = || one(own, "tool").map(Option::unwrap_or_default);
    let asked = match verb {
        "find" => {
            let limit = match one(own, "limit")? {
                None => FEW,
                Some(text) => {
                    text.parse().ok().filter(|limit| (1..=MAX_FOUND).contains(limit)).ok_or_else(|| {
                        Error::usage(format!("could not read `--limit {}`", shown(&text)))
                            .with_hint(format!("write a whole number from 1 to {MAX_FOUND}"))
                    })?
                }
            };
            let language = match one(own, "language")?.as_deref() {
                None | Some("python") => Language::Python,
                Some("node" | "javascript") => Language::Node,
                Some("shell" | "bash" | "sh") => Language::Shell,
                Some(other) => {
                    return Err(Error::usage(format!("could not write signatures in `{}`", shown(other)))
                        .with_hint("write `python`, `node` or `shell`"));
                }
            };
            Asked::Find { query: texts(own, "words")?.join(" "), limit, language }
        }
        "show" => {
            let named = named()?;
            match named.split_once('.') {
                Some((server, tool)) => Asked::Show { server: server.into(), tool: Some(tool.into()) },
                None => Asked::Show { server: named, tool: None },
            }
        }
        _ => {
            let named = named()?;
            let Some((server, tool)) =
                named.split_once('.').filter(|(server, tool)| !server.is_empty() && !tool.is_empty())
            else {
                return Err(Error::usage(format!("could not call `{}`", shown(&named)))
                    .with_hint("write `SERVER.TOOL`; `cove tools find WORDS` finds one"));
            };
            let arguments = cove_runner::call_arguments(&texts(own, "arguments")?)
                .map_err(|why| Error::usage("could not read the arguments of the tool").because(why))?;
            let timeout = match one(own, "call-timeout")? {
                None => None,
                Some(text) => Some(text.parse::<f64>().map_err(|_| {
                    Error::usage(format!("could not read `--call-timeout {}`", shown(&text)))
                        .with_hint("write a number of seconds")
                })?),
            };
            let raw = own.get_flag("raw");
            Asked::Call(Ask::Call { server: server.into(), tool: tool.into(), arguments, raw, timeout })
        }
    };
    Ok((asked, json(own, around)?))
}

pub fn run(asked: Asked, json: bool, config: &Config, around: &Surroundings) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let broker = Broker::open(config, around, manual::text(config));
    let answered = runtime.block_on(async {
        let answered = tokio::select! {
            answered = answer(&broker, asked, json) => answered,
            _ = tokio::signal::ctrl_c() => Ok(None),
        };
        broker.close().await;
        answered
    });
    match answered {
        Ok(Some(text)) => {
            print(&text);
            Ok(ExitCode::SUCCESS)
        }
        // As shells have it.
        Ok(None) => Ok(ExitCode::from(128 + 2)),
        Err(problem) => {
            let hint = problem.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            let text = harmless(format!("{}{hint}", problem.message()));
            let _ = writeln!(std::io::stderr(), "{text}");
            Ok(ExitCode::from(cove_runner::failure_status(problem.kind().as_str())))
        }
    }
}

async fn answer(broker: &Broker, asked: Asked, json: bool) -> Result<Option<String>, Problem> {
    let run = person();
    match asked {
        Asked::Find { query, limit, language } => {
            let found = broker.find(&run, &query, limit, language).await;
            Ok(Some(if json { pretty(&found.to_json()) } else { found.to_text() }))
        }
        Asked::Show { server, tool } => {
            let tools = broker.answer(&run, 0, Ask::Tools { server: server.clone() }).await?;
            show(tools, &server, tool.as_deref(), json).map(Some)
        }
        Asked::Call(ask) => {
            let answer = broker.answer(&run, 0, ask).await?;
            let value = match answer {
                Value::Object(fields) if fields.len() == 1 => {
                    fields.into_iter().next().map(|(_, value)| value)
                }
                other => Some(other),
            };
            Ok(Some(match value.unwrap_or_default() {
                Value::String(text) if !json => text,
                value => value.to_string(),
            }))
        }
    }
}

fn show(tools: Value, server: &str, tool: Option<&str>, json: bool) -> Result<String, Problem> {
    let Value::Array(mut tools) = tools else { return Ok(String::new()) };
    if let Some(tool) = tool {
        tools.retain(|one| one["name"] == tool || one["alias"] == tool);
        if tools.is_empty() {
            let message = format!("server `{}` has no tool `{}`", shown(server), shown(tool));
            let hint = format!("`cove tools show {}` lists them", shown(server));
            return Err(Problem::new(crate::broker::ask::Kind::UnknownTool, message).with_hint(hint));
        }
    }
    if json {
        return Ok(pretty(&Value::Array(tools)));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let ([one], Some(_)) = (tools.as_slice(), tool) {
        let schema = pretty(&one["input_schema"]);
        return Ok(format!(
            "{}\n\n{}\n\nparameters:\n{schema}",
            text(&one["python"]),
            text(&one["description"])
        ));
    }
    let row = |one: &Value| {
        let about = crate::catalog::signature::summary(&text(&one["description"]));
        let about = if about.is_empty() { String::new() } else { format!("\n# {about}") };
        format!("{}{about}\n", text(&one["python"]))
    };
    let rows: String = tools.iter().map(row).collect();
    Ok(format!("{rows}# {} tools", tools.len()))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Text of servers does nothing to a terminal; a program gets it as it is.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let shown = if out.is_terminal() { harmless(text) } else { text.to_owned() };
    // A reader that closed its end has seen what it wanted.
    let _ = out.write_all(shown.as_bytes());
    if !shown.ends_with('\n') {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}
