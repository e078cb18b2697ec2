//! What a server says unasked: how far a call is, and that its lists changed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::ProgressToken;
use tokio::sync::watch;

/// How far a call is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Told of progress while a call is under way. It must not block.
pub type ProgressSink = Arc<dyn Fn(Progress) + Send + Sync>;

#[derive(Default)]
pub(super) struct Notices {
    sinks: Mutex<Sinks>,
    /// How often the server said that its tools changed.
    changes: AtomicU64,
    /// Counts the changes of all servers.
    changed: Option<watch::Sender<u64>>,
}

/// What comes before its call is known by its token is kept for so many messages.
const MAX_EARLY: usize = 64;

#[derive(Default)]
struct Sinks {
    known: HashMap<ProgressToken, ProgressSink>,
    /// Calls that are being sent, whose tokens are not known yet.
    sending: usize,
    early: Vec<(ProgressToken, Progress)>,
}

impl Notices {
    pub(super) fn new(changed: watch::Sender<u64>) -> Self {
        Self { changed: Some(changed), ..Self::default() }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn tools_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(changed) = &self.changed {
            changed.send_modify(|count| *count += 1);
        }
    }

    /// Somebody who wants to be told of a call that is about to be sent. A server may be quicker than we are.
    pub(super) fn expect(&self, sink: ProgressSink) -> Expecting<'_> {
        self.sinks().sending += 1;
        Expecting { notices: self, sink: Some(sink) }
    }

    pub(super) fn forget(&self, token: &ProgressToken) {
        self.sinks().known.remove(token);
    }

    /// Told under the lock, so that the order stays; hence no sink may block.
    pub(super) fn progress(&self, token: &ProgressToken, progress: Progress) {
        let mut sinks = self.sinks();
        if let Some(sink) = sinks.known.get(token) {
            sink(progress);
        } else if sinks.sending > 0 && sinks.early.len() < MAX_EARLY {
            sinks.early.push((token.clone(), progress));
        }
    }

    fn sinks(&self) -> std::sync::MutexGuard<'_, Sinks> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is being sent.
pub(super) struct Expecting<'a> {
    notices: &'a Notices,
    sink: Option<ProgressSink>,
}

impl Expecting<'_> {
    /// It was sent, and this is its token.
    pub(super) fn known(mut self, token: ProgressToken) {
        let Some(sink) = self.sink.take() else { return };
        let mut sinks = self.notices.sinks();
        let early = std::mem::take(&mut sinks.early);
        let (own, others): (Vec<_>, Vec<_>) = early.into_iter().partition(|(of, _)| *of == token);
        sinks.early = others;
        own.into_iter().for_each(|(_, progress)| sink(progress));
        sinks.known.insert(token, sink);
    }
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut sinks = self.notices.sinks();
        sinks.sending -= 1;
        if sinks.sending == 0 {
            sinks.early.clear();
        }
    }
}
