//! Notifications of a server: the progress of calls, log messages, and changed tool lists and resources.
//!
//! rmcp assigns a progress token only while it sends a request, and the server may report progress before the caller
//! learns the token. So the sink of a call travels inside the request, where `attach_sink` puts it. The transport calls
//! `register_sinks` with every request before it writes it, which finds both the sink and the token. The router holds
//! the sink weakly: progress ends when the caller drops the sink. That is later than the answer if the answer is a task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rmcp::model::{ClientRequest, GetExtensions, GetMeta, ProgressToken};
use serde_json::Value;
use tokio::sync::watch;

use super::call_logs::{CallLogs, LogRoutes, MessageOrigin};
use super::intake::ServerIntake;
use super::question_router::QuestionRouter;
use super::redaction::ServerSecrets;
use super::subscriptions::SubscriptionTable;
use cove_core::sync::lock;

/// The progress of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallProgress {
    /// `None` for the status of a task, which has words only.
    pub progress: Option<f64>,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Receives the progress of a call in flight. It must not block.
pub type ProgressSink = Arc<dyn Fn(CallProgress) + Send + Sync>;

/// A sink on its way through rmcp, as an extension of its request.
#[derive(Clone)]
struct AttachedSink {
    sink: WeakSink,
    secrets: ServerSecrets,
}

type WeakSink = Weak<dyn Fn(CallProgress) + Send + Sync>;

/// Puts the sink into the request. It receives progress, without secrets, until the caller drops it.
pub(super) fn attach_sink(request: &mut ClientRequest, sink: &ProgressSink, secrets: ServerSecrets) {
    request.extensions_mut().insert(AttachedSink { sink: Arc::downgrade(sink), secrets });
}

#[derive(Default)]
pub(super) struct NotificationRouter {
    pub(super) questions: QuestionRouter,
    pub(super) intake: ServerIntake,
    sinks: Mutex<HashMap<ProgressToken, AttachedSink>>,
    /// How many times the server reported that its tools changed.
    changes: AtomicU64,
    /// The server of the legacy era that is running, or started last, can run tool calls as tasks.
    accepts_task_requests: AtomicBool,
    logs: Mutex<LogRoutes>,
    subscriptions: SubscriptionTable,
    /// Counts the changes of all servers.
    changed: watch::Sender<u64>,
}

impl NotificationRouter {
    pub(super) fn new(changed: watch::Sender<u64>) -> Self {
        Self { changed, ..Self::default() }
    }

    /// Returns the count of the changes of all servers.
    pub(super) fn changed(&self) -> watch::Sender<u64> {
        self.changed.clone()
    }

    pub(super) fn change_count(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a change of the server's tools and wakes the subscribers of the pool.
    pub(super) fn record_tools_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Notes what a legacy server says about tasks in its answer to `initialize`, which rmcp's types leave out.
    pub(super) fn note_capabilities(&self, initialized: &Value) {
        let accepts = initialized.pointer("/capabilities/tasks/requests/tools/call").is_some();
        self.accepts_task_requests.store(accepts, Ordering::Relaxed);
    }

    pub(super) fn accepts_task_requests(&self) -> bool {
        self.accepts_task_requests.load(Ordering::Relaxed)
    }

    pub(super) fn subscriptions(&self) -> &SubscriptionTable {
        &self.subscriptions
    }

    /// Notes whom a request without logs is for.
    pub(super) fn note_user(&self, logs: &CallLogs) {
        lock(&self.logs).note_user(logs);
    }

    pub(super) fn deliver_log(&self, params: &Value, origin: &MessageOrigin) {
        lock(&self.logs).deliver(params, origin);
    }

    /// Registers the sinks of a request that is about to be sent, if it has any, and forgets those of ended calls.
    pub(super) fn register_sinks(&self, request: &ClientRequest) {
        lock(&self.logs).register(request);
        let sink = request.extensions().get::<AttachedSink>();
        if let (Some(sink), Some(token)) = (sink, request.get_meta().get_progress_token()) {
            let mut sinks = lock(&self.sinks);
            sinks.retain(|_, known| known.sink.strong_count() > 0);
            sinks.insert(token, sink.clone());
        }
    }

    /// Calls the sink while holding the lock, which keeps the order. So a sink must not block.
    pub(super) fn deliver_progress(&self, token: &ProgressToken, mut progress: CallProgress) {
        let sinks = lock(&self.sinks);
        if let Some(AttachedSink { sink, secrets }) = sinks.get(token)
            && let Some(sink) = sink.upgrade()
        {
            progress.message = progress.message.map(|message| secrets.redact(&message));
            sink(progress);
        }
    }
}
