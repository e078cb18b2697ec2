//! Log messages of servers (`notifications/message`), for the code whose calls caused them.
//!
//! Over HTTP a message arrives on the stream of a request and belongs to that call. Over pipes, and on the separate
//! stream of the legacy era, a message names no call. It goes to the calls in flight, or to the call that ended last, but
//! only as long as a single principal has used the server: a server may log late, so otherwise one principal could read
//! what the server wrote about another.
//!
//! The logs of a call travel inside its requests, like its progress sink: `AttachedLogs::attach` puts them there, and the
//! transport calls `LogRoutes::register` before it writes a request. The call holds a `LoggedCall` until it has ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rmcp::model::{ClientRequest, GetExtensions, RequestId};
use serde_json::{Value, json};

use super::redaction::ServerSecrets;
use super::text;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// Most messages that are kept, and their size as JSON.
const MAX_MESSAGES: usize = 200;
const MAX_BYTES: usize = 64 * 1024;
/// The content of a message is cut to this size.
const MAX_MESSAGE: usize = 4 * 1024;
/// Logs that can receive messages without a call, at most.
const MAX_ROUTES: usize = 64;

/// The latest log messages of one server for a session of one principal.
#[derive(Debug)]
pub struct CallLogs {
    /// The principal that may read them.
    owner: Principal,
    calls_in_flight: AtomicUsize,
    kept: Mutex<KeptMessages>,
}

#[derive(Debug, Default)]
struct KeptMessages {
    /// With the size of each, oldest first.
    messages: VecDeque<(Value, usize)>,
    bytes: usize,
    dropped: u64,
}

impl CallLogs {
    pub fn new(owner: &Principal) -> Arc<Self> {
        Arc::new(Self { owner: owner.clone(), calls_in_flight: AtomicUsize::new(0), kept: Mutex::default() })
    }

    /// Returns `logs`, oldest first, and how many older ones were `dropped`.
    pub fn to_json(&self) -> Value {
        let kept = lock(&self.kept);
        let messages: Vec<&Value> = kept.messages.iter().map(|(message, _)| message).collect();
        json!({"logs": messages, "dropped": kept.dropped})
    }

    fn push(&self, message: Value) {
        let size = message.to_string().len();
        let mut kept = lock(&self.kept);
        kept.messages.push_back((message, size));
        kept.bytes += size;
        while kept.messages.len() > MAX_MESSAGES || kept.bytes > MAX_BYTES {
            let Some((_, size)) = kept.messages.pop_front() else { break };
            kept.bytes -= size;
            kept.dropped += 1;
        }
    }
}

/// Logs on their way through rmcp, as an extension of their request.
#[derive(Clone)]
pub(super) struct AttachedLogs {
    logs: Weak<CallLogs>,
    secrets: ServerSecrets,
}

impl AttachedLogs {
    pub(super) fn new(logs: &Arc<CallLogs>, secrets: ServerSecrets) -> Self {
        Self { logs: Arc::downgrade(logs), secrets }
    }

    pub(super) fn attach(self, request: &mut ClientRequest) {
        request.extensions_mut().insert(self);
    }

    /// Returns the logs of a request, if it has any.
    pub(super) fn find_in(request: &ClientRequest) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }

    fn push(&self, message: &Value) {
        if let Some(logs) = self.logs.upgrade() {
            let mut message = message.clone();
            self.secrets.redact_value(&mut message);
            shorten(&mut message);
            logs.push(message);
        }
    }
}

/// A call in flight. Dropping it ends the call's claim on messages that name no call.
pub(super) struct LoggedCall(Arc<CallLogs>);

impl LoggedCall {
    pub(super) fn begin(logs: &Arc<CallLogs>) -> Self {
        logs.calls_in_flight.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(logs))
    }
}

