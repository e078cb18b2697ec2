//! Tasks: a server may answer a tool call with a task, and give the result later. Cove asks for the state of the task
//! at the server's interval until it ends, so code waits for one result as with any other call.
//!
//! In the legacy era (2025-11-25) a server creates a task only for a call that asks for one, which Cove does if the tool
//! requires it; the result needs a request of its own. In the modern era tasks are an extension: Cove announces it, any
//! call may become a task, and the state of an ended task holds the result.
//!
//! A task may ask a person for input. The time for that does not count.
//!
//! [`OpenTask`] cancels its task when it is dropped early: the call timed out, its cell ended, or the server's answers
//! made no sense.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientRequest, CustomRequest};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::answers::to_object;
use super::error::UpstreamError;
use super::lifecycle::Upstream;
use super::notifications::CallProgress;
use super::running_server::{ServerLease, new_request};
use super::{CallOptions, ProtocolEra, text};
use cove_core::session::CellClock;

/// How long a task may run if its call has no timeout. A cell ends its calls earlier.
const MAX_TASK_TIME: Duration = Duration::from_secs(3600);
const MIN_INTERVAL: Duration = Duration::from_millis(200);
const MAX_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TASK_ID: usize = 1024;

/// Returns the request that calls a tool as a task, in the legacy era.
pub(super) fn new_task_request(
    upstream: &Upstream,
    tool: &str,
    arguments: Map<String, Value>,
    options: &CallOptions,
) -> ClientRequest {
    let task = json!({"ttl": u64::try_from(max_time(upstream, options).as_millis()).unwrap_or(u64::MAX)});
    let params = to_object([("name", tool.into()), ("arguments", arguments.into()), ("task", task)]);
    // rmcp's own type for calls has no such field.
    ClientRequest::CustomRequest(CustomRequest::new("tools/call", Some(params.into())))
}

fn max_time(upstream: &Upstream, options: &CallOptions) -> Duration {
    upstream.call_timeout(options, MAX_TASK_TIME)
}

/// Returns the state of the task that an answer created, or the answer if it is a result.
pub(super) fn find_created_task(
    mut answer: Map<String, Value>,
    era: ProtocolEra,
) -> Result<Map<String, Value>, Map<String, Value>> {
    match era {
        ProtocolEra::Modern if answer.get("resultType") == Some(&json!("task")) => Ok(answer),
        ProtocolEra::Legacy if !answer.contains_key("content") && answer.get("task").is_some_and(Value::is_object) => {
            match answer.remove("task") {
                Some(Value::Object(task)) => Ok(task),
                _ => Err(answer),
            }
        }
        _ => Err(answer),
    }
}

/// A task that has not ended. Dropping it cancels it.
pub(super) struct OpenTask {
    upstream: Arc<Upstream>,
    server: String,
    /// Taken when the task has ended, or by the request that cancels it.
    lease: Option<ServerLease>,
    id: String,
    options: CallOptions,
    /// The clock of the task's own time limit. It stands still while a person is asked.
    clock: CellClock,
    /// The last message that was reported.
    status_message: Option<String>,
    /// Keys of the questions that were answered. A server may show them again until it has read the answers.
    answered: HashSet<String>,
}

impl OpenTask {
    /// Fails if the state has no usable id.
    pub(super) fn new(
        upstream: &Arc<Upstream>,
        server: &str,
        lease: ServerLease,
        created: &Map<String, Value>,
        options: &CallOptions,
    ) -> Result<Self, UpstreamError> {
        let id = created.get("taskId").and_then(Value::as_str).filter(|id| !id.is_empty() && id.len() <= MAX_TASK_ID);
        let Some(id) = id else {
            return Err(UpstreamError::protocol(server, "it started a task without an id that can be used", None));
        };
        let (upstream, server, id) = (Arc::clone(upstream), server.to_owned(), id.to_owned());
        let (options, clock) = (options.clone(), CellClock::default());
        Ok(Self {
            upstream,
            server,
            lease: Some(lease),
            id,
            options,
            clock,
            status_message: None,
            answered: HashSet::new(),
        })
    }

