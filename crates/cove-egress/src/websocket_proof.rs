//! Tells a WebSocket from other protocols by what its two sides must say (RFC 6455). Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

pub(crate) const WEBSOCKET: &str = "websocket";
/// What a server of WebSockets adds to the key of its client (RFC 6455).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Proves that a server speaks WebSocket: what it must answer to the key of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebSocketProof(String);

impl WebSocketProof {
    /// Returns what the answer to a request must have. None if the request does not ask for a WebSocket of version 13.
    pub(crate) fn expected(request: &HeaderMap) -> Option<Self> {
        let key = only_value(request, &SEC_WEBSOCKET_KEY)?;
        let is_key = STANDARD.decode(key).is_ok_and(|random| random.len() == 16);
        let is_whole = is_key && only_value(request, &SEC_WEBSOCKET_VERSION) == Some(b"13");
        is_whole.then(|| Self(STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, KEY_SUFFIX].concat()))))
    }

    /// True if an answer of status 101 has it. Otherwise what follows may be anything, such as another request of HTTP.
    pub(crate) fn is_in(&self, answer: &HeaderMap) -> bool {
        let is_upgrade =
            only_value(answer, &UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case(WEBSOCKET.as_bytes()));
        only_value(answer, &SEC_WEBSOCKET_ACCEPT) == Some(self.0.as_bytes()) && is_upgrade
    }
}

/// Returns the value of a field that is there exactly once.
fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    values.next().map(|value| value.as_bytes()).filter(|_| values.next().is_none())
}
