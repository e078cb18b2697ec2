//! One call of a tool, a resource or a prompt: found, granted, checked, made once, and written down.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::ask::{Kind, Problem};
use super::servers::Need;
use super::{Broker, Run, Tell, object, value};
use crate::catalog::validate::{self, Refused};
use crate::catalog::{Known, Server, ToolDocument, Unknown};
use crate::error::{Hint, shown};
use crate::upstream::{CallOptions, Outcome, Progress, ProgressSink, UpstreamError};

/// More than any cell may take.
const MAX_TIMEOUT: f64 = 86_400.0;

/// A call as code wants it.
pub(super) struct Wanted {
    pub(super) server: String,
    pub(super) tool: String,
    pub(super) arguments: Map<String, Value>,
    /// As the protocol has it, not as a value.
    pub(super) raw: bool,
    /// Seconds.
    pub(super) timeout: Option<f64>,
}

impl Broker {
    pub(super) async fn call(&self, run: &Run, cell: u64, wanted: Wanted) -> Result<Value, Problem> {
        let Wanted { server, tool, arguments, raw, timeout } = wanted;
        let mut record = self.trail.begin(run, cell, &server, &tool, &arguments)?;
        let attempt = async {
            let timeout = seconds(timeout)?;
            let known = self.known(run, &server, &tool).await?;
            let (server, tool) = (known.server.name.clone(), known.document.name.clone());
            record.is_of(&server, &tool);
            self.judge(run, &known.server, &tool)?;
            let arguments = self.checked(run, known, arguments).await?;
            let options = CallOptions { timeout, progress: self.follow(run, &server, &tool) };
            let called = self.servers.upstreams().call(&server, &tool, arguments, options).await;
            answer(&server, &tool, called.map_err(|error| failed(error, Some(&tool)))?, raw)
        };
        let result = attempt.await;
        record.end(result.as_ref().err().map(Problem::kind));
        result
    }

    /// The tool that is meant. A server is started for this only if nothing is known of it, or not this tool.
    async fn known(&self, run: &Run, server: &str, tool: &str) -> Result<Known, Problem> {
        let found = self.server(run, server, Some(tool))?;
        self.servers.list(&found.name, Need::Known).await.map_err(|error| failed(error, Some(tool)))?;
        match self.servers.catalog().get(&found.name, tool) {
            Ok(known) => Ok(known),
            Err(_) => {
                self.judge(run, &found, tool)?;
                // It may be new.
                let fresh = self.servers.list(&found.name, Need::Fresh).await;
                fresh.map_err(|error| failed(error, Some(tool)))?;
                self.servers
                    .catalog()
                    .get(&found.name, tool)
                    .map_err(|unknown| no_tool(unknown, &found, tool))
            }
        }
    }

    /// A server that is configured and may be used.
    pub(super) fn server(
        &self,
        run: &Run,
        server: &str,
        tool: Option<&str>,
    ) -> Result<std::sync::Arc<Server>, Problem> {
        let view = self.servers.catalog().view();
        let Some(found) = view.server(server) else {
            let message = format!("there is no server `{}`", shown(server));
            let near = view.nearest_servers(server);
            let seen = view.servers().filter(|server| self.may_see(run, server));
            let names: Vec<&str> = seen.map(|server| server.alias.as_str()).take(50).collect();
            let hint = match (near.first(), names.is_empty()) {
                (_, true) => "no servers are configured; `cove servers add` adds one".to_owned(),
                (Some(near), _) => format!("did you mean `{near}`? There are {}", names.join(", ")),
                (None, _) => format!("there are {}", names.join(", ")),
            };
            return Err(Problem::new(Kind::UnknownServer, message).with_hint(hint).about(server, tool));
        };
        if !self.may_see(run, found) {
            // Says who refuses; a tool that nobody would grant has no name yet.
            self.judge(run, found, tool.unwrap_or("*"))?;
        }
        Ok(std::sync::Arc::clone(found))
    }

