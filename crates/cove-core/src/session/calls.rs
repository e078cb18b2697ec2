//! Calls that the code of a cell makes to the host. Each call is answered in its own task, and its reply goes out as
//! soon as it is known, while the cell goes on. This module treats requests and replies as bytes; the `CallHandler`
//! interprets them.
//!
//! The runner may be hostile. An honest runner holds calls back that would exceed the limits of the protocol, so a
//! runner that exceeds them has broken it, and the session ends.
//!
//! Two parties share `OpenCalls`: the task that drives the cell, which owns `CellCalls`, and the task of each call. The
//! driver adds a call to `OpenCalls` in `begin`, and holds the lock until the call is in it, so that the call's task
//! cannot remove it earlier. The call's task gets the answer, reserves memory for a long one (`ReplyReservation`) and
//! waits in `ReplySender::send`. It removes the call in the `sending` callback, immediately before the reply enters the
//! queue to the runner. A runner that sees the reply and makes another call at once therefore never exceeds the host's
//! count.
//!
//! A call ends early in three ways. `forget` removes it and aborts its task. `stop` removes all calls, aborts their
//! tasks and starts one task for each that replies `cancelled`. When the cell ends, `CellCalls` is dropped, and its
//! `JoinSet` aborts every task. Aborting drops the future of `CallHandler::answer`, which cancels the work behind it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use cove_protocol::limits::{
    FREE_REPLY, MAX_CALL, MAX_CALLS, MAX_CALLS_BYTES, MAX_MESSAGE, MAX_REPLY, MAX_UNKNOWN_NAMES,
};
use cove_protocol::{CallId, CellId, is_reported_name};
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};

use super::clock::{CallingCell, CellClock};
use crate::BoxFuture;
use crate::guest_streams::{GuestStream, SessionTraffic};
use crate::link::{LinkError, ReplySender};
use crate::sync::lock;

/// Calls that one cell may make.
pub const MAX_CALLS_PER_CELL: usize = 1000;
/// Bytes of long replies of one cell that may wait on the host to be sent.
const MAX_RESERVED_BYTES: usize = 4 * MAX_MESSAGE;

/// Answers the calls of a cell.
pub trait CallHandler: Send + Sync {
    /// Returns the reply to a request: a JSON object that has either `ok` or `error`. Dropping the future cancels the
    /// call.
    fn answer<'a>(&'a self, cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>>;

    /// Serves a connection of the code to the network until it ends. Dropping the future ends it. Without a network, the
    /// connection is reset.
    fn serve_stream<'a>(&'a self, _cell: CellId, stream: GuestStream) -> BoxFuture<'a, ()> {
        drop(stream);
        Box::pin(std::future::ready(()))
    }

    /// Records that code asked for a name that it cannot reach.
    fn report_name(&self, _cell: CellId, _name: UnknownName, _traffic: &SessionTraffic) {}
}

/// A name that code asked for and that the runner does not answer, as the runner reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownName {
    One(String),
    /// This many further ones.
    More(u64),
}

/// Answers every call with an error, for sessions without MCP servers.
pub struct NoCalls;

impl CallHandler for NoCalls {
    fn answer<'a>(&'a self, _cell: CallingCell, _request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        let message = "no MCP servers are configured, so there is nothing to call";
        let hint = "add one to the configuration of Cove, with `cove servers add`";
        Box::pin(std::future::ready(error_reply("unavailable", message, Some(hint))))
    }
}

/// Returns the JSON object that answers a failed call. `kind` is for programs; `message` and `hint` are for the author
/// of the code.
pub fn error_reply(kind: &str, message: &str, hint: Option<&str>) -> Vec<u8> {
    let mut error = json!({"kind": kind, "message": message});
    if let Some(hint) = hint {
        error["hint"] = hint.into();
    }
    json!({ "error": error }).to_string().into_bytes()
}

