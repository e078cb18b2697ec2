//! git's own server for its smart protocol, as a web server calls it. Everyone may read; who has the token may write.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;

use super::loopback_site::SiteRequest;

/// Who may push.
pub(crate) const PUSHER: &str = "agent";
pub(crate) const PUSH_TOKEN: &str = "T0kenThatMayPushAndThatNoSandboxMaySee";

/// Returns the answer to a request for a repository in `root`.
pub(super) fn answer_git(root: &Path, request: &SiteRequest) -> io::Result<Vec<u8>> {
    let (path, query) = request.word(1).split_once('?').unwrap_or((request.word(1), ""));
    let mut backend = Command::new("git");
    backend.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    backend.env("REQUEST_METHOD", request.word(0)).env("PATH_INFO", path).env("QUERY_STRING", query);
    backend.env("CONTENT_LENGTH", request.body.len().to_string());
    for (variable, field) in [
        ("CONTENT_TYPE", "content-type"),
        ("HTTP_CONTENT_ENCODING", "content-encoding"),
        ("GIT_PROTOCOL", "git-protocol"),
    ] {
        backend.envs(request.field(field).map(|value| (variable, value)));
    }
    let credential = base64::engine::general_purpose::STANDARD.encode(format!("{PUSHER}:{PUSH_TOKEN}"));
    if request.field("authorization") == Some(format!("Basic {credential}").as_str()) {
        backend.env("REMOTE_USER", PUSHER).env("REMOTE_ADDR", "127.0.0.1");
    }
    let mut process = backend.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (mut input, body) = (process.stdin.take().expect("it is a pipe"), request.body.clone());
    // It may answer before it has read everything.
    let writer = std::thread::spawn(move || drop(input.write_all(&body)));
    let output = process.wait_with_output()?;
    let _ = writer.join();
    let end = output.stdout.windows(4).position(|window| window == b"\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let (fields, body) = (String::from_utf8_lossy(&output.stdout[..end]), &output.stdout[end + 4..]);
    let status = fields.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    let fields = fields.lines().filter(|line| !line.starts_with("Status: ")).collect::<Vec<_>>().join("\r\n");
    let length = body.len();
    Ok([format!("HTTP/1.1 {status}\r\n{fields}\r\nContent-Length: {length}\r\n\r\n").as_bytes(), body].concat())
}
