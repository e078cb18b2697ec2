//! A minimal client for the API of Docker, which Podman speaks too: one request per connection, which closes after
//! the answer. It can only see that the engine is up, load images and clean up. It is separate from the product's own
//! client, so that this client does not judge itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::attempts::ErrorContext;

/// Loading images takes seconds; the limit is for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
const MOST: u64 = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct EngineAnswer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// `path` begins with a slash.
pub(super) fn ask(socket: &Path, method: &str, path: &str) -> Result<EngineAnswer, String> {
    exchange(socket, &head(method, path, "application/json", 0), io::empty())
}

/// Sends a request that must succeed, and returns its body as JSON.
pub(super) fn get(socket: &Path, path: &str) -> Result<Value, String> {
    let answer = ask(socket, "GET", path)?;
    if answer.status != 200 {
        return Err(answer.complaint(&format!("GET {path}")));
    }
    serde_json::from_slice(&answer.body).could_not(format_args!("read the answer to `GET {path}`"))
}

pub(super) fn send_file(socket: &Path, path: &str, file: &Path) -> Result<EngineAnswer, String> {
    let opened = File::open(file).and_then(|opened| opened.metadata().map(|about| (opened, about.len())));
    let (file, length) = opened.could_not(format_args!("open `{}`", file.display()))?;
    exchange(socket, &head("POST", path, "application/x-tar", length), file)
}

/// Sends a request with a JSON body, for the tests of the engines.
#[cfg(test)]
pub(super) fn post(socket: &Path, path: &str, body: &Value) -> Result<Value, String> {
    // An empty body is sent as nothing rather than as `null`: an engine that does not read a body resets the
    // connection.
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = head("POST", path, "application/json", body.len() as u64);
    let answer = exchange(socket, &head, body.as_bytes())?;
    match answer.status {
        200..300 if answer.body.is_empty() => Ok(Value::Null),
        200..300 => serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: {error}")),
        _ => Err(answer.complaint(&format!("POST {path}"))),
    }
}

fn exchange(socket: &Path, head: &str, mut body: impl Read) -> Result<EngineAnswer, String> {
    let question = head.split(" HTTP").next().unwrap_or_default();
    let what = format!("ask `{question}` at `{}`", socket.display());
    let mut stream = UnixStream::connect(socket).could_not(&what)?;
    stream.set_read_timeout(Some(TIMEOUT)).could_not(&what)?;
    stream.set_write_timeout(Some(TIMEOUT)).could_not(&what)?;
    stream.write_all(head.as_bytes()).could_not(&what)?;
    // An engine that refuses a body early resets the connection; the answer that it sent before gives the reason.
    let _ = io::copy(&mut body, &mut stream);
    let mut bytes = Vec::new();
    let read = stream.take(MOST).read_to_end(&mut bytes);
    match parse(&bytes) {
        Some(answer) => Ok(answer),
        None => read.could_not(&what).and_then(|_| Err(format!("could not understand the answer to `{question}`"))),
    }
}

/// With HTTP/1.0 an answer is never chunked, and the connection closes after it.
fn head(method: &str, path: &str, kind: &str, length: u64) -> String {
    format!("{method} {path} HTTP/1.0\r\nHost: cove\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n")
}

fn parse(bytes: &[u8]) -> Option<EngineAnswer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(EngineAnswer { status, body: bytes[end + 4..].to_vec() })
}

impl EngineAnswer {
    /// Both engines report errors as `{"message": …}`.
    pub(super) fn complaint(&self, question: &str) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = String::from_utf8_lossy(&self.body);
        let message = body["message"].as_str().unwrap_or_else(|| text.trim());
        format!("`{question}` was answered with {}\ncaused by: {message}", self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = parse(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"message\":\"no such image\"}\n").unwrap();
        assert_eq!(answer.status, 404);
        assert_eq!(answer.complaint("GET /x"), "`GET /x` was answered with 404\ncaused by: no such image");
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n").unwrap(), EngineAnswer { status: 200, body: Vec::new() });
        for broken in [&b""[..], b"HTTP/1.0 200 OK\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.0 many\r\n\r\n"] {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn a_question_asks_for_an_answer_without_chunks() {
        let head = head("POST", "/images/load", "application/x-tar", 7);
        assert!(head.starts_with("POST /images/load HTTP/1.0\r\n"), "{head}");
        assert!(head.ends_with("Content-Length: 7\r\n\r\n"), "{head}");
    }
}
