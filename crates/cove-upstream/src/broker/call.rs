//! One call of a tool, a resource or a prompt. The broker finds it, checks the grant and the arguments, sends it
//! once, and records it.
//!
//! `AuditTrail::begin` opens the record before anything else happens, and fails if the audit file cannot be written;
//! then the broker does not send the call. `set_tool` replaces the names in the record once the tool is found. `end`
//! sets the outcome. If the caller drops the call instead, dropping the record writes the line with the outcome
//! `cancelled`.

use std::sync::Arc;
use std::time::Duration;

use cove_core::session::CallingCell;
use serde_json::{Map, Value, json};

use super::audit::OpenAuditRecord;
use super::holds::held_tool_error;
use super::request::{CallError, CallErrorKind, CallRequest};
use super::server_registry::ListFreshness;
use super::{Broker, CallScope, StatusCallback, result_value};
use crate::catalog::pins::ToolHold;
use crate::catalog::validate::{self, ArgumentRefusal};
use crate::catalog::{CatalogServer, KnownTool, PinReload, ToolDocument, ToolLookupError};
use crate::pool::questions::CallQuestions;
use crate::pool::{
    CallOptions, CallProgress, CompletionReference, ParameterHeaders, ProgressSink, ProtocolEra, ServerQuery,
    UnansweredQuestion, UpstreamError, UpstreamResult,
};
use cove_core::error::{Hint, display_value};

/// The hint for code that calls a tool which no other tool resembles. People search in another way.
pub const UNKNOWN_TOOL_HINT: &str = "search for what you need with `mcp.find`";
/// The modern era's error for headers that do not fit the call.
const HEADER_MISMATCH: i64 = -32020;
/// Longer than any cell may run, in seconds.
const MAX_TIMEOUT: f64 = 86_400.0;

impl Broker {
    /// Calls a tool and returns its result. Fails if the tool is unknown or not granted, if its arguments do not fit,
    /// or if the upstream server fails.
    pub(super) async fn call(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        request: CallRequest,
    ) -> Result<Value, CallError> {
        let CallRequest { server, tool, arguments, raw, timeout } = request;
        let mut record = self.trail.begin(run, cell.id, &server, &tool, &arguments)?;
        // They may have megabytes, and most calls are made once.
        let again = run.questions.reach_local_person().then(|| arguments.clone());
        let mut result = self.attempt_call(run, cell, (&server, &tool, raw, timeout), arguments, &mut record).await;
        if let Some(arguments) = again
            && self.signs_in_after(run, cell, &result).await
        {
            result = self.attempt_call(run, cell, (&server, &tool, raw, timeout), arguments, &mut record).await;
        }
        record.end(result)
    }

    async fn attempt_call(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        (server, tool, raw, timeout): (&str, &str, bool, Option<f64>),
        arguments: Map<String, Value>,
        record: &mut OpenAuditRecord<'_>,
    ) -> Result<Value, CallError> {
        let timeout = parse_timeout(timeout)?;
        let known = self.find_tool(run, cell, server, tool).await?;
        let (server, tool) = (known.server.name.clone(), known.document.name.clone());
        record.set_tool(&server, &tool);
        self.check_grant(run, &known.server, &tool)?;
        self.check_tool_hold(run, &server, &tool).await?;
        let (document, arguments) = self.check_arguments(run, cell, known, arguments).await?;
        let started = self.wait_for_start(run, cell, &server).await;
        started.map_err(|error| to_call_error(error, Some(&tool)))?;
        self.list_after_start(&server).await.map_err(|error| to_call_error(error, Some(&tool)))?;
        self.check_tool_hold(run, &server, &tool).await?;
        let options = CallOptions {
            timeout,
            progress: self.progress_sink(run, &server, &tool),
            requires_task: document.requires_task,
            parameter_headers: ParameterHeaders::new(&document.input_schema, &arguments),
            ..self.call_options(run, cell, &server)
        };
        let called = self.send_call(&server, &tool, arguments, options).await;
        let answer = to_answer(&server, &tool, called.map_err(|error| to_call_error(error, Some(&tool)))?, raw)?;
        if document.output_schema.is_none() && !raw {
            self.learn_result(&server, &tool, &answer);
        }
        Ok(answer)
    }

