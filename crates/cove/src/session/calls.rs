//! Calls that the code of a cell makes to the host: each is answered in a task of its own, and its reply goes out as soon
//! as it is known, whatever the cell does meanwhile. What a call asks for is for others to know: here it is bytes.
//!
//! The runner is hostile. It holds back what is more than the limits of the protocol allow, so one that passes them has
//! broken it. When the cell ends, or is stopped, or nobody listens any more, what is under way is dropped, which cancels
//! it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use cove_protocol::limits::{FREE_REPLY, MAX_CALL, MAX_CALLS, MAX_CALLS_BYTES, MAX_MESSAGE, MAX_REPLY};
use cove_protocol::{CallId, CellId};
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};

use crate::backend::Pending;
use crate::link::{LinkError, Replies};

/// Calls that one cell may make.
pub const MAX_A_CELL: usize = 1000;
/// Bytes of long replies of one cell that may wait here to be sent.
const MAX_HELD: usize = 4 * MAX_MESSAGE;

/// Whoever answers calls.
pub trait Calls: Send + Sync {
    /// The answer to a request: an object that has either `ok` or `error`. Dropping the future cancels what it does.
    fn answer<'a>(&'a self, cell: CellId, request: Vec<u8>) -> Pending<'a, Vec<u8>>;
}

/// Nobody: for sessions that have nothing to call.
pub struct NoCalls;

impl Calls for NoCalls {
    fn answer<'a>(&'a self, _cell: CellId, _request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        let message = "no MCP servers are configured, so there is nothing to call";
        let hint = "add one to the configuration of Cove, with `cove servers add`";
        Box::pin(std::future::ready(error("unavailable", message, Some(hint))))
    }
}

/// The object that answers a call which failed. `kind` is for programs, `message` and `hint` for who wrote the code.
pub fn error(kind: &str, message: &str, hint: Option<&str>) -> Vec<u8> {
    let mut error = json!({"kind": kind, "message": message});
    if let Some(hint) = hint {
        error["hint"] = hint.into();
    }
    json!({ "error": error }).to_string().into_bytes()
}

/// The calls of one cell.
pub(super) struct UnderWay {
    cell: CellId,
    calls: Arc<dyn Calls>,
    replies: Replies,
    tasks: JoinSet<()>,
    open: Arc<Mutex<Open>>,
    made: usize,
    stopped: bool,
}

/// Calls that the runner is still to hear of.
#[derive(Default)]
struct Open {
    calls: BTreeMap<CallId, OpenCall>,
    bytes: usize,
    /// Bytes of long replies that wait to be sent.
    held: usize,
}

struct OpenCall {
    bytes: usize,
    task: AbortHandle,
}

impl UnderWay {
    pub(super) fn new(cell: CellId, calls: Arc<dyn Calls>, replies: Replies) -> Self {
        Self { cell, calls, replies, tasks: JoinSet::new(), open: Arc::default(), made: 0, stopped: false }
    }

    /// Begins to answer. `last` is the call before this one in the whole session.
    pub(super) fn begin(
        &mut self,
        cell: CellId,
        call: CallId,
        request: Vec<u8>,
        last: &mut CallId,
    ) -> Result<(), LinkError> {
        let bytes = request.len();
        if cell != self.cell || call <= *last {
            return Err(LinkError::Protocol("it called out of turn"));
        }
        *last = call;
        let full = {
            let open = lock(&self.open);
            open.calls.len() >= MAX_CALLS || open.bytes + bytes > MAX_CALLS_BYTES
        };
        if full || bytes > MAX_CALL {
            return Err(LinkError::Protocol("it calls more than it may"));
        }
        // Those that have ended.
        while self.tasks.try_join_next().is_some() {}
        self.made += 1;
        if self.stopped {
            self.spawn(call, bytes, std::future::ready(cancelled()));
        } else if self.made > MAX_A_CELL {
            let message = format!("this cell has made {MAX_A_CELL} calls, which is all that a cell may make");
            let hint = "ask for more with each call, or go on in another cell";
            self.spawn(call, bytes, std::future::ready(error("limit", &message, Some(hint))));
        } else {
            let calls = Arc::clone(&self.calls);
            self.spawn(call, bytes, async move { caught(calls.answer(cell, request)).await });
        }
        Ok(())
    }

