//! One line of a client's as a message of the protocol, or as what to answer to it.

use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use serde_json::Value;

pub(super) enum Line {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing that could be answered.
    Ignored(&'static str),
    Refused(Box<TxJsonRpcMessage<RoleServer>>),
}

pub(super) fn read(line: &[u8]) -> Line {
    // Some editors begin a stream with a mark; JSON may ignore it.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Line::Ignored("a blank line");
    }
    let problem = match serde_json::from_slice(line) {
        Ok(message) => return Line::Message(Box::new(message)),
        Err(problem) => problem,
    };
    // Without an id there is nobody to answer, and two peers could go on telling each other so for ever.
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(line) else {
        return Line::Ignored("a line that is not a JSON object");
    };
    let Some(id) = fields.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok())
    else {
        return Line::Ignored("a notification that the protocol does not know");
    };
    match fields.get("method") {
        Some(Value::String(method)) => {
            let message =
                format!("the parameters of `{}` do not fit: {problem}", crate::error::shown(method));
            refused(ErrorData::invalid_params(message, None), Some(id))
        }
        Some(_) => refused(ErrorData::invalid_request("`method` is not a string", None), Some(id)),
        // An answer to nothing that was asked.
        None if fields.contains_key("result") || fields.contains_key("error") => {
            Line::Ignored("an answer that does not fit")
        }
        None => refused(ErrorData::invalid_request("`method` is missing", None), Some(id)),
    }
}

fn refused(error: ErrorData, id: Option<RequestId>) -> Line {
    Line::Refused(Box::new(TxJsonRpcMessage::<RoleServer>::error(error, id)))
}

pub(super) fn too_large(size: u64, most: usize, id: Option<RequestId>) -> TxJsonRpcMessage<RoleServer> {
    let message =
        format!("the message has {size} bytes, and at most {most} are allowed; send files in pieces");
    TxJsonRpcMessage::<RoleServer>::error(ErrorData::invalid_request(message, None), id)
}

pub(super) fn too_many(most: usize, id: RequestId) -> TxJsonRpcMessage<RoleServer> {
    let message = format!("{most} requests are under way, which is all that may be; wait for some of them");
    TxJsonRpcMessage::<RoleServer>::error(ErrorData::internal_error(message, None), Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> String {
        match read(line.as_bytes()) {
            Line::Message(_) => "message".into(),
            Line::Ignored(why) => format!("ignored: {why}"),
            Line::Refused(answer) => {
                let value = serde_json::to_value(*answer).unwrap();
                format!("{} {}", value["id"], value["error"]["code"])
            }
        }
    }

    #[test]
    fn lines_are_messages_or_answered_or_ignored() {
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#), "message");
        assert_eq!(answer("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r"), "message");
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#), "message");
        assert_eq!(answer(""), "ignored: a blank line");
        assert_eq!(answer("  \t\r"), "ignored: a blank line");
        assert_eq!(answer("{\"a\":"), "ignored: a line that is not a JSON object");
        assert_eq!(answer("\u{0}\u{1}"), "ignored: a line that is not a JSON object");
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":3,"method":5}"#), "3 -32600");
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":3}"#), "3 -32600");
    }
}
