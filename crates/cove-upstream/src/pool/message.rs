//! Parses lines of a server into rmcp messages. The answers of Cove's own requests go into the slots of their callers,
//! and rmcp learns only that they arrived: its types would lose fields that they do not know. rmcp parses only the
//! results that it needs itself.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    ClientJsonRpcMessage, CustomResult, ErrorCode, ErrorData, JsonRpcMessage, NumberOrString, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::bounded_json;
use super::call_logs::MessageOrigin;
use super::intake::{self, MAX_BATCH_BYTES, MAX_HANDSHAKE, MAX_NOTIFICATION, MAX_SERVER_REQUEST, ServerIntake};
use super::notifications::{CallProgress, NotificationRouter};
use super::text;
use cove_core::sync::{lock, read_message};

/// Memory of one message that goes to rmcp.
const MAX_MESSAGE_MEMORY: usize = 64 << 20;
/// Longest text that the head of a message keeps.
const MAX_HEAD_TEXT: usize = 1024;
/// 2^53. Larger numbers with a fraction do not say which integer they are.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Reads what a server sends, knowing what it was sent.
#[derive(Default)]
pub(super) struct MessageReader {
    /// Methods whose results rmcp parses itself.
    typed_methods: &'static [&'static str],
    /// Ids of requests with one of these methods.
    typed: Mutex<HashSet<RequestId>>,
    notices: Arc<NotificationRouter>,
}

/// What decides how a message is read. Its other parts are skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
struct MessageHead {
    jsonrpc: HeadText,
    id: HeadText,
    method: HeadText,
    #[serde(deserialize_with = "is_present")]
    result: bool,
    #[serde(deserialize_with = "is_not_null")]
    error: bool,
}

/// A short text or a number. Anything else is `None`.
#[derive(Default)]
struct HeadText(Option<NumberOrString>);

impl HeadText {
    fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Some(NumberOrString::String(text)) => Some(text),
            _ => None,
        }
    }
}

fn is_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// Some servers write `"error": null` beside every result.
fn is_not_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<IgnoredAny>::deserialize(deserializer).map(|value| value.is_some())
}

impl<'de> Deserialize<'de> for HeadText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadVisitor)
    }
}

struct HeadVisitor;

