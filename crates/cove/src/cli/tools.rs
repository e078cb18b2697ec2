//! `cove tools`: finds, lists, shows and calls tools of upstream servers from the shell, as code in a sandbox does.

mod list;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use cove_protocol::{CellId, Language};
use serde_json::Value;

use super::lazy_broker::{local_scope, print_change_warnings};
use super::progress_line::ProgressLine;
use super::servers::KnownServers;
use super::tables::{PrintStyle, Tone, print_output, print_remark};
use super::{CommandContext, INTERRUPTED, broker_settings, json_flag, parse_count, runtime};
use cove_core::error::{Failure, display_value};
use cove_core::output::neutralise;
use cove_core::session::CallingCell;
use cove_server::manual;
use cove_upstream::broker::request::{BrokerRequest, CallError, CallErrorKind, CallRequest, encode_answer};
use cove_upstream::broker::{
    Broker, CallScope, DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT, StatusCallback, UNKNOWN_TOOL_HINT,
};
use cove_upstream::pool::UpstreamSummary;

/// The longest `--call-timeout` in seconds, which is the broker's own limit.
const MAX_CALL_TIMEOUT: f64 = 86_400.0;

/// Find, show and call the tools of MCP servers
#[derive(clap::Subcommand)]
pub(super) enum ToolsCommand {
    Find(FindArgs),
    List(ListArgs),
    Show(ShowArgs),
    Call(CallArgs),
}

/// Search the tools of all servers
#[derive(clap::Args)]
#[command(arg = json_flag("Print an object"), args = broker_settings())]
pub(super) struct FindArgs {
    /// What the tool is to do; without words, the servers are listed
    #[arg(allow_negative_numbers = true)]
    words: Vec<String>,
    #[arg(long, value_name = "NUMBER", help = format!("How many to show [default: {DEFAULT_SEARCH_LIMIT}]"))]
    limit: Option<String>,
    /// Of the signatures: python, node or shell [default: python]
    #[arg(long)]
    language: Option<String>,
}

/// List the tools that servers have listed before, without starting any
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(visible_alias = "ls", arg = json_flag("Print an array of objects"), args = broker_settings())]
pub struct ListArgs {
    /// Only of these servers
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
}

/// Show a server with its tools, or all about one tool
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
    List(ListArgs),
    /// Shows a server with its tools, or everything about one of them.
    Show {
        /// `server` or `server.tool`.
        topic: String,
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
        ToolsCommand::List(args) => ToolsRequest::List(args),
        ToolsCommand::Show(ShowArgs { tool }) => ToolsRequest::Show { topic: tool },
        ToolsCommand::Call(CallArgs { tool: named, arguments, call_timeout, raw }) => {
            let names = named.split_once('.').filter(|(server, tool)| !server.is_empty() && !tool.is_empty());
            let (server, tool) = names.ok_or_else(|| {
                Failure::usage(format!("could not call `{}`", display_value(&named)))
                    .with_hint("write `SERVER.TOOL`; `cove tools find WORDS` finds one")
            })?;
            let arguments = cove_runner::parse_arguments(&arguments)
                .map_err(|why| Failure::usage("could not read the arguments of the tool").because(why))?;
            let seconds = |text: String| {
                let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_CALL_TIMEOUT);
                seconds.ok_or_else(|| {
                    Failure::usage(format!("could not read `--call-timeout {}`", display_value(&text)))
                        .with_hint(format!("write a number of seconds, more than 0 and at most {MAX_CALL_TIMEOUT}"))
                })
            };
            let timeout = call_timeout.map(seconds).transpose()?;
            let (server, tool) = (server.into(), tool.into());
            ToolsRequest::Call(BrokerRequest::Call(CallRequest { server, tool, arguments, raw, timeout }))
        }
    })
}

