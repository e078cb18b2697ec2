//! What can be read by address: the manual, output that was too long for its result, and files of a session.

use cove_protocol::SessionId;

use super::Server;
use super::manual;
use crate::error::shown;
use crate::output::harmless;
use crate::session::files::FileError;
use crate::session::registry::{OutputId, Principal, Which};

pub(super) const MANUAL: &str = "cove://manual";
const OUTPUTS: &str = "cove://outputs/";
const SESSIONS: &str = "cove://sessions/";

/// Templates: address, name, what is there.
pub(super) const TEMPLATES: [(&str, &str, &str); 2] = [
    (
        "cove://outputs/{output}{?offset,length}",
        "output",
        "Output of a cell that was too long for its result; offset and length count bytes",
    ),
    (
        "cove://sessions/{session}/files/{+path}",
        "file",
        "A file of a session, by the session's handle and the file's path without its first slash",
    ),
];

pub(super) fn output_uri(id: &OutputId) -> String {
    format!("{OUTPUTS}{id}")
}

/// The output that an address or a bare handle means.
pub(super) fn output_id(handle: &str) -> Option<OutputId> {
    OutputId::parse(handle.strip_prefix(OUTPUTS).unwrap_or(handle))
}

pub(super) fn file_uri(session: &SessionId, path: &str) -> String {
    let encoded: String = path.trim_start_matches('/').bytes().map(encode).collect();
    format!("{SESSIONS}{session}/files/{encoded}")
}

pub(super) enum Content {
    Text { mime: &'static str, text: String },
    Bytes { mime: &'static str, bytes: Vec<u8> },
}

pub(super) enum ReadError {
    /// There is nothing at that address, as far as this reader may know.
    NotFound(String),
    Failed(String),
}

impl Server {
    pub(super) async fn read(&self, uri: &str, reader: &Principal) -> Result<Content, ReadError> {
        if uri == MANUAL {
            return Ok(Content::Text { mime: "text/markdown", text: manual::text(&self.config) });
        }
        if let Some(rest) = uri.strip_prefix(OUTPUTS) {
            return self.read_output(rest, reader);
        }
        if let Some((session, path)) = uri.strip_prefix(SESSIONS).and_then(|rest| rest.split_once("/files/"))
        {
            return self.read_file(session, path, reader).await;
        }
        Err(ReadError::NotFound(format!("there is nothing at `{}`", shown(uri))))
    }

    fn read_output(&self, rest: &str, reader: &Principal) -> Result<Content, ReadError> {
        let (id, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut offset, mut length) = (0u64, usize::MAX);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let wrong =
                || ReadError::Failed(format!("`{}` is not `offset=BYTES` or `length=BYTES`", shown(pair)));
            match pair.split_once('=') {
                Some(("offset", value)) => offset = value.parse().map_err(|_| wrong())?,
                Some(("length", value)) => length = value.parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        let spool = OutputId::parse(id).and_then(|id| self.sessions.output(reader, &id)).ok_or_else(|| {
            ReadError::NotFound(format!(
                "there is no output `{}`: it never was, its session has ended, or newer outputs took its room",
                shown(id)
            ))
        })?;
        let bytes = spool
            .read(offset, length)
            .map_err(|error| ReadError::Failed(format!("could not read the output: {error}")))?;
        Ok(Content::Text { mime: "text/plain", text: harmless(bytes) })
    }

    async fn read_file(&self, session: &str, path: &str, reader: &Principal) -> Result<Content, ReadError> {
        let id = SessionId::parse(session).ok_or_else(|| {
            ReadError::NotFound(format!("`{}` is not the handle of a session", shown(session)))
        })?;
        let held = self
            .sessions
            .find(reader, &Which::Handle(id), None)
            .await
            .map_err(|error| ReadError::NotFound(error.to_string()))?
            .ok_or_else(|| ReadError::NotFound("there is no such session".into()))?;
        let path = decode(path).ok_or_else(|| ReadError::Failed("the path is not text".into()))?;
        match held.get(&format!("/{path}")).await {
            Ok(bytes) => Ok(content(bytes)),
            Err(error @ FileError::Refused { .. }) => Err(ReadError::NotFound(chain(&error))),
            Err(error) => Err(ReadError::Failed(chain(&error))),
        }
    }
}

/// Text where it is text, an image where it looks like one, else bytes.
pub(super) fn content(bytes: Vec<u8>) -> Content {
    if let Some(mime) = image(&bytes) {
        return Content::Bytes { mime, bytes };
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Content::Text { mime: "text/plain", text },
        Ok(text) => Content::Bytes { mime: "application/octet-stream", bytes: text.into_bytes() },
        Err(error) => Content::Bytes { mime: "application/octet-stream", bytes: error.into_bytes() },
    }
}

/// By its first bytes, whatever its name says.
fn image(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn encode(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_being_an_address() {
        let id = SessionId::from_random(7);
        for path in ["/workspace/a b%.txt", "/workspace/ü/?#&", "/workspace/../etc"] {
            let uri = file_uri(&id, path);
            let rest = uri.strip_prefix(&format!("{SESSIONS}{id}/files/")).unwrap();
            assert_eq!(format!("/{}", decode(rest).unwrap()), path, "{uri}");
            assert!(uri.is_ascii() && !uri.contains(['?', '#', ' ']), "{uri}");
        }
        assert_eq!(decode("%"), None);
        assert_eq!(decode("%zz"), None);
        assert_eq!(decode("%ff"), None);
    }

    #[test]
    fn contents_are_told_by_their_bytes() {
        let mime = |bytes: &[u8]| match content(bytes.to_vec()) {
            Content::Text { mime, .. } | Content::Bytes { mime, .. } => mime,
        };
        assert_eq!(mime(b"\x89PNG\r\n\x1a\n...."), "image/png");
        assert_eq!(mime(b"plain\n"), "text/plain");
        assert_eq!(mime(b""), "text/plain");
        assert_eq!(mime(b"a\0b"), "application/octet-stream");
        assert_eq!(mime(b"\xff\xfe"), "application/octet-stream");
    }
}