    /// Asks the person to sign in to the server that refused a call for that reason. Returns true if they did, so that
    /// the call can be made again.
    async fn signs_in_after(&self, run: &CallScope, cell: &CallingCell, result: &Result<Value, CallError>) -> bool {
        let refused = result.as_ref().err().filter(|problem| problem.kind() == CallErrorKind::SignInNeeded);
        let Some(server) = refused.and_then(CallError::server).filter(|_| run.questions.reach_local_person()) else {
            return false;
        };
        let questions = call_questions(run, cell);
        self.servers.upstreams().ask_to_sign_in(server, &questions).await
    }

    /// Sends a call. A server refuses it before it runs if headers do not fit the tool's current schema: then Cove lists
    /// the tools again, and sends the call once more if that gives other headers.
    async fn send_call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        options: CallOptions,
    ) -> Result<UpstreamResult, UpstreamError> {
        let upstreams = self.servers.upstreams();
        // Arguments may have megabytes, and are needed again only if the schema may be old.
        let may_be_old = upstreams.era(server) == Some(ProtocolEra::Modern) && !self.servers.is_fresh(server);
        let again = may_be_old.then(|| (arguments.clone(), options.clone()));
        let called = upstreams.call(server, tool, arguments, options).await;
        let (Err(UpstreamError::Protocol { code: HEADER_MISMATCH, .. }), Some((arguments, mut options))) =
            (&called, again)
        else {
            return called;
        };
        self.servers.ensure_listed(server, ListFreshness::Fresh).await?;
        let Ok(known) = self.servers.catalog().find_tool(server, tool) else { return called };
        if known.server.pins.tool_hold(tool).is_some() {
            return called;
        }
        let headers = ParameterHeaders::new(&known.document.input_schema, &arguments);
        if headers.is_same(&options.parameter_headers) {
            return called;
        }
        options.parameter_headers = headers;
        upstreams.call(server, tool, arguments, options).await
    }

    /// Remembers what results of a tool look like, so that the next signature can show it.
    fn learn_result(&self, server: &str, tool: &str, answer: &Value) {
        let catalog = self.servers.catalog();
        if catalog.learn_result(server, tool, answer.get("value")) {
            let (catalog, server) = (catalog.clone(), server.to_owned());
            // The caller does not wait for the file.
            tokio::task::spawn_blocking(move || catalog.save_results(&server));
        }
    }

    /// Finds a tool. Starts its server only if the catalog has no list for it, or the list lacks this tool. Fails if
    /// the server has no such tool or cannot be listed.
    pub(super) async fn find_tool(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
        tool: &str,
    ) -> Result<KnownTool, CallError> {
        let server = self.find_server(run, server, Some(tool))?;
        let find_listed = async |freshness| match self.ensure_listed(run, cell, &server.name, freshness).await {
            Ok(()) => Ok(self.servers.catalog().find_tool(&server.name, tool)),
            Err(error) => Err(to_call_error(error, Some(tool))),
        };
        if let Ok(known) = find_listed(ListFreshness::Known).await? {
            return Ok(known);
        }
        self.check_grant(run, &server, tool)?;
        let find_addition = || {
            let server = self.find_server(run, &server.name, Some(tool))?;
            Ok(server.pins.find_held_addition(tool).map(|name| held_tool_error(&server.name, name, ToolHold::Added)))
        };
        if find_addition()?.is_some() {
            self.servers.reload_pins(PinReload::Always).await;
            if let Some(held) = find_addition()? {
                return Err(held);
            }
        }
        // The server may have added the tool since the catalog was filled.
        let found = find_listed(ListFreshness::Fresh).await?;
        found.map_err(|unknown| match find_addition() {
            Ok(Some(held)) | Err(held) => held,
            Ok(None) => unknown_tool_error(unknown, &server, tool),
        })
    }

    /// Finds a configured server that the run may use. Fails with the nearest names if it is unknown, or with the
    /// reason why it is not granted.
    pub(super) fn find_server(
        &self,
        run: &CallScope,
        server: &str,
        tool: Option<&str>,
    ) -> Result<Arc<CatalogServer>, CallError> {
        let view = self.servers.catalog().view();
        let Some(known) = view.find_server(server) else {
            let message = format!("there is no server `{}`", display_value(server));
            let near = view.nearest_servers(server);
            let seen = view.servers().filter(|server| self.can_see(run, server));
            let names: Vec<&str> = seen.map(|server| server.alias.as_str()).take(50).collect();
            let hint = match (near.first(), names.is_empty()) {
                (_, true) => "no servers are configured; `cove servers add` adds one".to_owned(),
                (Some(near), _) => format!("did you mean `{near}`? There are {}", names.join(", ")),
                (None, _) => format!("there are {}", names.join(", ")),
            };
            return Err(CallError::new(CallErrorKind::UnknownServer, message).with_hint(hint).with_tool(server, tool));
        };
        if !self.can_see(run, known) {
            // Returns the refusal. Without a tool, `*` stands for its name.
            self.check_grant(run, known, tool.unwrap_or("*"))?;
        }
        self.check_server_hold(known, tool)?;
        Ok(Arc::clone(known))
    }

    /// Returns the tool as it was checked, and the arguments with the server's spelling of their names. Before it refuses
    /// them, it lists the server again, because the tool may have changed since it was cached.
    async fn check_arguments(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        known: KnownTool,
        arguments: Map<String, Value>,
    ) -> Result<(ToolDocument, Map<String, Value>), CallError> {
        let name = known.server.name.clone();
        let check = |tool: ToolDocument, arguments| match validate::check_arguments(&tool, arguments) {
            Ok(arguments) => Ok((tool, arguments)),
            Err(refused) => Err(bad_arguments_error(&name, &tool, &refused)),
        };
        if self.servers.is_fresh(&name) {
            return check(known.document, arguments);
        }
        let tool = known.document.name.clone();
        let refused = match check(known.document, arguments.clone()) {
            Ok(checked) => return Ok(checked),
            Err(refused) => refused,
        };
        if self.ensure_listed(run, cell, &name, ListFreshness::Fresh).await.is_err() {
            return Err(refused);
        }
        check(self.find_tool(run, cell, &name, &tool).await?.document, arguments)
    }

    fn progress_sink(&self, run: &CallScope, server: &str, tool: &str) -> Option<ProgressSink> {
        let tell = StatusCallback::clone(run.on_status.as_ref()?);
        let call = format!("{server}.{tool}");
        tell(format!("calling {call}"));
        Some(Arc::new(move |progress: CallProgress| {
            let how_far = progress.progress.map(|done| match progress.total {
                Some(total) => format!("{done}/{total}"),
                None => done.to_string(),
            });
            tell(match (progress.message, how_far) {
                (Some(message), Some(how_far)) => format!("{call}: {message} ({how_far})"),
                (Some(words), None) | (None, Some(words)) => format!("{call}: {words}"),
                (None, None) => return,
            });
        }))
    }

    /// Returns the options that all requests to a server have.
    pub(super) fn call_options(&self, run: &CallScope, cell: &CallingCell, server: &str) -> CallOptions {
        let questions = call_questions(run, cell);
        let logs = Some(self.logs.open(run, server));
        let principal = Some(run.principal.clone());
        CallOptions { questions: Some(questions), logs, principal, ..CallOptions::default() }
    }

    /// Asks a server something other than a tool call. It needs a grant and is recorded like a tool, under the name of
    /// its method.
    pub(super) async fn query(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
        query: ServerQuery,
    ) -> Result<Value, CallError> {
        let method = query.method();
        let mut record = self.trail.begin(run, cell.id, server, method, &digested_arguments(&query))?;
        let mut result = self.attempt_query(run, cell, server, query.clone(), &mut record).await;
        if self.signs_in_after(run, cell, &result).await {
            result = self.attempt_query(run, cell, server, query, &mut record).await;
        }
        record.end(result)
    }

    async fn attempt_query(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
        query: ServerQuery,
        record: &mut OpenAuditRecord<'_>,
    ) -> Result<Value, CallError> {
        let method = query.method();
        let server = self.find_server(run, server, Some(method))?;
        record.set_tool(&server.name, method);
        self.check_grant(run, &server, method)?;
        let started = self.wait_for_start(run, cell, &server.name).await;
        started.map_err(|error| to_call_error(error, None))?;
        let options = self.call_options(run, cell, &server.name);
        let answer = self.servers.upstreams().query(&server.name, query, options).await;
        answer.map_err(|error| to_call_error(error, None))
    }
}

