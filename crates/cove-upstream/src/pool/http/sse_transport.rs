//! The older transport, HTTP with SSE of revision 2024-11-05, as an rmcp transport: one stream carries everything that
//! the server sends, and its first event names the address that takes Cove's messages.
//!
//! Bounds, redirects and redaction are those of [`UpstreamHttpClient`]. A stream that ends is the end of the connection:
//! its calls fail, and the next call connects again.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Response, Url};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::time::{Instant, timeout_at};

use std::collections::{HashMap, VecDeque};

use super::http_client::{DecodedEvents, HttpErrorKind, HttpTransportError, UpstreamHttpClient, content_type};
use crate::pool::call_logs::MessageOrigin;
use crate::pool::stdio::MAX_JUNK_LINES;
use crate::pool::text;
use cove_core::sync::lock;

/// How long the stream may take to name the address for messages.
pub(super) const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ENDPOINT: usize = 8 * 1024;
/// How long the server may take to accept one message. Calls have their own, mostly shorter, limits; this one ends
/// requests that a hostile server leaves open.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection over the older transport.
pub(super) struct SseTransport {
    client: UpstreamHttpClient,
    endpoint: Url,
    events: DecodedEvents,
    ready_messages: VecDeque<ServerJsonRpcMessage>,
    /// Events in a row that were no messages.
    junk_events: usize,
}

impl SseTransport {
    /// Opens the stream. Fails if the server does not answer with one until `until`.
    pub(super) async fn open_stream(
        client: &UpstreamHttpClient,
        url: &Url,
        until: Instant,
    ) -> Result<Response, HttpTransportError> {
        timeout_at(until, client.open_event_stream(url)).await.unwrap_or_else(|_| {
            let words = format!("it did not open an event stream within {} s", ENDPOINT_TIMEOUT.as_secs());
            Err(client.shared.error(HttpErrorKind::Broken, &words))
        })
    }

    /// Waits until `until` for the event with the address for messages. Fails if that is not of the server's own origin:
    /// the headers of a definition are meant for that origin alone.
    pub(super) async fn from_stream(
        client: &UpstreamHttpClient,
        stream: Response,
        url: &Url,
        until: Instant,
    ) -> Result<Self, HttpTransportError> {
        let base = stream.url().clone();
        let mut events = DecodedEvents::new(stream, Arc::clone(&client.shared));
        let broken = |words: &str| client.shared.error(HttpErrorKind::Broken, words);
        let first = async {
            loop {
                match events.next().await {
                    // Sets the time for a reconnection, or nothing at all.
                    Some(Ok(event)) if event.data.as_ref().is_none_or(String::is_empty) => {}
                    other => return other,
                }
            }
        };
        let first = timeout_at(until, first).await;
        let endpoint = match first {
            Ok(Some(Ok(event))) if event.event.as_deref() == Some("endpoint") => event.data.unwrap_or_default(),
            Ok(Some(Ok(_))) => return Err(broken("its event stream does not begin with an `endpoint` event")),
            Ok(Some(Err(reason))) => return Err(broken(&reason)),
            Ok(None) => return Err(broken("its event stream ended before an `endpoint` event")),
            Err(_) => {
                let words = format!("its event stream had no `endpoint` event within {} s", ENDPOINT_TIMEOUT.as_secs());
                return Err(broken(&words));
            }
        };
        let endpoint =
            Some(endpoint.trim()).filter(|text| text.len() <= MAX_ENDPOINT).and_then(|text| base.join(text).ok());
        let Some(endpoint) = endpoint else { return Err(broken("its `endpoint` event has no address")) };
        if endpoint.origin() != url.origin() {
            let origin = text::to_line(&endpoint.origin().ascii_serialization(), 200);
            let words = format!("its `endpoint` event names another origin, `{origin}`, to which nothing is sent");
            return Err(broken(&words));
        }
        Ok(Self { client: client.clone(), endpoint, events, ready_messages: VecDeque::new(), junk_events: 0 })
    }
}

impl UpstreamHttpClient {
    async fn open_event_stream(&self, url: &Url) -> Result<Response, HttpTransportError> {
        let request = self.client.get(url.clone()).header(ACCEPT, "text/event-stream");
        let response = self.send(request, None, HashMap::new()).await?;
        let kind = content_type(&response);
        match response.status() {
            status if !status.is_success() => Err(self.refusal_error(response).await),
            _ if kind.starts_with("text/event-stream") => Ok(response),
            _ => {
                let words = format!("it answers with `{}` instead of an event stream", text::to_line(&kind, 100));
                Err(self.shared.error(HttpErrorKind::Broken, &words))
            }
        }
    }

    /// Posts a message. The answer to it arrives on the stream, so a body here means nothing.
    async fn post_to_endpoint(&self, url: Url, body: Vec<u8>) -> Result<(), HttpTransportError> {
        let request = self.client.post(url).header(CONTENT_TYPE, "application/json").timeout(ACCEPT_TIMEOUT).body(body);
        let response = self.send(request, None, HashMap::new()).await?;
        match response.status().is_success() {
            true => Ok(()),
            false => Err(self.refusal_error(response).await),
        }
    }
}

impl Transport<RoleClient> for SseTransport {
    type Error = HttpTransportError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.client.shared.reader.note_sent(&message);
        let (client, endpoint, body) = (self.client.clone(), self.endpoint.clone(), serde_json::to_vec(&message));
        async move { client.post_to_endpoint(endpoint, body?).await }
    }

    /// Returns the next message, or `None` once the stream has ended. rmcp may drop this future at any time: bytes that
    /// have arrived are kept in `events`.
    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready_messages.pop_front() {
                return Some(message);
            }
            let event = self.events.next().await?.ok()?;
            // Another `endpoint` would change where messages go, and nothing else has a meaning.
            let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
            let Some(data) = event.data.filter(|data| is_message && !data.trim().is_empty()) else { continue };
            let shared = &self.client.shared;
            match shared.reader.parse_from(data.as_bytes(), &MessageOrigin::Server) {
                Some(messages) => {
                    self.junk_events = 0;
                    self.ready_messages.extend(messages);
                }
                None => {
                    lock(&shared.junk).add(shared.secrets.redact(&data).as_bytes());
                    self.junk_events += 1;
                    if self.junk_events > MAX_JUNK_LINES {
                        lock(&shared.junk).give_up("it sends nonsense, and was cut off");
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.events.close();
        Ok(())
    }
}
