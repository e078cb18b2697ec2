//! Parses one message of a client into a protocol message, or into the answer that refuses it. Every request that
//! carries an id gets an answer, whatever is wrong with it. Notifications and responses get none: two peers could
//! otherwise exchange errors for ever.

mod envelope;

use rmcp::RoleServer;
use rmcp::model::{ErrorData, JsonRpcMessage};
use rmcp::service::RxJsonRpcMessage;
use serde::Serialize;
use serde_json::Value;
use serde_json::error::Category;

use self::envelope::{MAX_BATCH_REQUESTS, MessageBatch, MessageEnvelope, MessageShape, ParamsKind};
use super::request_scan::{RequestScan, ScannedMessage};
use cove_core::error::display_value;
use cove_core::sync::read_message;
use cove_core::text::show_hidden;

/// One parsed message of a client.
pub(super) enum ClientLine {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    Blank,
    /// A message without anything to answer.
    Ignored(&'static str),
    /// One answer, or one for each request of a batch.
    Refused(Vec<ErrorAnswer>),
}

/// An answer that refuses a request. Unlike rmcp's own, it can repeat any id that the client wrote.
#[derive(Debug, Serialize)]
pub(super) struct ErrorAnswer {
    jsonrpc: &'static str,
    /// `Null` if the id is unknown.
    pub(super) id: Value,
    pub(super) error: ErrorData,
}

impl ErrorAnswer {
    pub(super) fn new(id: Value, mut error: ErrorData) -> Self {
        // It may quote what the client sent.
        error.message = show_hidden(&error.message).into_owned().into();
        Self { jsonrpc: "2.0", id, error }
    }
}

/// Parses a message.
pub(super) fn parse_line(line: &[u8]) -> ClientLine {
    read_message(line.len(), || parse_message(line))
}

fn parse_message(line: &[u8]) -> ClientLine {
    // Some editors begin a stream with a byte order mark. JSON parsers may ignore it.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return ClientLine::Blank;
    }
    match serde_json::from_slice(line) {
        Ok(MessageShape::Object(envelope)) => parse_object(line, *envelope),
        Ok(MessageShape::Batch(batch)) => refuse_batch(batch),
        Ok(MessageShape::Other) => refuse(Value::Null, invalid_request("the message is not a JSON object")),
        Err(problem) => refuse_malformed(line, &problem),
    }
}

fn parse_object(line: &[u8], envelope: MessageEnvelope) -> ClientLine {
    if let Some(fault) = find_fault(&envelope) {
        return match fault {
            MessageFault::Silent(what) => ClientLine::Ignored(what),
            MessageFault::Answered(error) => refuse(envelope.echoed_id(), error),
        };
    }
    match serde_json::from_slice::<RxJsonRpcMessage<RoleServer>>(line) {
        Ok(message) if envelope.id.is_none() || !is_notification(&message) => ClientLine::Message(Box::new(message)),
        // Faults inside of strings, which the envelope skips.
        Err(problem) if problem.classify() != Category::Data => refuse_malformed(line, &problem),
        _ if envelope.is_response() => ClientLine::Ignored("an answer that does not fit"),
        _ if envelope.id.is_none() => ClientLine::Ignored("a notification that the protocol does not know"),
        Ok(_) => refuse(envelope.echoed_id(), invalid_request("the message is not a request")),
        Err(problem) => {
            let method = envelope.method.as_ref().and_then(Value::as_str).unwrap_or_default();
            let message = format!("the parameters of `{}` do not fit: {problem}", display_value(method));
            refuse(envelope.echoed_id(), ErrorData::invalid_params(message, None))
        }
    }
}

