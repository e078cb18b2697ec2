//! Resources that clients read by URI: the manual, output that was too long for its result, and files of a session.

use cove_protocol::SessionId;

use super::{Server, manual};
use cove_core::error::{display_value, one_line_chain};
use cove_core::output::neutralise;
use cove_core::session::files::FileError;
use cove_core::session::registry::{OutputId, Principal, SessionRef};
use cove_core::text::remove_hidden;

pub(super) const MANUAL_URI: &str = "cove://manual";
const OUTPUT_PREFIX: &str = "cove://outputs/";
const SESSION_PREFIX: &str = "cove://sessions/";

/// Templates: URI, name, description.
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
    format!("{OUTPUT_PREFIX}{id}")
}

/// Parses an output's URI or bare id. Returns `None` if it is neither.
pub(super) fn output_id(handle: &str) -> Option<OutputId> {
    OutputId::parse(handle.strip_prefix(OUTPUT_PREFIX).unwrap_or(handle))
}

pub(super) fn file_uri(session: &SessionId, path: &str) -> String {
    let encoded: String = path.trim_start_matches('/').bytes().map(percent_encode).collect();
    format!("{SESSION_PREFIX}{session}/files/{encoded}")
}

pub(super) enum ResourceContent {
    Text { mime: &'static str, text: String },
    Bytes { mime: &'static str, bytes: Vec<u8> },
}

pub(super) enum ResourceError {
    /// No such resource exists, or the principal may not read it.
    NotFound(String),
    Failed(String),
}

impl Server {
    /// Returns the content at a URI. Fails with `NotFound` if `reader` may not read it or it does not exist.
    pub(super) async fn read_resource(&self, uri: &str, reader: &Principal) -> Result<ResourceContent, ResourceError> {
        if uri == MANUAL_URI {
            return Ok(ResourceContent::Text { mime: "text/markdown", text: manual::text(&self.config) });
        }
        if let Some(rest) = uri.strip_prefix(OUTPUT_PREFIX) {
            return self.read_output(rest, reader);
        }
        if let Some((session, path)) = uri.strip_prefix(SESSION_PREFIX).and_then(|rest| rest.split_once("/files/")) {
            return self.read_file(session, path, reader).await;
        }
        Err(ResourceError::NotFound(format!("there is nothing at `{}`", display_value(uri))))
    }

    fn read_output(&self, rest: &str, reader: &Principal) -> Result<ResourceContent, ResourceError> {
        let (id, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut offset, mut length) = (0u64, usize::MAX);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let wrong =
                || ResourceError::Failed(format!("`{}` is not `offset=BYTES` or `length=BYTES`", display_value(pair)));
            match pair.split_once('=') {
                Some(("offset", value)) => offset = value.parse().map_err(|_| wrong())?,
                Some(("length", value)) => length = value.parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        let spool = OutputId::parse(id).and_then(|id| self.sessions.find_output(reader, &id)).ok_or_else(|| {
            ResourceError::NotFound(format!(
                "there is no output `{}`: it never was, its session has ended, or newer outputs took its room",
                display_value(id)
            ))
        })?;
        let bytes = spool
            .read(offset, length)
            .map_err(|error| ResourceError::Failed(format!("could not read the output: {error}")))?;
        Ok(ResourceContent::Text { mime: "text/plain", text: neutralise(bytes) })
    }

    async fn read_file(&self, session: &str, path: &str, reader: &Principal) -> Result<ResourceContent, ResourceError> {
        let id = SessionId::parse(session).ok_or_else(|| {
            ResourceError::NotFound(format!("`{}` is not the handle of a session", display_value(session)))
        })?;
        let held = self
            .sessions
            .lease_existing(reader, &SessionRef::Handle(id), None)
            .await
            .map_err(|error| ResourceError::NotFound(error.to_string()))?
            .ok_or_else(|| ResourceError::NotFound("there is no such session".into()))?;
        let path = percent_decode(path).ok_or_else(|| ResourceError::Failed("the path is not text".into()))?;
        match held.read_file(&format!("/{path}")).await {
            Ok(bytes) => Ok(match classify_content(bytes) {
                // A client gets the file exactly, but a model must not get as text what a person does not see.
                ResourceContent::Text { mime, text } if remove_hidden(&text) != text => {
                    ResourceContent::Bytes { mime, bytes: text.into_bytes() }
                }
                content => content,
            }),
            Err(error @ FileError::Refused { .. }) => Err(ResourceError::NotFound(one_line_chain(&error))),
            Err(error) => Err(ResourceError::Failed(one_line_chain(&error))),
        }
    }
}

/// Returns text if the bytes are UTF-8, an image if they look like one, otherwise bytes.
pub(super) fn classify_content(bytes: Vec<u8>) -> ResourceContent {
    if let Some(mime) = image_mime(&bytes) {
        return ResourceContent::Bytes { mime, bytes };
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => ResourceContent::Text { mime: "text/plain", text },
        Ok(text) => ResourceContent::Bytes { mime: "application/octet-stream", bytes: text.into_bytes() },
        Err(error) => ResourceContent::Bytes { mime: "application/octet-stream", bytes: error.into_bytes() },
    }
}

/// Detects an image by its first bytes, not by its name.
fn image_mime(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn percent_encode(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    }
}

fn percent_decode(text: &str) -> Option<String> {
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
    fn resource_uris_round_trip_paths() {
        let id = SessionId::from_random(7);
        for path in ["/workspace/a b%.txt", "/workspace/ü/?#&", "/workspace/../etc"] {
            let uri = file_uri(&id, path);
            let rest = uri.strip_prefix(&format!("{SESSION_PREFIX}{id}/files/")).unwrap();
            assert_eq!(format!("/{}", percent_decode(rest).unwrap()), path, "{uri}");
            assert!(uri.is_ascii() && !uri.contains(['?', '#', ' ']), "{uri}");
        }
        assert_eq!(percent_decode("%"), None);
        assert_eq!(percent_decode("%zz"), None);
        assert_eq!(percent_decode("%ff"), None);
    }

    #[test]
    fn resource_type_is_detected_from_bytes() {
        let mime = |bytes: &[u8]| match classify_content(bytes.to_vec()) {
            ResourceContent::Text { mime, .. } | ResourceContent::Bytes { mime, .. } => mime,
        };
        assert_eq!(mime(b"\x89PNG\r\n\x1a\n...."), "image/png");
        assert_eq!(mime(b"plain\n"), "text/plain");
        assert_eq!(mime(b""), "text/plain");
        assert_eq!(mime(b"a\0b"), "application/octet-stream");
        assert_eq!(mime(b"\xff\xfe"), "application/octet-stream");
    }
}