    /// Nobody waits for this call any more. Its reply may be on its way already.
    pub(super) fn forget(&mut self, call: CallId, last: CallId) -> Result<(), LinkError> {
        if call > last {
            return Err(LinkError::Protocol("it forgot a call that it never made"));
        }
        if let Some(forgotten) = lock(&self.open).close(call) {
            forgotten.task.abort();
        }
        Ok(())
    }

    /// The cell is being stopped: whatever is under way is cancelled, and the code is told, for it may be waiting.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        let stopped: Vec<(CallId, usize)> = {
            let mut open = lock(&self.open);
            let calls = std::mem::take(&mut open.calls);
            open.bytes = 0;
            calls
                .into_iter()
                .map(|(id, call)| {
                    call.task.abort();
                    (id, call.bytes)
                })
                .collect()
        };
        for (call, bytes) in stopped {
            self.spawn(call, bytes, std::future::ready(cancelled()));
        }
    }

    fn spawn(&mut self, call: CallId, bytes: usize, answer: impl Future<Output = Vec<u8>> + Send + 'static) {
        let shared = Arc::clone(&self.open);
        let replies = self.replies.clone();
        // Locked until the call is known to be open, which is before its task can close it.
        let mut open = lock(&self.open);
        let task = self.tasks.spawn(async move {
            let (reply, _held) = Held::take(&shared, fitting(answer.await));
            // A stream that is over is noticed by who reads it.
            let _ = replies.send(call, &reply, || drop(lock(&shared).close(call))).await;
        });
        open.calls.insert(call, OpenCall { bytes, task });
        open.bytes += bytes;
    }
}

impl Open {
    fn close(&mut self, call: CallId) -> Option<OpenCall> {
        let closed = self.calls.remove(&call)?;
        self.bytes -= closed.bytes;
        Some(closed)
    }
}

/// What a reply takes while it waits. Code that asks for much and reads nothing must not fill the host.
struct Held {
    open: Arc<Mutex<Open>>,
    bytes: usize,
}

impl Held {
    fn take(open: &Arc<Mutex<Open>>, reply: Vec<u8>) -> (Vec<u8>, Option<Self>) {
        let bytes = reply.len();
        if bytes <= FREE_REPLY {
            return (reply, None);
        }
        let mut locked = lock(open);
        if locked.held + bytes > MAX_HELD {
            let message = format!(
                "the answer has {bytes} bytes, and {} bytes of other answers wait to be read; at most {MAX_HELD} may",
                locked.held
            );
            let hint = "make fewer calls with large answers at the same time";
            return (error("limit", &message, Some(hint)), None);
        }
        locked.held += bytes;
        (reply, Some(Self { open: Arc::clone(open), bytes }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.open).held -= self.bytes;
    }
}

/// One call that fails must not be one that is never answered.
async fn caught(mut answer: Pending<'_, Vec<u8>>) -> Vec<u8> {
    let polled =
        std::future::poll_fn(|waker| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(waker))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        });
    polled.await.unwrap_or_else(|| {
        let message = "Cove failed while it answered this call, and whether anything was done is not known";
        error("internal", message, Some("this is a fault in Cove; its log says more"))
    })
}

fn fitting(reply: Vec<u8>) -> Vec<u8> {
    if reply.len() <= MAX_REPLY {
        return reply;
    }
    let message =
        format!("the answer has {} bytes, and code can be given at most {MAX_REPLY} at once", reply.len());
    error("limit", &message, Some("ask for less, such as for a page or for fewer fields"))
}

fn cancelled() -> Vec<u8> {
    error("cancelled", "the cell was stopped before the answer to this call came", None)
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