/// The calls of one cell, owned by the task that drives the cell. Dropping it cancels all of them.
pub(super) struct CellCalls {
    cell: CallingCell,
    calls: Arc<dyn CallHandler>,
    replies: ReplySender,
    tasks: JoinSet<()>,
    /// A task for each stream.
    streams: JoinSet<()>,
    /// Names that the runner has reported.
    reported_names: usize,
    open: Arc<Mutex<OpenCalls>>,
    started_count: usize,
    /// Set by `stop`. Calls that begin afterwards get the reply `cancelled`.
    stopped: bool,
}

/// Calls whose reply has not entered the queue to the runner yet.
#[derive(Default)]
struct OpenCalls {
    calls: BTreeMap<CallId, OpenCall>,
    /// Bytes of the requests of these calls.
    bytes: usize,
    /// Bytes of long replies that wait to be sent. Only `ReplyReservation` changes it.
    reserved_bytes: usize,
}

struct OpenCall {
    bytes: usize,
    task: AbortHandle,
}

impl CellCalls {
    pub(super) fn new(cell: CellId, calls: Arc<dyn CallHandler>, replies: ReplySender) -> Self {
        let cell = CallingCell::new(cell);
        Self {
            cell,
            calls,
            replies,
            tasks: JoinSet::new(),
            streams: JoinSet::new(),
            reported_names: 0,
            open: Arc::default(),
            started_count: 0,
            stopped: false,
        }
    }

    /// Returns the clock of the cell, which the handler of its calls may stop.
    pub(super) fn clock(&self) -> &CellClock {
        &self.cell.clock
    }

    /// Starts a task that answers a call. `last` is the previous call of the whole session. Fails if the id is out of
    /// order or the runner exceeds its limits.
    pub(super) fn begin(
        &mut self,
        cell: CellId,
        call: CallId,
        request: Vec<u8>,
        last: &mut CallId,
    ) -> Result<(), LinkError> {
        let bytes = request.len();
        if cell != self.cell.id || call <= *last {
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
        // Frees the tasks that have ended.
        while self.tasks.try_join_next().is_some() {}
        self.started_count += 1;
        if self.stopped {
            self.spawn(call, bytes, std::future::ready(cancelled_reply()));
        } else if self.started_count > MAX_CALLS_PER_CELL {
            let message = format!("this cell has made {MAX_CALLS_PER_CELL} calls, which is all that a cell may make");
            let hint = "ask for more with each call, or go on in another cell";
            self.spawn(call, bytes, std::future::ready(error_reply("limit", &message, Some(hint))));
        } else {
            let (calls, cell) = (Arc::clone(&self.calls), self.cell.clone());
            self.spawn(call, bytes, async move { answer_or_error(calls.answer(cell, request)).await });
        }
        Ok(())
    }

    /// Starts a task that serves a connection of the code. Fails if it belongs to another cell.
    pub(super) fn serve_stream(&mut self, cell: CellId, stream: Option<GuestStream>) -> Result<(), LinkError> {
        if cell != self.cell.id {
            return Err(LinkError::Protocol("it opened a stream out of turn"));
        }
        while self.streams.try_join_next().is_some() {}
        if let Some(mut stream) = stream {
            let calls = Arc::clone(&self.calls);
            let end = stream.take_end();
            self.streams.spawn(async move {
                tokio::select! {
                    // A task that reads or writes learns of the end itself, and records it.
                    biased;
                    () = calls.serve_stream(cell, stream) => {}
                    () = end => {}
                }
            });
        }
        Ok(())
    }

    /// Passes on the report of a name. Fails if the runner reports more than it may, or for another cell.
    pub(super) fn report_name(
        &mut self,
        cell: CellId,
        name: UnknownName,
        traffic: &SessionTraffic,
    ) -> Result<(), LinkError> {
        let may_report = match &name {
            UnknownName::One(name) => self.reported_names < MAX_UNKNOWN_NAMES && is_reported_name(name),
            UnknownName::More(count) => self.reported_names == MAX_UNKNOWN_NAMES && *count > 0,
        };
        if cell != self.cell.id || !may_report {
            return Err(LinkError::Protocol("it reported a name out of turn"));
        }
        self.reported_names += 1;
        self.calls.report_name(cell, name, traffic);
        Ok(())
    }

    /// Ends the tasks of streams and waits for them, so that all that they record is there before the cell ends.
    pub(super) async fn end_streams(&mut self) {
        self.streams.shutdown().await;
    }

    /// Cancels a call that the code no longer waits for. Its reply may already be on its way; the runner drops it then.
    /// Fails if there was no such call.
    pub(super) fn forget(&mut self, call: CallId, last: CallId) -> Result<(), LinkError> {
        if call > last {
            return Err(LinkError::Protocol("it forgot a call that it never made"));
        }
        if let Some(forgotten) = lock(&self.open).close(call) {
            forgotten.task.abort();
        }
        Ok(())
    }

    /// Cancels all open calls because the cell is being stopped. Each gets the reply `cancelled`, because the code may
    /// be waiting for it.
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
            self.spawn(call, bytes, std::future::ready(cancelled_reply()));
        }
    }

    fn spawn(&mut self, call: CallId, bytes: usize, answer: impl Future<Output = Vec<u8>> + Send + 'static) {
        let shared = Arc::clone(&self.open);
        let replies = self.replies.clone();
        // The lock is held until the call is in `open`, so that its task cannot close it before.
        let mut open = lock(&self.open);
        let task = self.tasks.spawn(async move {
            let (reply, _held) = ReplyReservation::reserve(&shared, limit_reply(answer.await));
            // If the link has ended, the task that reads it reports why.
            let _ = replies.send(call, &reply, || drop(lock(&shared).close(call))).await;
        });
        open.calls.insert(call, OpenCall { bytes, task });
        open.bytes += bytes;
    }
}

