//! Asking Docker, or Podman in Docker's language, over its socket: one question on one connection, which ends with the
//! answer. Just enough to see that it is up, to load images and to clean up; the product's own client is not judged by
//! itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Loading images takes seconds; this is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(300);
const MOST: u64 = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// `path` begins with a slash.
pub(super) fn ask(socket: &Path, method: &str, path: &str) -> Result<Answer, String> {
    exchange(socket, &head(method, path, "application/json", 0), io::empty())
}

/// The body of a question that must be answered well, as JSON.
pub(super) fn get(socket: &Path, path: &str) -> Result<Value, String> {
    let answer = ask(socket, "GET", path)?;
    if answer.status != 200 {
        return Err(answer.complaint(&format!("GET {path}")));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| format!("could not read the answer to `GET {path}`\ncaused by: {error}"))
}

pub(super) fn send_file(socket: &Path, path: &str, file: &Path) -> Result<Answer, String> {
    let opened = File::open(file).and_then(|opened| opened.metadata().map(|about| (opened, about.len())));
    let (file, length) =
        opened.map_err(|error| format!("could not open `{}`\ncaused by: {error}", file.display()))?;
    exchange(socket, &head("POST", path, "application/x-tar", length), file)
}

/// A question with JSON, for the tests of what was started.
#[cfg(test)]
pub(super) fn post(socket: &Path, path: &str, body: &Value) -> Result<Value, String> {
    // Nothing is not sent as the word for it: who does not read it resets the connection.
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = head("POST", path, "application/json", body.len() as u64);
    let answer = exchange(socket, &head, body.as_bytes())?;
    match answer.status {
        200..300 if answer.body.is_empty() => Ok(Value::Null),
        200..300 => serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: {error}")),
        _ => Err(answer.complaint(&format!("POST {path}"))),
    }
}

fn exchange(socket: &Path, head: &str, mut body: impl Read) -> Result<Answer, String> {
    let question = head.split(" HTTP").next().unwrap_or_default();
    let could_not = |error: io::Error| {
        format!("could not ask `{question}` at `{}`\ncaused by: {error}", socket.display())
    };
    let mut stream = UnixStream::connect(socket).map_err(could_not)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(could_not)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(could_not)?;
    stream.write_all(head.as_bytes()).map_err(could_not)?;
    // Who refuses a body early resets the connection, and the answer that came before says why.
    let _ = io::copy(&mut body, &mut stream);
    let mut bytes = Vec::new();
    let read = stream.take(MOST).read_to_end(&mut bytes);
    match (parse(&bytes), read) {
        (Some(answer), _) => Ok(answer),
        (None, Err(error)) => Err(could_not(error)),
        (None, Ok(_)) => Err(format!("could not understand the answer to `{question}`")),
    }
}

/// In the protocol's first version an answer is never in chunks, and the connection ends with it.
fn head(method: &str, path: &str, kind: &str, length: u64) -> String {
    format!(
        "{method} {path} HTTP/1.0\r\nHost: cove\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: bytes[end + 4..].to_vec() })
}

impl Answer {
    /// Both report trouble as `{"message": …}`.
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
        let answer =
            parse(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"message\":\"no such image\"}\n").unwrap();
        assert_eq!(answer.status, 404);
        assert_eq!(answer.complaint("GET /x"), "`GET /x` was answered with 404\ncaused by: no such image");
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n").unwrap(), Answer { status: 200, body: Vec::new() });
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