/// What is wrong with the fields that every message has.
enum MessageFault {
    /// Nothing waits for an answer.
    Silent(&'static str),
    Answered(ErrorData),
}

fn find_fault(envelope: &MessageEnvelope) -> Option<MessageFault> {
    let answered = |error| Some(MessageFault::Answered(error));
    if envelope.is_response() {
        let has_id = envelope.id.as_ref().is_none_or(|id| is_request_id(id) || id.is_null());
        return (!has_id || envelope.repeated.is_some()).then_some(MessageFault::Silent("an answer that does not fit"));
    }
    let method = match &envelope.method {
        None => return answered(invalid_request("`method` is missing")),
        Some(Value::String(method)) => method,
        Some(_) => return answered(invalid_request("`method` is not a string")),
    };
    if envelope.id.is_none() {
        // Even a wrong notification gets no answer.
        let is_fine = envelope.version_fits() && envelope.repeated.is_none() && !envelope.has_outcome;
        return (!is_fine).then_some(MessageFault::Silent("a notification that is malformed"));
    }
    if let Some(field) = envelope.repeated {
        return answered(invalid_request(format!("`{field}` is there twice")));
    }
    if !envelope.version_fits() {
        return answered(invalid_request("`jsonrpc` is not \"2.0\""));
    }
    if !envelope.id.as_ref().is_some_and(is_request_id) {
        return answered(invalid_request("`id` is neither a string nor an integer of 64 bits"));
    }
    if envelope.has_outcome {
        return answered(invalid_request("a request has neither `result` nor `error`"));
    }
    if envelope.params == ParamsKind::Other {
        let message = format!("the parameters of `{}` are not an object", display_value(method));
        return answered(ErrorData::invalid_params(message, None));
    }
    None
}

fn is_request_id(id: &Value) -> bool {
    serde_json::from_value::<rmcp::model::RequestId>(id.clone()).is_ok()
}

fn is_notification(message: &RxJsonRpcMessage<RoleServer>) -> bool {
    matches!(message, JsonRpcMessage::Notification(_))
}

/// Batches were part of one revision only. Each request in one gets its own answer, because something waits for it.
fn refuse_batch(batch: MessageBatch) -> ClientLine {
    let error = || invalid_request("batches are not part of the protocol; send each message on its own");
    match batch.request_ids.len() {
        _ if batch.is_silent => ClientLine::Ignored("a batch without requests"),
        1..=MAX_BATCH_REQUESTS => {
            let answers = batch.request_ids.into_iter().map(|id| ErrorAnswer::new(id, error()));
            ClientLine::Refused(answers.collect())
        }
        _ => refuse(Value::Null, error()),
    }
}

/// Refuses a line that is not one JSON value, with the ids that a scan of its bytes finds.
fn refuse_malformed(line: &[u8], problem: &serde_json::Error) -> ClientLine {
    let mut scan = RequestScan::default();
    scan.push(line);
    refuse_scanned(scan, &parse_error(problem))
}

fn refuse_scanned(scan: RequestScan, error: &ErrorData) -> ClientLine {
    let (mut answers, mut ignored) = (Vec::new(), "");
    for message in scan.finish() {
        match message {
            ScannedMessage::Request(id) => answers.push(ErrorAnswer::new(id, error.clone())),
            ScannedMessage::Notification => ignored = "a notification that cannot be read",
            ScannedMessage::Response => ignored = "an answer that cannot be read",
        }
    }
    if answers.is_empty() { ClientLine::Ignored(ignored) } else { ClientLine::Refused(answers) }
}

fn parse_error(problem: &serde_json::Error) -> ErrorData {
    let cause = problem.to_string();
    let hints = [
        ("surrogate", "it is half of a character such as an emoji; send the whole character, or leave it out"),
        ("end of hex escape", "it is half of a character such as an emoji; send the whole character, or leave it out"),
        ("recursion limit", "values may be 127 levels deep; write deeper data as a string"),
        ("control character", "escape it, as in `\\n` or `\\u0000`"),
        ("invalid unicode", "send UTF-8"),
        ("out of range", "write the number as a string"),
    ];
    let hint = hints.iter().find(|(sign, _)| cause.contains(sign));
    let hint = hint.map_or("send one JSON object, in UTF-8 and on one line", |(_, hint)| hint);
    ErrorData::parse_error(format!("could not read the message, and nothing of it was done: {cause}; {hint}"), None)
}

fn invalid_request(message: impl Into<std::borrow::Cow<'static, str>>) -> ErrorData {
    ErrorData::invalid_request(message, None)
}

fn refuse(id: Value, error: ErrorData) -> ClientLine {
    ClientLine::Refused(vec![ErrorAnswer::new(id, error)])
}

/// Refuses a line that was too large to keep.
pub(super) fn refuse_too_large(size: u64, most: usize, scan: RequestScan) -> ClientLine {
    let message = format!("the message has {size} bytes, and at most {most} are allowed; send files in pieces");
    refuse_scanned(scan, &invalid_request(message))
}

/// Two answers with one id could not be told apart.
pub(super) fn repeated_id_error(id: &rmcp::model::RequestId) -> ErrorAnswer {
    let error = invalid_request("a request with this `id` is under way; give each request an `id` of its own");
    ErrorAnswer::new(serde_json::to_value(id).unwrap_or_default(), error)
}

pub(super) fn too_many_requests_error(most: usize, id: &rmcp::model::RequestId) -> ErrorAnswer {
    let message = format!("{most} requests are under way, which is all that may be; wait for some of them");
    let id = serde_json::to_value(id).unwrap_or_default();
    ErrorAnswer::new(id, ErrorData::internal_error(message, None))
}

#[cfg(test)]
mod tests;
