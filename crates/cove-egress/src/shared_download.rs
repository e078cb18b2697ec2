//! Which downloads sessions may share, by the request and by the answer. Pure.
//!
//! A shared request has nothing of the code that makes it but its address: the server gets fields of Cove's own. So code
//! cannot make a server answer something else than it answers everyone, and then leave that to other sessions.

use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, HOST, HeaderMap,
    HeaderName, HeaderValue, PRAGMA, SET_COOKIE, USER_AGENT, VARY,
};
use http::{Method, StatusCode};

use crate::inspected_request::JudgedRequest;

/// Fields that installers send with a download and that ask for nothing. A request with any other is not shared.
const HARMLESS_FIELDS: [&str; 13] = [
    "accept",
    "accept-encoding",
    "host",
    "npm-auth-type",
    "npm-command",
    "npm-in-ci",
    "npm-scope",
    "npm-session",
    "pacote-integrity",
    "pacote-pkg-id",
    "pacote-req-type",
    "pacote-version",
    "user-agent",
];
/// What a kept answer has of the fields of the server.
const KEPT_FIELDS: [&str; 5] = ["cache-control", "content-disposition", "content-type", "etag", "last-modified"];
const MAX_KEPT_FIELD: usize = 1000;
/// A file that its publisher takes back is gone from here after this long.
const MAX_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
const USER_AGENT_OF_COVE: &str = concat!("cove/", env!("CARGO_PKG_VERSION"));

/// True if the request asks for what every other session would get too.
pub(crate) fn is_shared_request(request: &JudgedRequest<'_>) -> bool {
    let is_plain = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = value.as_bytes();
        match *name {
            ACCEPT => value == b"*/*",
            ACCEPT_ENCODING => !value.windows(3).any(|part| part.eq_ignore_ascii_case(b"q=0")),
            _ => HARMLESS_FIELDS.contains(&name.as_str()),
        }
    };
    request.rule.inspection.as_ref().is_some_and(|limits| limits.caches)
        && request.method == Method::GET
        && request.query.is_none()
        && request.credentials.is_empty()
        && !request.has_body
        && request.websocket.is_none()
        && request.headers.iter().all(is_plain)
}

/// Returns the fields that the server gets with a shared request.
pub(crate) fn shared_request_fields(host: HeaderValue) -> HeaderMap {
    HeaderMap::from_iter([
        (HOST, host),
        (ACCEPT, HeaderValue::from_static("*/*")),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
        (USER_AGENT, HeaderValue::from_static(USER_AGENT_OF_COVE)),
    ])
}

/// What a server says about keeping an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedAnswer {
    pub(crate) length: u64,
    /// How old the answer is already.
    pub(crate) age: Duration,
    /// How old it may become.
    pub(crate) lifetime: Duration,
    pub(crate) fields: Vec<(String, String)>,
}

impl SharedAnswer {
    /// Returns None if others must not be given the answer, or if the server does not say that they may.
    pub(crate) fn read(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let has_any = |names: &[HeaderName]| names.iter().any(|name| headers.contains_key(name));
        let encoded = headers.get_all(CONTENT_ENCODING).iter().any(|value| value != "identity");
        let varies = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"accept-encoding");
        if status != StatusCode::OK
            || has_any(&[SET_COOKIE, CONTENT_RANGE, PRAGMA])
            || encoded
            || headers.get_all(VARY).iter().any(varies)
        {
            return None;
        }
        let lifetime = shared_lifetime(headers)?;
        let age = match headers.get(AGE) {
            None => 0,
            Some(age) => age.to_str().ok()?.parse().ok()?,
        };
        let age = Duration::from_secs(age);
        let length = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok().filter(|length| *length > 0)?;
        let kept = KEPT_FIELDS.into_iter().filter_map(|name| Some((name, headers.get(name)?.to_str().ok()?)));
        let fields = kept.filter(|(_, value)| value.len() <= MAX_KEPT_FIELD);
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (age < lifetime).then_some(Self { length, age, lifetime, fields })
    }
}

/// Returns how old a shared answer may become. None unless `Cache-Control` says that it may be shared, and for how long.
fn shared_lifetime(headers: &HeaderMap) -> Option<Duration> {
    let (mut lifetime, mut shared_lifetime) = (None, None);
    for value in headers.get_all(CACHE_CONTROL) {
        for directive in value.to_str().ok()?.split(',') {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            let seconds = || value.trim().trim_matches('"').parse().ok().map(Duration::from_secs);
            match name.trim().to_ascii_lowercase().as_str() {
                "private" | "no-store" | "no-cache" => return None,
                // Of two that differ, the shorter one.
                "max-age" => lifetime = Some(seconds()?.min(lifetime.unwrap_or(MAX_LIFETIME))),
                "s-maxage" => shared_lifetime = Some(seconds()?.min(shared_lifetime.unwrap_or(MAX_LIFETIME))),
                _ => {}
            }
        }
    }
    shared_lifetime.or(lifetime)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(fields: &[(&str, &str)]) -> Option<SharedAnswer> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("content-length", "5")].iter().chain(fields) {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        SharedAnswer::read(StatusCode::OK, &headers)
    }

    #[track_caller]
    fn check(fields: &[(&str, &str)], expected: Option<u64>) {
        let lifetime = answer(fields).map(|answer| answer.lifetime.as_secs());
        assert_eq!(lifetime, expected, "{fields:?}");
    }

    #[test]
    fn only_what_a_server_lets_others_have_is_kept() {
        let public = ("cache-control", "public, max-age=600");
        check(&[public], Some(600));
        check(&[("cache-control", "max-age=365000000, immutable, public")], Some(MAX_LIFETIME.as_secs()));
        check(&[("cache-control", "max-age=600, s-maxage=60")], Some(60));
        check(&[("cache-control", "MAX-AGE=\"600\"")], Some(600));
        check(&[("cache-control", "max-age=600"), ("cache-control", "max-age=60")], Some(60));
        check(&[public, ("vary", "Accept-Encoding"), ("content-encoding", "identity")], Some(600));
        check(&[public, ("age", "599")], Some(600));
        for refused in [
            ("age", "600"),
            ("age", "soon"),
            ("vary", "Cookie"),
            ("vary", "*"),
            ("vary", "Accept-Encoding, Accept"),
            ("set-cookie", "a=b"),
            ("pragma", "no-cache"),
            ("content-encoding", "gzip"),
            ("content-range", "bytes 0-4/9"),
            ("cache-control", "no-store"),
            ("cache-control", "No-Cache=\"x, y\""),
            ("cache-control", "private"),
            ("cache-control", "max-age=soon"),
            ("cache-control", "max-age=-1"),
            ("cache-control", "max-age=0"),
        ] {
            check(&[public, refused], None);
        }
        for unsaid in ["", "public", "immutable", "public, immutable", "max-age", "s-maxage=x, max-age=5"] {
            check(&[("cache-control", unsaid)], None);
        }
        check(&[], None);
        assert_eq!(SharedAnswer::read(StatusCode::PARTIAL_CONTENT, &HeaderMap::new()), None);
    }

    #[test]
    fn few_fields_of_a_server_are_kept() {
        let kept = answer(&[("cache-control", "max-age=9"), ("etag", "\"x\""), ("x-trace", "1"), ("link", "</a>")]);
        let fields = [("cache-control", "max-age=9"), ("etag", "\"x\"")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(kept.unwrap().fields, fields);
    }
}
