//! Responses of the front itself, and the headers of every response.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue,
    RETRY_AFTER, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::json;

use super::rate_limit::whole_seconds;
use cove_core::error::Refusal;

pub type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

/// Headers that a web page may send. Those with `mcp-` belong to the protocol.
const ALLOWED_HEADERS: &str = "authorization, content-type, accept, last-event-id, mcp-session-id, \
     mcp-protocol-version, mcp-method, mcp-name";
/// Headers that a web page may read.
const EXPOSED_HEADERS: &str = "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after";

/// Why a request is refused. Each reason has its own label in the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    Host(Refusal),
    Origin(Refusal),
    /// A request for a proxy, which Cove is not.
    Form,
    NoCredentials,
    WrongCredentials,
    TooManyAttempts(Duration),
    TooOften(Duration),
    TooLarge {
        most: usize,
    },
    BodyTimeout(Duration),
    BodyBroken,
    NoMemory,
    /// Too many connections with valid tokens are open.
    NoPlace,
    /// The token file cannot be used.
    NoTokens,
    Method {
        allowed: &'static str,
    },
    Path,
}

/// What is said about a refusal.
pub(super) struct RefusalReport {
    /// The label in the metrics.
    pub(super) reason: &'static str,
    status: StatusCode,
    /// With its cause.
    pub(super) message: String,
    hint: String,
}

impl RequestRefusal {
    /// Returns everything that the metrics, the log and the response say about the refusal.
    pub(super) fn describe(&self) -> RefusalReport {
        let token = "send `Authorization: Bearer TOKEN`; `cove token` shows it on the server's machine";
        let denied = |cause: &str| format!("could not accept the request: {cause}");
        let unread = |cause: &str| format!("could not read the request: {cause}");
        let (reason, status, message, hint) = match self {
            // Not 421, which asks a client to try again on another connection.
            Self::Host(refusal) => ("host", StatusCode::FORBIDDEN, denied(&refusal.cause), refusal.hint.as_str()),
            Self::Origin(refusal) => ("origin", StatusCode::FORBIDDEN, denied(&refusal.cause), refusal.hint.as_str()),
            Self::Form => {
                ("form", StatusCode::BAD_REQUEST, denied("its target is a whole address"), "send the path alone")
            }
            Self::NoCredentials => ("no_credentials", StatusCode::UNAUTHORIZED, denied("it has no token"), token),
            Self::WrongCredentials => {
                ("wrong_credentials", StatusCode::UNAUTHORIZED, denied("its token is not known here"), token)
            }
            Self::TooManyAttempts(_) => {
                let message = denied("there were too many wrong tokens");
                ("attempts", StatusCode::TOO_MANY_REQUESTS, message, "wait, then send the right one")
            }
            Self::TooOften(_) => {
                let hint = "wait as long as `Retry-After` says; the rate is the setting `rate-limit`";
                ("rate", StatusCode::TOO_MANY_REQUESTS, denied("this token asks too often"), hint)
            }
            Self::TooLarge { most } => {
                let message = unread(&format!("its body is larger than {most} bytes"));
                ("size", StatusCode::PAYLOAD_TOO_LARGE, message, "write large content to files, in parts")
            }
            Self::BodyTimeout(most) => {
                let message = unread(&format!("its body took longer than {} s", most.as_secs()));
                ("body_timeout", StatusCode::REQUEST_TIMEOUT, message, "send the whole body at once")
            }
            Self::BodyBroken => ("body_broken", StatusCode::BAD_REQUEST, unread("its body is broken"), "send it again"),
            Self::NoMemory => {
                let message = unread("too many bodies are being read");
                ("memory", StatusCode::SERVICE_UNAVAILABLE, message, "send it again in a moment")
            }
            Self::NoPlace => {
                let message = denied("too many connections are open");
                let hint = "close some, or raise `max-connections`";
                ("connections", StatusCode::SERVICE_UNAVAILABLE, message, hint)
            }
            Self::NoTokens => {
                let message = denied("the server's token file cannot be used");
                ("no_tokens", StatusCode::UNAUTHORIZED, message, "its log says why")
            }
            Self::Method { allowed } => {
                let hint = format!("use {allowed}");
                return RefusalReport {
                    reason: "method",
                    status: StatusCode::METHOD_NOT_ALLOWED,
                    message: denied("wrong method"),
                    hint,
                };
            }
            Self::Path => {
                let hint = "there are `/mcp`, `/healthz`, `/readyz` and `/metrics`";
                ("path", StatusCode::NOT_FOUND, "could not find this path".to_owned(), hint)
            }
        };
        RefusalReport { reason, status, message, hint: hint.to_owned() }
    }

    /// Returns true if the connection must close: a client without a valid token must not keep a place.
    fn closes_connection(&self) -> bool {
        !matches!(self, Self::TooOften(_))
    }

    /// Returns the response for the refusal.
    pub(super) fn response(&self) -> HttpResponse {
        let RefusalReport { status, message, hint, .. } = self.describe();
        // The form in which MCP clients look for an error message.
        let body = json!({
            "jsonrpc": "2.0",
            "id": null,
            "error": { "code": -32000, "message": format!("{message}; {hint}") },
        });
        let mut answer = new_response(status, "application/json", body.to_string());
        let headers = answer.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match self {
            Self::TooManyAttempts(wait) | Self::TooOften(wait) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(*wait).max(1)));
            }
            Self::NoMemory | Self::NoPlace => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Method { allowed } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            _ => {}
        }
        if self.closes_connection() {
            close_after(&mut answer);
        }
        answer
    }
}

pub(super) fn new_response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut answer = Response::new(Full::new(body.into()).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Closes the connection after this response.
pub(super) fn close_after(answer: &mut HttpResponse) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Answers the preflight request of a browser for an allowed origin.
pub(super) fn preflight_response(allowed: &'static str) -> HttpResponse {
    let mut answer = Response::new(Full::new(Bytes::new()).boxed());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    close_after(&mut answer);
    answer
}

/// Adds the headers of every response. `origin` is set only if it was allowed.
pub(super) fn add_common_headers(answer: &mut HttpResponse, origin: Option<HeaderValue>) {
    let headers = answer.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}
