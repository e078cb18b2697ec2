//! MCP over HTTP: one endpoint for both eras of the protocol, behind the HTTP front, which has authenticated the
//! client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Server;
use super::super::http::{self as front, McpHandler};
use super::super::mcp::{McpConnection, TransportKind, local_principal};
use super::legacy_connections::{LegacyConnections, PRINCIPAL};
use super::{ANSWERS_AFTER_SIGNAL, MAX_MESSAGE, StopSignals};
use cove_core::error::Failure;
use cove_core::session::registry::Principal;

/// Slightly longer than the front's own `drain` limit.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);

/// Serves any number of clients until a signal arrives. Fails if the address cannot be bound or the front ends with a
/// panic.
pub async fn serve_http(server: Arc<Server>) -> Result<(), Failure> {
    let signals = StopSignals::listen()?;
    let bound = front::bind(&server.config, &server.env).await?;
    {
        use std::io::Write;
        // Shown to the operator at any log level. The token appears nowhere else.
        let _ = writeln!(std::io::stderr(), "{}", bound.greeting().trim_end());
    }
    tracing::info!(url = bound.url(), "listening");
    let stop = CancellationToken::new();
    let streams = CancellationToken::new();
    let config = StreamableHttpServerConfig::default()
        // The front checks `Host` and `Origin` before it reads anything else.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MAX_MESSAGE)
        .with_cancellation_token(streams.clone());
    let connections = Arc::new(LegacyConnections::new(&server.config.server));
    let of = Arc::clone(&server);
    let answers = TaskTracker::new();
    let protocol = HttpMcpHandler {
        inner: StreamableHttpService::new(
            move || Ok(McpConnection::new(Arc::clone(&of), TransportKind::Http)),
            Arc::clone(&connections),
            config,
        ),
        answers: answers.clone(),
        connections,
    };
    let ready = {
        let ending = server.shutdown.clone();
        move || !ending.is_cancelled()
    };
    let sessions = {
        let server = Arc::clone(&server);
        move || server.sessions.count()
    };
    let serving = front::serve(bound, protocol, Arc::clone(&server.metrics), sessions, ready, stop.clone());
    let mut serving = tokio::spawn(serving);
    let early = tokio::select! {
        ended = &mut serving => Some(ended),
        () = signals.wait() => None,
    };
    server.begin_shutdown();
    server.drain_calls(ANSWERS_AFTER_SIGNAL).await;
    // Answers must also be sent, not only computed: each body holds a token of the tracker.
    answers.close();
    let _ = tokio::time::timeout(ANSWERS_AFTER_SIGNAL, answers.wait()).await;
    stop.cancel();
    streams.cancel();
    let ended = match early {
        Some(ended) => Some(ended),
        None => tokio::time::timeout(DRAIN_TIMEOUT, serving).await.ok(),
    };
    server.shut_down().await;
    match ended {
        Some(Err(error)) => Err(Failure::internal("could not go on serving").because(error)),
        _ => Ok(()),
    }
}

/// The handler behind the HTTP front.
#[derive(Clone)]
struct HttpMcpHandler {
    inner: StreamableHttpService<McpConnection, LegacyConnections>,
    /// Tracks answers to requests until their bodies are sent. Streams that clients only listen to do not count.
    answers: TaskTracker,
    connections: Arc<LegacyConnections>,
}

/// Refuses requests for which rmcp would use another error code than the protocol requires, or an unclear message.
/// Returns the request otherwise.
async fn check_request(
    request: ::http::Request<Full<Bytes>>,
    connections: &LegacyConnections,
) -> Result<::http::Request<Full<Bytes>>, front::HttpResponse> {
    if request.method() == ::http::Method::DELETE {
        let id = request.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        return match id {
            Some(id) if !connections.is_known_to_caller(id) => {
                Err(refusal_response(404, -32600, "there is no such connection; begin another with `initialize`"))
            }
            _ => Ok(request),
        };
    }
    if request.method() != ::http::Method::POST {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await;
    let body = body.to_bytes();
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
        return Err(refusal_response(400, -32700, &format!("the body is not JSON: {error}")));
    }
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(refusal_response(
            400,
            -32600,
            "the body is not one JSON object; batches are not part of the protocol",
        ));
    }
    Ok(::http::Request::from_parts(parts, Full::new(body)))
}

fn refusal_response(status: u16, code: i32, message: &str) -> front::HttpResponse {
    let body = serde_json::json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}});
    let mut answer = ::http::Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *answer.status_mut() = ::http::StatusCode::from_u16(status).unwrap_or(::http::StatusCode::BAD_REQUEST);
    let json = ::http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(::http::header::CONTENT_TYPE, json);
    answer
}

impl McpHandler for HttpMcpHandler {
    fn answer(&self, request: ::http::Request<Full<Bytes>>) -> impl Future<Output = front::HttpResponse> + Send {
        let principal = request.extensions().get::<Principal>().cloned().unwrap_or_else(local_principal);
        let inner = self.inner.clone();
        let under_way = (request.method() == ::http::Method::POST).then(|| self.answers.token());
        let connections = Arc::clone(&self.connections);
        PRINCIPAL.scope(principal, async move {
            let answer = match check_request(request, &connections).await {
                Ok(request) => inner.handle(request).await,
                Err(refusal) => refusal,
            };
            // The token lives as long as the body: until it is sent, or the client disconnects.
            answer.map(|body| {
                body.map_frame(move |frame| {
                    let _ = &under_way;
                    frame
                })
                .boxed()
            })
        })
    }
}
