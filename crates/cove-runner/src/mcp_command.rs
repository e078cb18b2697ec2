//! The program `mcp` inside a sandbox: makes one call to the host through the runner's socket, for shells and
//! everything else that can start a program. It prints JSON for `| jq`, or plain text. Failures go to standard error,
//! and their kind decides the exit status.

mod argument_types;
mod arguments;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use cove_protocol::limits::{MAX_CALL, MAX_MESSAGE};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calls::{CALL_SOCKET, CALL_VARIABLE};
use arguments::{AnswerPart, McpCommand, PrintOptions, USAGE};

/// Runs the command with the arguments of this process. Returns the exit status.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let done = match arguments::parse(&args, io::stdin()) {
        Ok(McpCommand::Usage) => print(USAGE),
        Ok(McpCommand::Call { request, typed, print_options }) => call_with_types(request, &typed)
            .and_then(|answer| render(answer, &print_options))
            .and_then(|text| print(&text)),
        Err(message) => Err(CallFailure::new("usage", message, "run `mcp --help` for usage")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is closed, there is nowhere else to report it.
            let _ = io::stderr().write_all(failure.report().as_bytes());
            ExitCode::from(failure.status())
        }
    }
}

/// A reply of the host.
#[derive(Deserialize)]
struct CallReply {
    ok: Option<Value>,
    error: Option<CallFailure>,
}

/// Why a call failed, as the host reports it or as this program found.
#[derive(Debug, Deserialize)]
struct CallFailure {
    kind: String,
    message: String,
    hint: Option<String>,
    server: Option<String>,
    tool: Option<Box<str>>,
    /// What the server sent with its error.
    data: Option<Box<Value>>,
}

impl CallFailure {
    fn new(kind: &str, message: String, hint: &str) -> Self {
        Self { kind: kind.into(), message, hint: Some(hint.into()), server: None, tool: None, data: None }
    }

    /// A failure to reach the host.
    fn unavailable(message: String, hint: &str) -> Self {
        Self::new("unavailable", message, hint)
    }

    /// Returns the text for standard error.
    fn report(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        // A message of the tool itself does not say which tool failed.
        let tool = match (self.kind.as_str(), &self.server, &self.tool) {
            ("tool", Some(server), Some(tool)) => format!("{server}.{tool}: "),
            _ => String::new(),
        };
        let data = self.data.as_ref().map(|data| format!("data: {data}\n")).unwrap_or_default();
        format!("mcp: {tool}{}\n{data}{hint}", self.message)
    }

    fn status(&self) -> u8 {
        exit_status(&self.kind)
    }
}

/// Returns the exit status for a failure of this kind.
pub fn exit_status(kind: &str) -> u8 {
    match kind {
        "usage" | "bad_arguments" => 2,
        "refused" | "tool_changed" | "server_held" | "unknown_server" | "unknown_tool" | "not_found" | "limit" => 3,
        "unavailable" | "gone" | "timeout" | "cancelled" | "internal" => 4,
        "sign_in_needed" => 5,
        // `tool`, `protocol`, and kinds that a later host may add.
        _ => 1,
    }
}

/// Returns the arguments of a tool that the words of a command line give; the word `-` reads standard input. Fails with
/// a message for people.
pub fn parse_arguments(words: &[String]) -> Result<Map<String, Value>, String> {
    arguments::parse_arguments(words, &mut io::stdin(), &mut Vec::new())
}

/// Makes a call. If the host refuses the arguments, it reads values such as `2024` as the tool's schema wants them and
/// tries once more; the refused call has not reached the tool.
fn call_with_types(request: Map<String, Value>, typed: &[(String, String)]) -> Result<Value, CallFailure> {
    let failure = match call(request.clone()) {
        Err(failure) if failure.kind == "bad_arguments" && !typed.is_empty() => failure,
        answered => return answered,
    };
    let tools = Map::from_iter([
        ("ask".to_owned(), Value::from("tools")),
        ("server".to_owned(), request.get("server").cloned().unwrap_or_default()),
    ]);
    match call(tools).ok().and_then(|tools| argument_types::apply_schema(&request, typed, &tools)) {
        Some(request) => call(request),
        None => Err(failure),
    }
}

/// Makes a call and returns its value. Fails if the host cannot be reached, or answers with a failure.
fn call(request: Map<String, Value>) -> Result<Value, CallFailure> {
    let path = std::env::var_os(CALL_VARIABLE).unwrap_or_else(|| CALL_SOCKET.into());
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let message = format!("could not connect to `{}`: {error}", path.display());
        CallFailure::unavailable(message, "`mcp` works in the cells of a Cove sandbox")
    })?;
    let reply = exchange(&mut stream, request).map_err(|error| {
        CallFailure::unavailable(format!("could not get an answer: {error}"), "try again in a new cell")
    })?;
    match reply {
        CallReply { error: Some(failure), .. } => Err(failure),
        CallReply { ok, .. } => Ok(ok.unwrap_or_default()),
    }
}

/// Sends one request and reads one reply.
fn exchange(stream: &mut (impl Read + Write), mut request: Map<String, Value>) -> io::Result<CallReply> {
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
    // The socket may have been replaced by hostile code, so its length is not trusted.
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than a reply may be"));
    }
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply)?;
    Ok(serde_json::from_slice(&reply)?)
}

