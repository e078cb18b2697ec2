//! MCP over HTTP: one endpoint for both eras of the protocol, behind the HTTP front, which has authenticated the
//! client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use rmcp::model::{ErrorCode, ErrorData, JsonRpcMessage};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Server;
use super::super::http::{self as front, McpHandler};
use super::super::mcp::{McpConnection, TransportKind, local_principal};
use super::client_line::{self, ClientLine, ErrorAnswer};
use super::legacy_connections::{LegacyConnections, PRINCIPAL};
use super::requests_under_way::OpenRequest;
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
        server: Arc::clone(&server),
    };
    let ready = {
        let ending = server.shutdown.clone();
        move || !ending.is_cancelled()
    };
    let sessions = {
        let server = Arc::clone(&server);
        move || server.sessions.figures()
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
    server: Arc<Server>,
}

/// A request for rmcp, and the place of its id.
type CheckedRequest = (::http::Request<Full<Bytes>>, Option<OpenRequest>);

/// Refuses requests for which rmcp would use another error code than the protocol requires, an unclear message, or no
/// answer at all. Returns the request otherwise.
async fn check_request(
    request: ::http::Request<Full<Bytes>>,
    connections: &LegacyConnections,
) -> Result<CheckedRequest, front::HttpResponse> {
    if request.method() == ::http::Method::DELETE {
        let id = request.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        return match id {
            Some(id) if !connections.is_known_to_caller(id) => {
                Err(refusal_response(404, -32600, "there is no such connection; begin another with `initialize`"))
            }
            _ => Ok((request, None)),
        };
    }
    if request.method() != ::http::Method::POST {
        return Ok((request, None));
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await;
    let body = body.to_bytes();
    match client_line::parse_line(&body) {
        ClientLine::Message(message) => {
            let connection = parts.headers.get("mcp-session-id").and_then(|id| id.to_str().ok());
            let open = match (&*message, connection.filter(|id| connections.is_known_to_caller(id))) {
                (JsonRpcMessage::Request(request), Some(connection)) => {
                    let open = connections.open_request(connection, &request.id);
                    Some(open.ok_or_else(|| error_response(400, &client_line::repeated_id_error(&request.id)))?)
                }
                _ => None,
            };
            Ok((::http::Request::from_parts(parts, Full::new(body)), open))
        }
        ClientLine::Blank => Err(refusal_response(400, -32700, "the body is empty")),
        ClientLine::Ignored(what) => Err(refusal_response(400, -32600, &format!("the body is {what}"))),
        ClientLine::Refused(mut answers) => {
            // An HTTP request has one answer. It names the id if there is exactly one.
            let is_batch = answers.len() > 1;
            let Some(mut answer) = answers.pop() else {
                return Err(refusal_response(400, -32600, "the body is empty"));
            };
            if is_batch {
                answer.id = serde_json::Value::Null;
            }
            Err(error_response(400, &answer))
        }
    }
}

fn refusal_response(status: u16, code: i32, message: &str) -> front::HttpResponse {
    let error = ErrorData::new(ErrorCode(code), message.to_owned(), None);
    error_response(status, &ErrorAnswer::new(serde_json::Value::Null, error))
}

fn error_response(status: u16, answer: &ErrorAnswer) -> front::HttpResponse {
    let body = serde_json::to_vec(answer).unwrap_or_default();
    let mut answer = ::http::Response::new(Full::new(Bytes::from(body)).boxed());
    *answer.status_mut() = ::http::StatusCode::from_u16(status).unwrap_or(::http::StatusCode::BAD_REQUEST);
    let json = ::http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(::http::header::CONTENT_TYPE, json);
    answer
}

impl McpHandler for HttpMcpHandler {
    async fn end_principal(&self, principal: &Principal) {
        self.connections.close_all_of(principal).await;
        self.server.parked.stop_all_of(principal);
        self.server.sessions.stop_all_of(principal).await;
    }

    fn answer(&self, request: ::http::Request<Full<Bytes>>) -> impl Future<Output = front::HttpResponse> + Send {
        let principal = request.extensions().get::<Principal>().cloned().unwrap_or_else(local_principal);
        let inner = self.inner.clone();
        let under_way = (request.method() == ::http::Method::POST).then(|| self.answers.token());
        let connections = Arc::clone(&self.connections);
        PRINCIPAL.scope(principal, async move {
            let (answer, open) = match check_request(request, &connections).await {
                Ok((request, open)) => (inner.handle(request).await, open),
                Err(refusal) => (refusal, None),
            };
            let held = (under_way, open);
            // Token and place live as long as the body: until it is sent, or the client disconnects.
            answer.map(|body| {
                body.map_frame(move |frame| {
                    let _ = &held;
                    frame
                })
                .boxed()
            })
        })
    }
}