pub fn run(request: ToolsRequest, context: &CommandContext) -> Result<ExitCode, Failure> {
    let style = PrintStyle::of_stdout();
    let request = match request {
        ToolsRequest::List(args) => {
            print_output(&list::render(&args, context, style)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        request => resolve_dots(request, context),
    };
    let runtime = runtime::single_threaded()?;
    let CommandContext { config, env, json } = context;
    let broker = Broker::open(&config.broker(), env, manual::text(&config.server_setup()));
    let progress = Arc::new(ProgressLine::new());
    let is_call = matches!(request, ToolsRequest::Call(_));
    let is_search = matches!(request, ToolsRequest::Find { .. }) && !json;
    let answered = runtime.block_on(async {
        let answered = tokio::select! {
            answered = answer(&broker, request, *json, &progress) => answered,
            _ = tokio::signal::ctrl_c() => Ok(None),
        };
        progress.clear();
        print_change_warnings(&broker);
        broker.close().await;
        answered
    });
    match answered {
        Ok(Some(text)) => {
            match is_search && style.colours {
                true => print_as_is(&paint_comments(&text, style))?,
                false => print_text(&text)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => Ok(ExitCode::from(INTERRUPTED)),
        Err(problem) => {
            let hint = problem.hint().map(|hint| match hint {
                UNKNOWN_TOOL_HINT => "\nhint: `cove tools find WORDS` searches all tools".to_owned(),
                hint => format!("\nhint: {hint}"),
            });
            let hint = hint.unwrap_or_default();
            if *json && is_call {
                print_as_is(&String::from_utf8_lossy(&encode_answer(Err(problem.clone()))))?;
            }
            print_remark(neutralise(format!("{}{hint}", problem.message())));
            Ok(ExitCode::from(cove_runner::exit_status(problem.kind().as_str())))
        }
    }
}

async fn answer(
    broker: &Broker,
    request: ToolsRequest,
    json: bool,
    progress: &Arc<ProgressLine>,
) -> Result<Option<String>, CallError> {
    let progress = Arc::clone(progress);
    let on_status: StatusCallback = Arc::new(move |words| progress.update(&words));
    let run = CallScope { on_status: Some(on_status), ..local_scope() };
    let cell = CallingCell::new(CellId(0));
    match request {
        // `run` answers it without a broker.
        ToolsRequest::List(_) => Ok(None),
        ToolsRequest::Find { query, limit, language } => {
            let hits = broker.find(&run, &query, limit, language).await;
            Ok(Some(if json { pretty_json(&hits.to_json()) } else { hits.to_text() }))
        }
        ToolsRequest::Show { topic } if !json => {
            let tool_help = |server: &str| format!("cove tools show {server}.TOOL");
            broker.describe(&run, &cell, &topic, Language::Python, tool_help).await.map(Some)
        }
        ToolsRequest::Show { topic } => {
            let (server, tool) = topic.split_once('.').map_or((&*topic, None), |(server, tool)| (server, Some(tool)));
            let tools = broker.answer(&run, &cell, BrokerRequest::Tools { server: server.into() }).await?;
            select_tool(tools, server, tool).map(|tools| Some(pretty_json(&tools)))
        }
        ToolsRequest::Call(ask) => {
            let answer = broker.answer(&run, &cell, ask).await?;
            let value = match answer {
                Value::Object(mut fields) => {
                    ["value", "rich", "raw"].iter().find_map(|part| fields.remove(*part)).unwrap_or_default()
                }
                other => other,
            };
            Ok(Some(match value {
                Value::String(text) if !json => text,
                value => value.to_string(),
            }))
        }
    }
}

/// Moves the end of the server's name to its right place if the name has dots: in `a.b.c` the server may be `a.b`. The
/// longest name wins.
fn resolve_dots(request: ToolsRequest, context: &CommandContext) -> ToolsRequest {
    let known = || KnownServers::load(&context.config, &context.env).summaries;
    match request {
        ToolsRequest::Call(BrokerRequest::Call(call)) if call.tool.contains('.') => {
            let whole = format!("{}.{}", call.server, call.tool);
            let split = |known: UpstreamSummary| {
                let tool = whole.strip_prefix(&known.name)?.strip_prefix('.')?.to_owned();
                Some((known.name, tool))
            };
            let split = known().into_iter().filter_map(split).max_by_key(|(server, _)| server.len());
            let (server, tool) = split.unwrap_or((call.server, call.tool));
            ToolsRequest::Call(BrokerRequest::Call(CallRequest { server, tool, ..call }))
        }
        ToolsRequest::Show { topic } if topic.contains('.') => {
            // The alias of a name has no dots.
            let dotted = known().into_iter().filter(|known| known.name.contains('.'));
            let split = dotted.filter_map(|known| {
                let rest = topic.strip_prefix(&known.name)?;
                (rest.is_empty() || rest.starts_with('.')).then(|| (known.name.len(), format!("{}{rest}", known.alias)))
            });
            let alias = split.max_by_key(|(length, _)| *length).map(|(_, alias)| alias);
            ToolsRequest::Show { topic: alias.unwrap_or(topic) }
        }
        request => request,
    }
}

/// Makes the comments of code fainter than the code.
fn paint_comments(text: &str, style: PrintStyle) -> String {
    // The text of servers may have escape sequences of its own, which must not mix with these.
    let lines = neutralise(text);
    let paint = |line: &str| {
        if line.trim_start().starts_with('#') { style.paint(Tone::Faint, line) } else { line.to_owned() }
    };
    lines.lines().map(paint).collect::<Vec<_>>().join("\n")
}

/// Returns the tools with this name, or all of them without a name. Fails if there is none.
fn select_tool(mut tools: Value, server: &str, tool: Option<&str>) -> Result<Value, CallError> {
    let Some(tool) = tool else { return Ok(tools) };
    if let Value::Array(all) = &mut tools {
        all.retain(|one| one["name"] == tool || one["alias"] == tool);
    }
    if tools.as_array().is_some_and(|all| !all.is_empty()) {
        return Ok(tools);
    }
    let message = format!("server `{}` has no tool `{}`", display_value(server), display_value(tool));
    let hint = format!("`cove tools show {}` lists them", display_value(server));
    Err(CallError::new(CallErrorKind::UnknownTool, message).with_hint(hint))
}

fn pretty_json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Prints text of a server. For a terminal it is neutralised; a pipe gets the bytes unchanged.
fn print_text(text: &str) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    print_as_is(&if is_terminal { neutralise(text) } else { text.to_owned() })
}

/// Prints text, with a line end if it has none.
fn print_as_is(shown: &str) -> Result<(), Failure> {
    let end = if shown.is_empty() || shown.ends_with('\n') { "" } else { "\n" };
    print_output(&format!("{shown}{end}"))
}
