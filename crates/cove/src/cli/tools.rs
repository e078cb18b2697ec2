//! `cove tools`: finds, shows and calls tools of upstream servers from the shell, as code in a sandbox does.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use cove_protocol::{CellId, Language};
use serde_json::Value;

use super::lazy_broker::local_scope;
use super::tables::print_remark;
use super::{CommandContext, INTERRUPTED, broker_settings, json_flag, parse_count, runtime};
use cove_core::error::{Failure, display_value};
use cove_core::output::neutralise;
use cove_server::manual;
use cove_upstream::broker::request::{BrokerRequest, CallError, CallErrorKind, CallRequest};
use cove_upstream::broker::{Broker, DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT};

/// Find, show and call the tools of MCP servers
#[derive(clap::Subcommand)]
pub(super) enum ToolsCommand {
    Find(FindArgs),
    Show(ShowArgs),
    Call(CallArgs),
}

/// Search the tools of all servers
#[derive(clap::Args)]
#[command(arg = json_flag("Print an object"), args = broker_settings())]
pub(super) struct FindArgs {
    /// What the tool is to do
    #[arg(required = true, allow_negative_numbers = true)]
    words: Vec<String>,
    #[arg(long, value_name = "NUMBER", help = format!("How many to show [default: {DEFAULT_SEARCH_LIMIT}]"))]
    limit: Option<String>,
    /// Of the signatures: python, node or shell [default: python]
    #[arg(long)]
    language: Option<String>,
}

/// Show the tools of a server, or one of them with its schema
#[derive(clap::Args)]
#[command(arg = json_flag("Print an array of objects"), args = broker_settings())]
pub(super) struct ShowArgs {
    /// Server, or one of its tools
    #[arg(value_name = "SERVER[.TOOL]", allow_negative_numbers = true)]
    tool: String,
}

/// Call a tool and print its answer as JSON, text as it is
#[derive(clap::Args)]
#[command(arg = json_flag("Print text as JSON too"), args = broker_settings())]
pub(super) struct CallArgs {
    /// Tool to call
    #[arg(value_name = "SERVER.TOOL", allow_negative_numbers = true)]
    tool: String,
    /// Arguments: KEY=VALUE, KEY:=JSON, KEY=@FILE, or a JSON object
    #[arg(value_name = "KEY=VALUE", allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// Time that the call may take [default: 60]
    #[arg(long, value_name = "SECONDS")]
    call_timeout: Option<String>,
    /// Print the whole result, as the protocol has it
    #[arg(long)]
    raw: bool,
}

/// A checked `cove tools` command line.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolsRequest {
    Find {
        query: String,
        limit: usize,
        language: Language,
    },
    /// Shows a server's tools, or one of them.
    Show {
        server: String,
        tool: Option<String>,
    },
    Call(BrokerRequest),
}

pub(super) fn parse_request(command: ToolsCommand) -> Result<ToolsRequest, Failure> {
    Ok(match command {
        ToolsCommand::Find(args) => {
            let limit = parse_count("limit", args.limit.as_deref(), DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT)?;
            let language = args.language.map_or(Ok(Language::Python), |name| {
                name.parse().map_err(|_| {
                    Failure::usage(format!("could not write signatures in `{}`", display_value(&name)))
                        .with_hint("write `python`, `node` or `shell`")
                })
            })?;
            ToolsRequest::Find { query: args.words.join(" "), limit, language }
        }
        ToolsCommand::Show(ShowArgs { tool }) => match tool.split_once('.') {
            Some((server, tool)) => ToolsRequest::Show { server: server.into(), tool: Some(tool.into()) },
            None => ToolsRequest::Show { server: tool, tool: None },
        },
        ToolsCommand::Call(CallArgs { tool: named, arguments, call_timeout, raw }) => {
            let names = named.split_once('.').filter(|(server, tool)| !server.is_empty() && !tool.is_empty());
            let (server, tool) = names.ok_or_else(|| {
                Failure::usage(format!("could not call `{}`", display_value(&named)))
                    .with_hint("write `SERVER.TOOL`; `cove tools find WORDS` finds one")
            })?;
            let arguments = cove_runner::parse_arguments(&arguments)
                .map_err(|why| Failure::usage("could not read the arguments of the tool").because(why))?;
            let seconds = |text: String| {
                text.parse::<f64>().map_err(|_| {
                    Failure::usage(format!("could not read `--call-timeout {}`", display_value(&text)))
                        .with_hint("write a number of seconds")
                })
            };
            let timeout = call_timeout.map(seconds).transpose()?;
            let (server, tool) = (server.into(), tool.into());
            ToolsRequest::Call(BrokerRequest::Call(CallRequest { server, tool, arguments, raw, timeout }))
        }
    })
}

