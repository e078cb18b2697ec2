//! Parses lines of a server into rmcp messages. Results stay raw JSON, because rmcp's types would lose fields that
//! they do not know; rmcp parses only the results that it needs itself.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    ClientJsonRpcMessage, CustomResult, ErrorCode, ErrorData, JsonRpcMessage, NumberOrString, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::Deserialize;
use serde_json::Value;

use super::call_logs::MessageOrigin;
use super::notifications::{CallProgress, NotificationRouter};
use super::text;
use cove_core::sync::lock;

/// Reads what a server sends, knowing what it was sent.
#[derive(Default)]
pub(super) struct MessageReader {
    /// Methods whose results rmcp parses itself. The results of all others are passed on unparsed.
    typed_methods: &'static [&'static str],
    /// Ids of requests with one of these methods.
    typed: Mutex<HashSet<RequestId>>,
    notices: Arc<NotificationRouter>,
}

impl MessageReader {
    pub(super) fn new(typed_methods: &'static [&'static str], notices: Arc<NotificationRouter>) -> Self {
        Self { typed_methods, typed: Mutex::default(), notices }
    }

    /// Notes a message that is about to be sent. The transport calls this before the server can answer.
    pub(super) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        if let ClientJsonRpcMessage::Request(request) = message {
            if self.typed_methods.contains(&request.request.method()) {
                lock(&self.typed).insert(request.id.clone());
            }
            self.notices.register_sinks(&request.request);
            self.notices.questions.register(&request.id, &request.request);
        }
    }

    /// Parses one line of a server's own output; see [`Self::parse_from`].
    pub(super) fn parse_line(&self, line: &[u8]) -> Option<Vec<ServerJsonRpcMessage>> {
        self.parse_from(line, &MessageOrigin::Server)
    }

    /// Parses one line. Delivers progress, log messages and changes of resources itself, and returns the messages for
    /// rmcp, which may be none: messages that Cove does not use are dropped. Returns `None` if the line is no message.
    pub(super) fn parse_from(&self, line: &[u8], origin: &MessageOrigin) -> Option<Vec<ServerJsonRpcMessage>> {
        match serde_json::from_slice(line) {
            Ok(message @ Value::Object(_)) => Some(self.parse_message(message, origin)?.into_iter().collect()),
            // One older revision of the protocol has batches.
            Ok(Value::Array(messages)) if !messages.is_empty() => {
                let messages = messages.into_iter().map(|message| self.parse_message(message, origin));
                Some(messages.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
            }
            Ok(_) => None,
            // An error is better than to let the caller wait for an answer that already arrived.
            Err(error) => find_broken_answer_id(line).map(|id| {
                let what = format!("its answer is not JSON ({error})");
                vec![JsonRpcMessage::error(ErrorData::new(ErrorCode::PARSE_ERROR, what, None), Some(id))]
            }),
        }
    }

    /// Returns `None` if this is not a message, and `Some(None)` if it is a message that Cove does not use.
    #[expect(clippy::option_option, reason = "two kinds of nothing, each used once")]
    fn parse_message(&self, mut message: Value, origin: &MessageOrigin) -> Option<Option<ServerJsonRpcMessage>> {
        let fields = message.as_object_mut()?;
        if fields.get("jsonrpc") != Some(&Value::from("2.0")) {
            return None;
        }
        if let Some(method) = fields.get("method").and_then(Value::as_str) {
            match method {
                // Delivered here, at once and in order; rmcp would spawn a task for each notification.
                "notifications/progress" => {
                    if let Some((token, progress)) = parse_progress(fields.get("params")?) {
                        self.notices.deliver_progress(&token, progress);
                    }
                    return Some(None);
                }
                "notifications/message" => {
                    if let Some(params) = fields.get("params") {
                        self.notices.deliver_log(params, origin);
                    }
                    return Some(None);
                }
                "notifications/resources/updated" => {
                    if let Some(uri) = fields.get("params").and_then(|params| params.get("uri")?.as_str()) {
                        self.notices.subscriptions().record_change(uri);
                    }
                    return Some(None);
                }
                _ => return serde_json::from_value(message).ok().map(Some),
            }
        }
        let id = fields.get("id").and_then(|id| RequestId::deserialize(id).ok());
        if let Some(result) = fields.remove("result") {
            let id = id?;
            let is_typed = lock(&self.typed).remove(&id);
            let result = if is_typed {
                if result.get("protocolVersion").is_some() {
                    self.notices.note_capabilities(&result);
                }
                serde_json::from_value(result).ok()?
            } else {
                ServerResult::CustomResult(CustomResult(result))
            };
            return Some(Some(JsonRpcMessage::response(result, id)));
        }
        let error = fields.get_mut("error")?.as_object_mut()?;
        let code = error.get("code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok());
        let words = error.get("message").and_then(Value::as_str).unwrap_or("it did not say why").to_owned();
        let error = ErrorData::new(ErrorCode(code.unwrap_or(0)), words, error.remove("data"));
        Some(Some(JsonRpcMessage::error(error, id)))
    }
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
    use serde_json::json;

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

    #[test]
    fn passes_results_through_unchanged() {
        let result = json!({"content": [{"type": "hologram", "x": null}], "structuredContent": null, "new": 1});
        let line = json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string();
        let JsonRpcMessage::Response(response) = parse_single(&line) else { panic!("a response") };
        let ServerResult::CustomResult(CustomResult(value)) = response.result else { panic!("untouched") };
        assert_eq!(value, result);
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
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let lines = [
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"x\":NaN}}".to_owned(),
            format!("{{\"jsonrpc\": \"2.0\", \"id\": 5, \"result\": {deep}}}"),
            format!("{{\"result\":{deep},\"jsonrpc\":\"2.0\",\"id\":5}}"),
        ];
        for line in lines {
            let JsonRpcMessage::Error(error) = parse_single(&line) else { panic!("an error: {line}") };
            assert_eq!(error.id, Some(NumberOrString::Number(5)), "{line}");
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
