//! MCP over HTTP: one endpoint for both eras of the protocol, behind a front that has checked who asks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Server;
use super::super::http::{self as front, Mcp};
use super::super::mcp::{Connection, Origin, local};
use super::connections::{Connections, PRINCIPAL};
use super::{ANSWERS, MAX_MESSAGE, Signals};
use crate::error::Error;
use crate::session::registry::Principal;

/// A little more than the front itself gives what is under way.
const DRAIN: Duration = Duration::from_secs(6);

/// Serves any number of clients until a signal comes.
pub async fn serve_http(server: Arc<Server>) -> Result<(), Error> {
    let signals = Signals::listen()?;
    let bound = front::bind(&server.config, &server.around).await?;
    {
        use std::io::Write;
        // For people, whatever the level of logs is; the token is nowhere else.
        let _ = writeln!(std::io::stderr(), "{}", bound.greeting().trim_end());
    }
    tracing::info!(url = bound.url(), "listening");
    let stop = CancellationToken::new();
    let streams = CancellationToken::new();
    let config = StreamableHttpServerConfig::default()
        // Host and Origin are checked in front, before anything else is read.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MAX_MESSAGE)
        .with_cancellation_token(streams.clone());
    let connections = Arc::new(Connections::new(&server.config.server));
    let of = Arc::clone(&server);
    let answers = TaskTracker::new();
    let protocol = Protocol {
        inner: StreamableHttpService::new(
            move || Ok(Connection::new(Arc::clone(&of), Origin::Http)),
            Arc::clone(&connections),
            config,
        ),
        answers: answers.clone(),
        connections,
    };
    let ready = {
        let ending = server.ending.clone();
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
    server.begin_to_end();
    server.end_calls(ANSWERS).await;
    // What was answered must also have been sent.
    answers.close();
    let _ = tokio::time::timeout(ANSWERS, answers.wait()).await;
    stop.cancel();
    streams.cancel();
    let ended = match early {
        Some(ended) => Some(ended),
        None => tokio::time::timeout(DRAIN, serving).await.ok(),
    };
    server.end().await;
    match ended {
        Some(Err(error)) => Err(Error::internal("could not go on serving").because(error)),
        _ => Ok(()),
    }
}

/// What stands behind the HTTP front.
#[derive(Clone)]
struct Protocol {
    inner: StreamableHttpService<Connection, Connections>,
    /// Answers to requests that are under way; streams that clients only listen to are none.
    answers: TaskTracker,
    connections: Arc<Connections>,
}

/// What rmcp would refuse with another code than the protocol's, and in other words than ours.
async fn checked(
    request: ::http::Request<Full<Bytes>>,
    connections: &Connections,
) -> Result<::http::Request<Full<Bytes>>, front::Answer> {
    if request.method() == ::http::Method::DELETE {
        let id = request.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        return match id {
            Some(id) if !connections.knows(id) => {
                Err(refusal(404, -32600, "there is no such connection; begin another with `initialize`"))
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
        return Err(refusal(400, -32700, &format!("the body is not JSON: {error}")));
    }
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(refusal(
            400,
            -32600,
            "the body is not one JSON object; batches are not part of the protocol",
        ));
    }
    Ok(::http::Request::from_parts(parts, Full::new(body)))
}

fn refusal(status: u16, code: i32, message: &str) -> front::Answer {
    let body = serde_json::json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}});
    let mut answer = ::http::Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *answer.status_mut() = ::http::StatusCode::from_u16(status).unwrap_or(::http::StatusCode::BAD_REQUEST);
    let json = ::http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(::http::header::CONTENT_TYPE, json);
    answer
}

impl Mcp for Protocol {
    fn answer(&self, request: ::http::Request<Full<Bytes>>) -> impl Future<Output = front::Answer> + Send {
        let principal = request.extensions().get::<Principal>().cloned().unwrap_or_else(local);
        let inner = self.inner.clone();
        let under_way = (request.method() == ::http::Method::POST).then(|| self.answers.token());
        let connections = Arc::clone(&self.connections);
        PRINCIPAL.scope(principal, async move {
            let answer = match checked(request, &connections).await {
                Ok(request) => inner.handle(request).await,
                Err(refusal) => refusal,
            };
            // Goes with the body, to its end or to the client's.
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
