//! Judges one request inside TLS, and makes the one that the server gets. Pure: connects to nothing and reads no secret.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT_ENCODING, ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue,
    RANGE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Version};

use crate::audit_line::NetworkCaller;
use crate::credential::{EgressCredential, RequestSlots, decode_loosely, remove_fields};
use crate::proxy_request::DROPPED_FIELDS;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::request_path::canonical_path;
use crate::rules::{EgressRule, EgressRules};
use crate::session_identity::SessionIdentity;
use crate::target_host::HostTarget;
use crate::websocket_proof::{WEBSOCKET, WebSocketProof};

/// Fields by which some servers take a request for another method.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method", "x-http-method-override", "x-method-override"];
/// Fields by which some servers take a request for one of another path.
const PATH_OVERRIDES: [&str; 4] = ["x-original-url", "x-original-uri", "x-rewrite-url", "x-rewrite-uri"];

/// A request that may be made.
pub(crate) struct JudgedRequest<'a> {
    pub(crate) rule: &'a EgressRule,
    pub(crate) method: Method,
    /// As the server gets it.
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    /// Their values are not in the request yet.
    pub(crate) credentials: Vec<&'a EgressCredential>,
    /// True if the request says that something follows its head.
    pub(crate) has_body: bool,
    /// What the server must answer, if the request asks for a WebSocket.
    pub(crate) websocket: Option<WebSocketProof>,
}

/// A request as refusals and audit lines show it: without its query, which may hold secrets.
pub(crate) fn shown_request(method: &Method, path: &str, target: &HostTarget) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    let path: String = path.chars().take(100).map(plain).collect();
    let method: String = method.as_str().chars().take(32).map(plain).collect();
    format!("{method} https://{}{path}", target.shown())
}

impl<'a> JudgedRequest<'a> {
    /// Fails with the refusal to answer if the request may not be made.
    pub(crate) fn judge(
        parts: Parts,
        target: &HostTarget,
        rules: &'a EgressRules,
        (identity, caller): (&SessionIdentity, &NetworkCaller),
    ) -> Result<Self, EgressRefusal> {
        let Parts { method, uri, version, mut headers, .. } = parts;
        let path = uri.path().to_owned();
        let refuse = |reason, cause: &str, hint: &str| EgressRefusal {
            reason,
            target: shown_request(&method, &path, target),
            cause: cause.to_owned(),
            hint: hint.to_owned(),
        };
        let malformed = |cause: &str| refuse(RefusalReason::MalformedRequest, cause, "send a plain request of HTTP");
        if [Method::CONNECT, Method::TRACE].contains(&method) {
            return Err(malformed("this method has no place inside TLS"));
        }
        check_host(&uri, &headers, target, version).map_err(|reason| match reason {
            RefusalReason::MalformedRequest => malformed("its address names another host"),
            reason => refuse(
                reason,
                "the request names another host than its connection",
                "open a connection to the host that the request names",
            ),
        })?;
        let is_websocket = match headers.get(UPGRADE) {
            None => false,
            Some(protocol)
                if method == Method::GET && protocol.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()) =>
            {
                true
            }
            Some(_) => return Err(malformed("it asks for another protocol than WebSocket")),
        };
        let (rule, limits) = rules.decide_request(target, method.as_str(), &path, caller)?;
        let websocket = is_websocket.then(|| WebSocketProof::expected(&headers));
        if websocket == Some(None) {
            return Err(malformed("it asks for a WebSocket without a key and version 13"));
        }
        let has_body = has_body(&headers);
        let is_limited = !limits.methods.is_empty() || !limits.paths.is_empty();
        if has_body && (is_websocket || is_limited && [Method::GET, Method::HEAD, Method::OPTIONS].contains(&method)) {
            // Servers that do not expect it read it as another request.
            return Err(malformed("it has a body, which its method does not have where rules limit methods or paths"));
        }
        drop_connection_fields(&mut headers);
        if !limits.methods.is_empty() {
            remove_fields(&mut headers, &METHOD_OVERRIDES);
        }
        if !limits.paths.is_empty() {
            remove_fields(&mut headers, &PATH_OVERRIDES);
        }
        let mut query = uri.query().map(str::to_owned);
        let credentials: Vec<&EgressCredential> =
            limits.credentials.iter().filter_map(|name| rules.credential(name)).collect();
        let mut slots = RequestSlots { headers: &mut headers, query: &mut query };
        credentials.iter().for_each(|credential| credential.slot.clear(&mut slots));
        if let Some(name) = find_placeholder(identity, &path, query.as_deref(), &headers) {
            let cause = format!("the placeholder of the credential `{name}` stands where that does not belong");
            let hint = "send the request without it: Cove adds the credential where a rule has it";
            return Err(refuse(RefusalReason::CredentialMisplaced, &cause, hint));
        }
        if !credentials.is_empty() {
            // An answer must be whole and readable, or the credential could not be found in it.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.remove(RANGE);
            headers.remove("if-range");
            headers.remove("sec-websocket-extensions");
        }
        if is_websocket {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
        } else if has_body {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let host = HeaderValue::from_str(&target.shown()).map_err(|_| malformed("its host cannot be written"))?;
        headers.insert(HOST, host);
        // What was judged is what is sent.
        let path = if limits.paths.is_empty() { path } else { canonical_path(&path).unwrap_or(path) };
        let websocket = websocket.flatten();
        Ok(Self { rule, method, path, query, headers, credentials, has_body, websocket })
    }
}

