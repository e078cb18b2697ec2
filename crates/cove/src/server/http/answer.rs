//! Answers that the front gives itself, and what every answer carries whoever made it.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE,
    HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::json;

use super::rate::whole_seconds;

pub type Answer = Response<BoxBody<Bytes, Infallible>>;

/// What a page may send. The `mcp-` ones are the protocol's.
const ALLOWED_HEADERS: &str = "authorization, content-type, accept, last-event-id, mcp-session-id, \
     mcp-protocol-version, mcp-method, mcp-name";
/// What a page may read.
const EXPOSED_HEADERS: &str = "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after";

/// Why a request is refused; each has its own word in the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Host {
        cause: String,
        hint: String,
    },
    Origin {
        cause: String,
        hint: String,
    },
    /// A request to a proxy, which we are not.
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
    Method {
        allowed: &'static str,
    },
    Path,
}

impl Refusal {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Host { .. } => "host",
            Self::Origin { .. } => "origin",
            Self::Form => "form",
            Self::NoCredentials => "no_credentials",
            Self::WrongCredentials => "wrong_credentials",
            Self::TooManyAttempts(_) => "attempts",
            Self::TooOften(_) => "rate",
            Self::TooLarge { .. } => "size",
            Self::BodyTimeout(_) => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::NoMemory => "memory",
            Self::Method { .. } => "method",
            Self::Path => "path",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            // Not 421, which invites a client to try again elsewhere.
            Self::Host { .. } | Self::Origin { .. } => StatusCode::FORBIDDEN,
            Self::Form | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::NoCredentials | Self::WrongCredentials => StatusCode::UNAUTHORIZED,
            Self::TooManyAttempts(_) | Self::TooOften(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Path => StatusCode::NOT_FOUND,
        }
    }

    /// What happened and why, and what to do about it.
    pub(super) fn words(&self) -> (String, String) {
        let token = "send `Authorization: Bearer TOKEN`; the token is in the file that the server named when it started";
        let (what, hint) = match self {
            Self::Host { cause, hint } | Self::Origin { cause, hint } => {
                return (format!("could not accept the request: {cause}"), hint.clone());
            }
            Self::Form => {
                ("could not accept the request: its target is a whole address", "send the path alone")
            }
            Self::NoCredentials => ("could not accept the request: it has no token", token),
            Self::WrongCredentials => ("could not accept the request: its token is not known here", token),
            Self::TooManyAttempts(_) => (
                "could not accept the request: there were too many wrong tokens",
                "wait, then send the right one",
            ),
            Self::TooOften(_) => (
                "could not accept the request: this token asks too often",
                "wait as long as `Retry-After` says; the rate is the setting `rate-limit`",
            ),
            Self::TooLarge { most } => {
                let what = format!("could not read the request: its body is larger than {most} bytes");
                return (what, "write large content to files, in parts".into());
            }
            Self::BodyTimeout(most) => {
                let what =
                    format!("could not read the request: its body took longer than {} s", most.as_secs());
                return (what, "send the whole body at once".into());
            }
            Self::BodyBroken => ("could not read the request: its body is broken", "send it again"),
            Self::NoMemory => {
                ("could not read the request: too many bodies are being read", "send it again in a moment")
            }
            Self::Method { allowed } => {
                return ("could not accept the request: wrong method".into(), format!("use {allowed}"));
            }
            Self::Path => {
                ("could not find this path", "there are `/mcp`, `/healthz`, `/readyz` and `/metrics`")
            }
        };
        (what.to_owned(), hint.to_owned())
    }

    /// Whether the connection must end: who has shown no token keeps no place among those who have.
    fn closes(&self) -> bool {
        !matches!(self, Self::TooOften(_))
    }

    pub(super) fn answer(&self) -> Answer {
        let (what, hint) = self.words();
        // The form in which clients of the protocol look for words to show.
        let body = json!({
            "jsonrpc": "2.0",
            "id": null,
            "error": { "code": -32000, "message": format!("{what}; {hint}") },
        });
        let mut answer = of(self.status(), "application/json", body.to_string());
        let headers = answer.headers_mut();
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match self {
            Self::TooManyAttempts(wait) | Self::TooOften(wait) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(*wait).max(1)));
            }
            Self::NoMemory => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Method { allowed } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            _ => {}
        }
        if self.closes() {
            close_after(&mut answer);
        }
        answer
    }
}

pub(super) fn of(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

pub(super) fn close_after(answer: &mut Answer) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// What a browser asks before it lets a page of an allowed origin ask.
pub(super) fn preflight(allowed: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()).boxed());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(allowed));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    close_after(&mut answer);
    answer
}

/// `origin` only when it was allowed.
pub(super) fn finish(answer: &mut Answer, origin: Option<HeaderValue>) {
    let headers = answer.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}
