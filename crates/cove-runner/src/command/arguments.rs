//! The command line of `mcp`, as a request. It touches nothing but the files that it is told to read.

use std::io::Read;

use serde_json::{Map, Value, json};

/// What to do.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    /// Say how it is used.
    Usage,
    Ask {
        /// Without its id.
        request: Map<String, Value>,
        /// Values of a call as they were typed, by key, where only the tool's schema says for sure what they mean.
        typed: Vec<(String, String)>,
        show: Show,
    },
}

/// Which part of the answer is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Show {
    pub(super) part: Part,
    /// Text is printed as JSON too.
    pub(super) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// The member of this name, which is text.
    Text,
    /// What a tool answered: its one member, whatever its name.
    Only,
    /// Of a list of tools, this one.
    Tool(String),
}

pub(super) const USAGE: &str = "\
usage: mcp find WORDS… [--limit N]                 search the tools of all servers
       mcp call SERVER.TOOL [KEY=VALUE…] [OBJECT]  call a tool and print its answer as JSON
       mcp servers                                 list the servers
       mcp tools SERVER [TOOL]                     list the tools of a server, or all there is to know of one
       mcp resources SERVER
       mcp read SERVER URI
       mcp prompts SERVER
       mcp prompt SERVER NAME [KEY=VALUE…]
       mcp output HANDLE                           print the whole output of an earlier cell
       mcp help                                    print the manual

arguments of a tool:
  KEY=VALUE     text where the tool wants text; else a number, true, false, null, [...] or {...} is JSON
  KEY:=JSON     JSON, such as id:='\"007\"' for a text of digits
  KEY=@FILE     the content of a file as text; KEY:=@FILE as JSON; `-` is standard input
  OBJECT        a JSON object with arguments; @FILE reads it from a file, and - from standard input

options: --text (text as it is, not as JSON), --json (also what is text: help, output),
         --raw (of `call`: the whole result), --timeout SECONDS (of `call`)
exit status: 0 done, 1 the tool failed, 2 wrong usage, 3 refused or not known, 4 not reached or no answer
";

type Parsed<T> = Result<T, String>;

/// `args` are those after the program's name.
pub(super) fn parse(args: &[String], mut input: impl Read) -> Parsed<Command> {
    let Options { words, json, raw, limit, timeout, usage } = options(args)?;
    if usage {
        return Ok(Command::Usage);
    }
    let mut words = words.into_iter();
    let Some(verb) = words.next() else { return Err("a command is missing".into()) };
    let rest: Vec<String> = words.collect();
    for (given, name, of) in [
        (limit.is_some(), "--limit", "find"),
        (raw, "--raw", "call"),
        (timeout.is_some(), "--timeout", "call"),
    ] {
        if given && verb != of {
            return Err(format!("`{name}` is an option of `mcp {of}`"));
        }
    }
    let mut part = Part::All;
    let mut typed = Vec::new();
    let request = match (verb.as_str(), &rest[..]) {
        ("find", []) => return Err("`mcp find` needs the words to look for".into()),
        ("find", words) => {
            let mut request = json!({"ask": "find", "query": words.join(" "), "language": "shell"});
            if let Some(limit) = limit {
                request["limit"] = limit.into();
            }
            request
        }
        ("call", words) => {
            part = Part::Only;
            let (server, tool, words) = tool(words)?;
            let arguments = arguments(words, &mut input, &mut typed)?;
            let mut request = json!({"ask": "call", "server": server, "tool": tool, "arguments": arguments});
            if raw {
                request["raw"] = true.into();
            }
            if let Some(timeout) = timeout {
                request["timeout"] = timeout;
            }
            request
        }
        ("servers", []) => json!({"ask": "servers"}),
        ("help", []) => json!({"ask": "help"}),
        ("tools" | "resources" | "prompts", [server]) => json!({"ask": verb, "server": server}),
        ("tools", [server, tool]) => {
            part = Part::Tool(tool.clone());
            json!({"ask": verb, "server": server})
        }
        ("read", [server, uri]) => json!({"ask": "read_resource", "server": server, "uri": uri}),
        ("prompt", [server, name, words @ ..]) => {
            // In MCP all of them are text.
            let given = arguments(words, &mut input, &mut typed)?;
            let mut arguments: Map<String, Value> = given.into_iter().map(as_text).collect();
            arguments.extend(typed.drain(..).map(|(key, text)| (key, Value::String(text))));
            json!({"ask": "prompt", "server": server, "name": name, "arguments": arguments})
        }
        ("output", [handle]) => {
            part = Part::Text;
            json!({"ask": "output", "handle": handle})
        }
        ("servers" | "help" | "tools" | "resources" | "prompts" | "read" | "prompt" | "output", _) => {
            return Err(format!("`mcp {verb}` takes other arguments"));
        }
        _ => return Err(format!("there is no command `{verb}`")),
    };
    match request {
        Value::Object(request) => {
            let json = json.unwrap_or(!matches!(verb.as_str(), "help" | "output"));
            Ok(Command::Ask { request, typed, show: Show { part, json } })
        }
        _ => Err("this makes no request".into()),
    }
}

