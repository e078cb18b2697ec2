//! Turns the command line of `mcp` into a request. Has no effect except to read the files that the command line names.

use std::io::Read;

use serde_json::{Map, Value, json};

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub(super) enum McpCommand {
    /// Print the usage.
    Usage,
    /// Make a call.
    Call {
        /// The request, without its id.
        request: Map<String, Value>,
        /// Values as the user typed them, by key, for those whose type only the tool's schema can decide.
        typed: Vec<(String, String)>,
        print_options: PrintOptions,
    },
}

/// How to print the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrintOptions {
    pub(super) part: AnswerPart,
    /// Print text as JSON too.
    pub(super) json: bool,
}

/// Which part of the answer to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerPart {
    All,
    /// The member `text`.
    Text,
    /// The result of a tool, without the name of its form.
    ToolValue,
    /// This one of a list of tools.
    Tool(String),
}

pub(super) const USAGE: &str = "\
usage: mcp find [WORDS…] [--limit N]               search the tools of all servers; no words: the servers
       mcp call SERVER.TOOL [KEY=VALUE…] [OBJECT]  call a tool and print its answer as JSON
       mcp servers                                 list the servers
       mcp servers find [WORDS…] [--limit N]       list approved servers that are not configured
       mcp servers request NAME [WHY…]             ask the person to add an approved server
       mcp tools SERVER [TOOL]                     list the tools of a server, or describe one
       mcp resources SERVER
       mcp read SERVER URI
       mcp prompts SERVER
       mcp prompt SERVER NAME [KEY=VALUE…]
       mcp complete SERVER prompt|resource NAME ARGUMENT [VALUE [KEY=VALUE…]]
       mcp subscribe SERVER URI                    report changes of a resource until the cell ends
       mcp changes NUMBER SEEN [--timeout SECONDS] wait until a subscription has more changes than SEEN
       mcp logs SERVER                             print the latest log messages during calls of this session
       mcp output HANDLE                           print the whole output of an earlier cell
       mcp help [SERVER[.TOOL]]                    print the manual, or all about a server or a tool

arguments of a tool:
  KEY=VALUE     text if the tool wants text; else a number, true, false, null, [...] or {...} is JSON
  KEY:=JSON     JSON, such as id:='\"007\"' for text of digits
  KEY=@FILE     the content of a file as text; KEY:=@FILE as JSON; `-` is standard input
  OBJECT        a JSON object with arguments; @FILE reads it from a file, - from standard input

options: --text (print text as it is, not as JSON), --json (print everything as JSON, help and output too),
         --raw (with `call`: the whole result), --timeout SECONDS (with `call` and `changes`)
exit status: 0 success, 1 the tool failed, 2 wrong usage, 3 refused or unknown, 4 not reached or no answer
";

/// How long `mcp changes` waits, in seconds.
const DEFAULT_WAIT: u32 = 60;

/// The error says what is wrong with the command line, for people.
type UsageResult<T> = Result<T, String>;

