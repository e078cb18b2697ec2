//! Approved servers that code finds and requests. A request installs nothing: a person answers it, in the client if that
//! is the person's own, or with `cove servers approve` and `refuse`. Only then does Cove write a definition, and the
//! server is there as if the person had added it.
//!
//! A request is kept in the state directory before the client is asked, so that it is not lost if the cell ends
//! meanwhile. `RequestDesk::asking` names the requests whose question is open in this process; a second request for the
//! same server does not ask again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cove_core::error::display_value;
use cove_core::session::CallingCell;
use cove_core::sync::lock;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::call::call_questions;
use super::request::{CallError, CallErrorKind};
use super::server_registry::RELOAD_INTERVAL;
use super::{Broker, CallScope};
use crate::definition::{ServerDefinitions, check_name};
use crate::discovery::{
    ApprovedServers, InputValues, LaunchChoice, LaunchPlan, NeededSecret, PublishedServer, PublishedStatus,
    RequestAnswer, RequestError, ServerRequests, write_definition,
};

/// The longest question that a client is asked. A person must see the whole command.
const MAX_QUESTION: usize = 6 * 1024;
/// The name of a request in the audit file, in the place of a tool.
const REQUEST_STEP: &str = "servers/request";
/// How often a person is asked for one server while Cove runs.
const MAX_ASKED: usize = 3;
/// Second names that are tried if a server's own is in use.
const MAX_NAME_TRIES: usize = 20;

/// Whether and how code may request servers.
pub(super) struct RequestDesk {
    is_open: bool,
    requests: Option<ServerRequests>,
    asking: Arc<Mutex<AskedServers>>,
    /// The approved servers and when they were read. The task that holds it reads them for all others.
    approved: AsyncMutex<Option<(Instant, Arc<ApprovedServers>)>>,
}

#[derive(Default)]
struct AskedServers {
    /// Servers whose question is open.
    open: HashSet<String>,
    /// How often each server was asked for.
    counts: HashMap<String, usize>,
}

impl RequestDesk {
    pub(super) fn new(is_open: bool, requests: Option<ServerRequests>) -> Self {
        Self { is_open, requests, asking: Arc::default(), approved: AsyncMutex::default() }
    }

    /// Marks a server as asked for. Returns `None` if it is already, or if a person was asked often enough.
    fn begin(&self, name: &str) -> Option<OpenQuestion> {
        let mut asked = lock(&self.asking);
        let count = asked.counts.get(name).copied().unwrap_or(0);
        if count >= MAX_ASKED || !asked.open.insert(name.to_owned()) {
            return None;
        }
        asked.counts.insert(name.to_owned(), count + 1);
        Some(OpenQuestion { name: name.to_owned(), asking: Arc::clone(&self.asking) })
    }
}

/// A question that is open until this is dropped.
struct OpenQuestion {
    name: String,
    asking: Arc<Mutex<AskedServers>>,
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        lock(&self.asking).open.remove(&self.name);
    }
}

/// What became of a request.
enum RequestOutcome {
    /// The server is configured, under this name.
    Added(String),
    /// A person has to answer.
    Asked,
}

impl Broker {
    /// Lists approved servers that are not configured. Uses no network.
    pub(super) async fn find_approved(&self, query: &str, limit: usize) -> Value {
        let approved = self.load_approved().await;
        let found = self.servers.with_definitions(|definitions| {
            let is_new = |server: &&PublishedServer| definitions.name_of_published(server).is_none();
            approved.search(query).into_iter().filter(is_new).cloned().collect::<Vec<_>>()
        });
        let found = found.await;
        let row = |server: &PublishedServer| {
            let plan = LaunchPlan::new(server, server.short_name(), LaunchChoice::First, &InputValues::default());
            json!({
                "name": server.name,
                "version": server.version,
                "description": server.description,
                "kinds": server.kinds(),
                "status": server.status.as_str(),
                "needs": plan.map_or_else(|refusal| vec![refusal.cause], |plan| plan.needs()),
            })
        };
        let servers: Vec<Value> = found.iter().take(limit).map(row).collect();
        let hint = match (found.len(), approved.servers.is_empty()) {
            (0, true) => "the operator has approved no servers".to_owned(),
            (0, false) => "no approved server matches that is not configured already".to_owned(),
            (total, _) if total > servers.len() => format!("{} of {total} matches", servers.len()),
            _ => String::new(),
        };
        json!({"servers": servers, "total": found.len(), "hint": hint})
    }

    /// Returns the approved servers, read at most every `RELOAD_INTERVAL`, since code decides how often it asks.
    async fn load_approved(&self) -> Arc<ApprovedServers> {
        let mut kept = self.requests.approved.lock().await;
        if let Some((at, approved)) = &*kept
            && at.elapsed() < RELOAD_INTERVAL
        {
            return Arc::clone(approved);
        }
        let folder = self.servers.own_directory().map(ApprovedServers::folder_beside);
        let load = move || folder.map(|folder| ApprovedServers::load(&folder)).unwrap_or_default();
        let approved = Arc::new(in_background(load).await.unwrap_or_default());
        *kept = Some((Instant::now(), Arc::clone(&approved)));
        approved
    }