impl OpenCalls {
    fn close(&mut self, call: CallId) -> Option<OpenCall> {
        let closed = self.calls.remove(&call)?;
        self.bytes -= closed.bytes;
        Some(closed)
    }
}

/// Memory that a long reply takes on the host while it waits to be sent. The task of the call makes it once the answer
/// is there and drops it when the reply has entered the queue, or when the task is aborted. Without this limit, code
/// that makes large calls and reads no replies could fill the host's memory.
struct ReplyReservation {
    open: Arc<Mutex<OpenCalls>>,
    bytes: usize,
}

impl ReplyReservation {
    /// Returns the reply and its reservation. A short reply needs none; a reply that does not fit is replaced by a
    /// short error.
    fn reserve(open: &Arc<Mutex<OpenCalls>>, reply: Vec<u8>) -> (Vec<u8>, Option<Self>) {
        let bytes = reply.len();
        if bytes <= FREE_REPLY {
            return (reply, None);
        }
        let mut locked = lock(open);
        if locked.reserved_bytes + bytes > MAX_RESERVED_BYTES {
            let message = format!(
                "the answer has {bytes} bytes, and {} bytes of other answers wait to be read; at most {MAX_RESERVED_BYTES} may",
                locked.reserved_bytes
            );
            let hint = "make fewer calls with large answers at the same time";
            return (error_reply("limit", &message, Some(hint)), None);
        }
        locked.reserved_bytes += bytes;
        (reply, Some(Self { open: Arc::clone(open), bytes }))
    }
}

impl Drop for ReplyReservation {
    fn drop(&mut self) {
        lock(&self.open).reserved_bytes -= self.bytes;
    }
}

/// Returns the answer, or an error reply if the handler panics: every call must get a reply.
async fn answer_or_error(mut answer: BoxFuture<'_, Vec<u8>>) -> Vec<u8> {
    let polled = std::future::poll_fn(|waker| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(waker))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    });
    polled.await.unwrap_or_else(|| {
        let message = "Cove failed while it answered this call, and whether anything was done is not known";
        error_reply("internal", message, Some("this is a fault in Cove; its log says more"))
    })
}

/// Returns the reply, or an error reply if it is too long for one message.
fn limit_reply(reply: Vec<u8>) -> Vec<u8> {
    if reply.len() <= MAX_REPLY {
        return reply;
    }
    let message = format!("the answer has {} bytes, and code can be given at most {MAX_REPLY} at once", reply.len());
    error_reply("limit", &message, Some("ask for less, such as for a page or for fewer fields"))
}

fn cancelled_reply() -> Vec<u8> {
    error_reply("cancelled", "the cell was stopped before the answer to this call came", None)
}