/// Returns the text to print for an answer. Fails if the answer lacks the tool that was asked for.
fn render(mut answer: Value, options: &PrintOptions) -> Result<String, CallFailure> {
    let value = match (&options.part, &mut answer) {
        (AnswerPart::Tool(name), Value::Array(tools)) => match argument_types::find_tool(tools, name) {
            Some(at) => tools.swap_remove(at),
            None => {
                let message = format!("the server has no tool `{name}`");
                return Err(CallFailure::new("unknown_tool", message, "`mcp tools SERVER` lists its tools"));
            }
        },
        (AnswerPart::Text, Value::Object(object)) => object.remove("text").unwrap_or_default(),
        (AnswerPart::ToolValue, Value::Object(object)) => {
            // Blocks beside a text say nothing that a shell could use.
            let parts = ["value", "rich", "raw"];
            parts.iter().find_map(|part| object.remove(*part)).unwrap_or(answer)
        }
        _ => answer,
    };
    let mut text = match value {
        Value::String(text) if !options.json => text,
        value => value.to_string(),
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Prints a text. A reader that has closed its end, such as `head`, has read what it wanted, so that is no failure.
fn print(text: &str) -> Result<(), CallFailure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("could not write to standard output: {error}");
            Err(CallFailure::new("output", message, "free some space where the output goes, or print less"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check_text(answer: Value, part: AnswerPart, json: bool, expected: &str) {
        assert_eq!(render(answer, &PrintOptions { part, json }).unwrap(), expected);
    }

    #[test]
    fn prints_json_for_jq_and_text_for_people() {
        check_text(json!({"value": {"b": 1, "a": [2]}}), AnswerPart::ToolValue, false, "{\"b\":1,\"a\":[2]}\n");
        check_text(json!({"value": "two\nlines"}), AnswerPart::ToolValue, false, "two\nlines\n");
        check_text(json!({"value": "line\n"}), AnswerPart::ToolValue, false, "line\n");
        check_text(json!({"value": "x"}), AnswerPart::ToolValue, true, "\"x\"\n");
        check_text(json!({"value": null}), AnswerPart::ToolValue, false, "null\n");
        check_text(json!({"value": "a", "content": [{"type": "text"}]}), AnswerPart::ToolValue, false, "a\n");
        check_text(
            json!({"rich": {"text": "t", "content": []}}),
            AnswerPart::ToolValue,
            false,
            "{\"text\":\"t\",\"content\":[]}\n",
        );
        check_text(json!([{"name": "a"}]), AnswerPart::All, false, "[{\"name\":\"a\"}]\n");
        check_text(json!("the manual"), AnswerPart::All, false, "the manual\n");
        check_text(json!({"text": "out"}), AnswerPart::Text, false, "out\n");
        let tools = json!([{"name": "a-b", "alias": "a_b"}, {"name": "c", "alias": "c"}]);
        check_text(tools.clone(), AnswerPart::Tool("c".into()), true, "{\"name\":\"c\",\"alias\":\"c\"}\n");
        check_text(tools.clone(), AnswerPart::Tool("a_b".into()), true, "{\"name\":\"a-b\",\"alias\":\"a_b\"}\n");
        let wrong = render(tools, &PrintOptions { part: AnswerPart::Tool("d".into()), json: true }).unwrap_err();
        assert_eq!((wrong.status(), wrong.message.as_str()), (3, "the server has no tool `d`"));
    }

    #[test]
    fn the_kind_of_a_failure_decides_the_exit_status() {
        let status = |kind: &str| CallFailure::new(kind, String::new(), "").status();
        assert_eq!(["tool", "protocol", "new"].map(status), [1; 3]);
        assert_eq!(["usage", "bad_arguments"].map(status), [2; 2]);
        assert_eq!(["refused", "unknown_server", "unknown_tool", "not_found", "limit"].map(status), [3; 5]);
        assert_eq!(["tool_changed", "server_held"].map(status), [3; 2]);
        assert_eq!(["unavailable", "gone", "timeout", "cancelled", "internal"].map(status), [4; 5]);
        assert_eq!(status("sign_in_needed"), 5);
        let failure = CallFailure::new("tool", "it broke".into(), "mend it");
        assert_eq!(failure.report(), "mcp: it broke\nhint: mend it\n");
        let named = CallFailure { server: Some("s".into()), tool: Some("t".into()), ..failure };
        assert_eq!(named.report(), "mcp: s.t: it broke\nhint: mend it\n");
        let with_data = CallFailure { data: Some(Box::new(json!({"field": "a\nb"}))), ..named };
        assert_eq!(with_data.report(), "mcp: s.t: it broke\ndata: {\"field\":\"a\\nb\"}\nhint: mend it\n");
    }

    /// A stream that returns prepared bytes and records what is written to it.
    struct CannedStream(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for CannedStream {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for CannedStream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn exchanges_one_request_and_one_reply() {
        let reply = br#"{"id":1,"ok":[]}"#;
        let mut stream = CannedStream(io::Cursor::new([&[0, 0, 0, 16], &reply[..]].concat()), Vec::new());
        let request = Map::from_iter([("ask".to_owned(), "servers".into())]);
        let got = exchange(&mut stream, request).unwrap();
        assert_eq!((got.ok, got.error.is_none()), (Some(json!([])), true));
        assert_eq!(stream.1, b"\0\0\0\x18{\"ask\":\"servers\",\"id\":1}");
        for bytes in [&b""[..], b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x09{}", b"\0\0\0\x01{"] {
            let mut stream = CannedStream(io::Cursor::new(bytes.to_vec()), Vec::new());
            assert!(exchange(&mut stream, Map::new()).is_err(), "{bytes:?}");
        }
    }
}
