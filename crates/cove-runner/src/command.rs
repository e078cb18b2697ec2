//! The program `mcp` inside a sandbox: one request to the host through the runner's socket, for shells and whatever else
//! can start a program. Prints what `| jq` can read, or text as it is; failures go to standard error, and their kind is
//! the exit status.

mod arguments;
mod typing;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use cove_protocol::limits::{MAX_CALL, MAX_MESSAGE};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calls::{SOCKET, VARIABLE};
use arguments::{Command, Part, Show, USAGE};

/// The command's role. Its arguments are those of this process.
pub fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let done = match arguments::parse(&args, io::stdin()) {
        Ok(Command::Usage) => print(USAGE),
        Ok(Command::Ask { request, typed, show }) => {
            tried(request, &typed).and_then(|answer| shown(answer, &show)).and_then(|text| print(&text))
        }
        Err(message) => Err(Failure::new("usage", message, "`mcp --help` says how it is used")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Standard error may be closed; there is nowhere else to say so.
            let _ = io::stderr().write_all(failure.report().as_bytes());
            ExitCode::from(failure.status())
        }
    }
}

#[derive(Deserialize)]
struct Reply {
    ok: Option<Value>,
    error: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    kind: String,
    message: String,
    hint: Option<String>,
    server: Option<String>,
    tool: Option<String>,
}

impl Failure {
    fn new(kind: &str, message: String, hint: &str) -> Self {
        Self { kind: kind.into(), message, hint: Some(hint.into()), server: None, tool: None }
    }

    fn unreached(message: String, hint: &str) -> Self {
        Self::new("unavailable", message, hint)
    }

    fn report(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        // The words of the tool's own do not say whose they are.
        let whose = match (self.kind.as_str(), &self.server, &self.tool) {
            ("tool", Some(server), Some(tool)) => format!("{server}.{tool}: "),
            _ => String::new(),
        };
        format!("mcp: {whose}{}\n{hint}", self.message)
    }

    fn status(&self) -> u8 {
        status(&self.kind)
    }
}

/// The exit status for a failure of a kind.
pub fn status(kind: &str) -> u8 {
    match kind {
        "usage" | "bad_arguments" => 2,
        "refused" | "unknown_server" | "unknown_tool" | "not_found" | "limit" => 3,
        "unavailable" | "gone" | "timeout" | "cancelled" | "internal" => 4,
        // `tool`, `protocol`, and what a later host may think of.
        _ => 1,
    }
}

/// The arguments of a tool as words of a command line say them; `-` among them is standard input.
pub fn arguments(words: &[String]) -> Result<Map<String, Value>, String> {
    arguments::arguments(words, &mut io::stdin(), &mut Vec::new())
}

/// Asks, and once more where values that were typed meant something else to the tool: nothing was sent to it then.
fn tried(request: Map<String, Value>, typed: &[(String, String)]) -> Result<Value, Failure> {
    let failure = match ask(request.clone()) {
        Err(failure) if failure.kind == "bad_arguments" && !typed.is_empty() => failure,
        answered => return answered,
    };
    let tools = Map::from_iter([
        ("ask".to_owned(), Value::from("tools")),
        ("server".to_owned(), request.get("server").cloned().unwrap_or_default()),
    ]);
    match ask(tools).ok().and_then(|tools| typing::retyped(&request, typed, &tools)) {
        Some(request) => ask(request),
        None => Err(failure),
    }
}

fn ask(request: Map<String, Value>) -> Result<Value, Failure> {
    let path = std::env::var_os(VARIABLE).unwrap_or_else(|| SOCKET.into());
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let message = format!("could not connect to `{}`: {error}", path.display());
        Failure::unreached(message, "`mcp` works in a cell, in a sandbox of Cove")
    })?;
    let reply = exchange(&mut stream, request).map_err(|error| {
        Failure::unreached(format!("could not get an answer: {error}"), "try again in a new cell")
    })?;
    match reply {
        Reply { error: Some(failure), .. } => Err(failure),
        Reply { ok, .. } => Ok(ok.unwrap_or_default()),
    }
}

fn exchange(stream: &mut (impl Read + Write), mut request: Map<String, Value>) -> io::Result<Reply> {
    request.insert("id".into(), 1.into());
    let request = serde_json::to_vec(&request)?;
    if request.len() > MAX_CALL {
        let message = format!("the request has {} bytes, at most {MAX_CALL} are allowed", request.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut bytes = (request.len() as u32).to_be_bytes().to_vec();
    bytes.extend(request);
    stream.write_all(&bytes)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than an answer may be"));
    }
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply)?;
    Ok(serde_json::from_slice(&reply)?)
}

