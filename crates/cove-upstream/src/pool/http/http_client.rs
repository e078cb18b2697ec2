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
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::command_headers::CommandHeaders;
use super::parameter_headers::ParameterHeaders;
use super::sse::SseDecoder;
use super::target::HttpTarget;
use crate::pool::call_logs::{AttachedLogs, MessageOrigin};
use crate::pool::intake::LARGE_MESSAGE;
use crate::pool::message::MessageReader;
use crate::pool::notifications::NotificationRouter;
use crate::pool::redaction::ServerSecrets;
use crate::pool::sign_in::{ServerSignIn, SignInError, SignInNeed};
use crate::pool::stdio::{JunkOutput, MAX_LINE};
use crate::pool::text;
use cove_core::sync::lock;

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a call waits for the server to open its stream. Some servers open it only with its first message.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes of a body that is only quoted in an error.
const MAX_QUOTED_BODY: usize = 2 * 1024;
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");
/// Methods whose results rmcp parses itself.
const TYPED_METHODS: &[&str] = &["initialize", "server/discover", "subscriptions/listen"];

/// Why a request has no answer. The message may be shown; it contains no secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(in crate::pool) struct HttpClientError {
    pub(in crate::pool) kind: HttpErrorKind,
    pub(in crate::pool) message: String,
    /// What a person must do before the server answers.
    pub(in crate::pool) sign_in: Option<Box<SignInNeed>>,
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

pub(super) type HttpTransportError = StreamableHttpError<HttpClientError>;

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
    pub(super) client: Client,
    pub(super) shared: Arc<HttpClientState>,
}

pub(super) struct HttpClientState {
    pub(super) reader: MessageReader,
    pub(super) junk: Arc<Mutex<JunkOutput>>,
    pub(super) secrets: ServerSecrets,
    /// None if the definition has no `headers_cmd`.
    command_headers: Option<CommandHeaders>,
    /// None if the definition itself says what authorizes the requests.
    sign_in: Option<Arc<ServerSignIn>>,
    /// The session whose server has answered the request for its stream, or was given up waiting for.
    streaming_session: watch::Sender<Option<Arc<str>>>,
}

impl UpstreamHttpClient {
    pub(super) fn new(
        target: &HttpTarget,
        notices: Arc<NotificationRouter>,
        junk: Arc<Mutex<JunkOutput>>,
        secrets: ServerSecrets,
        sign_in: Option<Arc<ServerSignIn>>,
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
        let command_headers = target.headers_command.clone().map(CommandHeaders::new);
        let streaming_session = watch::Sender::default();
        let shared = HttpClientState { reader, junk, secrets, command_headers, sign_in, streaming_session };
        Ok(Self { client, shared: Arc::new(shared) })
    }

