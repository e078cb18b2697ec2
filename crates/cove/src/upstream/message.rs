//! Lines of a server to messages of rmcp's. Results are passed on as they are, so that nothing a server says is lost in
//! a type that does not know it; only what rmcp must understand itself is read by it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use rmcp::model::{
    CustomResult, ErrorCode, ErrorData, JsonRpcMessage, NumberOrString, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde_json::Value;

use super::notices::{Notices, Progress};
use super::text;

pub(super) enum Heard {
    /// Possibly none: what nobody asked for is left out.
    Messages(Vec<ServerJsonRpcMessage>),
    Junk,
}

pub(super) fn parse(line: &[u8], typed: &Mutex<HashSet<RequestId>>, notices: &Notices) -> Heard {
    match serde_json::from_slice(line) {
        Ok(message @ Value::Object(_)) => match one(message, typed, notices) {
            Some(message) => Heard::Messages(message.into_iter().collect()),
            None => Heard::Junk,
        },
        // One older revision of the protocol has batches.
        Ok(Value::Array(messages)) if !messages.is_empty() => {
            let messages: Option<Vec<_>> =
                messages.into_iter().map(|message| one(message, typed, notices)).collect();
            messages.map_or(Heard::Junk, |messages| Heard::Messages(messages.into_iter().flatten().collect()))
        }
        Ok(_) => Heard::Junk,
        Err(error) => match broken_answer(line) {
            // Better than to let the caller wait for an answer that was there.
            Some(id) => {
                let what = format!("its answer is not JSON ({error})");
                let error = ErrorData::new(ErrorCode::PARSE_ERROR, what, None);
                Heard::Messages(vec![JsonRpcMessage::error(error, Some(id))])
            }
            None => Heard::Junk,
        },
    }
}

/// None when it is not a message; nothing inside when it is one that nobody needs.
#[expect(clippy::option_option, reason = "two kinds of nothing, each used once")]
fn one(
    mut message: Value,
    typed: &Mutex<HashSet<RequestId>>,
    notices: &Notices,
) -> Option<Option<ServerJsonRpcMessage>> {
    let fields = message.as_object_mut()?;
    if fields.get("jsonrpc") != Some(&Value::from("2.0")) {
        return None;
    }
    if let Some(method) = fields.get("method").and_then(Value::as_str) {
        match method {
            // Told at once and in order; rmcp would start a task for each.
            "notifications/progress" => {
                if let Some((token, progress)) = progress(fields.get("params")?) {
                    notices.progress(&token, progress);
                }
                return Some(None);
            }
            "notifications/message" | "notifications/resources/updated" => return Some(None),
            _ => return serde_json::from_value(message).ok().map(Some),
        }
    }
    let id = fields.get("id").and_then(request_id);
    if let Some(result) = fields.remove("result") {
        let id = id?;
        let is_typed = typed.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let result = if is_typed {
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

fn request_id(value: &Value) -> Option<RequestId> {
    match value {
        Value::Number(number) => number.as_i64().map(NumberOrString::Number),
        Value::String(text) => Some(NumberOrString::String(text.as_str().into())),
        _ => None,
    }
}

fn progress(params: &Value) -> Option<(ProgressToken, Progress)> {
    let token = request_id(params.get("progressToken")?)?;
    let progress = Progress {
        progress: params.get("progress")?.as_f64()?,
        total: params.get("total").and_then(Value::as_f64),
        message: params.get("message").and_then(Value::as_str).map(|words| text::line(words, 500)),
    };
    Some((ProgressToken(token), progress))
}

/// The id of an answer that cannot be read as a whole, such as one with `NaN` or one that is too deep. Ids stand near
/// the beginning or near the end of what servers write.
fn broken_answer(line: &[u8]) -> Option<RequestId> {
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

    fn parsed(line: &str) -> Heard {
        parse(line.as_bytes(), &Mutex::default(), &Notices::default())
    }

    fn only(line: &str) -> ServerJsonRpcMessage {
        match parsed(line) {
            Heard::Messages(mut messages) if messages.len() == 1 => messages.remove(0),
            _ => panic!("not one message: {line}"),
        }
    }

    #[test]
    fn results_are_left_as_they_came() {
        let result =
            json!({"content": [{"type": "hologram", "x": null}], "structuredContent": null, "new": 1});
        let line = json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string();
        let JsonRpcMessage::Response(response) = only(&line) else { panic!("a response") };
        let ServerResult::CustomResult(CustomResult(value)) = response.result else { panic!("untouched") };
        assert_eq!(value, result);
    }

    #[test]
    fn nonsense_is_told_from_messages() {
        for line in
            ["hello", "{}", "[]", "1", "null", "{\"a\":1}", "{\"jsonrpc\":\"1.0\",\"id\":1,\"result\":{}}"]
        {
            assert!(matches!(parsed(line), Heard::Junk), "{line}");
        }
        let quiet = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}).to_string();
        assert!(matches!(parsed(&quiet), Heard::Messages(messages) if messages.is_empty()));
        let batch =
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}},{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}]";
        assert!(matches!(parsed(batch), Heard::Messages(messages) if messages.len() == 2));
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_still_an_answer() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let lines = [
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"x\":NaN}}".to_owned(),
            format!("{{\"jsonrpc\": \"2.0\", \"id\": 5, \"result\": {deep}}}"),
            format!("{{\"result\":{deep},\"jsonrpc\":\"2.0\",\"id\":5}}"),
        ];
        for line in lines {
            let JsonRpcMessage::Error(error) = only(&line) else { panic!("an error: {line}") };
            assert_eq!(error.id, Some(NumberOrString::Number(5)), "{line}");
        }
        assert!(matches!(parsed("{ \"id\": 5 }}"), Heard::Junk));
    }

    #[test]
    fn errors_need_no_good_manners() {
        let JsonRpcMessage::Error(error) =
            only("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":99999999999,\"data\":[1]}}")
        else {
            panic!("an error")
        };
        assert_eq!((error.id, error.error.code.0), (None, 0));
        assert_eq!(error.error.data, Some(json!([1])));
    }
}
