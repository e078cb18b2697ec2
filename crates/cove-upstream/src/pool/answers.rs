//! Answers of servers: a request is repeated with the input that a server asks for, until the answer is complete. Tool
//! results and completions are parsed here.

use std::sync::Arc;

use rmcp::model::ClientRequest;
use serde_json::{Map, Value};

use super::error::UpstreamError;
use super::lifecycle::Upstream;
use super::questions::MAX_QUESTIONS;
use super::running_server::ServerLease;
use super::{CallOptions, ProtocolEra, UpstreamResult};

/// Completions that code gets, at most.
const MAX_COMPLETIONS: usize = 1000;

/// Sends a request and returns the fields of the complete result, or of the task that a tool call became. A server of the
/// modern era may ask for input instead: then the request is sent again with the input. Fails if the input is missing or
/// the result type is unknown.
pub(super) async fn complete_request(
    upstream: &Arc<Upstream>,
    lease: &ServerLease,
    mut request: ClientRequest,
    options: &CallOptions,
) -> Result<Map<String, Value>, UpstreamError> {
    let server = upstream.definition().name.clone();
    let failed = |message: &str| UpstreamError::protocol(&server, message, None);
    // Arguments may have megabytes, and a server of the legacy era asks in another way.
    let first = (lease.era() == ProtocolEra::Modern).then(|| request.clone());
    let may_be_task = matches!(request, ClientRequest::CallToolRequest(_));
    for _ in 0..MAX_QUESTIONS {
        let Value::Object(mut result) = upstream.request_on(lease, request, options).await? else {
            return Err(failed("its answer is not an object"));
        };
        match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => return Ok(result),
            Some("task") if may_be_task => return Ok(result),
            Some("input_required") => {}
            Some(_) => return Err(failed("its answer is of a kind that Cove does not know")),
        }
        let (Some(first), Some(questions)) = (&first, &options.questions) else {
            return Err(failed("it asks for input, which this call cannot give"));
        };
        let requests = match result.remove("inputRequests") {
            Some(Value::Object(requests)) => requests,
            _ => Map::new(),
        };
        let answers = questions.ask_all(&server, requests).await?;
        request = with_answers(first.clone(), answers, result.remove("requestState"));
    }
    Err(failed("it asks for input again and again"))
}

/// Returns the request with the answers to the server's questions, and with the server's own state.
fn with_answers(mut request: ClientRequest, answers: Map<String, Value>, state: Option<Value>) -> ClientRequest {
    let state = state.and_then(|state| state.as_str().map(str::to_owned));
    let answers = (!answers.is_empty()).then(|| answers.into_iter().collect());
    match &mut request {
        ClientRequest::CallToolRequest(call) => {
            (call.params.input_responses, call.params.request_state) = (answers, state);
        }
        ClientRequest::GetPromptRequest(get) => {
            (get.params.input_responses, get.params.request_state) = (answers, state);
        }
        ClientRequest::ReadResourceRequest(read) => {
            (read.params.input_responses, read.params.request_state) = (answers, state);
        }
        // The protocol allows questions for no other request.
        _ => {}
    }
    request
}

/// Returns a tool's result. Fails if it has no content.
pub(super) fn parse_tool_result(server: &str, mut result: Map<String, Value>) -> Result<UpstreamResult, UpstreamError> {
    let structured = result.remove("structuredContent");
    let content = match result.remove("content") {
        Some(Value::Array(content)) => content,
        // `content` is optional beside structured content. The oldest revision sends `toolResult` instead.
        None | Some(Value::Null) if structured.is_some() => Vec::new(),
        _ => return Err(UpstreamError::protocol(server, "its answer has no content", None)),
    };
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    Ok(UpstreamResult { content, structured, is_error, meta: result.remove("_meta") })
}

/// Returns the values of a completion, at most `MAX_COMPLETIONS`, and what the server says about further ones.
pub(super) fn parse_completion(mut completion: Value) -> Value {
    let mut values = completion.as_object_mut().map(|fields| take_array(fields, "values")).unwrap_or_default();
    values.retain(Value::is_string);
    let is_cut = values.len() > MAX_COMPLETIONS;
    values.truncate(MAX_COMPLETIONS);
    let has_more = is_cut || completion["hasMore"] == Value::Bool(true);
    let mut answer = to_object([("values", values.into()), ("has_more", has_more.into())]);
    if let Some(total) = completion["total"].as_u64() {
        answer.insert("total".to_owned(), total.into());
    }
    answer.into()
}

/// Returns an object without copying its values, which may have megabytes.
pub(super) fn to_object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Takes the values of an array out of an object; none if there is no such array.
pub(super) fn take_array(result: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match result.remove(key) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    }
}
