//! The checks of one request. Every check that needs no body comes before the body, the cheapest first. The handler
//! behind `/mcp` only sees requests that passed all of them.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tracing::{debug, warn};

use super::accept::HttpContext;
use super::connection_table::ConnectionPlace;
use super::response::{self, HttpResponse, RefusalReport, RequestRefusal};
use super::{HttpFront, McpHandler};
use cove_core::error::display_value;
use cove_core::keyword::{Keyword, keywords};
use cove_core::session::registry::Principal;

keywords!(
    /// The served paths, and all others. The names are for metrics and logs, too: the path that a client sent is neither
    /// bounded nor harmless.
    HttpEndpoint, "PATH", "a served path":
    Mcp = "/mcp",
    Health = "/healthz",
    Ready = "/readyz",
    Metrics = "/metrics",
    Root = "/",
    Other = "other",
);

impl HttpEndpoint {
    fn methods(self) -> &'static str {
        if self == Self::Mcp { "GET, POST, DELETE, OPTIONS" } else { "GET, HEAD, OPTIONS" }
    }

    fn allows(self, method: &Method) -> bool {
        match self {
            Self::Mcp => [Method::GET, Method::POST, Method::DELETE].contains(method),
            _ => [Method::GET, Method::HEAD].contains(method),
        }
    }
}

/// The client's address, and the local address that it reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionAddresses {
    pub(super) peer: SocketAddr,
    pub(super) reached: IpAddr,
}

/// The connection of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestOrigin<'a> {
    pub(super) ends: ConnectionAddresses,
    pub(super) place: &'a ConnectionPlace,
}

/// Answers one request. A refusal is counted, logged and turned into a response.
pub(super) async fn respond<M: McpHandler>(
    site: &HttpContext<M>,
    origin: RequestOrigin<'_>,
    request: Request<Incoming>,
) -> HttpResponse {
    let peer = origin.ends.peer;
    let place = HttpEndpoint::parse(request.uri().path()).unwrap_or(HttpEndpoint::Other);
    let method = request.method().clone();
    let web_origin = allowed_origin(&site.front, request.headers());
    let mut answer = match route_request(site, origin, place, request).await {
        Ok(answer) => answer,
        Err(refusal) => {
            let RefusalReport { reason, message, .. } = refusal.describe();
            site.metrics.request_refused(reason);
            if site.front.may_warn() {
                let cause = display_value(&message);
                warn!(%peer, path = place.as_str(), reason, "request refused: {cause}");
            }
            refusal.response()
        }
    };
    response::add_common_headers(&mut answer, web_origin);
    let status = answer.status().as_u16();
    site.metrics.request_answered(place.as_str(), status);
    debug!(%peer, method = display_value(method.as_str()), path = place.as_str(), status, "request answered");
    answer
}

fn allowed_origin(front: &HttpFront, headers: &HeaderMap) -> Option<HeaderValue> {
    HeaderValue::from_str(front.allowed_names.check_origin(headers).ok()??).ok()
}

async fn route_request<M: McpHandler>(
    site: &HttpContext<M>,
    RequestOrigin { ends, place: connection }: RequestOrigin<'_>,
    place: HttpEndpoint,
    request: Request<Incoming>,
) -> Result<HttpResponse, RequestRefusal> {
    let front = &site.front;
    // Such a target names a host of its own besides the checked `Host`.
    if request.uri().authority().is_some() {
        return Err(RequestRefusal::Form);
    }
    let headers = request.headers();
    front.allowed_names.check_host(headers, ends.reached).map_err(RequestRefusal::Host)?;
    let origin = front.allowed_names.check_origin(headers).map_err(RequestRefusal::Origin)?;
    if place == HttpEndpoint::Other {
        return Err(RequestRefusal::Path);
    }
    if request.method() == Method::OPTIONS && origin.is_some() {
        return Ok(response::preflight_response(place.methods()));
    }
    if !place.allows(request.method()) {
        return Err(RequestRefusal::Method { allowed: place.methods() });
    }
    match place {
        HttpEndpoint::Mcp => {
            let token = front.admit(connection, headers, Instant::now())?;
            call_mcp(site, &token.principal, request).await
        }
        HttpEndpoint::Metrics => {
            front.admit(connection, headers, Instant::now())?;
            Ok(response::new_response(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                site.metrics.render(&(site.sessions)()),
            ))
        }
        HttpEndpoint::Health => Ok(status_response(StatusCode::OK, "ok")),
        HttpEndpoint::Ready if (site.ready)() => Ok(status_response(StatusCode::OK, "ready")),
        HttpEndpoint::Ready => Ok(status_response(StatusCode::SERVICE_UNAVAILABLE, "not ready")),
        HttpEndpoint::Root => {
            let text = "cove\n\n/mcp      MCP over Streamable HTTP\n/healthz  whether the process serves\n\
                        /readyz   whether it can take work\n/metrics  numbers for Prometheus\n";
            Ok(public_response(StatusCode::OK, "text/plain; charset=utf-8", text))
        }
        HttpEndpoint::Other => Err(RequestRefusal::Path),
    }
}

/// Returns a response that closes the connection: a client without a token must not keep a place.
fn public_response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut answer = response::new_response(status, kind, body);
    response::close_after(&mut answer);
    answer
}

fn status_response(status: StatusCode, text: &str) -> HttpResponse {
    public_response(status, "application/json", format!("{{\"status\":\"{text}\"}}\n"))
}

async fn call_mcp<M: McpHandler>(
    site: &HttpContext<M>,
    principal: &Principal,
    request: Request<Incoming>,
) -> Result<HttpResponse, RequestRefusal> {
    let (mut parts, body) = request.into_parts();
    let whole = site.front.bodies.read(body, principal).await?;
    // The token is no longer needed, and without it nothing behind can log it.
    parts.headers.remove(AUTHORIZATION);
    parts.extensions.insert(principal.clone());
    // The memory returns when the answer begins: by then the handler has read the body.
    let share = whole.share;
    let answer = site.mcp.answer(Request::from_parts(parts, Full::new(whole.bytes))).await;
    drop(share);
    Ok(answer)
}