/// Returns how a call of a cell asks the person behind its run.
pub(super) fn call_questions(run: &CallScope, cell: &CallingCell) -> CallQuestions {
    let (principal, clock) = (Some(run.principal.clone()), cell.clock.clone());
    CallQuestions { run: Arc::clone(&run.questions), principal, clock }
}

/// Returns what the audit file digests of a query.
fn digested_arguments(query: &ServerQuery) -> Map<String, Value> {
    let mut digested = Map::new();
    match query {
        ServerQuery::Resources | ServerQuery::Prompts => {}
        ServerQuery::ReadResource { uri } => {
            digested.insert("uri".into(), json!(uri));
        }
        ServerQuery::Prompt { name, arguments } => {
            digested.clone_from(arguments);
            digested.insert("name".into(), json!(name));
        }
        ServerQuery::Complete { reference, argument, value, context } => {
            let (kind, name) = match reference {
                CompletionReference::Prompt(name) => ("prompt", name),
                CompletionReference::Resource(uri) => ("resource", uri),
            };
            for (key, value) in [(kind, json!(name)), ("argument", json!(argument)), ("value", json!(value))] {
                digested.insert(key.into(), value);
            }
            digested.insert("context".into(), context.clone().into());
        }
    }
    digested
}

fn parse_timeout(timeout: Option<f64>) -> Result<Option<Duration>, CallError> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout > 0.0 && timeout <= MAX_TIMEOUT {
        return Ok(Some(Duration::from_secs_f64(timeout)));
    }
    let message = format!("`timeout` is {timeout}, and must be seconds: more than 0 and at most {MAX_TIMEOUT}");
    Err(CallError::new(CallErrorKind::BadArguments, message))
}