    /// Arguments that fit. A tool may have changed since it was cached, so the server is asked before they are refused.
    async fn checked(
        &self,
        run: &Run,
        known: Known,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, Problem> {
        let name = known.server.name.clone();
        if self.servers.is_fresh(&name) {
            return validate::arguments(&known.document, arguments)
                .map_err(|refused| bad(&name, &known.document, &refused));
        }
        let refused = match validate::arguments(&known.document, arguments.clone()) {
            Ok(arguments) => return Ok(arguments),
            Err(refused) => refused,
        };
        let listed = self.servers.list(&name, Need::Fresh).await;
        let fresh = match listed {
            Ok(()) => self.known(run, &name, &known.document.name).await?,
            Err(_) => return Err(bad(&name, &known.document, &refused)),
        };
        validate::arguments(&fresh.document, arguments)
            .map_err(|refused| bad(&name, &fresh.document, &refused))
    }

    fn follow(&self, run: &Run, server: &str, tool: &str) -> Option<ProgressSink> {
        let tell = Tell::clone(run.tell.as_ref()?);
        let call = format!("{server}.{tool}");
        tell(format!("calling {call}"));
        Some(std::sync::Arc::new(move |progress: Progress| {
            let how_far = match progress.total {
                Some(total) => format!("{}/{total}", progress.progress),
                None => progress.progress.to_string(),
            };
            tell(match progress.message {
                Some(message) => format!("{call}: {message} ({how_far})"),
                None => format!("{call}: {how_far}"),
            });
        }))
    }

    pub(super) async fn resources(&self, run: &Run, cell: u64, server: &str) -> Result<Value, Problem> {
        let other = Other { server, what: "resources/list", arguments: Map::new() };
        let made = self.other(run, cell, other, async |name| self.servers.upstreams().resources(name).await);
        made.await.map(|found| json!({"resources": found.resources, "templates": found.templates}))
    }

    pub(super) async fn read_resource(
        &self,
        run: &Run,
        cell: u64,
        server: &str,
        uri: &str,
    ) -> Result<Value, Problem> {
        let other = Other { server, what: "resources/read", arguments: object([("uri", uri)]) };
        let read = async |name: &str| self.servers.upstreams().read_resource(name, uri).await;
        self.other(run, cell, other, read).await.map(|contents| json!({"contents": contents}))
    }

    pub(super) async fn prompts(&self, run: &Run, cell: u64, server: &str) -> Result<Value, Problem> {
        let other = Other { server, what: "prompts/list", arguments: Map::new() };
        let made = self.other(run, cell, other, async |name| self.servers.upstreams().prompts(name).await);
        made.await.map(|prompts| json!({"prompts": prompts}))
    }

    pub(super) async fn prompt(
        &self,
        run: &Run,
        cell: u64,
        server: &str,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Value, Problem> {
        let mut digested = arguments.clone();
        digested.insert("name".into(), json!(name));
        let other = Other { server, what: "prompts/get", arguments: digested };
        let get = async move |server: &str| self.servers.upstreams().prompt(server, name, arguments).await;
        let prompt = self.other(run, cell, other, get).await?;
        let mut answer = json!({"messages": prompt.messages});
        if let Some(description) = prompt.description {
            answer["description"] = description.into();
        }
        Ok(answer)
    }

    /// What is no tool is granted and written down like one, under the name of its method.
    async fn other<T>(
        &self,
        run: &Run,
        cell: u64,
        other: Other<'_>,
        make: impl AsyncFnOnce(&str) -> Result<T, UpstreamError>,
    ) -> Result<T, Problem> {
        let mut record = self.trail.begin(run, cell, other.server, other.what, &other.arguments)?;
        let attempt = async {
            let server = self.server(run, other.server, Some(other.what))?;
            record.is_of(&server.name, other.what);
            self.judge(run, &server, other.what)?;
            make(&server.name).await.map_err(|error| failed(error, None))
        };
        let result = attempt.await;
        record.end(result.as_ref().err().map(Problem::kind));
        result
    }
}

struct Other<'a> {
    server: &'a str,
    /// The method, which stands for a tool in grants and in the audit.
    what: &'static str,
    arguments: Map<String, Value>,
}

fn seconds(timeout: Option<f64>) -> Result<Option<Duration>, Problem> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout > 0.0 && timeout <= MAX_TIMEOUT {
        return Ok(Some(Duration::from_secs_f64(timeout)));
    }
    let message =
        format!("`timeout` is {timeout}, and must be seconds: more than 0 and at most {MAX_TIMEOUT}");
    Err(Problem::new(Kind::BadArguments, message))
}

fn answer(server: &str, tool: &str, outcome: Outcome, raw: bool) -> Result<Value, Problem> {
    let Outcome { content, structured, is_error, meta } = outcome;
    if raw {
        return Ok(value::raw(content, structured, is_error, meta));
    }
    if !is_error {
        return Ok(value::native(content, structured));
    }
    let words = value::words(&content, structured.as_ref());
    let mut problem =
        Problem::new(Kind::Tool, words).about(server, Some(tool)).with("content", content.into());
    if let Some(structured) = structured {
        problem = problem.with("structured", structured);
    }
    Err(problem)
}

fn bad(server: &str, tool: &ToolDocument, refused: &Refused) -> Problem {
    let message = format!("could not call `{server}.{}`: {refused}", tool.name);
    Problem::new(Kind::BadArguments, message).about(server, Some(&tool.name))
}

fn no_tool(unknown: Unknown, server: &Server, tool: &str) -> Problem {
    let message = format!("server `{}` has no tool `{}`", server.name, shown(tool));
    let hint = match unknown {
        Unknown::Tool { nearest, .. } if !nearest.is_empty() => {
            let names: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", names.join(" or "))
        }
        _ => "search for what you need with `mcp.find`".to_owned(),
    };
    Problem::new(Kind::UnknownTool, message).with_hint(hint).about(&server.name, Some(tool))
}

pub(super) fn failed(error: UpstreamError, tool: Option<&str>) -> Problem {
    let kind = match &error {
        UpstreamError::Unknown { .. } => Kind::UnknownServer,
        UpstreamError::Needs { .. }
        | UpstreamError::Disabled { .. }
        | UpstreamError::NotStarted { .. }
        | UpstreamError::Circuit { .. } => Kind::Unavailable,
        UpstreamError::Gone { .. } => Kind::Gone,
        UpstreamError::Timeout { .. } => Kind::Timeout,
        UpstreamError::Protocol { .. } => Kind::Protocol,
    };
    let mut problem = Problem::new(kind, error.to_string()).about(error.server(), tool);
    if let Some(hint) = error.hint() {
        problem = problem.with_hint(hint);
    }
    if let UpstreamError::Protocol { code, data, .. } = error {
        problem = problem.with("code", json!(code));
        if let Some(data) = data {
            problem = problem.with("data", *data);
        }
    }
    problem
}
