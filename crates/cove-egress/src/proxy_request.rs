//! The head of a request to the proxy, read strictly: what two programs could read differently is refused. Of a plain
//! request, the server gets only what this module writes, never the client's own bytes.

#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/proxy_request.rs"]
pub(crate) mod exercise;

use std::fmt::Write;

use httparse::{EMPTY_HEADER, Header, Request, Status};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use crate::refusal::{EgressRefusal, RefusalReason, UNREADABLE};
use crate::rules::RequestKind;
use crate::target_host::HostTarget;

pub(crate) const MAX_HEAD: usize = 64 * 1024;
pub(crate) const MAX_FIELDS: usize = 100;
/// More than any method has. An audit line has the whole of it.
pub(crate) const MAX_METHOD: usize = 32;
pub(crate) const LONG_METHOD: &str = "its method has more than 32 characters";
/// A head that is longer than those of most programs may carry something out.
const MAX_USUAL_HEAD: usize = 2048;
/// What the line of a refusal shows of a target that it cannot understand.
const MAX_SHOWN: usize = 100;
/// Fields that are about one connection only. This module writes `Host` and the length itself.
pub(crate) const DROPPED_FIELDS: [&str; 11] = [
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyRequest {
    pub(crate) target: HostTarget,
    pub(crate) method: String,
    /// Of a plain request, without its query.
    pub(crate) path: String,
    pub(crate) form: RequestForm,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestForm {
    /// `CONNECT`.
    Tunnel,
    /// A plain request: the head for the server, and how long its body is.
    Plain { head: String, body: BodyLength },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Known(u64),
    Chunked,
}

impl ProxyRequest {
    pub(crate) fn kind(&self) -> RequestKind {
        match self.form {
            RequestForm::Tunnel => RequestKind::Tunnel,
            RequestForm::Plain { .. } => RequestKind::PlainHttp,
        }
    }

    /// True if the request may carry more out than its audit line shows.
    pub(crate) fn sends(&self) -> bool {
        match &self.form {
            RequestForm::Tunnel => true,
            RequestForm::Plain { head, body } => {
                let has_query = head.lines().next().is_some_and(|line| line.contains('?'));
                *body != BodyLength::Known(0) || sends_in_head(&self.method, has_query, head.len())
            }
        }
    }

    /// Reads the whole head of a request to the proxy. Fails with the refusal to answer.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, EgressRefusal> {
        Self::read(bytes, |method, uri, fields| match method {
            "CONNECT" => Self::tunnel(uri, fields),
            _ => Self::plain(method, uri, fields),
        })
    }

    /// Reads the whole head of a request to a server, whose name the client has connected to.
    pub(crate) fn parse_to_server(bytes: &[u8], target: &HostTarget) -> Result<Self, EgressRefusal> {
        let read = Self::read(bytes, |method, path, fields| {
            if method == "CONNECT" || !path.starts_with('/') {
                return Err(malformed(path, "a request to a server begins with a method and a path"));
            }
            Self::to_server(method, path, target.clone(), fields, path)
        });
        read.map_err(|refusal| {
            let hint = "send HTTP/1.1 requests with this host in their Host field".to_owned();
            EgressRefusal { target: target.to_string(), hint, ..refusal }
        })
    }

    /// A connection of which Cove passes on the bytes.
    pub(crate) fn of_tunnel(target: HostTarget) -> Self {
        Self { target, method: "CONNECT".to_owned(), path: String::new(), form: RequestForm::Tunnel }
    }

    /// Reads a head, and passes on its method, its target as it is written, and its fields.
    fn read(
        bytes: &[u8],
        make: impl FnOnce(&str, &str, &[Header<'_>]) -> Result<Self, EgressRefusal>,
    ) -> Result<Self, EgressRefusal> {
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut request = Request::new(&mut fields);
        match request.parse(bytes) {
            _ if has_bare_line_break(bytes) => return Err(malformed(UNREADABLE, "a line ends without CR and LF")),
            Ok(Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Err(malformed(UNREADABLE, "its head is not whole")),
            Err(error) => return Err(malformed(UNREADABLE, &error.to_string())),
        }
        let (Some(method), Some(uri), Some(version)) = (request.method, request.path, request.version) else {
            return Err(malformed(UNREADABLE, "its first line is not whole"));
        };
        match (method, version) {
            _ if method.len() > MAX_METHOD => Err(malformed(uri, LONG_METHOD)),
            ("CONNECT", _) | (_, 1) => make(method, uri, request.headers),
            _ => Err(malformed(uri, "HTTP/1.0 is too old for plain requests")),
        }
    }

    fn tunnel(authority: &str, fields: &[Header<'_>]) -> Result<Self, EgressRefusal> {
        let target = read_target(authority, None, authority)?;
        check_host_field(fields, &target, authority)?;
        if body_length(fields, authority)? != BodyLength::Known(0) {
            return Err(malformed(authority, "a CONNECT request has no body"));
        }
        Ok(Self::of_tunnel(target))
    }

    fn plain(method: &str, uri: &str, fields: &[Header<'_>]) -> Result<Self, EgressRefusal> {
        // No scheme has upper-case letters in what clients send.
        let Some(rest) = uri.strip_prefix("http://") else {
            return Err(malformed(uri, "a proxy takes `CONNECT host:port` and `http://` addresses"));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let target = read_target(authority, Some(80), uri)?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Self::to_server(method, &path, target, fields, uri)
    }

    /// Makes a plain request. `shown` is what a refusal calls it.
    fn to_server(
        method: &str,
        path: &str,
        target: HostTarget,
        fields: &[Header<'_>],
        shown: &str,
    ) -> Result<Self, EgressRefusal> {
        check_host_field(fields, &target, shown)?;
        if path.contains('#') {
            return Err(malformed(shown, "an address in a request has no fragment"));
        }
        if fields.iter().filter(|field| field.name.eq_ignore_ascii_case("host")).count() == 0 {
            return Err(malformed(shown, "it has no Host field"));
        }
        let body = body_length(fields, shown)?;
        let head = server_head(method, path, &target, fields, body).map_err(|problem| malformed(shown, problem))?;
        let path = path.split('?').next().unwrap_or_default().to_owned();
        Ok(Self { target, method: method.to_owned(), path, form: RequestForm::Plain { head, body } })
    }
}

/// True if a request of this method may carry something out without a body: in its query, or in a head of this many bytes.
pub(crate) fn sends_in_head(method: &str, has_query: bool, size: usize) -> bool {
    has_query || size > MAX_USUAL_HEAD || !matches!(method, "GET" | "HEAD")
}

/// Writes the head that the server gets. Fails if a field is not text.
fn server_head(
    method: &str,
    path: &str,
    target: &HostTarget,
    fields: &[Header<'_>],
    body: BodyLength,
) -> Result<String, &'static str> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}", target.host);
    if target.port != 80 {
        let _ = write!(head, ":{}", target.port);
    }
    head.push_str("\r\n");
    // Fields that the client calls its connection's own.
    let own = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("connection"));
    let own: Vec<String> = own
        .flat_map(|field| {
            String::from_utf8_lossy(field.value)
                .to_ascii_lowercase()
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    for field in fields {
        let name = field.name.to_ascii_lowercase();
        if DROPPED_FIELDS.contains(&name.as_str()) || name == "upgrade" || own.contains(&name) {
            continue;
        }
        let value = std::str::from_utf8(field.value).map_err(|_| "a field is not text")?;
        let _ = write!(head, "{}: {value}\r\n", field.name);
    }
    match body {
        BodyLength::Known(0) if matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS") => {}
        BodyLength::Known(length) => drop(write!(head, "Content-Length: {length}\r\n")),
        BodyLength::Chunked => head.push_str("Transfer-Encoding: chunked\r\n"),
    }
    head.push_str("Connection: close\r\n\r\n");
    Ok(head)
}

pub(crate) fn has_bare_line_break(bytes: &[u8]) -> bool {
    let mut before = 0;
    bytes.iter().any(|&byte| {
        let is_bare = (byte == b'\n') != (before == b'\r');
        before = byte;
        is_bare
    })
}

fn read_target(authority: &str, default_port: Option<u16>, shown: &str) -> Result<HostTarget, EgressRefusal> {
    HostTarget::parse(authority, default_port).map_err(|problem| malformed_host(shown, problem))
}

/// Refuses a host that is not canonical text.
pub(crate) fn malformed_host(shown: &str, problem: &str) -> EgressRefusal {
    let cause = format!("the host cannot be read: {problem}");
    refusal(RefusalReason::MalformedHost, shown, &cause, "write a plain host name and a port")
}

/// Fails unless the field names the target, with or without its port, or is absent.
fn check_host_field(fields: &[Header<'_>], target: &HostTarget, shown: &str) -> Result<(), EgressRefusal> {
    let mut hosts = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    let Some(host) = hosts.next() else { return Ok(()) };
    if hosts.next().is_some() {
        return Err(malformed(shown, "it has two Host fields"));
    }
    let host = std::str::from_utf8(host.value).unwrap_or_default();
    let names_target = HostTarget::parse(host, Some(target.port)).is_ok_and(|named| named == *target);
    if names_target { Ok(()) } else { Err(malformed(shown, "its Host field names another host")) }
}

pub(crate) fn body_length(fields: &[Header<'_>], shown: &str) -> Result<BodyLength, EgressRefusal> {
    let find = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let (lengths, encodings) = (find("content-length").count(), find("transfer-encoding").count());
    if lengths + encodings > 1 {
        return Err(malformed(shown, "it says twice how long its body is"));
    }
    if let Some(encoding) = find("transfer-encoding").next() {
        return match encoding.value.eq_ignore_ascii_case(b"chunked") {
            true => Ok(BodyLength::Chunked),
            false => Err(malformed(shown, "its Transfer-Encoding is not `chunked`")),
        };
    }
    let Some(length) = find("content-length").next() else { return Ok(BodyLength::Known(0)) };
    let text = std::str::from_utf8(length.value).unwrap_or_default();
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.parse().ok().filter(|_| is_plain);
    length.map(BodyLength::Known).ok_or_else(|| malformed(shown, "its Content-Length is not a number"))
}

fn malformed(shown: &str, cause: &str) -> EgressRefusal {
    let hint = "send `CONNECT host:port` or a request for an `http://` address, as HTTP/1.1";
    refusal(RefusalReason::MalformedRequest, shown, cause, hint)
}

fn refusal(reason: RefusalReason, shown: &str, cause: &str, hint: &str) -> EgressRefusal {
    // A query may hold secrets, and the guest chose every character.
    let shown = if shown == UNREADABLE { shown } else { shown.split('?').next().unwrap_or_default() };
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    let target = shown.chars().take(MAX_SHOWN).map(plain).collect();
    EgressRefusal { reason, target, cause: cause.to_owned(), hint: hint.to_owned() }
}

/// Reads a head up to its empty line. Returns None if the client has gone before its first byte.
pub(crate) async fn read_head(client: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Vec<u8>>, EgressRefusal> {
    let mut head = Vec::new();
    loop {
        let Ok(ahead) = client.fill_buf().await else { return Ok(None) };
        if ahead.is_empty() {
            return if head.is_empty() {
                Ok(None)
            } else {
                Err(malformed(UNREADABLE, "the client has gone within the head"))
            };
        }
        // The end may begin in what was read before.
        let start = head.len().saturating_sub(3);
        let before = head.len();
        head.extend_from_slice(ahead);
        let end = head[start..].windows(4).position(|window| window == b"\r\n\r\n").map(|at| start + at + 4);
        let used = end.unwrap_or(head.len()) - before;
        head.truncate(before + used);
        client.consume(used);
        if head.len() > MAX_HEAD {
            let cause = format!("its head has more than {MAX_HEAD} bytes (limit: head)");
            return Err(refusal(RefusalReason::Limit, UNREADABLE, &cause, "send less in fields"));
        }
        if end.is_some() {
            return Ok(Some(head));
        }
    }
}

#[cfg(test)]
mod tests;