impl Drop for LoggedCall {
    fn drop(&mut self) {
        self.0.calls_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where a message came from.
#[derive(Clone)]
pub(super) enum MessageOrigin {
    /// The pipes of a process, or a stream that belongs to no request.
    Server,
    /// The stream of one request, with its logs if it has any. Only the answer to that request belongs there.
    Stream(RequestId, Option<AttachedLogs>),
    /// The body of an answer to one request.
    Body(RequestId, Option<AttachedLogs>),
}

impl MessageOrigin {
    pub(super) fn request_id(&self) -> Option<&RequestId> {
        match self {
            Self::Server => None,
            Self::Stream(id, _) | Self::Body(id, _) => Some(id),
        }
    }

    pub(super) fn is_body(&self) -> bool {
        matches!(self, Self::Body(..))
    }

    /// Returns true if a message from here can be the answer to this request.
    pub(super) fn may_answer(&self, id: &RequestId) -> bool {
        self.is_body() || self.request_id().is_none_or(|own| own == id)
    }
}

/// Which principals have used a server since Cove started.
#[derive(Debug, Default, PartialEq)]
enum ServerUsers {
    #[default]
    None,
    One(Principal),
    Several,
}

/// Finds the logs for each message of one server.
#[derive(Default)]
pub(super) struct LogRoutes {
    users: ServerUsers,
    /// Each once, the one that was used last at the end.
    recent: Vec<AttachedLogs>,
}

impl LogRoutes {
    /// Notes a request that is about to be sent.
    pub(super) fn register(&mut self, request: &ClientRequest) {
        let Some(attached) = AttachedLogs::find_in(request) else { return };
        let Some(logs) = attached.logs.upgrade() else { return };
        self.note_user(&logs);
        self.recent.retain(|one| one.logs.strong_count() > 0 && !one.logs.ptr_eq(&attached.logs));
        if self.recent.len() >= MAX_ROUTES {
            self.recent.remove(0);
        }
        self.recent.push(attached);
    }

    pub(super) fn note_user(&mut self, logs: &CallLogs) {
        self.users = match std::mem::take(&mut self.users) {
            ServerUsers::None => ServerUsers::One(logs.owner.clone()),
            ServerUsers::One(owner) if owner == logs.owner => ServerUsers::One(owner),
            ServerUsers::One(_) | ServerUsers::Several => ServerUsers::Several,
        };
    }

    /// Stores a message where its reader finds it, or drops it if it may belong to another principal.
    pub(super) fn deliver(&self, params: &Value, origin: &MessageOrigin) {
        let message = to_log_message(params);
        let is_in_flight = |one: &&AttachedLogs| {
            one.logs.upgrade().is_some_and(|logs| logs.calls_in_flight.load(Ordering::Acquire) > 0)
        };
        match origin {
            MessageOrigin::Stream(_, Some(logs)) | MessageOrigin::Body(_, Some(logs)) => logs.push(&message),
            MessageOrigin::Stream(_, None) | MessageOrigin::Body(_, None) => {}
            MessageOrigin::Server if !matches!(self.users, ServerUsers::One(_)) => {}
            MessageOrigin::Server if self.recent.iter().any(|one| is_in_flight(&one)) => {
                self.recent.iter().filter(is_in_flight).for_each(|one| one.push(&message));
            }
            MessageOrigin::Server => self.recent.iter().rev().take(1).for_each(|one| one.push(&message)),
        }
    }
}

fn to_log_message(params: &Value) -> Value {
    let word = |key: &str| params[key].as_str().map(|words| text::to_line(words, 100));
    let mut message = json!({"level": word("level").unwrap_or_else(|| "info".to_owned()), "data": params["data"]});
    if let Some(logger) = word("logger") {
        message["logger"] = logger.into();
    }
    message
}

/// Replaces content that is too long with the beginning of its text.
fn shorten(message: &mut Value) {
    let data = &mut message["data"];
    let text = match &*data {
        Value::String(text) if text.len() <= MAX_MESSAGE => return,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.len() > MAX_MESSAGE {
        *data = text::cut(&text, MAX_MESSAGE).into();
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::CustomRequest;

    use super::*;

    fn logs_of(owner: &str) -> Arc<CallLogs> {
        CallLogs::new(&Principal(owner.to_owned()))
    }

    /// Sends a request with these logs.
    fn send(routes: &mut LogRoutes, logs: &Arc<CallLogs>) -> (LoggedCall, MessageOrigin) {
        let mut request = ClientRequest::CustomRequest(CustomRequest::new("tools/call", None));
        AttachedLogs::new(logs, ServerSecrets::default()).attach(&mut request);
        let call = LoggedCall::begin(logs);
        routes.register(&request);
        (call, MessageOrigin::Stream(RequestId::Number(1), AttachedLogs::find_in(&request)))
    }

    fn read(logs: &CallLogs) -> Vec<Value> {
        logs.to_json()["logs"].as_array().unwrap().iter().map(|message| message["data"].clone()).collect()
    }

    fn deliver(routes: &LogRoutes, data: &str, origin: &MessageOrigin) {
        routes.deliver(&json!({"level": "info", "data": data}), origin);
    }

    #[test]
    fn messages_reach_the_calls_of_one_owner_only() {
        let mut routes = LogRoutes::default();
        let (mine, other, theirs) = (logs_of("me"), logs_of("me"), logs_of("them"));
        let (call, _) = send(&mut routes, &mine);
        deliver(&routes, "during", &MessageOrigin::Server);
        drop(call);
        deliver(&routes, "after", &MessageOrigin::Server);
        let (call, origin) = send(&mut routes, &other);
        deliver(&routes, "of the other session", &MessageOrigin::Server);
        drop(call);
        assert_eq!(read(&mine), ["during", "after"]);
        assert_eq!(read(&other), ["of the other session"]);

        // From now on it could be anyone's.
        let (_call, their_origin) = send(&mut routes, &theirs);
        deliver(&routes, "whose?", &MessageOrigin::Server);
        deliver(&routes, "theirs", &their_origin);
        deliver(&routes, "mine", &origin);
        deliver(&routes, "of a request without logs", &MessageOrigin::Stream(RequestId::Number(1), None));
        assert_eq!((read(&mine).len(), read(&other).len(), read(&theirs)), (2, 2, vec![json!("theirs")]));
        let _call = send(&mut routes, &mine);
        deliver(&routes, "still whose?", &MessageOrigin::Server);
        assert_eq!(read(&mine).len(), 2);
    }

    #[test]
    fn only_the_latest_messages_are_kept() {
        let mut routes = LogRoutes::default();
        let logs = logs_of("me");
        let (_call, origin) = send(&mut routes, &logs);
        for number in 0..10_000 {
            routes.deliver(&json!({"data": number}), &origin);
        }
        let kept = read(&logs);
        assert_eq!((kept.len(), kept.last()), (MAX_MESSAGES, Some(&json!(9_999))));
        assert_eq!(logs.to_json()["dropped"], 10_000 - MAX_MESSAGES);
        for _ in 0..100 {
            routes.deliver(&json!({"data": {"x": "y".repeat(1 << 20)}, "logger": "l\u{1b}".repeat(1000)}), &origin);
        }
        assert!(logs.to_json().to_string().len() < 2 * MAX_BYTES);
        assert!(!read(&logs).is_empty());
    }
}
