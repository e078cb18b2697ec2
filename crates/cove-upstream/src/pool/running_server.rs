//! A running server. Any number of requests may be in flight. This module does not start or restart servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    ClientRequest, CustomRequest, CustomResult, ServerCapabilities, ServerNotification, ServerResult,
    SubscriptionFilter,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::ProtocolEra;
use super::error::UpstreamError;
use super::handshake::ConnectedServer;
use super::http::{self, HttpClientError, HttpErrorKind};
use super::notifications::{NotificationRouter, ProgressSink, attach_sink};
use super::process::describe_exit;
use super::redaction::ServerSecrets;
use super::text;
use cove_core::sync::lock;

/// A server that completed its handshake. `in_flight` counts its leases; `last_used` is the end of the last one.
pub(super) struct RunningServer {
    /// For error messages.
    name: String,
    connected: ConnectedServer,
    notices: Arc<NotificationRouter>,
    secrets: ServerSecrets,
    in_flight: AtomicUsize,
    last_used: Mutex<Instant>,
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
        let running = Self {
            name,
            connected,
            notices,
            secrets,
            in_flight: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        };
        running.subscribe_to_changes();
        running
    }

    fn peer(&self) -> &Peer<RoleClient> {
        self.connected.connection.peer()
    }

    pub(super) fn era(&self) -> ProtocolEra {
        self.connected.era
    }

    /// Returns true if the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.peer().is_transport_closed()
    }

    /// Returns the instructions that the server sent, cut to 8 KiB and without control characters.
    pub(super) fn instructions(&self) -> Option<String> {
        self.peer().peer_info()?.instructions.as_ref().map(|words| text::cut(&text::strip_control(words), 8 * 1024))
    }

    /// Returns true if the server announces the capability, or has not sent its information.
    pub(super) fn announces(&self, capability: fn(&ServerCapabilities) -> bool) -> bool {
        self.peer().peer_info().is_none_or(|peer| capability(&peer.capabilities))
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

    /// Sends a request and waits for the result. If the wait ends early, by timeout or because the caller drops the
    /// future, the server is sent a cancellation.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        timeout: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<Value, UpstreamError> {
        let _progress = progress.map(|sink| attach_sink(&mut request, sink));
        let answer = async {
            let sent = self.peer().send_request_with_option(request, PeerRequestOptions::no_options()).await?;
            SentRequest(Some(sent)).receive_answer().await
        };
        let timed_out = ServiceError::Timeout { timeout };
        let mut value = match tokio::time::timeout(timeout, answer).await.unwrap_or(Err(timed_out)) {
            Ok(ServerResult::CustomResult(CustomResult(value))) => http::unwrap_result(value),
            Ok(other) => serde_json::to_value(other)
                .map_err(|error| self.protocol_error(0, format!("its answer could not be read: {error}"), None))?,
            Err(error) => return Err(self.to_upstream_error(error, timeout).await),
        };
        self.secrets.redact_value(&mut value);
        Ok(value)
    }

    async fn to_upstream_error(&self, error: ServiceError, timeout: Duration) -> UpstreamError {
        match error {
            ServiceError::McpError(mut error) => {
                if let Some(data) = &mut error.data {
                    self.secrets.redact_value(data);
                }
                let message = self.secrets.redact(&text::cut(&text::strip_control(&error.message), 8 * 1024));
                self.protocol_error(error.code.0.into(), message, error.data)
            }
            ServiceError::Timeout { .. } => UpstreamError::Timeout { server: self.name.clone(), after: timeout },
            ServiceError::TransportSend(error) => match HttpClientError::find_in(&error) {
                None => self.gone_error(&error.error.to_string()).await,
                Some(HttpClientError { kind, message }) => match kind {
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
            tail = process.stderr_tail();
        }
        lock(&self.connected.junk).append_to(&mut reason);
        let (reason, stderr_tail) = (self.secrets.redact(&reason), self.secrets.redact(&tail));
        UpstreamError::Gone { server: self.name.clone(), reason, stderr_tail }
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

/// A request that was sent. Dropping it before the answer arrives cancels it at the server.
struct SentRequest(Option<RequestHandle<RoleClient>>);

impl SentRequest {
    async fn receive_answer(mut self) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.0 = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(handle), Ok(runtime)) = (self.0.take(), runtime) {
            runtime.spawn(handle.cancel(Some("the caller no longer waits".to_owned())));
        }
    }
}