/// Reads a command line without the program's name. `input` is standard input.
pub(super) fn parse(args: &[String], mut input: impl Read) -> UsageResult<McpCommand> {
    let CommandOptions { words, json, raw, limit, timeout, usage } = parse_options(args)?;
    if usage {
        return Ok(McpCommand::Usage);
    }
    let mut words = words.into_iter();
    let Some(verb) = words.next() else { return Err("a command is missing".into()) };
    let rest: Vec<String> = words.collect();
    for (given, name, commands) in [
        (limit.is_some(), "--limit", &["find", "servers"][..]),
        (raw, "--raw", &["call"]),
        (timeout.is_some(), "--timeout", &["call", "changes"]),
    ] {
        if given && !commands.contains(&verb.as_str()) {
            return Err(format!("`{name}` is an option of `mcp {}`", commands[0]));
        }
    }
    let mut part = AnswerPart::All;
    let mut typed = Vec::new();
    let request = match (verb.as_str(), &rest[..]) {
        ("find", words) => {
            let mut request = json!({"ask": "find", "query": words.join(" "), "language": "shell"});
            if let Some(limit) = limit {
                request["limit"] = limit.into();
            }
            request
        }
        ("call", words) => {
            part = AnswerPart::ToolValue;
            let (server, tool, words) = split_tool(words)?;
            let arguments = parse_arguments(words, &mut input, &mut typed)?;
            let mut request = json!({"ask": "call", "server": server, "tool": tool, "arguments": arguments});
            if raw {
                request["raw"] = true.into();
            }
            if let Some(timeout) = timeout {
                request["timeout"] = timeout;
            }
            request
        }
        ("servers", []) if limit.is_none() => json!({"ask": "servers"}),
        ("servers", [action, words @ ..]) if action == "find" => {
            let mut request = json!({"ask": "find_servers", "query": words.join(" ")});
            if let Some(limit) = limit {
                request["limit"] = limit.into();
            }
            request
        }
        ("servers", [action, name, why @ ..]) if action == "request" => {
            json!({"ask": "request_server", "name": name, "why": why.join(" ")})
        }
        ("help", []) => json!({"ask": "help"}),
        ("help", [topic]) => json!({"ask": "help", "topic": topic, "language": "shell"}),
        ("tools" | "resources" | "prompts", [server]) => json!({"ask": verb, "server": server}),
        ("tools", [server, tool]) => {
            part = AnswerPart::Tool(tool.clone());
            json!({"ask": verb, "server": server})
        }
        ("read", [server, uri]) => json!({"ask": "read_resource", "server": server, "uri": uri}),
        ("prompt", [server, name, words @ ..]) => {
            let arguments = parse_texts(words, &mut input)?;
            json!({"ask": "prompt", "server": server, "name": name, "arguments": arguments})
        }
        ("complete", [server, kind, name, argument, words @ ..]) if kind == "prompt" || kind == "resource" => {
            let (value, words) = words.split_first().map_or(("", words), |(value, words)| (value.as_str(), words));
            let context = parse_texts(words, &mut input)?;
            json!({
                "ask": "complete", "server": server, (kind.clone()): name, "argument": argument, "value": value,
                "context": context,
            })
        }
        ("subscribe", [server, uri]) => json!({"ask": "subscribe", "server": server, "uri": uri}),
        ("changes", [number, seen]) => {
            let whole = |text: &String| text.parse::<u64>().map_err(|_| format!("`{text}` is not a whole number"));
            let timeout = timeout.unwrap_or_else(|| DEFAULT_WAIT.into());
            json!({"ask": "changes", "subscription": whole(number)?, "seen": whole(seen)?, "timeout": timeout})
        }
        ("logs", [server]) => json!({"ask": "logs", "server": server}),
        ("output", [handle]) => {
            part = AnswerPart::Text;
            json!({"ask": "output", "handle": handle})
        }
        (
            "servers" | "help" | "tools" | "resources" | "prompts" | "read" | "prompt" | "complete" | "subscribe"
            | "changes" | "logs" | "output",
            _,
        ) => return Err(format!("`mcp {verb}` does not take these arguments")),
        _ => return Err(format!("there is no command `{verb}`")),
    };
    let Value::Object(request) = request else { return Err("the command line makes no request".into()) };
    let json = json.unwrap_or(!matches!(verb.as_str(), "help" | "output"));
    Ok(McpCommand::Call { request, typed, print_options: PrintOptions { part, json } })
}

/// Returns arguments of a prompt or a resource template, which are all text in MCP.
fn parse_texts(words: &[String], input: &mut impl Read) -> UsageResult<Map<String, Value>> {
    let mut typed = Vec::new();
    let given = parse_arguments(words, input, &mut typed)?;
    let mut arguments: Map<String, Value> = given.into_iter().map(as_text).collect();
    arguments.extend(typed.into_iter().map(|(key, text)| (key, Value::String(text))));
    Ok(arguments)
}

/// The options of a command line, and its other words.
#[derive(Default)]
struct CommandOptions {
    words: Vec<String>,
    /// True for `--json`, false for `--text`.
    json: Option<bool>,
    raw: bool,
    limit: Option<u64>,
    timeout: Option<Value>,
    usage: bool,
}

fn parse_options(args: &[String]) -> UsageResult<CommandOptions> {
    let mut found = CommandOptions::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        let mut required =
            || value.clone().or_else(|| args.next().cloned()).ok_or_else(|| format!("`{name}` needs a value"));
        match name {
            "--" => found.words.extend(args.by_ref().cloned()),
            "--json" if value.is_none() => found.json = Some(true),
            "--text" if value.is_none() => found.json = Some(false),
            "--raw" if value.is_none() => found.raw = true,
            "-h" | "--help" => found.usage = true,
            "--limit" => {
                let limit = required()?;
                let limit = limit.parse().ok().filter(|limit| *limit > 0);
                found.limit = Some(limit.ok_or("`--limit` needs a whole number, at least 1")?);
            }
            "--timeout" => {
                let seconds = required()?;
                let number = seconds.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
                number.ok_or("`--timeout` needs a number of seconds")?;
                found.timeout = Some(guess_value(&seconds));
            }
            _ if name.starts_with("--") && name.len() > 2 => {
                return Err(format!("there is no option `{name}`; put arguments that begin with `--` after a `--`"));
            }
            _ => found.words.push(arg.clone()),
        }
    }
    Ok(found)
}

