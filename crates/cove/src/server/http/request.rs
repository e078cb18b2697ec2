//! The way of one request: every check that needs no body comes before the body, the cheapest first, and what stands
//! behind `/mcp` sees only what passed all of them.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tracing::{debug, warn};

use super::accept::Site;
use super::answer::{self, Answer, Refusal};
use super::{Front, Mcp};
use crate::error::shown;
use crate::session::registry::Principal;

/// What is served, and what all other paths are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Mcp,
    Health,
    Ready,
    Metrics,
    Root,
    Other,
}

impl Place {
    fn of(path: &str) -> Self {
        match path {
            "/mcp" => Self::Mcp,
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            "/" => Self::Root,
            _ => Self::Other,
        }
    }

    /// For metrics and logs: what a client wrote is neither bounded nor harmless.
    fn name(self) -> &'static str {
        match self {
            Self::Mcp => "/mcp",
            Self::Health => "/healthz",
            Self::Ready => "/readyz",
            Self::Metrics => "/metrics",
            Self::Root => "/",
            Self::Other => "other",
        }
    }

    fn methods(self) -> &'static str {
        if self == Self::Mcp { "GET, POST, DELETE, OPTIONS" } else { "GET, HEAD, OPTIONS" }
    }

    fn has(self, method: &Method) -> bool {
        match self {
            Self::Mcp => [Method::GET, Method::POST, Method::DELETE].contains(method),
            _ => [Method::GET, Method::HEAD].contains(method),
        }
    }
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) peer: SocketAddr,
    pub(super) reached: IpAddr,
}

/// Answers one request, whatever it is.
pub(super) async fn respond<M: Mcp>(site: &Site<M>, ends: Ends, request: Request<Incoming>) -> Answer {
    let place = Place::of(request.uri().path());
    let method = request.method().clone();
    let origin = allowed_origin(&site.front, request.headers());
    let mut answer = match way(site, ends, place, request).await {
        Ok(answer) => answer,
        Err(refusal) => {
            site.metrics.request_refused(refusal.reason());
            tell(&site.front, ends, place, &refusal);
            refusal.answer()
        }
    };
    answer::finish(&mut answer, origin);
    let status = answer.status().as_u16();
    site.metrics.request_answered(place.name(), status);
    debug!(peer = %ends.peer, method = shown(method.as_str()), path = place.name(), status, "request answered");
    answer
}

fn allowed_origin(front: &Front, headers: &HeaderMap) -> Option<HeaderValue> {
    HeaderValue::from_str(front.names.check_origin(headers).ok()??).ok()
}

async fn way<M: Mcp>(
    site: &Site<M>,
    ends: Ends,
    place: Place,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let front = &site.front;
    // Such a target names a host of its own, beside the one that is checked.
    if request.uri().authority().is_some() {
        return Err(Refusal::Form);
    }
    let headers = request.headers();
    let host = front.names.check_host(headers, ends.reached);
    host.map_err(|foreign| Refusal::Host { cause: foreign.cause, hint: foreign.hint })?;
    let origin = front.names.check_origin(headers);
    let origin = origin.map_err(|foreign| Refusal::Origin { cause: foreign.cause, hint: foreign.hint })?;
    if place == Place::Other {
        return Err(Refusal::Path);
    }
    if request.method() == Method::OPTIONS && origin.is_some() {
        return Ok(answer::preflight(place.methods()));
    }
    if !place.has(request.method()) {
        return Err(Refusal::Method { allowed: place.methods() });
    }
    match place {
        Place::Mcp => {
            let principal = front.admit(headers, Instant::now())?;
            ask(site, principal, request).await
        }
        Place::Metrics => {
            front.admit(headers, Instant::now())?;
            Ok(answer::of(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                site.metrics.render((site.sessions)()),
            ))
        }
        Place::Health => Ok(for_anyone(StatusCode::OK, "application/json", "{\"status\":\"ok\"}\n")),
        Place::Ready if (site.ready)() => {
            Ok(for_anyone(StatusCode::OK, "application/json", "{\"status\":\"ready\"}\n"))
        }
        Place::Ready => {
            let starting = "{\"status\":\"not ready\"}\n";
            Ok(for_anyone(StatusCode::SERVICE_UNAVAILABLE, "application/json", starting))
        }
        Place::Root => {
            let text = "cove\n\n/mcp      MCP over Streamable HTTP\n/healthz  whether the process serves\n\
                        /readyz   whether it can take work\n/metrics  numbers for Prometheus\n";
            Ok(for_anyone(StatusCode::OK, "text/plain; charset=utf-8", text))
        }
        Place::Other => Err(Refusal::Path),
    }
}

/// Who has shown no token keeps no connection.
fn for_anyone(status: StatusCode, kind: &'static str, body: &'static str) -> Answer {
    let mut answer = answer::of(status, kind, body);
    answer::close_after(&mut answer);
    answer
}

async fn ask<M: Mcp>(
    site: &Site<M>,
    principal: &Principal,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let (mut parts, body) = request.into_parts();
    let whole = site.front.bodies.read(body).await?;
    // Has done its part; what is not there cannot be logged.
    parts.headers.remove(AUTHORIZATION);
    parts.extensions.insert(principal.clone());
    // The share of the memory is given back when the answer begins: by then the body was read.
    let share = whole.share;
    let answer = site.mcp.answer(Request::from_parts(parts, Full::new(whole.bytes))).await;
    drop(share);
    Ok(answer)
}

/// In the log, if there is room.
fn tell(front: &Front, ends: Ends, place: Place, refusal: &Refusal) {
    if !front.may_warn() {
        return;
    }
    let cause = shown(&refusal.words().0);
    warn!(peer = %ends.peer, path = place.name(), reason = refusal.reason(), "request refused: {cause}");
}