    /// Waits until the task ends, and returns the result of the call. Reports the server's status messages, and answers
    /// its questions. Fails if the task fails, is cancelled, gets no input or takes too long, and if the server fails.
    pub(super) async fn wait(self, created: Map<String, Value>) -> Result<Map<String, Value>, UpstreamError> {
        let (clock, after) = (self.clock.clone(), max_time(&self.upstream, &self.options));
        let timed_out = self.upstream.timeout_error(after);
        let questions = self.lease.as_ref().zip(self.options.questions.clone());
        let mut inbox = questions.map(|(lease, questions)| lease.open_task_inbox(questions, clock.clone()));
        let unanswered = async {
            match &mut inbox {
                Some(inbox) => inbox.wait_for_failure().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = self.poll(created) => result,
            () = clock.pass(Instant::now() + after) => Err(timed_out),
            failure = unanswered => Err(failure),
        }
    }

    async fn poll(mut self, mut state: Map<String, Value>) -> Result<Map<String, Value>, UpstreamError> {
        loop {
            self.report(&state);
            match state.get("status").and_then(Value::as_str) {
                Some("working") => {}
                Some("completed" | "failed") => return self.read_result(state).await,
                Some("cancelled") => {
                    self.lease = None;
                    return Err(self.error(&state, "it cancelled the task of this call"));
                }
                // A legacy server asks while the client waits for the result.
                Some("input_required") if self.era() == Some(ProtocolEra::Legacy) => {
                    let _pause = self.clock.clone().pause();
                    return self.read_result(state).await;
                }
                Some("input_required") => self.give_input(&mut state).await?,
                _ => return Err(self.error(&state, "its task is in a state that Cove does not know")),
            }
            tokio::time::sleep(poll_interval(&state)).await;
            state = self.request("tasks/get", Map::new()).await?;
        }
    }

    /// Sends a request about the task. Fails if the answer is not an object.
    async fn request(&self, method: &str, mut params: Map<String, Value>) -> Result<Map<String, Value>, UpstreamError> {
        let Some(lease) = &self.lease else { return Ok(Map::new()) };
        params.insert("taskId".to_owned(), self.id.as_str().into());
        // The sink stays registered under the token of the call.
        let mut options = CallOptions { progress: None, ..self.options.clone() };
        if method == "tasks/result" {
            options.timeout = Some(max_time(&self.upstream, &self.options));
        } else {
            // A short request would withdraw the question when it ends. The task itself takes questions.
            options.questions = None;
        }
        match self.upstream.request_on(lease, new_request(method, params), &options).await? {
            Value::Object(answer) => Ok(answer),
            _ => Err(UpstreamError::protocol(&self.server, "its answer is not an object", None)),
        }
    }

    /// Returns the result of a task that has ended, with `isError` if it failed.
    async fn read_result(mut self, mut state: Map<String, Value>) -> Result<Map<String, Value>, UpstreamError> {
        let has_failed = state.get("status") == Some(&json!("failed"));
        if self.era() == Some(ProtocolEra::Legacy) {
            let mut result = self.request("tasks/result", Map::new()).await?;
            self.lease = None;
            if has_failed {
                result.insert("isError".to_owned(), true.into());
            }
            return Ok(result);
        }
        self.lease = None;
        match state.remove("result") {
            _ if has_failed => Err(self.failure(&mut state)),
            Some(Value::Object(result)) => Ok(result),
            _ => Err(self.error(&state, "its task has ended without a result")),
        }
    }

    /// Puts the questions of a modern task to the client, and sends the answers to the server.
    async fn give_input(&mut self, state: &mut Map<String, Value>) -> Result<(), UpstreamError> {
        let Some(questions) = &self.options.questions else {
            return Err(self.error(state, "it asks for input, which this call cannot give"));
        };
        let mut requests = match state.remove("inputRequests") {
            Some(Value::Object(requests)) => requests,
            _ => Map::new(),
        };
        requests.retain(|key, _| !self.answered.contains(key));
        if requests.is_empty() {
            return Ok(());
        }
        let answers = {
            let _pause = self.clock.pause();
            questions.ask_all(&self.server, requests).await?
        };
        self.answered.extend(answers.keys().cloned());
        self.request("tasks/update", to_object([("inputResponses", answers.into())])).await.map(drop)
    }

    fn era(&self) -> Option<ProtocolEra> {
        self.lease.as_ref().map(|lease| lease.era())
    }

    /// Reports the status message if it is new.
    fn report(&mut self, state: &Map<String, Value>) {
        let message = state.get("statusMessage").and_then(Value::as_str).map(|words| text::to_line(words, 500));
        let message = message.filter(|message| !message.is_empty() && self.status_message.as_ref() != Some(message));
        if let Some(message) = message {
            self.status_message = Some(message.clone());
            if let Some(report) = &self.options.progress {
                report(CallProgress { progress: None, total: None, message: Some(message) });
            }
        }
    }

    fn error(&self, state: &Map<String, Value>, what: &str) -> UpstreamError {
        let message = match state.get("statusMessage").and_then(Value::as_str) {
            Some(words) => format!("{what}: {}", text::to_line(words, 500)),
            None => what.to_owned(),
        };
        UpstreamError::protocol(&self.server, &message, None)
    }

    /// Returns the protocol error with which a task of the modern era failed.
    fn failure(&self, state: &mut Map<String, Value>) -> UpstreamError {
        let Some(Value::Object(mut error)) = state.remove("error") else {
            return self.error(state, "its task failed");
        };
        let message = error.get("message").and_then(Value::as_str).unwrap_or("its task failed");
        let message = text::cut(&text::strip_control(message), 8 * 1024);
        let code = error.get("code").and_then(Value::as_i64).unwrap_or(0);
        let data = error.remove("data").map(Box::new);
        UpstreamError::Protocol { server: self.server.clone(), code, message, data }
    }
}

impl Drop for OpenTask {
    fn drop(&mut self) {
        let (Some(lease), Ok(runtime)) = (self.lease.take(), tokio::runtime::Handle::try_current()) else { return };
        let request = new_request("tasks/cancel", to_object([("taskId", self.id.as_str().into())]));
        runtime.spawn(async move {
            // The caller no longer waits. A server that does not answer loses nothing but this.
            let _ = lease.request(request, CANCEL_TIMEOUT, &CallOptions::default()).await;
        });
    }
}

/// Returns how long to wait before the next question: what the server asks for, within bounds.
fn poll_interval(state: &Map<String, Value>) -> Duration {
    let given = ["pollIntervalMs", "pollInterval"].iter().find_map(|key| state.get(*key)?.as_f64());
    match given {
        Some(milliseconds) if milliseconds >= 0.0 => {
            let most = MAX_INTERVAL.as_millis() as f64;
            Duration::from_secs_f64(milliseconds.min(most) / 1000.0).clamp(MIN_INTERVAL, MAX_INTERVAL)
        }
        _ => DEFAULT_INTERVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(state: Value) -> u128 {
        let Value::Object(state) = state else { panic!("an object") };
        poll_interval(&state).as_millis()
    }

    #[test]
    fn poll_interval_is_bounded() {
        assert_eq!(interval(json!({})), 1000);
        assert_eq!(interval(json!({"pollIntervalMs": 700})), 700);
        assert_eq!(interval(json!({"pollInterval": 700})), 700);
        assert_eq!(interval(json!({"pollIntervalMs": 0})), 200);
        assert_eq!(interval(json!({"pollIntervalMs": 1e-300})), 200);
        for long in [json!(315_360_000_000_u64), json!(u64::MAX), json!(1e308)] {
            assert_eq!(interval(json!({ "pollIntervalMs": long })), 30_000);
        }
        for odd in [json!(-5), json!("fast"), json!(null), json!([1])] {
            assert_eq!(interval(json!({ "pollIntervalMs": odd })), 1000);
        }
    }

    #[test]
    fn tasks_are_told_apart_from_results() {
        use ProtocolEra::{Legacy, Modern};
        let task = json!({"taskId": "t", "status": "working"});
        let object = |value: Value| value.as_object().cloned().unwrap();
        let created = |era, answer: Value| find_created_task(object(answer), era).ok().map(Value::Object);
        assert_eq!(created(Legacy, json!({"task": task})), Some(task));
        let modern = json!({"resultType": "task", "taskId": "t"});
        assert_eq!(created(Modern, modern.clone()), Some(modern));
        for answer in [json!({"content": [], "task": {"taskId": "t"}}), json!({"task": 7}), json!({})] {
            assert_eq!(find_created_task(object(answer.clone()), Legacy), Err(object(answer.clone())));
            assert_eq!(find_created_task(object(answer.clone()), Modern), Err(object(answer)));
        }
    }
}