/// Splits `SERVER.TOOL`, or the two as two words, from the rest of the words.
fn split_tool(words: &[String]) -> UsageResult<(&str, &str, &[String])> {
    let missing = "`mcp call` needs `SERVER.TOOL`";
    let (first, rest) = words.split_first().ok_or(missing)?;
    if let Some((server, tool)) = first.split_once('.')
        && !server.is_empty()
        && !tool.is_empty()
    {
        return Ok((server, tool, rest));
    }
    match rest.split_first() {
        Some((tool, rest)) if !first.is_empty() && tool != "-" && !tool.contains(['=', '{', '@']) => {
            Ok((first, tool, rest))
        }
        _ => Err(format!("{missing}, not `{first}`")),
    }
}

/// Returns the arguments that the words give. Adds those whose type the tool's schema decides to `typed`.
pub(super) fn parse_arguments(
    words: &[String],
    input: &mut impl Read,
    typed: &mut Vec<(String, String)>,
) -> UsageResult<Map<String, Value>> {
    let mut found = Map::new();
    for word in words {
        if word == "-" {
            let text = read_file("-", input, "")?;
            merge(&mut found, parse_object(&text, "standard input")?)?;
        } else if word.trim_start().starts_with('{') {
            merge(&mut found, parse_object(word, "the object")?)?;
        } else if let Some(file) = word.strip_prefix('@') {
            let text = read_file(file, input, "")?;
            merge(&mut found, parse_object(&text, &format!("`{file}`"))?)?;
        } else {
            let (key, value) = parse_pair(word, input)?;
            if let Some((written, text)) = word.split_once('=')
                && written == key
                && !text.starts_with('@')
            {
                typed.push((key.to_owned(), text.to_owned()));
            }
            add(&mut found, key, value)?;
        }
    }
    Ok(found)
}

/// Reads `KEY=VALUE`, `KEY:=JSON`, or either with `@FILE` as its value.
fn parse_pair<'a>(word: &'a str, input: &mut impl Read) -> UsageResult<(&'a str, Value)> {
    let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty() && *key != ":") else {
        return Err(format!("`{word}` is neither KEY=VALUE nor a JSON object"));
    };
    let (key, is_json) = key.strip_suffix(':').map_or((key, false), |key| (key, true));
    let from_file = value.strip_prefix('@').map(|file| read_file(file, input, key)).transpose()?;
    let value = match (is_json, from_file) {
        (true, text) => {
            let text = text.as_deref().unwrap_or(value);
            serde_json::from_str(text).map_err(|error| format!("the value of `{key}` is not JSON: {error}"))?
        }
        (false, Some(text)) => Value::String(text),
        (false, None) => guess_value(value),
    };
    Ok((key, value))
}

/// Returns what a typed value looks like: JSON if it is any, else text.
fn guess_value(text: &str) -> Value {
    let is_whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match serde_json::from_str(text) {
        Ok(Value::String(_)) | Err(_) => Value::String(text.into()),
        // A number that is too long for 64 bits would become a different number.
        Ok(Value::Number(number)) if is_whole && number.is_f64() => Value::String(text.into()),
        Ok(value) => value,
    }
}

/// Returns an argument with its value as text.
fn as_text((key, value): (String, Value)) -> (String, Value) {
    match value {
        Value::String(_) => (key, value),
        value => (key, Value::String(value.to_string())),
    }
}

fn parse_object(text: &str, what: &str) -> UsageResult<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| format!("{what} is not a JSON object: {error}"))
}

fn merge(found: &mut Map<String, Value>, more: Map<String, Value>) -> UsageResult<()> {
    more.into_iter().try_for_each(|(key, value)| add(found, &key, value))
}

fn add(found: &mut Map<String, Value>, key: &str, value: Value) -> UsageResult<()> {
    match found.insert(key.into(), value) {
        None => Ok(()),
        Some(_) => Err(format!("`{key}` is given twice")),
    }
}

/// Returns the text of a file; `-` is standard input. `key` is the argument whose value it is, if any, for the message.
fn read_file(file: &str, input: &mut impl Read, key: &str) -> UsageResult<String> {
    let text = if file == "-" {
        let mut text = String::new();
        input.read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|error| {
        let mut message = format!("could not read `{file}`: {error}");
        if !key.is_empty() {
            message += &format!("; write text that begins with `@` as {key}:='\"@{file}\"'");
        }
        message
    })
}

#[cfg(test)]
mod tests;
