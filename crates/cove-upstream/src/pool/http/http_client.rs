//! The HTTP client for rmcp's transport. Unlike rmcp's own, it bounds answers, passes results on unparsed, and
//! reports failures with the server's words but without secrets.

use std::collections::{HashMap, VecDeque};
use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use rmcp::model::{ClientJsonRpcMessage, CustomResult, JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerResult};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::{Map, Value};
use sse_stream::Sse;

use super::sse::SseDecoder;
use super::target::HttpTarget;
use crate::pool::call_logs::{AttachedLogs, MessageOrigin};
use crate::pool::message::MessageReader;
use crate::pool::notifications::NotificationRouter;
use crate::pool::redaction::ServerSecrets;
use crate::pool::stdio::{JunkOutput, MAX_LINE};
use crate::pool::text;
use cove_core::sync::lock;

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Most bytes of a body that is only quoted in an error.
const MAX_QUOTED_BODY: usize = 2 * 1024;
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");
/// Methods whose results rmcp parses itself: it reads the list of tools to learn which arguments it must also send as
/// headers.
const TYPED_METHODS: &[&str] = &["initialize", "server/discover", "subscriptions/listen", "tools/list"];
/// Key that hides a result from rmcp, whose types would lose fields that they do not know.
const RESULT_WRAPPER_KEY: &str = "cove/result";

/// Why a request has no answer. The message may be shown; it contains no secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(in crate::pool) struct HttpClientError {
    pub(in crate::pool) kind: HttpErrorKind,
    pub(in crate::pool) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum HttpErrorKind {
    /// The server requires a credential; the message says which.
    Denied,
    /// The server works but rejects this request, with this status.
    Refused(u16),
    /// The server fails, or is not an MCP server.
    Broken,
    /// The server did not respond.
    Unreachable,
}

type HttpTransportError = StreamableHttpError<HttpClientError>;

impl HttpClientError {
    /// Returns the error of this client inside an error of rmcp, if there is one.
    pub(in crate::pool) fn find_in(error: &DynamicTransportError) -> Option<&Self> {
        match error.error.downcast_ref::<HttpTransportError>() {
            Some(StreamableHttpError::Client(error)) => Some(error),
            _ => None,
        }
    }
}

impl HttpErrorKind {
    fn from_status(status: StatusCode) -> Self {
        if status.is_client_error() { Self::Refused(status.as_u16()) } else { Self::Broken }
    }
}

/// Clones share all state.
#[derive(Clone)]
pub(super) struct UpstreamHttpClient {
    client: Client,
    shared: Arc<HttpClientState>,
}

struct HttpClientState {
    reader: MessageReader,
    junk: Arc<Mutex<JunkOutput>>,
    secrets: ServerSecrets,
}

impl UpstreamHttpClient {
    pub(super) fn new(
        target: &HttpTarget,
        notices: Arc<NotificationRouter>,
        junk: Arc<Mutex<JunkOutput>>,
        secrets: ServerSecrets,
    ) -> Result<Self, String> {
        // Installs the process-wide provider. This fails, harmlessly, for every client but the first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
            .default_headers(target.headers.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(Policy::custom(|next| {
                let same = |to: &reqwest::Url, from: &reqwest::Url| to.origin() == from.origin();
                let is_repeat = matches!(next.status().as_u16(), 307 | 308);
                let from = next.previous().last().is_some_and(|from| same(next.url(), from));
                // Headers are meant for one origin only, and any other redirect status would change the method.
                if is_repeat && from && next.previous().len() <= MAX_REDIRECTS { next.follow() } else { next.stop() }
            }));
        if target.is_loopback() {
            client = client.no_proxy();
        }
        let client =
            client.build().map_err(|error| format!("no connection can be made: {}", innermost_cause(&error)))?;
        let reader = MessageReader::new(TYPED_METHODS, notices);
        Ok(Self { client, shared: Arc::new(HttpClientState { reader, junk, secrets }) })
    }

    async fn send(
        &self,
        mut request: RequestBuilder,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response, HttpTransportError> {
        if let Some(session) = session {
            request = request.header(SESSION_HEADER, session);
        }
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request.send().await.map_err(|error| {
            let (kind, what) = match error.is_connect() {
                true => (HttpErrorKind::Unreachable, "no connection"),
                false => (HttpErrorKind::Broken, "the connection ended without an answer"),
            };
            self.shared.error(kind, &format!("{what}: {}", innermost_cause(&error)))
        })
    }

    /// Describes an answer that is not a result.
    async fn refusal_error(&self, response: Response) -> HttpTransportError {
        let status = response.status();
        let header = |name| {
            let value = response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            value.map(|value| text::to_line(value.split('?').next().unwrap_or_default(), 200))
        };
        let mut words = format!("it answered HTTP {}", text::to_line(&status.to_string(), 100));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let words =
                    format!("sign-in or a token ({words}): add a header such as `Authorization` to its definition");
                return self.shared.error(HttpErrorKind::Denied, &words);
            }
            _ if status.is_redirection() => {
                let to = header(LOCATION).unwrap_or_else(|| "nowhere".to_owned());
                words += &format!(" to `{to}`, which is not followed: write the right address in `url`");
            }
            _ => {
                if let Some(after) = header(RETRY_AFTER) {
                    words += &format!(" (try again after {after})");
                }
                let quoted = quote_body(response).await;
                if !quoted.is_empty() {
                    words += &format!(": `{quoted}`");
                }
            }
        }
        self.shared.error(HttpErrorKind::from_status(status), &words)
    }

