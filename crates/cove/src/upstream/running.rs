//! A server that runs: requests go in, answers come out, any number at once. It is not started again here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ClientRequest, CustomResult, ServerNotification, ServerResult, SubscriptionFilter};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::Value;
use tokio::time::Instant;

use super::Era;
use super::child::shown_status;
use super::greet::Greeted;
use super::http::{self, Kind, WebError};
use super::notices::{Notices, ProgressSink};
use super::ready::Secrets;
use super::text;

pub(super) struct Running {
    greeted: Greeted,
    notices: Arc<Notices>,
    secrets: Secrets,
    in_flight: AtomicUsize,
    last_used: Mutex<Instant>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The connection ended.
    Closed(String),
    Timeout,
    /// A person has to give something first.
    Needs(String),
    Refused {
        code: i64,
        message: String,
        data: Option<Value>,
    },
}

impl Running {
    pub(super) fn new(greeted: Greeted, notices: Arc<Notices>, secrets: Secrets) -> Self {
        let running = Self {
            greeted,
            notices,
            secrets,
            in_flight: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        };
        running.listen();
        running
    }

    fn peer(&self) -> &Peer<RoleClient> {
        self.greeted.connection.peer()
    }

    pub(super) fn era(&self) -> Era {
        self.greeted.era
    }

    pub(super) fn is_closed(&self) -> bool {
        self.peer().is_transport_closed()
    }

    /// The server's own words on how to use it.
    pub(super) fn instructions(&self) -> Option<String> {
        self.peer().peer_info()?.instructions.as_ref().map(|words| text::cut(&text::plain(words), 8 * 1024))
    }

    /// Whether it says that it has such lists at all.
    pub(super) fn offers(&self, what: Offer) -> bool {
        let Some(peer) = self.peer().peer_info() else { return true };
        match what {
            Offer::Tools => peer.capabilities.tools.is_some(),
            Offer::Resources => peer.capabilities.resources.is_some(),
            Offer::Prompts => peer.capabilities.prompts.is_some(),
        }
    }

    /// In the newer era a client that wants to know of changes has to ask for them.
    fn listen(&self) {
        let tells = self.peer().peer_info().and_then(|peer| peer.capabilities.tools.clone()?.list_changed);
        if self.era() != Era::Modern || tells != Some(true) {
            return;
        }
        let (peer, notices) = (self.peer().clone(), Arc::clone(&self.notices));
        tokio::spawn(async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(notification)) = subscription.next().await {
                if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
                    notices.tools_changed();
                }
            }
        });
    }

    /// Sends a request and waits for its answer. Giving up the wait tells the server so.
    pub(super) async fn request(
        &self,
        request: ClientRequest,
        timeout: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<Value, Failed> {
        let answer = async {
            let expecting = progress.map(|sink| self.notices.expect(sink));
            let sent = self.peer().send_request_with_option(request, PeerRequestOptions::no_options()).await;
            let handle = sent.map_err(|error| self.failed(error))?;
            let token = handle.progress_token.clone();
            let mut waiting = Waiting { notices: &self.notices, handle: Some(handle) };
            if let Some(expecting) = expecting {
                expecting.known(token);
            }
            let result = waiting.answer().await.map_err(|error| self.failed(error))?;
            let mut value = match result {
                ServerResult::CustomResult(CustomResult(value)) => http::unwrapped(value),
                other => serde_json::to_value(other).map_err(|error| Failed::Refused {
                    code: 0,
                    message: format!("its answer could not be read: {error}"),
                    data: None,
                })?,
            };
            self.secrets.guard.hide(&mut value);
            Ok(value)
        };
        tokio::time::timeout(timeout, answer).await.unwrap_or(Err(Failed::Timeout))
    }

    fn failed(&self, error: ServiceError) -> Failed {
        match error {
            ServiceError::McpError(error) => Failed::Refused {
                code: error.code.0.into(),
                message: self.secrets.redact(&text::cut(&text::plain(&error.message), 8 * 1024)),
                data: error.data.map(|mut data| {
                    self.secrets.guard.hide(&mut data);
                    data
                }),
            },
            ServiceError::Timeout { .. } => Failed::Timeout,
            ServiceError::TransportSend(error) => {
                let said = match error.error.downcast_ref::<StreamableHttpError<WebError>>() {
                    Some(StreamableHttpError::Client(said)) => said,
                    _ => {
                        return Failed::Closed(
                            self.secrets.redact(&text::line(&error.error.to_string(), 500)),
                        );
                    }
                };
                match said.kind {
                    Kind::Denied => Failed::Needs(said.words.clone()),
                    Kind::Refused(status) => {
                        Failed::Refused { code: status.into(), message: said.words.clone(), data: None }
                    }
                    Kind::Broken | Kind::Unreachable => Failed::Closed(said.words.clone()),
                }
            }
            ServiceError::TransportClosed => Failed::Closed("its connection ended".to_owned()),
            other => Failed::Closed(self.secrets.redact(&text::line(&other.to_string(), 500))),
        }
    }

    /// What is known of its end: the status, what it wrote that was no message, and the tail of its standard error.
    pub(super) async fn last_words(&self, otherwise: &str) -> (String, String) {
        let (mut reason, mut tail) = (otherwise.to_owned(), String::new());
        if let Some(process) = &self.greeted.process {
            if let Some(status) = process.ended(Duration::from_millis(500)).await {
                reason = shown_status(status);
            }
            tail = process.stderr_tail();
        }
        if let Some(junk) = self.greeted.junk.lock().unwrap_or_else(PoisonError::into_inner).shown() {
            reason += &format!("; {junk}");
        }
        (self.secrets.redact(&reason), self.secrets.redact(&tail))
    }

    /// Counts a call in; while one is counted the server is not idle.
    pub(super) fn enter(self: &Arc<Self>) -> Lease {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        Lease { running: Arc::clone(self) }
    }

    /// Since when nobody has used it; none while somebody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.in_flight.load(Ordering::Acquire) == 0;
        is_idle.then(|| *self.last_used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the connection, then the process with everything it started.
    pub(super) async fn stop(&self, grace: Duration) {
        self.greeted.connection.cancellation_token().cancel();
        match &self.greeted.process {
            Some(process) => process.stop(grace).await,
            // The end of an HTTP session is a request of its own.
            None => {
                let closed = async {
                    while !self.is_closed() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                let _ = tokio::time::timeout(grace, closed).await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Offer {
    Tools,
    Resources,
    Prompts,
}

/// A call under way on a server.
pub(super) struct Lease {
    running: Arc<Running>,
}

impl std::ops::Deref for Lease {
    type Target = Arc<Running>;

    fn deref(&self) -> &Arc<Running> {
        &self.running
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.running.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.running.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that was sent. Dropped without an answer, it is cancelled.
struct Waiting<'a> {
    notices: &'a Notices,
    handle: Option<RequestHandle<RoleClient>>,
}

impl Waiting<'_> {
    async fn answer(&mut self) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.handle else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        if let Some(handle) = self.handle.take() {
            self.notices.forget(&handle.progress_token);
        }
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        self.notices.forget(&handle.progress_token);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(handle.cancel(Some("the caller no longer waits".to_owned())));
        }
    }
}
