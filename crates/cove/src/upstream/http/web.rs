//! Requests over HTTP for rmcp's transport. Our own instead of rmcp's, so that answers are bounded and passed on as they
//! came, and so that a failure says what the server said and repeats no secret.

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use http::header::{ACCEPT, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomResult, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::{Value, json};
use sse_stream::Sse;

use super::events::Decoder;
use super::target::Target;
use crate::upstream::message::{self, Heard};
use crate::upstream::notices::Notices;
use crate::upstream::ready::Secrets;
use crate::upstream::text;
use crate::upstream::wire::{Junk, MAX_LINE};

const MAX_REDIRECTS: usize = 5;
const CONNECT: Duration = Duration::from_secs(15);
/// Of a body that is only quoted.
const QUOTED: usize = 2 * 1024;
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// Wraps a result on its way through rmcp, which would read it into types that do not know all of it.
const UNTOUCHED: &str = "cove/result";

/// Why a request has no answer: words that may be shown, without secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{words}")]
pub(in crate::upstream) struct WebError {
    pub(in crate::upstream) kind: Kind,
    pub(in crate::upstream) words: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Kind {
    /// It wants to know who asks; the words say what it needs.
    Denied,
    /// It is well, and does not do this; with the status.
    Refused(u16),
    /// It is not well, or is no such server at all.
    Broken,
    /// Nothing was heard of it.
    Unreachable,
}

type Failed = StreamableHttpError<WebError>;

fn failed(kind: Kind, words: String) -> Failed {
    StreamableHttpError::Client(WebError { kind, words })
}

/// Clones share everything.
#[derive(Clone)]
pub(super) struct Web {
    client: Client,
    shared: Arc<Shared>,
}

struct Shared {
    notices: Arc<Notices>,
    junk: Arc<Mutex<Junk>>,
    secrets: Secrets,
    /// Requests whose results rmcp itself reads.
    typed: Mutex<HashSet<RequestId>>,
}

impl Web {
    pub(super) fn new(
        target: &Target,
        notices: Arc<Notices>,
        junk: Arc<Mutex<Junk>>,
        secrets: Secrets,
    ) -> Result<Self, String> {
        let mut client = Client::builder()
            .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
            .default_headers(target.headers.clone())
            .connect_timeout(CONNECT)
            .redirect(Policy::custom(|next| {
                let same = |to: &reqwest::Url, from: &reqwest::Url| to.origin() == from.origin();
                let is_repeat = matches!(next.status().as_u16(), 307 | 308);
                let from = next.previous().last().is_some_and(|from| same(next.url(), from));
                // Headers are for one origin alone, and any other status would turn the request into another.
                if is_repeat && from && next.previous().len() <= MAX_REDIRECTS {
                    next.follow()
                } else {
                    next.stop()
                }
            }));
        if target.is_loopback() {
            client = client.no_proxy();
        }
        let client =
            client.build().map_err(|error| format!("no connection can be made: {}", cause(&error)))?;
        let shared = Shared { notices, junk, secrets, typed: Mutex::default() };
        Ok(Self { client, shared: Arc::new(shared) })
    }

    async fn send(
        &self,
        request: RequestBuilder,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response, Failed> {
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request.send().await.map_err(|error| {
            let words = self.shared.secrets.redact(&cause(&error));
            if error.is_connect() {
                failed(Kind::Unreachable, format!("it could not be reached: {words}"))
            } else {
                failed(Kind::Broken, format!("the connection ended without an answer: {words}"))
            }
        })
    }

    /// An answer that is none, in words.
    async fn refusal(&self, response: Response) -> Failed {
        let status = response.status();
        let header = |name| {
            let value = response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            value.map(|value| text::line(value.split('?').next().unwrap_or_default(), 200))
        };
        let mut words = format!("it answered HTTP {}", text::line(&status.to_string(), 100));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let words = format!(
                    "sign-in or a token ({words}): add a header such as `Authorization` to its definition"
                );
                return failed(Kind::Denied, self.shared.secrets.redact(&words));
            }
            _ if status.is_redirection() => {
                let to = header(LOCATION).unwrap_or_else(|| "nowhere".to_owned());
                words += &format!(" to `{to}`, which is not followed: write the right address in `url`");
            }
            _ => {
                if let Some(after) = header(RETRY_AFTER) {
                    words += &format!(" (try again after {after})");
                }
                let quoted = quote(response).await;
                if !quoted.is_empty() {
                    words += &format!(": `{quoted}`");
                }
            }
        }
        let kind = if status.is_client_error() { Kind::Refused(status.as_u16()) } else { Kind::Broken };
        failed(kind, self.shared.secrets.redact(&words))
    }

    /// The answer to a request in one piece.
    async fn json(&self, mut response: Response, id: &RequestId) -> Result<ServerJsonRpcMessage, Failed> {
        let is_success = response.status().is_success();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| {
            let words = self.shared.secrets.redact(&cause(&error));
            failed(Kind::Broken, format!("the connection ended in the middle of an answer: {words}"))
        })? {
            if body.len() + piece.len() > MAX_LINE {
                return Err(failed(Kind::Refused(0), format!("its answer has more than {MAX_LINE} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        let Heard::Messages(messages) = message::parse(&body, &self.shared.typed, &self.shared.notices)
        else {
            let quoted = text::line(&String::from_utf8_lossy(&body[..body.len().min(QUOTED)]), 200);
            let words = format!("its answer is no message: `{}`", self.shared.secrets.redact(&quoted));
            return Err(failed(Kind::Broken, words));
        };
        for message in messages {
            match message {
                JsonRpcMessage::Response(response) if is_success => {
                    let result = wrapped(response.result);
                    return Ok(JsonRpcMessage::response(result, id.clone()));
                }
                // It answers this request, whatever id it has: those who refuse early do not look for it.
                JsonRpcMessage::Error(error) => {
                    return Ok(JsonRpcMessage::error(error.error, Some(id.clone())));
                }
                _ => {}
            }
        }
        Err(failed(Kind::Broken, "its answer has no result".to_owned()))
    }

    fn events(&self, response: Response) -> stream::BoxStream<'static, Result<Sse, SseError>> {
        let events = Events {
            response,
            shared: Arc::clone(&self.shared),
            decoder: Decoder::default(),
            whole: VecDeque::new(),
            is_over: false,
        };
        Box::pin(stream::unfold(events, |mut events| async move {
            let next = events.next().await?;
            Some((next, events))
        }))
    }

    async fn post(
        &self,
        uri: &str,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let asked = match &message {
            ClientJsonRpcMessage::Request(request) => {
                if matches!(
                    request.request,
                    ClientRequest::InitializeRequest(_)
                        | ClientRequest::DiscoverRequest(_)
                        | ClientRequest::SubscriptionsListenRequest(_)
                        // Some arguments are sent in headers too, which rmcp finds in the list.
                        | ClientRequest::ListToolsRequest(_)
                ) {
                    lock(&self.shared.typed).insert(request.id.clone());
                }
                Some(request.id.clone())
            }
            _ => None,
        };
        let mut request = self
            .client
            .post(uri)
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&message)?);
        let has_session = session.is_some();
        if let Some(session) = session {
            request = request.header(SESSION, session.as_ref());
        }
        let response = self.send(request, headers).await?;
        let status = response.status();
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let Some(id) = asked else {
            return if status.is_success() {
                Ok(StreamableHttpPostResponse::Accepted)
            } else {
                Err(self.refusal(response).await)
            };
        };
        let session =
            response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.unwrap_or_default().to_ascii_lowercase();
        if kind.starts_with("application/json") && !is_denied && !status.is_redirection() {
            return match self.json(response, &id).await {
                Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                // A page of JSON that is no message tells less than the status.
                Err(StreamableHttpError::Client(said)) if !status.is_success() => {
                    let words = format!("it answered HTTP {status}; {}", said.words);
                    let is_refusal = status.is_client_error();
                    Err(failed(if is_refusal { Kind::Refused(status.as_u16()) } else { Kind::Broken }, words))
                }
                Err(error) => Err(error),
            };
        }
        match status {
            // The answer comes on the other stream.
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(StreamableHttpPostResponse::Accepted),
            _ if !status.is_success() => Err(self.refusal(response).await),
            _ if kind.starts_with("text/event-stream") => {
                Ok(StreamableHttpPostResponse::Sse(self.events(response), session))
            }
            _ => {
                let kind = if kind.is_empty() {
                    "something".to_owned()
                } else {
                    format!("`{}`", text::line(&kind, 100))
                };
                let quoted = self.shared.secrets.redact(&quote(response).await);
                let words =
                    format!("it answers with {kind} instead of JSON, so it is no MCP server: `{quoted}`");
                Err(failed(Kind::Broken, words))
            }
        }
    }
}

impl StreamableHttpClient for Web {
    type Error = WebError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.post(&uri, message, session_id, custom_headers).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let request = self.client.delete(uri.as_ref()).header(SESSION, session_id.as_ref());
        // Whatever it says, nothing is left for us to do.
        self.send(request, custom_headers).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<stream::BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let mut request = self.client.get(uri.as_ref()).header(ACCEPT, "text/event-stream");
        if let Some(session) = session_id {
            request = request.header(SESSION, session.as_ref());
        }
        if let Some(last) = last_event_id {
            request = request.header(LAST_EVENT, last);
        }
        let response = self.send(request, custom_headers).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream"));
        match response.status() {
            status if status.is_success() && is_stream => Ok(self.events(response)),
            // Not offered, or not for this session any more: asking again changes nothing.
            status if status.is_client_error() || status.is_success() => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            _ => Err(self.refusal(response).await),
        }
    }
}

/// Events of one answer, or of the stream beside all answers.
struct Events {
    response: Response,
    shared: Arc<Shared>,
    decoder: Decoder,
    whole: VecDeque<Sse>,
    is_over: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Result<Sse, SseError>> {
        loop {
            if let Some(event) = self.whole.pop_front() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            let mut read = VecDeque::new();
            let broken = match self.response.chunk().await {
                Ok(Some(piece)) => match self.decoder.push(&piece, MAX_LINE, &mut read) {
                    Ok(()) => None,
                    Err(_) => Some(format!("it sent a message of more than {MAX_LINE} bytes")),
                },
                Ok(None) => {
                    self.is_over = true;
                    None
                }
                Err(error) => {
                    let words = self.shared.secrets.redact(&cause(&error));
                    Some(format!("its connection ended in the middle of an answer: {words}"))
                }
            };
            for event in read {
                self.whole.extend(self.shared.heard(event));
            }
            if let Some(broken) = broken {
                self.is_over = true;
                lock(&self.shared.junk).give_up(&broken);
                return Some(Err(SseError::Body(broken.into())));
            }
        }
    }
}

impl Shared {
    /// An event as rmcp shall see it. What is no message is counted and quoted.
    fn heard(&self, mut event: Sse) -> Vec<Sse> {
        let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
        let Some(data) = event.data.take().filter(|data| is_message && !data.trim().is_empty()) else {
            return vec![event];
        };
        match message::parse(data.as_bytes(), &self.typed, &self.notices) {
            Heard::Junk => {
                lock(&self.junk).add(self.secrets.redact(&data).as_bytes());
                vec![event]
            }
            Heard::Messages(messages) => {
                let told = messages.into_iter().filter_map(|message| {
                    let message = match message {
                        JsonRpcMessage::Response(response) => {
                            JsonRpcMessage::response(wrapped(response.result), response.id)
                        }
                        other => other,
                    };
                    let data: String = serde_json::to_string(&message).ok()?;
                    Some(Sse { data: Some(data), ..Sse::default() })
                });
                // The event's own id and pause count once its messages are told.
                told.collect::<Vec<_>>().into_iter().chain([event]).collect()
            }
        }
    }
}

fn wrapped(result: ServerResult) -> ServerResult {
    match result {
        ServerResult::CustomResult(CustomResult(value)) => {
            ServerResult::CustomResult(CustomResult(json!({ UNTOUCHED: value })))
        }
        typed => typed,
    }
}

/// The result that [`wrapped`] hid.
pub(in crate::upstream) fn unwrapped(value: Value) -> Value {
    match value {
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key(UNTOUCHED) => {
            fields.remove(UNTOUCHED).unwrap_or_default()
        }
        other => other,
    }
}

/// The beginning of a body, on one line.
async fn quote(mut response: Response) -> String {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(piece)) = response.chunk().await {
            body.extend_from_slice(&piece);
            if body.len() >= QUOTED {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), read).await;
    body.truncate(QUOTED);
    text::line(String::from_utf8_lossy(&body).trim(), 200)
}

/// The innermost cause: the ones around it repeat it, and name the address, which may hold a secret.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.source().is_none() {
        "it did not work".to_owned()
    } else {
        text::line(&innermost.to_string(), 200)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
