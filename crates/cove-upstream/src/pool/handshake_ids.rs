//! Ids of handshake requests on pipes that several attempts use one after another. rmcp numbers the requests of every
//! attempt from 0, so the late answer to an attempt that Cove gave up would pass for the answer to the current one.
//!
//! The transport calls `send` for every message to the server and `receive` for every message from it. A handshake
//! request whose id is taken by an unanswered one gets another id on the wire, and its answer gets the id back that rmcp
//! waits for. Answers to attempts that were given up are dropped. All other messages pass unchanged.

use std::collections::HashMap;

use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, NumberOrString, RequestId, ServerJsonRpcMessage};

/// rmcp counts in 32 bits, so no other request has a larger id.
const FIRST_FREE_ID: i64 = 1 << 32;

/// Handshake requests without an answer.
#[derive(Default)]
pub(super) struct HandshakeIds {
    /// By the id on the wire: the id that rmcp waits for, or `None` once Cove gave the attempt up.
    unanswered: HashMap<RequestId, Option<RequestId>>,
    replaced_count: i64,
}

impl HandshakeIds {
    /// Notes a message to the server. A handshake request replaces the one before it, and may get another id.
    pub(super) fn send(&mut self, message: &mut ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(request) = message else { return };
        if !matches!(request.request.method(), "initialize" | "server/discover") {
            return;
        }
        self.unanswered.values_mut().for_each(|expected| *expected = None);
        let own = request.id.clone();
        if self.unanswered.contains_key(&own) {
            request.id = NumberOrString::Number(FIRST_FREE_ID + self.replaced_count);
            self.replaced_count += 1;
        }
        self.unanswered.insert(request.id.clone(), Some(own));
    }

    /// Returns false if a message from the server answers an attempt that was given up.
    pub(super) fn receive(&mut self, message: &mut ServerJsonRpcMessage) -> bool {
        let id = match message {
            JsonRpcMessage::Response(response) => &mut response.id,
            JsonRpcMessage::Error(error) => match &mut error.id {
                Some(id) => id,
                // The server could not read the id. It answers in order, so this is the oldest attempt.
                None => {
                    let given_up = self.unanswered.iter().find(|(_, expected)| expected.is_none());
                    let given_up = given_up.map(|(id, _)| id.clone());
                    return given_up.is_none_or(|id| self.unanswered.remove(&id).is_none());
                }
            },
            _ => return true,
        };
        match self.unanswered.remove(id) {
            Some(Some(expected)) => {
                *id = expected;
                true
            }
            Some(None) => false,
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn send(ids: &mut HandshakeIds, method: &str, id: i64) -> i64 {
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut message: ClientJsonRpcMessage = serde_json::from_value(message).unwrap();
        ids.send(&mut message);
        serde_json::to_value(&message).unwrap()["id"].as_i64().unwrap()
    }

    /// The id that rmcp sees, or `None` if the answer is dropped.
    fn receive(ids: &mut HandshakeIds, id: Value) -> Option<Value> {
        let message = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}});
        let mut message: ServerJsonRpcMessage = serde_json::from_value(message).unwrap();
        ids.receive(&mut message).then(|| serde_json::to_value(&message).unwrap()["id"].clone())
    }

    #[test]
    fn an_answered_attempt_leaves_the_next_one_its_id() {
        let mut ids = HandshakeIds::default();
        assert_eq!(send(&mut ids, "server/discover", 0), 0);
        assert_eq!(receive(&mut ids, json!(0)), Some(json!(0)));
        assert_eq!(send(&mut ids, "initialize", 0), 0);
        assert_eq!(receive(&mut ids, json!(0)), Some(json!(0)));
        assert_eq!(receive(&mut ids, json!(7)), Some(json!(7)), "other requests pass");
    }

    #[test]
    fn late_answers_to_earlier_attempts_are_dropped() {
        let mut ids = HandshakeIds::default();
        send(&mut ids, "server/discover", 0);
        let second = send(&mut ids, "initialize", 0);
        let third = send(&mut ids, "server/discover", 0);
        assert!(second != 0 && third != second && third != 0);
        assert_eq!(receive(&mut ids, json!(second)), None);
        assert_eq!(receive(&mut ids, json!(0)), None);
        assert_eq!(receive(&mut ids, json!(third)), Some(json!(0)));
    }

    #[test]
    fn an_answer_without_an_id_is_for_the_oldest_attempt() {
        let mut ids = HandshakeIds::default();
        send(&mut ids, "server/discover", 0);
        send(&mut ids, "initialize", 0);
        assert_eq!(receive(&mut ids, Value::Null), None);
        assert_eq!(receive(&mut ids, Value::Null), Some(Value::Null));
    }
}
