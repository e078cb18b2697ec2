//! Parses one line of a client into a protocol message, or into the answer that refuses it.

use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use serde_json::Value;

/// One parsed line of a client.
pub(super) enum ClientLine {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// A line without anything to answer.
    Ignored(&'static str),
    Refused(Box<TxJsonRpcMessage<RoleServer>>),
}

/// Parses a line. A request that cannot be parsed is refused with its id; a line without an id is ignored.
pub(super) fn parse_line(line: &[u8]) -> ClientLine {
    // Some editors begin a stream with a byte order mark. JSON parsers may ignore it.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return ClientLine::Ignored("a blank line");
    }
    let problem = match serde_json::from_slice(line) {
        Ok(message) => return ClientLine::Message(Box::new(message)),
        Err(problem) => problem,
    };
    // A line without an id gets no answer: two peers could otherwise exchange errors for ever.
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(line) else {
        return ClientLine::Ignored("a line that is not a JSON object");
    };
    let Some(id) = fields.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok()) else {
        return ClientLine::Ignored("a notification that the protocol does not know");
    };
    match fields.get("method") {
        Some(Value::String(method)) => {
            let message =
                format!("the parameters of `{}` do not fit: {problem}", cove_core::error::display_value(method));
            refuse(ErrorData::invalid_params(message, None), Some(id))
        }
        Some(_) => refuse(ErrorData::invalid_request("`method` is not a string", None), Some(id)),
        // A response that matches no request of this server.
        None if fields.contains_key("result") || fields.contains_key("error") => {
            ClientLine::Ignored("an answer that does not fit")
        }
        None => refuse(ErrorData::invalid_request("`method` is missing", None), Some(id)),
    }
}

fn refuse(error: ErrorData, id: Option<RequestId>) -> ClientLine {
    ClientLine::Refused(Box::new(TxJsonRpcMessage::<RoleServer>::error(error, id)))
}

pub(super) fn too_large_error(size: u64, most: usize, id: Option<RequestId>) -> TxJsonRpcMessage<RoleServer> {
    let message = format!("the message has {size} bytes, and at most {most} are allowed; send files in pieces");
    TxJsonRpcMessage::<RoleServer>::error(ErrorData::invalid_request(message, None), id)
}

pub(super) fn too_many_requests_error(most: usize, id: RequestId) -> TxJsonRpcMessage<RoleServer> {
    let message = format!("{most} requests are under way, which is all that may be; wait for some of them");
    TxJsonRpcMessage::<RoleServer>::error(ErrorData::internal_error(message, None), Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_text(line: &str) -> String {
        match parse_line(line.as_bytes()) {
            ClientLine::Message(_) => "message".into(),
            ClientLine::Ignored(why) => format!("ignored: {why}"),
            ClientLine::Refused(answer) => {
                let value = serde_json::to_value(*answer).unwrap();
                format!("{} {}", value["id"], value["error"]["code"])
            }
        }
    }

    #[test]
    fn client_lines_are_parsed_refused_or_ignored() {
        assert_eq!(parsed_text(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#), "message");
        assert_eq!(parsed_text("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r"), "message");
        assert_eq!(parsed_text(r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#), "message");
        assert_eq!(parsed_text(""), "ignored: a blank line");
        assert_eq!(parsed_text("  \t\r"), "ignored: a blank line");
        assert_eq!(parsed_text("{\"a\":"), "ignored: a line that is not a JSON object");
        assert_eq!(parsed_text("\u{0}\u{1}"), "ignored: a line that is not a JSON object");
        assert_eq!(parsed_text(r#"{"jsonrpc":"2.0","id":3,"method":5}"#), "3 -32600");
        assert_eq!(parsed_text(r#"{"jsonrpc":"2.0","id":3}"#), "3 -32600");
    }
}