    /// Reads the answer to a request from a JSON body.
    async fn read_json_answer(
        &self,
        mut response: Response,
        id: &RequestId,
    ) -> Result<ServerJsonRpcMessage, HttpTransportError> {
        let is_success = response.status().is_success();
        let broken = |words: &str| self.shared.error(HttpErrorKind::Broken, words);
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| {
            broken(&format!("the connection ended in the middle of an answer: {}", innermost_cause(&error)))
        })? {
            if body.len() + piece.len() > MAX_LINE {
                let words = format!("its answer has more than {MAX_LINE} bytes");
                return Err(self.shared.error(HttpErrorKind::Refused(0), &words));
            }
            body.extend_from_slice(&piece);
        }
        let Some(messages) = self.shared.reader.parse_line(&body) else {
            let quoted = text::to_line(&String::from_utf8_lossy(&body[..body.len().min(MAX_QUOTED_BODY)]), 200);
            return Err(broken(&format!("its answer is no message: `{quoted}`")));
        };
        let answer = messages.into_iter().find_map(|message| match message {
            JsonRpcMessage::Response(response) if is_success => {
                Some(JsonRpcMessage::response(response.result, id.clone()))
            }
            // This error answers the request, whatever its id: servers that refuse early do not read the id.
            JsonRpcMessage::Error(error) => Some(JsonRpcMessage::error(error.error, Some(id.clone()))),
            _ => None,
        });
        answer.ok_or_else(|| broken("its answer has no result"))
    }

    fn event_stream(
        &self,
        response: Response,
        origin: MessageOrigin,
    ) -> stream::BoxStream<'static, Result<Sse, SseError>> {
        let events = EventStream {
            response: Some(response),
            origin,
            shared: Arc::clone(&self.shared),
            decoder: SseDecoder::default(),
            ready_events: VecDeque::new(),
        };
        Box::pin(stream::unfold(events, |mut events| async move {
            let next = events.next().await?;
            Some((next, events))
        }))
    }
}