    pub(super) async fn send(
        &self,
        mut request: RequestBuilder,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response, HttpTransportError> {
        if let Some(session) = session {
            request = request.header(SESSION_HEADER, session);
        }
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let Some(sign_in) = &self.shared.sign_in else { return self.send_with_headers(request).await };
        let failed = |error: SignInError| self.shared.error(HttpErrorKind::Broken, &error.to_line());
        let token = sign_in.bearer().await.map_err(failed)?;
        let again = request.try_clone().filter(|_| token.is_some());
        let request = token.iter().fold(request, RequestBuilder::bearer_auth);
        let answer = self.send_with_headers(request).await?;
        match again {
            // The server has not looked at the message, so it can be sent once more.
            Some(again) if answer.status() == StatusCode::UNAUTHORIZED => {
                match sign_in.renew(token).await.map_err(failed)? {
                    Some(token) => self.send_with_headers(again.bearer_auth(token)).await,
                    None => Ok(answer),
                }
            }
            _ => Ok(answer),
        }
    }

    /// Sends a request with the headers of `headers_cmd`, and once more if the server refuses them.
    async fn send_with_headers(&self, request: RequestBuilder) -> Result<Response, HttpTransportError> {
        let Some(command_headers) = &self.shared.command_headers else { return self.send_once(request).await };
        let sent = command_headers.latest().await;
        let again = request.try_clone();
        let response = self.send_once(request.headers(sent.headers.clone())).await?;
        if let Some(again) = again.filter(|_| response.status() == StatusCode::UNAUTHORIZED)
            && let Some(headers) = command_headers.replace(&sent, &self.shared.secrets).await
        {
            return self.send_once(again.headers(headers)).await;
        }
        Ok(response)
    }

    async fn send_once(&self, request: RequestBuilder) -> Result<Response, HttpTransportError> {
        request.send().await.map_err(|error| {
            let (kind, what) = match error.is_connect() {
                true => (HttpErrorKind::Unreachable, "no connection"),
                false => (HttpErrorKind::Broken, "the connection ended without an answer"),
            };
            self.shared.error(kind, &format!("{what}: {}", innermost_cause(&error)))
        })
    }

    /// Describes an answer that is not a result.
    pub(super) async fn refusal_error(&self, response: Response) -> HttpTransportError {
        let status = response.status();
        let header = |name| {
            let value = response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            value.map(|value| text::to_line(value.split('?').next().unwrap_or_default(), 200))
        };
        let mut words = format!("it answered HTTP {}", text::to_line(&status.to_string(), 100));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                if let Some(sign_in) = &self.shared.sign_in
                    && let Some(need) = sign_in.record_refusal(status, response.headers()).await
                {
                    let (message, sign_in) = (format!("it needs {need}"), Some(Box::new(need)));
                    let kind = HttpErrorKind::Denied;
                    return StreamableHttpError::Client(HttpClientError { kind, message, sign_in });
                }
                let words = format!("another token or permission ({words}): see the headers in its definition");
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
        logs: Option<AttachedLogs>,
    ) -> Result<ServerJsonRpcMessage, HttpTransportError> {
        let is_success = response.status().is_success();
        let broken = |words: &str| self.shared.error(HttpErrorKind::Broken, words);
        let (mut body, mut turn) = (Vec::new(), None);
        while let Some(piece) = response.chunk().await.map_err(|error| {
            broken(&format!("the connection ended in the middle of an answer: {}", innermost_cause(&error)))
        })? {
            if body.len() + piece.len() > MAX_LINE {
                let words = format!("its answer has more than {MAX_LINE} bytes");
                return Err(self.shared.error(HttpErrorKind::Refused(0), &words));
            }
            if body.len() > LARGE_MESSAGE && turn.is_none() {
                turn = self.shared.reader.intake().large_turn().await;
            }
            body.extend_from_slice(&piece);
        }
        let origin = MessageOrigin::Body(id.clone(), logs);
        let Some(messages) = self.shared.reader.parse_from(&body, &origin) else {
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
        let decoded = DecodedEvents::new(response, Arc::clone(&self.shared));
        let events = EventStream { decoded, origin, ready_events: VecDeque::new() };
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
        mut custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpTransportError> {
        self.shared.reader.note_sent(&message);
        let request = self
            .client
            .post(uri.as_ref())
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&message)?);
        if let ClientJsonRpcMessage::Request(request) = &message {
            if let Some(session) = session_id.as_ref().filter(|_| request.request.method() == "tools/call") {
                self.shared.wait_for_stream(session).await;
            }
            custom_headers.extend(ParameterHeaders::find_in(&request.request));
        }
        let response = self.send(request, session_id.as_deref(), custom_headers).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let (id, logs) = match message {
            ClientJsonRpcMessage::Request(request) => (request.id, AttachedLogs::find_in(&request.request)),
            _ if status.is_success() => return Ok(StreamableHttpPostResponse::Accepted),
            _ => return Err(self.refusal_error(response).await),
        };
        let session = response.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let kind = content_type(&response);
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if kind.starts_with("application/json") && !is_denied && !status.is_redirection() {
            return match self.read_json_answer(response, &id, logs).await {
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
                let origin = MessageOrigin::Stream(id, logs);
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
        let answer = self.send(request, session_id.as_deref(), custom_headers).await;
        self.shared.streaming_session.send_replace(session_id);
        let response = answer?;
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

/// The events of one body, within bounds.
pub(super) struct DecodedEvents {
    /// None once it has ended.
    response: Option<Response>,
    shared: Arc<HttpClientState>,
    decoder: SseDecoder,
    ready_events: VecDeque<Sse>,
    /// Why the events end after those that are ready.
    broken: Option<String>,
    /// Held while an event is large.
    turn: Option<OwnedSemaphorePermit>,
}

impl DecodedEvents {
    pub(super) fn new(response: Response, shared: Arc<HttpClientState>) -> Self {
        let (decoder, ready_events) = (SseDecoder::default(), VecDeque::new());
        Self { response: Some(response), shared, decoder, ready_events, broken: None, turn: None }
    }

    pub(super) fn close(&mut self) {
        self.response = None;
    }

    /// Returns the next event, an error if the stream breaks, and then `None`. No bytes are lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<Result<Sse, String>> {
        loop {
            if let Some(event) = self.ready_events.pop_front() {
                return Some(Ok(event));
            }
            let intake = self.shared.reader.intake();
            intake.wait_for_pace().await;
            match (self.decoder.buffered_bytes() > LARGE_MESSAGE, self.turn.is_some()) {
                (true, false) => self.turn = intake.large_turn().await,
                (false, true) => self.turn = None,
                _ => {}
            }
            if let Some(broken) = self.broken.take() {
                lock(&self.shared.junk).give_up(&broken);
                return Some(Err(broken));
            }
            self.broken = match self.response.as_mut()?.chunk().await {
                Ok(Some(piece)) => {
                    let decoded = self.decoder.push(&piece, MAX_LINE, &mut self.ready_events);
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
            if self.broken.is_some() {
                self.response = None;
            }
        }
    }
}

/// The events of one answer, or of the separate stream for notifications, as rmcp reads them.
struct EventStream {
    decoded: DecodedEvents,
    origin: MessageOrigin,
    ready_events: VecDeque<Sse>,
}

impl EventStream {
    async fn next(&mut self) -> Option<Result<Sse, SseError>> {
        loop {
            if let Some(event) = self.ready_events.pop_front() {
                return Some(Ok(event));
            }
            match self.decoded.next().await? {
                Ok(event) => self.ready_events.extend(self.decoded.shared.convert_event(event, &self.origin)),
                Err(broken) => return Some(Err(SseError::Body(broken.into()))),
            }
        }
    }
}

impl HttpClientState {
    /// Waits until the server has opened the stream for its own messages, or refused it. Servers drop what they would
    /// send on it before, such as the question that a call leads to.
    async fn wait_for_stream(&self, session: &Arc<str>) {
        let mut streaming = self.streaming_session.subscribe();
        let opened = streaming.wait_for(|streaming| streaming.as_ref() == Some(session));
        if tokio::time::timeout(STREAM_OPEN_TIMEOUT, opened).await.is_err() {
            self.streaming_session.send_replace(Some(Arc::clone(session)));
        }
    }

    /// Returns an error whose message contains no secrets.
    pub(super) fn error(&self, kind: HttpErrorKind, words: &str) -> HttpTransportError {
        StreamableHttpError::Client(HttpClientError { kind, message: self.secrets.redact(words), sign_in: None })
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
        let converted = messages
            .into_iter()
            .filter_map(|message| Some(Sse { data: Some(serde_json::to_string(&message).ok()?), ..Sse::default() }));
        // The event's own id and retry time follow its messages.
        converted.chain([event]).collect()
    }
}

/// Returns the media type in lower case; empty if there is none.
pub(super) fn content_type(response: &Response) -> String {
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
pub(crate) fn innermost_cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.source().is_none() { "it did not work".to_owned() } else { text::to_line(&innermost.to_string(), 200) }
}
