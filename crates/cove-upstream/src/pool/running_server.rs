//! A running server. Any number of requests may be in flight. This module does not start or restart servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{ClientRequest, CustomRequest, GetMeta, ServerCapabilities, ServerNotification, SubscriptionFilter};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError, ServiceRole};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::call_logs::{AttachedLogs, CallLogs};
use super::error::UpstreamError;
use super::handshake::ConnectedServer;
use super::http::{HttpClientError, HttpErrorKind};
use super::intake::AnswerSlot;
use super::notifications::{NotificationRouter, attach_sink};
use super::process::describe_exit;
use super::question_router::QuestionInbox;
use super::questions::CallQuestions;
use super::redaction::ServerSecrets;
use super::text;
use super::{CallOptions, ProtocolEra};
use crate::definition::HttpTransport;
use cove_core::session::CellClock;
use cove_core::sync::lock;

/// The least level of log messages that Cove asks for.
const LOG_LEVEL: &str = "info";
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that completed its handshake. `in_flight` counts its leases; `last_used` is the end of the last one.
pub(super) struct RunningServer {
    /// For error messages.
    name: String,
    connected: ConnectedServer,
    notices: Arc<NotificationRouter>,
    secrets: ServerSecrets,
    in_flight: AtomicUsize,
    last_used: Mutex<Instant>,
    /// False while a legacy server has yet to answer which log messages it sends.
    logs_requested: watch::Receiver<bool>,
}

/// Returns a request in the form that rmcp knows its method by.
pub(super) fn new_request(method: &str, params: Map<String, Value>) -> ClientRequest {
    let request = CustomRequest::new(method, Some(params.into()));
    let typed = serde_json::to_value(&request).and_then(serde_json::from_value);
    typed.unwrap_or(ClientRequest::CustomRequest(request))
}

impl RunningServer {
    pub(super) fn new(
        name: String,
        connected: ConnectedServer,
        notices: Arc<NotificationRouter>,
        secrets: ServerSecrets,
    ) -> Self {
        let mut running = Self {
            name,
            connected,
            notices,
            secrets,
            in_flight: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
            logs_requested: watch::channel(true).1,
        };
        running.subscribe_to_changes();
        running.logs_requested = running.request_logs();
        running
    }

    pub(super) fn notices(&self) -> &Arc<NotificationRouter> {
        &self.notices
    }

    fn peer(&self) -> &Peer<RoleClient> {
        self.connected.connection.peer()
    }

    pub(super) fn era(&self) -> ProtocolEra {
        self.connected.era
    }

    pub(super) fn transport(&self) -> HttpTransport {
        self.connected.transport
    }