impl<'de> Visitor<'de> for HeadVisitor {
    type Value = HeadText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<HeadText, E> {
        let is_short = text.len() <= MAX_HEAD_TEXT;
        Ok(HeadText(is_short.then(|| NumberOrString::String(text.into()))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<HeadText, E> {
        Ok(HeadText(Some(NumberOrString::Number(number))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<HeadText, E> {
        Ok(HeadText(i64::try_from(number).ok().map(NumberOrString::Number)))
    }

    /// Some servers write every number with a fraction: `1.0`.
    fn visit_f64<E>(self, number: f64) -> Result<HeadText, E> {
        let is_whole = number.fract() == 0.0 && number.abs() < MAX_EXACT_INTEGER;
        Ok(HeadText(is_whole.then_some(NumberOrString::Number(number as i64))))
    }

    fn visit_bool<E>(self, _: bool) -> Result<HeadText, E> {
        Ok(HeadText::default())
    }

    fn visit_unit<E>(self) -> Result<HeadText, E> {
        Ok(HeadText::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<HeadText, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(HeadText::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeadText, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(HeadText::default())
    }
}

impl MessageReader {
    pub(super) fn new(typed_methods: &'static [&'static str], notices: Arc<NotificationRouter>) -> Self {
        Self { typed_methods, typed: Mutex::default(), notices }
    }

    pub(super) fn intake(&self) -> &ServerIntake {
        &self.notices.intake
    }

    /// Notes a message that is about to be sent. The transport calls this before the server can answer.
    pub(super) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        if let ClientJsonRpcMessage::Request(request) = message {
            if self.typed_methods.contains(&request.request.method()) {
                lock(&self.typed).insert(request.id.clone());
            }
            self.notices.register_sinks(&request.request);
            self.notices.questions.register(&request.id, &request.request);
            self.intake().register(&request.id, &request.request);
        }
    }

    /// Parses one line of a server's own output; see [`Self::parse_from`].
    pub(super) fn parse_line(&self, line: &[u8]) -> Option<Vec<ServerJsonRpcMessage>> {
        self.parse_from(line, &MessageOrigin::Server)
    }

    /// Parses one line. Delivers answers, progress, log messages and changes of resources itself, and returns the
    /// messages for rmcp, which may be none: messages that Cove does not use are dropped. Returns `None` if the line is no
    /// message.
    pub(super) fn parse_from(&self, line: &[u8], origin: &MessageOrigin) -> Option<Vec<ServerJsonRpcMessage>> {
        read_message(line.len(), || self.parse_any(line, origin))
    }

    fn parse_any(&self, line: &[u8], origin: &MessageOrigin) -> Option<Vec<ServerJsonRpcMessage>> {
        let line = line.trim_ascii();
        if line.starts_with(b"[") {
            return self.parse_batch(line, origin);
        }
        let parsed = match serde_json::from_slice::<MessageHead>(line) {
            Ok(head) if line.starts_with(b"{") => {
                self.parse_message(line, head, origin).map(|message| message.into_iter().collect())
            }
            Ok(_) => None,
            // An error is better than to let the caller wait for an answer that already arrived.
            Err(error) => find_broken_answer_id(line).filter(|id| origin.may_answer(id)).map(|id| {
                let what = format!("its answer is not JSON ({error})");
                vec![JsonRpcMessage::error(ErrorData::new(ErrorCode::PARSE_ERROR, what, None), Some(id))]
            }),
        };
        if parsed.is_none() {
            self.intake().note_unsolicited(line.len());
        }
        parsed
    }

    /// One older revision of the protocol has batches.
    fn parse_batch(&self, line: &[u8], origin: &MessageOrigin) -> Option<Vec<ServerJsonRpcMessage>> {
        let batch = match line.len() <= MAX_BATCH_BYTES {
            true => bounded_json::read_value(line, MAX_MESSAGE_MEMORY).ok(),
            false => None,
        };
        let Some(Value::Array(messages)) = batch.filter(|batch| batch != &Value::Array(Vec::new())) else {
            self.intake().note_unsolicited(line.len());
            return None;
        };
        let mut parsed = Vec::new();
        for message in messages.into_iter().map(|message| message.to_string()) {
            let head = serde_json::from_str(&message).ok().filter(|_| message.starts_with('{'))?;
            parsed.extend(self.parse_message(message.as_bytes(), head, origin)?);
        }
        Some(parsed)
    }

    /// Returns `None` if this is not a message, and `Some(None)` if it is a message that Cove does not use.
    #[expect(clippy::option_option, reason = "two kinds of nothing, each used once")]
    fn parse_message(
        &self,
        line: &[u8],
        head: MessageHead,
        origin: &MessageOrigin,
    ) -> Option<Option<ServerJsonRpcMessage>> {
        if head.jsonrpc.as_str() != Some("2.0") {
            return None;
        }
        if let Some(method) = head.method.as_str() {
            self.intake().note_unsolicited(line.len());
            return self.parse_method(line, method, head.id.0, origin);
        }
        let key = match (head.result, head.error) {
            // A failure must not pass for a success, whatever is beside it.
            (_, true) => "error",
            (true, false) => "result",
            (false, false) => return None,
        };
        let id = match head.id.0 {
            // A body belongs to its request, whatever id a careless server writes.
            _ if origin.is_body() => origin.request_id().cloned(),
            // Cove's own ids are numbers. Some servers repeat them as text.
            Some(NumberOrString::String(text)) => {
                Some(text.parse().map_or(NumberOrString::String(text), NumberOrString::Number))
            }
            id => id,
        };
        let slot = id.as_ref().filter(|id| origin.may_answer(id)).and_then(|id| self.intake().take_slot(id));
        if let Some((slot, id)) = slot.zip(id.clone()) {
            slot.fill(self.intake(), line, key);
            let stub = || ServerResult::CustomResult(CustomResult(Value::Object(Map::new())));
            return Some(Some(match key {
                "result" => JsonRpcMessage::response(stub(), id),
                // The caller has the words in its slot.
                _ => JsonRpcMessage::error(ErrorData::new(ErrorCode(0), "", None), Some(id)),
            }));
        }
        self.parse_untracked(line, key, id, origin)
    }

    /// Parses an answer to one of rmcp's own requests. Any other is an answer for which no caller waits.
    #[expect(clippy::option_option, reason = "two kinds of nothing, each used once")]
    fn parse_untracked(
        &self,
        line: &[u8],
        key: &str,
        id: Option<RequestId>,
        origin: &MessageOrigin,
    ) -> Option<Option<ServerJsonRpcMessage>> {
        let is_known = id.as_ref().is_none_or(|id| origin.may_answer(id));
        if !is_known {
            self.intake().note_unsolicited(line.len());
            return Some(None);
        }
        if key == "error" {
            let error = match line.len() <= MAX_HANDSHAKE {
                true => read_field(line, key)?,
                false => Value::Null,
            };
            if !error.is_object() && line.len() <= MAX_HANDSHAKE {
                return None;
            }
            return Some(Some(JsonRpcMessage::error(intake::to_error_data(error), id)));
        }
        let id = id?;
        if !lock(&self.typed).remove(&id) {
            self.intake().note_unsolicited(line.len());
            let stub = ServerResult::CustomResult(CustomResult(Value::Object(Map::new())));
            return Some(Some(JsonRpcMessage::response(stub, id)));
        }
        if line.len() > MAX_HANDSHAKE {
            let words = format!("its answer to the handshake has more than {} MiB", MAX_HANDSHAKE >> 20);
            return Some(Some(JsonRpcMessage::error(ErrorData::new(ErrorCode(0), words, None), Some(id))));
        }
        let result = read_field(line, key)?;
        if result.get("protocolVersion").is_some() {
            self.notices.note_capabilities(&result);
        }
        Some(Some(JsonRpcMessage::response(serde_json::from_value(result).ok()?, id)))
    }

    /// Parses a notification or a request of the server.
    #[expect(clippy::option_option, reason = "two kinds of nothing, each used once")]
    fn parse_method(
        &self,
        line: &[u8],
        method: &str,
        id: Option<RequestId>,
        origin: &MessageOrigin,
    ) -> Option<Option<ServerJsonRpcMessage>> {
        if let Some(id) = id.filter(|_| line.len() > MAX_SERVER_REQUEST) {
            // Without its parameters, so that the server gets an answer.
            let request = to_wire(&id, method);
            return Some(serde_json::from_value(request).ok());
        }
        let is_notification = method.starts_with("notifications/");
        if line.len() > MAX_SERVER_REQUEST || is_notification && line.len() > MAX_NOTIFICATION {
            return Some(None);
        }
        let mut message = bounded_json::read_value(line, MAX_MESSAGE_MEMORY).ok()?;
        let fields = message.as_object_mut()?;
        match method {
            // Delivered here, at once and in order; rmcp would spawn a task for each notification.
            "notifications/progress" => {
                if let Some((token, progress)) = parse_progress(fields.get("params")?) {
                    self.notices.deliver_progress(&token, progress);
                }
                Some(None)
            }
            "notifications/message" => {
                if let Some(params) = fields.get("params") {
                    self.notices.deliver_log(params, origin);
                }
                Some(None)
            }
            "notifications/resources/updated" => {
                if let Some(uri) = fields.get("params").and_then(|params| params.get("uri")?.as_str()) {
                    self.notices.subscriptions().record_change(uri);
                }
                Some(None)
            }
            _ => serde_json::from_value(message).ok().map(Some),
        }
    }
}

fn read_field(line: &[u8], key: &str) -> Option<Value> {
    let mut cost = bounded_json::limited_cost(MAX_MESSAGE_MEMORY);
    bounded_json::read_field(line, key, bounded_json::JsonShape::Whole, &mut cost).ok()
}

fn to_wire(id: &RequestId, method: &str) -> Value {
    #[derive(Serialize)]
    struct BareRequest<'a> {
        jsonrpc: &'a str,
        id: &'a RequestId,
        method: &'a str,
    }
    serde_json::to_value(BareRequest { jsonrpc: "2.0", id, method }).unwrap_or_default()
}

fn parse_progress(params: &Value) -> Option<(ProgressToken, CallProgress)> {
    let token = ProgressToken::deserialize(params.get("progressToken")?).ok()?;
    let progress = CallProgress {
        progress: Some(params.get("progress")?.as_f64()?),
        total: params.get("total").and_then(Value::as_f64),
        message: params.get("message").and_then(Value::as_str).map(|words| text::to_line(words, 500)),
    };
    Some((token, progress))
}

/// Returns the id of an answer that is not valid JSON, such as one with `NaN`, or that is nested too deeply. Servers
/// write the id near the beginning or near the end, so only those parts are searched.
fn find_broken_answer_id(line: &[u8]) -> Option<RequestId> {
    const NEAR: usize = 64;
    let text = line.trim_ascii();
    if !text.starts_with(b"{") {
        return None;
    }
    let near = |piece: &[u8]| -> Option<i64> {
        let piece = String::from_utf8_lossy(piece).replace(' ', "");
        let digits = piece.split("\"id\":").nth(1)?;
        let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let (start, end) = (&text[..text.len().min(NEAR)], &text[text.len().saturating_sub(NEAR)..]);
    let says = |piece: &[u8]| String::from_utf8_lossy(piece).contains("\"jsonrpc\"");
    if !says(start) && !says(end) {
        return None;
    }
    near(start).or_else(|| near(end)).map(NumberOrString::Number)
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ClientRequest, CustomRequest};
    use serde_json::json;

    use super::super::intake::AnswerSlot;
    use super::*;

    fn parse_text(line: &str) -> Option<Vec<ServerJsonRpcMessage>> {
        MessageReader::default().parse_line(line.as_bytes())
    }

    fn parse_single(line: &str) -> ServerJsonRpcMessage {
        match parse_text(line) {
            Some(mut messages) if messages.len() == 1 => messages.remove(0),
            _ => panic!("not one message: {line}"),
        }
    }

    /// A reader that has sent a request with this id.
    fn reader_with_request(id: i64) -> (MessageReader, Arc<AnswerSlot>) {
        let mut request = ClientRequest::CustomRequest(CustomRequest::new("tools/call", None));
        let slot = AnswerSlot::attach(&mut request);
        let reader = MessageReader::default();
        reader.note_sent(&JsonRpcMessage::request(request, NumberOrString::Number(id)));
        (reader, slot)
    }

    #[test]
    fn passes_results_through_unchanged() {
        let result = json!({"content": [{"type": "hologram", "x": null}], "structuredContent": null, "new": 1});
        let line = json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string();
        let (reader, slot) = reader_with_request(7);
        assert_eq!(reader.parse_line(line.as_bytes()).map(|messages| messages.len()), Some(1));
        assert_eq!(slot.take(), Some(Ok(result)));
        let (reader, slot) = reader_with_request(7);
        reader.parse_line(br#"{"jsonrpc":"2.0","result":null,"id":7}"#);
        assert_eq!(slot.take(), Some(Ok(Value::Null)));
    }

    #[test]
    fn answers_of_other_requests_are_not_taken_from_the_stream_of_a_request() {
        let (reader, slot) = reader_with_request(7);
        let stream = |id| MessageOrigin::Stream(NumberOrString::Number(id), None);
        let line = br#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
        assert!(reader.parse_from(line, &stream(8)).is_some_and(|messages| messages.is_empty()));
        assert_eq!(slot.take(), None);
        reader.parse_from(line, &stream(7));
        assert_eq!(slot.take(), Some(Ok(json!({}))));
        let (reader, slot) = reader_with_request(7);
        let body = MessageOrigin::Body(NumberOrString::Number(7), None);
        reader.parse_from(br#"{"jsonrpc":"2.0","id":"x","result":{}}"#, &body);
        assert_eq!(slot.take(), Some(Ok(json!({}))));
    }

    #[test]
    fn answers_reach_their_caller_however_their_id_is_written() {
        for id in ["7", "7.0", "70e-1", "\"7\""] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":null,"result":{{}}}}"#);
            for origin in [MessageOrigin::Server, MessageOrigin::Stream(NumberOrString::Number(7), None)] {
                let (reader, slot) = reader_with_request(7);
                let messages = reader.parse_from(line.as_bytes(), &origin).expect("a message");
                let is_seven = |message: &ServerJsonRpcMessage| matches!(message, JsonRpcMessage::Response(response) if response.id == NumberOrString::Number(7));
                assert!(messages.len() == 1 && messages.iter().all(is_seven), "{line}");
                assert_eq!(slot.take(), Some(Ok(json!({}))), "{line}");
            }
        }
    }

    #[test]
    fn an_error_beside_a_result_counts() {
        for result in ["null", "{}"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result},"error":{{"code":5,"message":"no"}}}}"#);
            let (reader, slot) = reader_with_request(7);
            reader.parse_line(line.as_bytes());
            assert_eq!(slot.take(), Some(Err(ErrorData::new(ErrorCode(5), "no", None))), "{line}");
        }
    }

    #[test]
    fn large_messages_without_a_caller_are_not_read() {
        let reader = MessageReader::default();
        let large = "x".repeat(MAX_SERVER_REQUEST);
        let parse = |message: Value| reader.parse_line(message.to_string().as_bytes()).expect("a message");
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": large}});
        assert!(parse(notification).is_empty());
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {"a": large}});
        let parsed = parse(request);
        let [JsonRpcMessage::Request(request)] = &parsed[..] else { panic!("{parsed:?}") };
        assert!(serde_json::to_string(request).unwrap().len() < 1000);
        let answer = parse(json!({"jsonrpc": "2.0", "id": 1, "result": {"a": large}}));
        assert!(serde_json::to_string(&answer[0]).unwrap().len() < 1000);
    }

    #[test]
    fn distinguishes_junk_from_messages() {
        for line in ["hello", "{}", "[]", "1", "null", "{\"a\":1}", "{\"jsonrpc\":\"1.0\",\"id\":1,\"result\":{}}"] {
            assert!(parse_text(line).is_none(), "{line}");
        }
        let quiet = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}).to_string();
        assert!(matches!(parse_text(&quiet), Some(messages) if messages.is_empty()));
        let batch = "[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}},{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}]";
        assert!(matches!(parse_text(batch), Some(messages) if messages.len() == 2));
    }

    #[test]
    fn unparsable_answer_becomes_an_error_reply() {
        let line = "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"x\":NaN}}";
        let JsonRpcMessage::Error(error) = parse_single(line) else { panic!("an error") };
        assert_eq!(error.id, Some(NumberOrString::Number(5)));
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for line in [
            format!("{{\"jsonrpc\": \"2.0\", \"id\": 5, \"result\": {deep}}}"),
            format!("{{\"result\":{deep},\"jsonrpc\":\"2.0\",\"id\":5}}"),
        ] {
            let (reader, slot) = reader_with_request(5);
            assert_eq!(reader.parse_line(line.as_bytes()).map(|messages| messages.len()), Some(1));
            let error = slot.take().unwrap().unwrap_err();
            assert!(error.message.contains("recursion limit"), "{}", error.message);
        }
        assert!(parse_text("{ \"id\": 5 }}").is_none());
    }

    #[test]
    fn accepts_incomplete_error_replies() {
        let JsonRpcMessage::Error(error) =
            parse_single("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":99999999999,\"data\":[1]}}")
        else {
            panic!("an error")
        };
        assert_eq!((error.id, error.error.code.0), (None, 0));
        assert_eq!(error.error.data, Some(json!([1])));
    }
}