/// True if a head says that something follows it. `StrictHeads` has refused all but one plain length or `chunked`.
fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

/// Fails unless every host that the request names is the target.
fn check_host(
    uri: &http::Uri,
    headers: &HeaderMap,
    target: &HostTarget,
    version: Version,
) -> Result<(), RefusalReason> {
    let is_target = |text: &str| HostTarget::parse(text, Some(target.port)).is_ok_and(|named| named == *target);
    if let Some(authority) = uri.authority() {
        let is_https = uri.scheme_str() == Some("https");
        match is_target(authority.as_str()) && is_https {
            true => {}
            false if version == Version::HTTP_2 => return Err(RefusalReason::HostMismatch),
            false => return Err(RefusalReason::MalformedRequest),
        }
    }
    let mut fields = headers.get_all(HOST).iter();
    match (fields.next(), fields.next()) {
        (Some(host), None) if host.to_str().is_ok_and(is_target) => Ok(()),
        (None, None) if uri.authority().is_some() => Ok(()),
        _ => Err(RefusalReason::HostMismatch),
    }
}

/// Takes out the fields that are about one connection only.
pub(crate) fn drop_connection_fields(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    own.into_iter().for_each(|name| drop(headers.remove(name)));
    let is_dropped = |name: &HeaderName| {
        let name = &*name.as_str().replace('_', "-");
        DROPPED_FIELDS.contains(&name)
            || name.starts_with("proxy-")
            || matches!(name, "upgrade" | "expect" | "http2-settings")
    };
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_dropped(name)).cloned().collect();
    dropped.into_iter().for_each(|name| drop(headers.remove(name)));
}

/// Takes out of an answer what is about its connection only. Its length stays: the body keeps it.
pub(crate) fn drop_answer_fields(headers: &mut HeaderMap) {
    let length = headers.get(CONTENT_LENGTH).cloned();
    drop_connection_fields(headers);
    headers.remove(ALT_SVC);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Returns the credential whose placeholder stands in what is left of a head, in any form that a server would read.
fn find_placeholder<'a>(
    identity: &'a SessionIdentity,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Option<&'a str> {
    let mut texts = vec![decode_loosely(path), decode_loosely(query.unwrap_or_default())];
    for (name, value) in headers {
        texts.push(name.as_str().as_bytes().to_vec());
        texts.push(value.as_bytes().to_vec());
        texts.push(decode_loosely(&String::from_utf8_lossy(value.as_bytes())));
        if name == AUTHORIZATION {
            let encoded = value.as_bytes().split(|byte| *byte == b' ').next_back().unwrap_or_default();
            texts.extend(STANDARD.decode(encoded).ok());
        }
    }
    let has = |placeholder: &str| {
        let sought = placeholder.as_bytes();
        // Fields have small letters in HTTP/2, and their names everywhere.
        texts.iter().any(|text| text.windows(sought.len()).any(|window| window.eq_ignore_ascii_case(sought)))
    };
    identity.placeholders.iter().find(|(_, placeholder)| has(placeholder)).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests;