    /// Returns true if the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.peer().is_transport_closed()
    }

    /// Returns the instructions that the server sent, cut to 8 KiB, without control characters and secrets.
    pub(super) fn instructions(&self) -> Option<String> {
        let words = text::strip_control(self.peer().peer_info()?.instructions.as_ref()?);
        Some(text::cut(&self.secrets.redact(&words), 8 * 1024))
    }

    /// Returns true if the server announces the capability, or has not sent its information.
    pub(super) fn announces(&self, capability: fn(&ServerCapabilities) -> bool) -> bool {
        self.peer().peer_info().is_none_or(|peer| capability(&peer.capabilities))
    }

    /// Returns true if a tool call may ask for a task. In the modern era the server decides by itself.
    pub(super) fn accepts_task_requests(&self) -> bool {
        self.era() == ProtocolEra::Legacy && self.notices.accepts_task_requests()
    }

    /// In the modern era a client must subscribe to list changes. The task ends with the subscription.
    fn subscribe_to_changes(&self) {
        let tells = self.peer().peer_info().and_then(|peer| peer.capabilities.tools.clone()?.list_changed);
        if self.era() != ProtocolEra::Modern || tells != Some(true) {
            return;
        }
        let (peer, notices) = (self.peer().clone(), Arc::clone(&self.notices));
        tokio::spawn(async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(notification)) = subscription.next().await {
                if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
                    notices.record_tools_changed();
                }
            }
        });
    }

    fn sends_logs(&self) -> bool {
        self.peer().peer_info().is_some_and(|peer| peer.capabilities.logging.is_some())
    }

    /// Asks a server of the legacy era for log messages. In the modern era each request asks for its own. The returned
    /// value becomes true when the server has answered, or after `SET_LEVEL_TIMEOUT`.
    fn request_logs(&self) -> watch::Receiver<bool> {
        let is_asked = self.era() == ProtocolEra::Legacy && self.sends_logs();
        let (answered, receiver) = watch::channel(!is_asked);
        if is_asked {
            let peer = self.peer().clone();
            let request = new_request("logging/setLevel", Map::from_iter([("level".to_owned(), LOG_LEVEL.into())]));
            tokio::spawn(async move {
                // Without an answer there are only fewer messages.
                let _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, peer.send_request(request)).await;
                let _ = answered.send(true);
            });
        }
        receiver
    }

    /// Makes the server's log messages during a request reach these logs. Waits until a server that has just started
    /// knows which messages to send.
    async fn attach_logs(&self, request: &mut ClientRequest, logs: &Arc<CallLogs>) {
        let _ = self.logs_requested.clone().wait_for(|answered| *answered).await;
        if self.era() == ProtocolEra::Modern && self.sends_logs() {
            request.get_meta_mut().insert(LOG_LEVEL_KEY.to_owned(), LOG_LEVEL.into());
        }
        AttachedLogs::new(logs, self.secrets.clone()).attach(request);
    }

    /// Opens a subscription to one resource, in the modern era. Returns the task that keeps it open, which ends with the
    /// subscription. Fails if the server refuses or does not answer.
    pub(super) async fn listen_to_resource(
        &self,
        uri: String,
        timeout: Duration,
    ) -> Result<AbortHandle, UpstreamError> {
        let filter = SubscriptionFilter::builder().resource_subscription(uri.clone()).build();
        let timed_out = ServiceError::Timeout { timeout };
        let opened = tokio::time::timeout(timeout, self.peer().listen(filter)).await.unwrap_or(Err(timed_out));
        let mut subscription = match opened {
            Ok(subscription) => subscription,
            Err(error) => return Err(self.to_upstream_error(error, timeout).await),
        };
        let accepted = subscription.acknowledged().resource_subscriptions.as_ref();
        if !accepted.is_some_and(|uris| uris.contains(&uri)) {
            return Err(self.protocol_error(0, "it does not report changes of this resource".to_owned(), None));
        }
        // The transport counts the changes, so none arrives here.
        let listening = tokio::spawn(async move { while let Ok(Some(_)) = subscription.next().await {} });
        Ok(listening.abort_handle())
    }

    /// Sends a request and waits for the result, and answers the questions that the server asks meanwhile; the time for
    /// these does not count. If the wait ends early, by timeout, by a question without an answer or because the caller
    /// drops the future, the server is sent a cancellation.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        timeout: Duration,
        options: &CallOptions,
    ) -> Result<Value, UpstreamError> {
        if let Some(sink) = &options.progress {
            attach_sink(&mut request, sink, self.secrets.clone());
        }
        if let Some(logs) = &options.logs {
            self.attach_logs(&mut request, logs).await;
        }
        let slot = AnswerSlot::attach(&mut request);
        let (clock, deadline) = (CellClock::default(), Instant::now() + timeout);
        let mut inbox = options
            .questions
            .clone()
            .map(|questions| QuestionInbox::attach(&mut request, self.asker(), questions, clock.clone()));
        let answer = async {
            let sent = self.peer().send_request_with_option(request, PeerRequestOptions::no_options()).await?;
            SentRequest::new(sent).receive_answer().await
        };
        let unanswered = async {
            match &mut inbox {
                Some(inbox) => inbox.wait_for_failure().await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            answer = answer => answer,
            () = clock.pass(deadline) => Err(ServiceError::Timeout { timeout }),
            failure = unanswered => return Err(failure),
        };
        let mut value = match (answer, slot.take()) {
            (Ok(_) | Err(ServiceError::McpError(_)), Some(Ok(value))) => value,
            (Ok(_) | Err(ServiceError::McpError(_)), Some(Err(error))) => {
                return Err(self.to_upstream_error(ServiceError::McpError(error), timeout).await);
            }
            (Ok(_), None) => return Err(self.protocol_error(0, "its answer could not be read".to_owned(), None)),
            (Err(error), _) => return Err(self.to_upstream_error(error, timeout).await),
        };
        self.secrets.redact_value(&mut value);
        Ok(value)
    }

    /// Returns what a question says about the server, and what it must not say.
    fn asker(&self) -> (&str, &ServerSecrets) {
        (&self.name, &self.secrets)
    }

    /// Takes the questions of a task, also between the requests about it.
    pub(super) fn open_task_inbox(&self, questions: CallQuestions, clock: CellClock) -> QuestionInbox {
        QuestionInbox::for_task(&self.notices.questions, self.asker(), questions, clock)
    }

    async fn to_upstream_error(&self, error: ServiceError, timeout: Duration) -> UpstreamError {
        match error {
            ServiceError::McpError(mut error) => {
                if let Some(data) = &mut error.data {
                    self.secrets.redact_value(data);
                }
                let message = text::cut(&self.secrets.redact(&text::strip_control(&error.message)), 8 * 1024);
                self.protocol_error(error.code.0.into(), message, error.data)
            }
            ServiceError::Timeout { .. } => {
                UpstreamError::Timeout { server: self.name.clone(), after: timeout, is_defined: false }
            }
            ServiceError::TransportSend(error) => match HttpClientError::find_in(&error) {
                None => self.gone_error(&error.error.to_string()).await,
                Some(HttpClientError { sign_in: Some(need), .. }) => {
                    UpstreamError::SignInNeeded { server: self.name.clone(), need: (**need).clone() }
                }
                Some(HttpClientError { kind, message, .. }) => match kind {
                    HttpErrorKind::Denied => {
                        UpstreamError::Needs { server: self.name.clone(), what: vec![message.clone()] }
                    }
                    HttpErrorKind::Refused(status) => self.protocol_error((*status).into(), message.clone(), None),
                    HttpErrorKind::Broken | HttpErrorKind::Unreachable => self.gone_error(message).await,
                },
            },
            ServiceError::TransportClosed => self.gone_error("its connection ended").await,
            other => self.gone_error(&other.to_string()).await,
        }
    }

    fn protocol_error(&self, code: i64, message: String, data: Option<Value>) -> UpstreamError {
        UpstreamError::Protocol { server: self.name.clone(), code, message, data: data.map(Box::new) }
    }

    /// Describes the end of the connection, with the tail of standard error. The reason includes the exit status and
    /// junk on standard output, if known, else `otherwise`.
    async fn gone_error(&self, otherwise: &str) -> UpstreamError {
        let (mut reason, mut tail) = (text::to_line(otherwise, 500), String::new());
        if let Some(process) = &self.connected.process {
            if let Some(status) = process.wait_for_exit(Duration::from_millis(500)).await {
                reason = describe_exit(status);
            }
            tail = process.stderr_tail(&self.secrets);
        }
        lock(&self.connected.junk).append_to(&mut reason);
        UpstreamError::Gone { server: self.name.clone(), reason: self.secrets.redact(&reason), stderr_tail: tail }
    }

    /// Counts a call as in flight. The server is not idle until the lease is dropped.
    pub(super) fn lease(self: &Arc<Self>) -> ServerLease {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        ServerLease { running: Arc::clone(self) }
    }

    /// Returns when the last lease ended, or `None` while a lease exists.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.in_flight.load(Ordering::Acquire) == 0;
        is_idle.then(|| *lock(&self.last_used))
    }

    /// Closes the connection, then stops the process group. Waits at most `grace` for each step.
    pub(super) async fn stop(&self, grace: Duration) {
        self.connected.connection.cancellation_token().cancel();
        match &self.connected.process {
            Some(process) => process.stop(grace).await,
            // An HTTP session ends with a request of its own, which rmcp sends.
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

/// A call in flight on a server. Dropping it sets the start of the idle time.
pub(super) struct ServerLease {
    running: Arc<RunningServer>,
}

impl std::ops::Deref for ServerLease {
    type Target = Arc<RunningServer>;

    fn deref(&self) -> &Arc<RunningServer> {
        &self.running
    }
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        *lock(&self.running.last_used) = Instant::now();
        self.running.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that was sent to a server or to a client. Dropping it before the answer arrives cancels it there.
pub struct SentRequest<R: ServiceRole>(Option<RequestHandle<R>>);

impl<R: ServiceRole> SentRequest<R> {
    pub fn new(sent: RequestHandle<R>) -> Self {
        Self(Some(sent))
    }

    /// Returns the answer. Fails if the peer refuses or is gone.
    pub async fn receive_answer(mut self) -> Result<R::PeerResp, ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.0 = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl<R: ServiceRole> Drop for SentRequest<R> {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(handle), Ok(runtime)) = (self.0.take(), runtime) {
            runtime.spawn(handle.cancel(Some("the caller no longer waits".to_owned())));
        }
    }
}