fn to_answer(server: &str, tool: &str, outcome: UpstreamResult, raw: bool) -> Result<Value, CallError> {
    let UpstreamResult { content, structured, is_error, meta } = outcome;
    if raw {
        return Ok(result_value::to_raw(content, structured, is_error, meta));
    }
    if !is_error {
        return Ok(result_value::to_native(content, structured, meta));
    }
    let words = result_value::error_text(&content, structured.as_ref());
    let mut problem =
        CallError::new(CallErrorKind::Tool, words).with_tool(server, Some(tool)).with_field("content", content.into());
    if let Some(structured) = structured {
        problem = problem.with_field("structured", structured);
    }
    Err(problem)
}

fn bad_arguments_error(server: &str, tool: &ToolDocument, refused: &ArgumentRefusal) -> CallError {
    let message = format!("could not call `{server}.{}`: {refused}", tool.name);
    CallError::new(CallErrorKind::BadArguments, message).with_tool(server, Some(&tool.name))
}

fn unknown_tool_error(unknown: ToolLookupError, server: &CatalogServer, tool: &str) -> CallError {
    let message = format!("server `{}` has no tool `{}`", server.name, display_value(tool));
    let hint = match unknown {
        ToolLookupError::Tool { nearest } if !nearest.is_empty() => {
            let names: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", names.join(" or "))
        }
        _ => UNKNOWN_TOOL_HINT.to_owned(),
    };
    CallError::new(CallErrorKind::UnknownTool, message).with_hint(hint).with_tool(&server.name, Some(tool))
}

/// Converts a failure of the pool into the error for code, with its kind and hint.
pub(super) fn to_call_error(error: UpstreamError, tool: Option<&str>) -> CallError {
    let kind = match &error {
        UpstreamError::Unknown { .. } => CallErrorKind::UnknownServer,
        UpstreamError::Needs { .. }
        | UpstreamError::Disabled { .. }
        | UpstreamError::NotStarted { .. }
        | UpstreamError::Circuit { .. } => CallErrorKind::Unavailable,
        UpstreamError::SignInNeeded { .. } => CallErrorKind::SignInNeeded,
        UpstreamError::Gone { .. } => CallErrorKind::Gone,
        UpstreamError::Timeout { .. } => CallErrorKind::Timeout,
        // The older era's error for a tool that works only after a visit to an address, which is in its data.
        UpstreamError::InputRequired { .. } | UpstreamError::Protocol { code: -32042, .. } => {
            CallErrorKind::ElicitationRequired
        }
        UpstreamError::Protocol { .. } => CallErrorKind::Protocol,
    };
    let mut problem = CallError::new(kind, error.to_string()).with_tool(error.server(), tool);
    if let Some(hint) = error.hint() {
        problem = problem.with_hint(hint);
    }
    match error {
        UpstreamError::Protocol { code, data, .. } => {
            problem = problem.with_field("code", json!(code));
            if let Some(data) = data {
                problem = problem.with_field("data", *data);
            }
        }
        UpstreamError::SignInNeeded { server, need } => {
            problem = problem.with_field("command", json!(need.command(&server)));
        }
        UpstreamError::InputRequired { question, .. } => {
            let UnansweredQuestion { message, schema, url, .. } = *question;
            problem = problem.with_field("question", json!(message)).with_field("schema", json!(schema));
            if let Some(url) = url {
                problem = problem.with_field("url", json!(url));
            }
        }
        _ => {}
    }
    problem
}