    /// Asks the person to add an approved server. Fails if requests are switched off, if the server is not approved, or
    /// if the person refuses it.
    pub(super) async fn request_server(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        name: &str,
        why: &str,
    ) -> Result<Value, CallError> {
        let arguments = Map::from_iter([("why".to_owned(), why.into())]);
        let mut record = self.trail.begin(run, cell.id, name, REQUEST_STEP, &arguments)?;
        let approved = self.load_approved().await;
        let Some(server) = approved.find_any(name).filter(|server| server.status != PublishedStatus::Deleted) else {
            let message = format!("`{}` is no approved server", display_value(name));
            let hint = "`mcp.servers.find()` lists the approved ones; only the person can approve more";
            return record.end(Err(CallError::new(CallErrorKind::NotFound, message).with_hint(hint)));
        };
        record.set_tool(&server.name, REQUEST_STEP);
        match self.try_request(run, cell, server, why).await {
            Ok(RequestOutcome::Added(own_name)) => record.end_as("added", Ok(self.describe_added(server, &own_name))),
            Ok(RequestOutcome::Asked) => {
                let name = &server.name;
                let message = format!("the person has not answered yet; they can run `cove servers approve {name}`");
                record.end_as("asked", Ok(json!({"status": "asked", "name": name, "server": null, "message": message})))
            }
            Err(error) => record.end(Err(error)),
        }
    }

    async fn try_request(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &PublishedServer,
        why: &str,
    ) -> Result<RequestOutcome, CallError> {
        if let Some(known) = self.find_added(server).await {
            return Ok(RequestOutcome::Added(known));
        }
        let by_hand = format!("the person can run `cove servers add {}`", server.name);
        let requests = match (&self.requests.requests, self.requests.is_open) {
            (Some(requests), true) => requests,
            (_, false) => {
                let hint = format!("{by_hand}, or switch them on with `allow-requests`");
                return Err(refusal("requests for servers are switched off", hint));
            }
            (None, true) => return Err(refusal("there is no place to keep a request", by_hand)),
        };
        let planned = self.plan_addition(server).await?;
        let why = self.keep_request(requests, run, &server.name, why).await?;
        // A person answers in the client only if the client is their own, and only what can be added with a yes.
        let question = planned.describe_question(&why);
        if !run.questions.reach_local_person() || !planned.plan.missing.is_empty() || question.len() > MAX_QUESTION {
            return Ok(RequestOutcome::Asked);
        }
        let Some(_asking) = self.requests.begin(&server.name) else { return Ok(RequestOutcome::Asked) };
        // Since the first look, the person may have answered the same question of another call.
        if let Some(known) = self.find_added(server).await {
            let (requests, name) = (requests.clone(), server.name.clone());
            let close = move || requests.answer(&name, RequestAnswer::Added).map(drop);
            in_background(close).await.and_then(|closed| closed).map_err(|error| not_kept(&error))?;
            return Ok(RequestOutcome::Added(known));
        }
        let Some(answer) = ask_client(run, cell, question).await else { return Ok(RequestOutcome::Asked) };
        let folder = self.servers.own_directory().map(PathBuf::from);
        let (requests, name, own_name) = (requests.clone(), server.name.clone(), planned.own_name.clone());
        let entry = planned.plan.entry;
        let write = move || -> io::Result<()> {
            if answer == RequestAnswer::Added {
                let folder = folder.ok_or_else(|| io::Error::other("there is no home directory"))?;
                write_definition(&folder, &own_name, &entry)?;
            }
            requests.answer(&name, answer).map(drop)
        };
        in_background(write).await.and_then(|written| written).map_err(|error| not_kept(&error))?;
        if answer == RequestAnswer::Refused {
            return Err(refused_by_person(&server.name));
        }
        self.servers.reload_now().await;
        Ok(RequestOutcome::Added(planned.own_name))
    }

    /// Returns the name that an approved server has here, if it was added.
    async fn find_added(&self, server: &PublishedServer) -> Option<String> {
        self.servers.with_definitions(|all| all.name_of_published(server).map(str::to_owned)).await
    }