pub fn run(request: ToolsRequest, context: &CommandContext) -> Result<ExitCode, Failure> {
    let runtime = runtime::single_threaded()?;
    let CommandContext { config, env, json } = context;
    let broker = Broker::open(&config.broker(), env, manual::text(&config.server_setup()));
    let answered = runtime.block_on(async {
        let answered = tokio::select! {
            answered = answer(&broker, request, *json) => answered,
            _ = tokio::signal::ctrl_c() => Ok(None),
        };
        broker.close().await;
        answered
    });
    match answered {
        Ok(Some(text)) => {
            print_text(&text);
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => Ok(ExitCode::from(INTERRUPTED)),
        Err(problem) => {
            let hint = problem.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            print_remark(neutralise(format!("{}{hint}", problem.message())));
            Ok(ExitCode::from(cove_runner::exit_status(problem.kind().as_str())))
        }
    }
}

async fn answer(broker: &Broker, request: ToolsRequest, json: bool) -> Result<Option<String>, CallError> {
    let run = local_scope();
    match request {
        ToolsRequest::Find { query, limit, language } => {
            let hits = broker.find(&run, &query, limit, language).await;
            Ok(Some(if json { pretty_json(&hits.to_json()) } else { hits.to_text() }))
        }
        ToolsRequest::Show { server, tool } => {
            let tools = broker.answer(&run, CellId(0), BrokerRequest::Tools { server: server.clone() }).await?;
            render_tools(tools, &server, tool.as_deref(), json).map(Some)
        }
        ToolsRequest::Call(ask) => {
            let answer = broker.answer(&run, CellId(0), ask).await?;
            let value = match answer {
                Value::Object(fields) if fields.len() == 1 => fields.into_iter().next().map(|(_, value)| value),
                other => Some(other),
            };
            Ok(Some(match value.unwrap_or_default() {
                Value::String(text) if !json => text,
                value => value.to_string(),
            }))
        }
    }
}

fn render_tools(tools: Value, server: &str, tool: Option<&str>, json: bool) -> Result<String, CallError> {
    let Value::Array(mut tools) = tools else { return Ok(String::new()) };
    if let Some(tool) = tool {
        tools.retain(|one| one["name"] == tool || one["alias"] == tool);
        if tools.is_empty() {
            let message = format!("server `{}` has no tool `{}`", display_value(server), display_value(tool));
            let hint = format!("`cove tools show {}` lists them", display_value(server));
            return Err(CallError::new(CallErrorKind::UnknownTool, message).with_hint(hint));
        }
    }
    if json {
        return Ok(pretty_json(&Value::Array(tools)));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let ([one], Some(_)) = (tools.as_slice(), tool) {
        let schema = pretty_json(&one["input_schema"]);
        return Ok(format!("{}\n\n{}\n\nparameters:\n{schema}", text(&one["python"]), text(&one["description"])));
    }
    let row = |one: &Value| {
        let about = cove_upstream::catalog::signature::first_sentence(&text(&one["description"]));
        let about = if about.is_empty() { String::new() } else { format!("\n# {about}") };
        format!("{}{about}\n", text(&one["python"]))
    };
    let rows: String = tools.iter().map(row).collect();
    Ok(format!("{rows}# {} tools", tools.len()))
}

fn pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Prints text of a server. For a terminal it is neutralised; a pipe gets the bytes unchanged.
fn print_text(text: &str) {
    let mut out = std::io::stdout().lock();
    let shown = if out.is_terminal() { neutralise(text) } else { text.to_owned() };
    // A reader that closes its end early is no error.
    let _ = out.write_all(shown.as_bytes());
    if !shown.ends_with('\n') {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}