impl StreamableHttpClient for UpstreamHttpClient {
    type Error = HttpClientError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpTransportError> {
        self.shared.reader.note_sent(&message);
        let request = self
            .client
            .post(uri.as_ref())
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&message)?);
        let response = self.send(request, session_id.as_deref(), custom_headers).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let (id, origin) = match message {
            ClientJsonRpcMessage::Request(request) => {
                (request.id, MessageOrigin::Request(AttachedLogs::find_in(&request.request)))
            }
            _ if status.is_success() => return Ok(StreamableHttpPostResponse::Accepted),
            _ => return Err(self.refusal_error(response).await),
        };
        let session = response.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let kind = content_type(&response);
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if kind.starts_with("application/json") && !is_denied && !status.is_redirection() {
            return match self.read_json_answer(response, &id).await {
                Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                // A JSON body that is not a message says less than the status.
                Err(StreamableHttpError::Client(error)) if !status.is_success() => {
                    let words = format!("it answered HTTP {status}; {}", error.message);
                    Err(self.shared.error(HttpErrorKind::from_status(status), &words))
                }
                Err(error) => Err(error),
            };
        }
        match status {
            // The answer arrives on the other stream.
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(StreamableHttpPostResponse::Accepted),
            _ if !status.is_success() => Err(self.refusal_error(response).await),
            _ if kind.starts_with("text/event-stream") => {
                Ok(StreamableHttpPostResponse::Sse(self.event_stream(response, origin), session))
            }
            _ => {
                let kind =
                    if kind.is_empty() { "something".to_owned() } else { format!("`{}`", text::to_line(&kind, 100)) };
                let quoted = quote_body(response).await;
                let words = format!("it answers with {kind} instead of JSON, so it is no MCP server: `{quoted}`");
                Err(self.shared.error(HttpErrorKind::Broken, &words))
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpTransportError> {
        // Cove has nothing left to do, whatever the server answers.
        self.send(self.client.delete(uri.as_ref()), Some(&session_id), custom_headers).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<stream::BoxStream<'static, Result<Sse, SseError>>, HttpTransportError> {
        let mut request = self.client.get(uri.as_ref()).header(ACCEPT, "text/event-stream");
        if let Some(last) = last_event_id {
            request = request.header(LAST_EVENT_HEADER, last);
        }
        let response = self.send(request, session_id.as_deref(), custom_headers).await?;
        let is_stream = content_type(&response).starts_with("text/event-stream");
        match response.status() {
            status if status.is_success() && is_stream => Ok(self.event_stream(response, MessageOrigin::Server)),
            // The server does not offer a stream, or no longer for this session. Asking again does not help.
            status if status.is_client_error() || status.is_success() => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Err(self.refusal_error(response).await),
        }
    }
}

/// The events of one answer, or of the separate stream for notifications.
struct EventStream {
    /// None once it has ended.
    response: Option<Response>,
    origin: MessageOrigin,
    shared: Arc<HttpClientState>,
    decoder: SseDecoder,
    ready_events: VecDeque<Sse>,
}

impl EventStream {
    async fn next(&mut self) -> Option<Result<Sse, SseError>> {
        loop {
            if let Some(event) = self.ready_events.pop_front() {
                return Some(Ok(event));
            }
            let mut events = VecDeque::new();
            let broken = match self.response.as_mut()?.chunk().await {
                Ok(Some(piece)) => {
                    let decoded = self.decoder.push(&piece, MAX_LINE, &mut events);
                    decoded.err().map(|_| format!("it sent a message of more than {MAX_LINE} bytes"))
                }
                Ok(None) => {
                    self.response = None;
                    None
                }
                Err(error) => {
                    let words = self.shared.secrets.redact(&innermost_cause(&error));
                    Some(format!("its connection ended in the middle of an answer: {words}"))
                }
            };
            self.ready_events
                .extend(events.into_iter().flat_map(|event| self.shared.convert_event(event, &self.origin)));
            if let Some(broken) = broken {
                self.response = None;
                lock(&self.shared.junk).give_up(&broken);
                return Some(Err(SseError::Body(broken.into())));
            }
        }
    }
}

impl HttpClientState {
    /// Returns an error whose message contains no secrets.
    fn error(&self, kind: HttpErrorKind, words: &str) -> HttpTransportError {
        StreamableHttpError::Client(HttpClientError { kind, message: self.secrets.redact(words) })
    }

    /// Converts an event for rmcp. Data that is not a message is counted and quoted.
    fn convert_event(&self, mut event: Sse, origin: &MessageOrigin) -> Vec<Sse> {
        let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
        let Some(data) = event.data.take().filter(|data| is_message && !data.trim().is_empty()) else {
            return vec![event];
        };
        let messages = self.reader.parse_from(data.as_bytes(), origin).unwrap_or_else(|| {
            lock(&self.junk).add(self.secrets.redact(&data).as_bytes());
            Vec::new()
        });
        let converted = messages.into_iter().filter_map(|mut message| {
            if let JsonRpcMessage::Response(response) = &mut message {
                wrap_result(&mut response.result);
            }
            Some(Sse { data: Some(serde_json::to_string(&message).ok()?), ..Sse::default() })
        });
        // The event's own id and retry time follow its messages.
        converted.chain([event]).collect()
    }
}

fn wrap_result(result: &mut ServerResult) {
    if let ServerResult::CustomResult(CustomResult(value)) = result {
        *value = Value::Object(Map::from_iter([(RESULT_WRAPPER_KEY.to_owned(), value.take())]));
    }
}

/// Returns the result that [`wrap_result`] hid.
pub(in crate::pool) fn unwrap_result(value: Value) -> Value {
    match value {
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key(RESULT_WRAPPER_KEY) => {
            fields.remove(RESULT_WRAPPER_KEY).unwrap_or_default()
        }
        other => other,
    }
}

/// Returns the media type in lower case; empty if there is none.
fn content_type(response: &Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.unwrap_or_default().to_ascii_lowercase()
}

/// Returns the beginning of a body on one line.
async fn quote_body(mut response: Response) -> String {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(piece)) = response.chunk().await {
            body.extend_from_slice(&piece);
            if body.len() >= MAX_QUOTED_BODY {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), read).await;
    body.truncate(MAX_QUOTED_BODY);
    text::to_line(String::from_utf8_lossy(&body).trim(), 200)
}

/// Returns the innermost cause. The outer ones repeat it and name the address, which may hold a secret.
fn innermost_cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.source().is_none() { "it did not work".to_owned() } else { text::to_line(&innermost.to_string(), 200) }
}