    /// Plans the definition of a server under a name that is free. Fails if Cove cannot run it.
    async fn plan_addition<'a>(&self, server: &'a PublishedServer) -> Result<PlannedAddition<'a>, CallError> {
        let name = &server.name;
        let own_name = self.servers.with_definitions(|all| free_name(server, all)).await.ok_or_else(|| {
            let hint = format!("the person can run `cove servers add {name} --as NAME`");
            refusal(format!("no name is free for `{name}`"), hint)
        })?;
        let plan = LaunchPlan::new(server, &own_name, LaunchChoice::First, &InputValues::default());
        let plan =
            plan.map_err(|cannot| refusal(format!("`{name}` cannot be added: {}", cannot.cause), cannot.hint))?;
        Ok(PlannedAddition { server, own_name, plan })
    }

    /// Keeps a request until a person answers. Returns the agent's reason as it may be shown.
    async fn keep_request(
        &self,
        requests: &ServerRequests,
        run: &CallScope,
        name: &str,
        why: &str,
    ) -> Result<String, CallError> {
        let (requests, asked, why) = (requests.clone(), name.to_owned(), why.to_owned());
        let (principal, session) = (run.principal.0.clone(), run.session.clone());
        match in_background(move || requests.open(&asked, &principal, &session, &why)).await {
            Ok(Ok(request)) => Ok(request.why),
            Ok(Err(RequestError::Refused)) => Err(refused_by_person(name)),
            Ok(Err(RequestError::TooMany(open))) => {
                let message = format!("as many requests wait for the person as may: {}", open.join(", "));
                let hint = "ask the person to answer them: `cove servers requests`";
                Err(CallError::new(CallErrorKind::Limit, message).with_hint(hint))
            }
            Ok(Err(RequestError::Io(error))) | Err(error) => Err(not_kept(&error)),
        }
    }

    fn describe_added(&self, server: &PublishedServer, own_name: &str) -> Value {
        let view = self.servers.catalog().view();
        let alias = view.find_server(own_name).map_or_else(|| own_name.to_owned(), |known| known.alias.clone());
        let states = self.servers.upstreams().summaries();
        let state = states.iter().find(|summary| summary.name == own_name).map(|summary| summary.state.to_string());
        let state = state.unwrap_or_else(|| "not loaded".to_owned());
        let message = match self.grants.allows_any_tool(own_name) {
            true => format!("`{own_name}` is configured ({state}); see `mcp.help(\"{alias}\")`"),
            false => format!("`{own_name}` is configured, but the operator does not let code call it (`allow-call`)"),
        };
        json!({"status": "added", "name": server.name, "server": alias, "message": message})
    }
}

/// Runs a function that waits for files on another thread.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

fn refusal(message: impl Into<String>, hint: impl Into<String>) -> CallError {
    CallError::new(CallErrorKind::Refused, message).with_hint(hint)
}

fn refused_by_person(name: &str) -> CallError {
    refusal(format!("the person refused `{name}`"), "do without it; do not ask again")
}

/// Asks the person behind a run. Returns `None` if there is no answer, so that the request stays open.
async fn ask_client(run: &CallScope, cell: &CallingCell, question: String) -> Option<RequestAnswer> {
    let questions = call_questions(run, cell);
    let schema = json!({
        "type": "object",
        "properties": {"add": {"type": "boolean", "title": "Add this server", "default": false}},
        "required": ["add"],
    });
    let params = Map::from_iter([("message".to_owned(), question.into()), ("requestedSchema".to_owned(), schema)]);
    let answer = questions.ask("cove", "elicitation/create", params).await.ok()?;
    match (answer["action"].as_str(), answer["content"]["add"].as_bool()) {
        (Some("accept"), Some(true)) => Some(RequestAnswer::Added),
        (Some("accept" | "decline"), _) => Some(RequestAnswer::Refused),
        _ => None,
    }
}

fn not_kept(error: &io::Error) -> CallError {
    CallError::new(CallErrorKind::Unavailable, format!("the request could not be kept: {error}"))
        .with_hint("the person can add the server: `cove servers add`")
}

/// Returns a name for the definition of a server that no other has.
fn free_name(server: &PublishedServer, all: &ServerDefinitions) -> Option<String> {
    let own = server.short_name();
    let publisher = server.name.split('/').next().and_then(|space| space.rsplit('.').next()).unwrap_or_default();
    let numbered = (2..MAX_NAME_TRIES).map(|number| format!("{publisher}-{own}-{number}"));
    let is_free = |name: &String| check_name(name).is_ok() && !all.servers.iter().any(|server| server.name == *name);
    [own.to_owned(), format!("{publisher}-{own}")].into_iter().chain(numbered).find(is_free)
}

/// A server that would be added under a name of its own.
struct PlannedAddition<'a> {
    server: &'a PublishedServer,
    own_name: String,
    plan: LaunchPlan,
}

impl PlannedAddition<'_> {
    /// Returns what a person has to know before they say yes.
    fn describe_question(&self, why: &str) -> String {
        let Self { server, own_name, plan } = self;
        let mut lines = vec![format!("the agent asks you to add the MCP server {} {}", server.name, server.version)];
        if !server.description.is_empty() {
            lines.push(format!("its publisher says: \"{}\"", server.description.replace('"', "'")));
        }
        lines.push(format!("Cove will {}, as `{own_name}`", plan.action));
        lines.extend(plan.details.iter().cloned());
        let secret =
            |secret: &NeededSecret| format!("it needs a secret: run `cove secrets set {}` afterwards", secret.name);
        lines.extend(plan.secrets.iter().map(secret));
        if server.status == PublishedStatus::Deprecated {
            lines.push("it is deprecated".to_owned());
        }
        lines.push(match why {
            "" => "the agent gave no reason".to_owned(),
            why => format!("the agent's words: \"{why}\""),
        });
        lines.join("\n")
    }
}