#[derive(Default)]
struct Options {
    words: Vec<String>,
    /// What was said about it, if anything.
    json: Option<bool>,
    raw: bool,
    limit: Option<u64>,
    timeout: Option<Value>,
    usage: bool,
}

fn options(args: &[String]) -> Parsed<Options> {
    let mut found = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        let mut needed = || {
            value.clone().or_else(|| args.next().cloned()).ok_or_else(|| format!("`{name}` needs a value"))
        };
        match name {
            "--" => {
                found.words.extend(args.by_ref().cloned());
            }
            "--json" if value.is_none() => found.json = Some(true),
            "--text" if value.is_none() => found.json = Some(false),
            "--raw" if value.is_none() => found.raw = true,
            "-h" | "--help" => found.usage = true,
            "--limit" => {
                let limit = needed()?;
                let limit = limit.parse().ok().filter(|limit| *limit > 0);
                found.limit = Some(limit.ok_or("`--limit` needs a whole number from 1")?);
            }
            "--timeout" => {
                let seconds = needed()?;
                let number =
                    seconds.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
                number.ok_or("`--timeout` needs a number of seconds")?;
                found.timeout = Some(value_of(&seconds));
            }
            _ if name.starts_with("--") && name.len() > 2 => {
                return Err(format!(
                    "there is no option `{name}`; an argument that begins with it goes after `--`"
                ));
            }
            _ => found.words.push(arg.clone()),
        }
    }
    Ok(found)
}

/// `SERVER.TOOL`, or the two as two words.
fn tool(words: &[String]) -> Parsed<(&str, &str, &[String])> {
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
        _ => Err(format!("{missing}, and `{first}` is not that")),
    }
}

pub(super) fn arguments(
    words: &[String],
    input: &mut impl Read,
    typed: &mut Vec<(String, String)>,
) -> Parsed<Map<String, Value>> {
    let mut found = Map::new();
    for word in words {
        if word == "-" {
            let text = read("-", input, "")?;
            merge(&mut found, object(&text, "standard input")?)?;
        } else if word.trim_start().starts_with('{') {
            merge(&mut found, object(word, "the object")?)?;
        } else if let Some(file) = word.strip_prefix('@') {
            let text = read(file, input, "")?;
            merge(&mut found, object(&text, &format!("`{file}`"))?)?;
        } else {
            let (key, value) = pair(word, input)?;
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

fn pair<'a>(word: &'a str, input: &mut impl Read) -> Parsed<(&'a str, Value)> {
    let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty() && *key != ":") else {
        return Err(format!("`{word}` is neither KEY=VALUE nor a JSON object"));
    };
    let (key, is_json) = match key.strip_suffix(':') {
        Some(key) => (key, true),
        None => (key, false),
    };
    let from_file = match value.strip_prefix('@') {
        Some(file) => Some(read(file, input, key)?),
        None => None,
    };
    let value = match (is_json, from_file) {
        (true, text) => {
            let text = text.as_deref().unwrap_or(value);
            serde_json::from_str(text)
                .map_err(|error| format!("the value of `{key}` is not JSON: {error}"))?
        }
        (false, Some(text)) => Value::String(text),
        (false, None) => value_of(value),
    };
    Ok((key, value))
}

/// What a value that was typed means.
fn value_of(text: &str) -> Value {
    let is_whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match serde_json::from_str(text) {
        Ok(Value::String(_)) | Err(_) => Value::String(text.into()),
        // A number too long to be kept as it is would come out as another.
        Ok(Value::Number(number)) if is_whole && number.is_f64() => Value::String(text.into()),
        Ok(value) => value,
    }
}

fn as_text((key, value): (String, Value)) -> (String, Value) {
    match value {
        Value::String(_) => (key, value),
        value => (key, Value::String(value.to_string())),
    }
}

fn object(text: &str, what: &str) -> Parsed<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| format!("{what} is not a JSON object: {error}"))
}

fn merge(found: &mut Map<String, Value>, more: Map<String, Value>) -> Parsed<()> {
    more.into_iter().try_for_each(|(key, value)| add(found, &key, value))
}

fn add(found: &mut Map<String, Value>, key: &str, value: Value) -> Parsed<()> {
    match found.insert(key.into(), value) {
        None => Ok(()),
        Some(_) => Err(format!("`{key}` is given twice")),
    }
}

fn read(file: &str, input: &mut impl Read, key: &str) -> Parsed<String> {
    let read = if file == "-" {
        let mut text = String::new();
        input.read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|error| {
        let mut why = format!("could not read `{file}`: {error}");
        if !key.is_empty() {
            why += &format!("; text that begins with `@` is written {key}:='\"@{file}\"'");
        }
        why
    })
}

#[cfg(test)]
mod tests;