/// What is printed of an answer.
fn shown(mut answer: Value, show: &Show) -> Result<String, Failure> {
    let value = match (&show.part, &mut answer) {
        (Part::Tool(name), Value::Array(tools)) => match typing::position(tools, name) {
            Some(at) => tools.swap_remove(at),
            None => {
                let message = format!("the server has no tool `{name}`");
                return Err(Failure::new("unknown_tool", message, "`mcp tools SERVER` lists what it has"));
            }
        },
        (Part::Text, Value::Object(object)) => object.remove("text").unwrap_or_default(),
        (Part::Only, Value::Object(object)) => match object.keys().next().cloned() {
            Some(only) if object.len() == 1 => object.remove(&only).unwrap_or_default(),
            _ => answer,
        },
        _ => answer,
    };
    let mut text = match value {
        Value::String(text) if !show.json => text,
        value => value.to_string(),
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// A reader that closed its end, such as `head`, has seen what it wanted.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("could not write to standard output: {error}");
            Err(Failure::new("output", message, "make room where it goes to, or write less"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check_shown(answer: Value, part: Part, json: bool, expected: &str) {
        assert_eq!(shown(answer, &Show { part, json }).unwrap(), expected);
    }

    #[test]
    fn answers_are_printed_for_jq_and_text_for_people() {
        check_shown(json!({"value": {"b": 1, "a": [2]}}), Part::Only, false, "{\"b\":1,\"a\":[2]}\n");
        check_shown(json!({"value": "two\nlines"}), Part::Only, false, "two\nlines\n");
        check_shown(json!({"value": "line\n"}), Part::Only, false, "line\n");
        check_shown(json!({"value": "x"}), Part::Only, true, "\"x\"\n");
        check_shown(json!({"value": null}), Part::Only, false, "null\n");
        check_shown(
            json!({"rich": {"text": "t", "content": []}}),
            Part::Only,
            false,
            "{\"text\":\"t\",\"content\":[]}\n",
        );
        check_shown(json!([{"name": "a"}]), Part::All, false, "[{\"name\":\"a\"}]\n");
        check_shown(json!("the manual"), Part::All, false, "the manual\n");
        check_shown(json!({"text": "out"}), Part::Text, false, "out\n");
        let tools = json!([{"name": "a-b", "alias": "a_b"}, {"name": "c", "alias": "c"}]);
        check_shown(tools.clone(), Part::Tool("c".into()), true, "{\"name\":\"c\",\"alias\":\"c\"}\n");
        check_shown(tools.clone(), Part::Tool("a_b".into()), true, "{\"name\":\"a-b\",\"alias\":\"a_b\"}\n");
        let wrong = shown(tools, &Show { part: Part::Tool("d".into()), json: true }).unwrap_err();
        assert_eq!((wrong.status(), wrong.message.as_str()), (3, "the server has no tool `d`"));
    }

    #[test]
    fn the_kind_of_a_failure_is_its_status() {
        let status = |kind: &str| Failure::new(kind, String::new(), "").status();
        assert_eq!(["tool", "protocol", "new"].map(status), [1; 3]);
        assert_eq!(["usage", "bad_arguments"].map(status), [2; 2]);
        assert_eq!(["refused", "unknown_server", "unknown_tool", "not_found", "limit"].map(status), [3; 5]);
        assert_eq!(["unavailable", "gone", "timeout", "cancelled", "internal"].map(status), [4; 5]);
        let failure = Failure::new("tool", "it broke".into(), "mend it");
        assert_eq!(failure.report(), "mcp: it broke\nhint: mend it\n");
        let named = Failure { server: Some("s".into()), tool: Some("t".into()), ..failure };
        assert_eq!(named.report(), "mcp: s.t: it broke\nhint: mend it\n");
    }

    /// A stream that has been written to in advance.
    struct Canned(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Canned {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Canned {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn one_request_and_one_reply() {
        let reply = br#"{"id":1,"ok":[]}"#;
        let mut stream = Canned(io::Cursor::new([&[0, 0, 0, 16], &reply[..]].concat()), Vec::new());
        let request = Map::from_iter([("ask".to_owned(), "servers".into())]);
        let got = exchange(&mut stream, request).unwrap();
        assert_eq!((got.ok, got.error.is_none()), (Some(json!([])), true));
        assert_eq!(stream.1, b"\0\0\0\x18{\"ask\":\"servers\",\"id\":1}");
        for bytes in [&b""[..], b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x09{}", b"\0\0\0\x01{"] {
            let mut stream = Canned(io::Cursor::new(bytes.to_vec()), Vec::new());
            assert!(exchange(&mut stream, Map::new()).is_err(), "{bytes:?}");
        }
    }
}
