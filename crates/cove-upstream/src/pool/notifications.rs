//! Notifications of a server: the progress of calls, and changed tool lists.
//!
//! rmcp assigns a progress token only while it sends a request, and the server may report progress before the caller
//! learns the token. So the sink of a call travels inside the request, where `attach_sink` puts it. The transport calls
//! `register_sink` with every request before it writes it, which finds both the sink and the token. The router holds
//! the sink weakly: progress ends when the caller drops what `attach_sink` returned.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rmcp::model::{ClientRequest, GetExtensions, GetMeta, ProgressToken};
use tokio::sync::watch;

use cove_core::sync::lock;

/// The progress of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallProgress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Receives the progress of a call in flight. It must not block.
pub type ProgressSink = Arc<dyn Fn(CallProgress) + Send + Sync>;

/// A sink on its way through rmcp, as an extension of its request.
#[derive(Clone)]
struct AttachedSink(Weak<ProgressSink>);

/// Puts the sink into the request. It receives progress until the returned value is dropped.
pub(super) fn attach_sink(request: &mut ClientRequest, sink: ProgressSink) -> Arc<ProgressSink> {
    let sink = Arc::new(sink);
    request.extensions_mut().insert(AttachedSink(Arc::downgrade(&sink)));
    sink
}

#[derive(Default)]
pub(super) struct NotificationRouter {
    sinks: Mutex<HashMap<ProgressToken, Weak<ProgressSink>>>,
    /// How many times the server reported that its tools changed.
    changes: AtomicU64,
    /// Counts the changes of all servers.
    changed: watch::Sender<u64>,
}

impl NotificationRouter {
    pub(super) fn new(changed: watch::Sender<u64>) -> Self {
        Self { changed, ..Self::default() }
    }

    pub(super) fn change_count(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a change of the server's tools and wakes the subscribers of the pool.
    pub(super) fn record_tools_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Registers the sink of a request that is about to be sent, if it has one, and forgets those of ended calls.
    pub(super) fn register_sink(&self, request: &ClientRequest) {
        let sink = request.extensions().get::<AttachedSink>();
        if let (Some(AttachedSink(sink)), Some(token)) = (sink, request.get_meta().get_progress_token()) {
            let mut sinks = lock(&self.sinks);
            sinks.retain(|_, sink| sink.strong_count() > 0);
            sinks.insert(token, Weak::clone(sink));
        }
    }

    /// Calls the sink while holding the lock, which keeps the order. So a sink must not block.
    pub(super) fn deliver_progress(&self, token: &ProgressToken, progress: CallProgress) {
        let sinks = lock(&self.sinks);
        if let Some(sink) = sinks.get(token).and_then(Weak::upgrade) {
            sink(progress);
        }
    }
}
