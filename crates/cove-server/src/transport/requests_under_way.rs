//! The requests of connections with a protocol session that have no answer yet. rmcp finds the place for an answer by the
//! id of its request alone, so of two requests with one id it would answer one, with the result of either.
//!
//! The HTTP handler opens a request before it gives the message to rmcp, and keeps the [`OpenRequest`] as long as the body
//! of the answer. The id is free again when the answer passes [`AnswerStream`], before the client can read it, or when
//! the client has gone.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_core::Stream;
use rmcp::model::{JsonRpcError, JsonRpcMessage, JsonRpcResponse, RequestId, ServerJsonRpcMessage};
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};

use cove_core::sync::lock;

type RequestKey = (SessionId, RequestId);

/// The ids in use, each with the number of its request.
#[derive(Default, Clone)]
pub(super) struct RequestsUnderWay(Arc<Mutex<RequestTable>>);

#[derive(Default)]
struct RequestTable {
    numbers: HashMap<RequestKey, u64>,
    last: u64,
}

/// A request under way. Dropping it frees its id.
pub(super) struct OpenRequest {
    requests: RequestsUnderWay,
    key: RequestKey,
    number: u64,
}

impl RequestsUnderWay {
    /// Returns `None` if the connection has a request with this id under way.
    pub(super) fn open(&self, connection: SessionId, id: RequestId) -> Option<OpenRequest> {
        let key = (connection, id);
        let mut table = lock(&self.0);
        if table.numbers.contains_key(&key) {
            return None;
        }
        table.last += 1;
        let number = table.last;
        table.numbers.insert(key.clone(), number);
        drop(table);
        Some(OpenRequest { requests: self.clone(), key, number })
    }

    /// Frees the id of a request when its answer passes.
    pub(super) fn watch<S>(&self, stream: S, connection: SessionId, id: RequestId) -> AnswerStream<S> {
        AnswerStream { stream: Box::pin(stream), requests: self.clone(), key: (connection, id) }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut table = lock(&self.requests.0);
        // After its answer, another request may have taken the id.
        if table.numbers.get(&self.key) == Some(&self.number) {
            table.numbers.remove(&self.key);
        }
    }
}

/// The messages that belong to one request, and its answer.
pub(super) struct AnswerStream<S> {
    stream: Pin<Box<S>>,
    requests: RequestsUnderWay,
    key: RequestKey,
}

impl<S: Stream<Item = ServerSseMessage>> Stream for AnswerStream<S> {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ServerSseMessage>> {
        let next = self.stream.as_mut().poll_next(context);
        if let Poll::Ready(Some(ServerSseMessage { message: Some(message), .. })) = &next
            && answered_id(message) == Some(&self.key.1)
        {
            lock(&self.requests.0).numbers.remove(&self.key);
        }
        next
    }
}

fn answered_id(message: &ServerJsonRpcMessage) -> Option<&RequestId> {
    match message {
        JsonRpcMessage::Response(JsonRpcResponse { id, .. }) => Some(id),
        JsonRpcMessage::Error(JsonRpcError { id, .. }) => id.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_free_again_after_its_request() {
        let requests = RequestsUnderWay::default();
        let open = |connection: &str, id| requests.open(connection.into(), RequestId::Number(id));
        let first = open("a", 1).unwrap();
        assert!(open("a", 1).is_none());
        let others = (open("a", 2).unwrap(), open("b", 1).unwrap());
        // Its answer passes, and the client uses the id again before the body of the first answer ends.
        lock(&requests.0).numbers.remove(&first.key);
        let second = open("a", 1).unwrap();
        drop(first);
        assert!(open("a", 1).is_none(), "the second request has the id");
        drop((second, others));
        assert!(lock(&requests.0).numbers.is_empty());
    }
}
