//! The pool of upstream MCP servers: it starts them, calls them and stops them. Only this module names
//! rmcp's client types, and none of them appears in its public API. The broker, not the pool, decides which calls
//! are allowed.
//!
//! The first request to a server starts it (see `lifecycle`). The pool stops a server when it stays idle, when
//! `replace` drops or changes its definition, and when `close` runs.
//!
//! A stdio server's process leads its own process group. To stop it, Cove closes its standard input and then kills
//! the group. If SIGKILL ends Cove itself, the server only sees the end of its input; a server that ignores that
//! keeps running.

mod answers;
mod bounded_json;
mod call_logs;
mod client_handler;
mod error;
mod failure_records;
mod handshake;
mod handshake_ids;
mod http;
mod intake;
mod isolated_servers;
mod lifecycle;
mod lists;
mod message;
mod notifications;
mod process;
mod question_router;
pub mod questions;
mod redaction;
mod reference_values;
mod resolve;
mod running_server;
mod settings;
pub mod sign_in;
mod stdio;
mod subscriptions;
mod tasks;

use cove_core::policy::grants::Grants;
use cove_core::session::registry::Principal;
use cove_core::spelling::nearest;
use cove_core::sync::{read, write};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;

pub use crate::catalog::ProtocolEra;
use crate::catalog::parse_tool;
use crate::catalog::{ServerDeclaration, ToolDocument};
pub use crate::definition::{
    DefinitionOrigin, DefinitionPlaces, DefinitionProblem, DefinitionStamp, ServerDefinition, ServerDefinitions,
    ServerLaunch,
};
use crate::text;
pub use call_logs::CallLogs;
pub use error::{StartFailureKind, UnansweredQuestion, UpstreamError};
pub use failure_records::{FailureRecords, ServerFailure};
pub use http::ParameterHeaders;
#[cfg(any(test, fuzzing))]
pub use http::exercise_sse;
pub(crate) use http::innermost_cause;
pub use notifications::{CallProgress, ProgressSink};
#[cfg(any(test, fuzzing))]
pub use redaction::exercise::exercise as exercise_redaction;
pub use reference_values::ReferenceValues;
pub use running_server::SentRequest;
pub use settings::UpstreamSettings;
pub use subscriptions::ResourceSubscription;

use answers::{complete_request, parse_completion, parse_tool_result, take_array, to_object};
use call_logs::LoggedCall;
use isolated_servers::{IsolatedServers, close_in_background};
use lifecycle::Upstream;
use questions::CallQuestions;
use running_server::new_request;
use sign_in::{PendingSignIn, SignInError, SignInNeed, SignInOptions, SignedIn, SignedOut};
use tasks::OpenTask;

/// The state of a server, as shown to operators and to code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamState {
    /// The server is running.
    Ready,
    Starting,
    /// The server is not running. The next call starts it.
    Idle,
    Needs(Vec<String>),
    /// A person must sign in.
    NeedsSignIn(SignInNeed),
    Disabled,
    /// The last start failed, or the server died, in this process or another. The next call tries again.
    Failed(ServerFailure),
}

impl fmt::Display for UpstreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Starting => f.write_str("starting"),
            Self::Idle => f.write_str("idle"),
            Self::Needs(what) => write!(f, "needs {}", what.join(", ")),
            Self::NeedsSignIn(need) => write!(f, "needs {need}"),
            Self::Disabled => f.write_str("disabled"),
            Self::Failed(ServerFailure { reason, at }) => {
                let age = at.elapsed().unwrap_or_default();
                write!(f, "failed: {reason} ({} ago)", text::format_age(age))
            }
        }
    }
}

/// A configured server and its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSummary {
    pub name: String,
    pub alias: String,
    pub description: Option<String>,
    pub state: UpstreamState,
    /// What the person should know about how its secrets are passed.
    pub remarks: Vec<String>,
    pub origin: DefinitionOrigin,
    pub shadowed: Vec<DefinitionOrigin>,
    /// Digest of the definition. Values that may be secret are not part of it.
    pub digest: String,
    /// The protocol era that the server last used.
    pub era: Option<ProtocolEra>,
    /// How many times the server reported that its tools changed.
    pub changes: u64,
    /// The tools that the definition allows and denies.
    pub filter: Grants,
}

impl UpstreamSummary {
    /// Returns the declaration of this server for the catalog.
    pub fn to_declaration(&self) -> ServerDeclaration {
        ServerDeclaration {
            name: self.name.clone(),
            alias: self.alias.clone(),
            description: self.description.clone().unwrap_or_default(),
            definition: self.digest.clone(),
            filter: self.filter.clone(),
        }
    }
}

/// Options of one tool call.
#[derive(Clone, Default)]
pub struct CallOptions {
    /// `None` uses the pool's `call_timeout`.
    pub timeout: Option<Duration>,
    pub progress: Option<ProgressSink>,
    /// The tool can only be called as a task.
    pub requires_task: bool,
    /// Arguments that are also sent as headers, if the server is of the modern era and reached over HTTP.
    pub parameter_headers: ParameterHeaders,
    /// Receives the server's log messages.
    pub logs: Option<Arc<CallLogs>>,
    /// How the server may ask the person behind the call. Without it, a call does not take part in questions.
    pub questions: Option<CallQuestions>,
    /// Whom the call is for. An isolated server has a process for each principal.
    pub principal: Option<Principal>,
}

/// A tool's result, as the server sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamResult {
    pub content: Vec<Value>,
    /// `None` if the field is absent. An explicit `null` is kept as a value.
    pub structured: Option<Value>,
    pub is_error: bool,
    pub meta: Option<Value>,
}

/// A question to a server other than a tool call.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerQuery {
    Resources,
    ReadResource {
        uri: String,
    },
    Prompts,
    Prompt {
        name: String,
        arguments: Map<String, Value>,
    },
    /// Values for an argument of a prompt or a resource template.
    Complete {
        reference: CompletionReference,
        argument: String,
        value: String,
        context: Map<String, Value>,
    },
}

/// What a completion is for. In a request of code it is one field, `prompt` or `resource`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionReference {
    /// The name of a prompt.
    Prompt(String),
    /// The template of a resource's address.
    Resource(String),
}

impl ServerQuery {
    /// Returns the method of the protocol.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Resources => "resources/list",
            Self::ReadResource { .. } => "resources/read",
            Self::Prompts => "prompts/list",
            Self::Prompt { .. } => "prompts/get",
            Self::Complete { .. } => "completion/complete",
        }
    }
}

/// All configured servers. A server starts on its first request.
pub struct UpstreamPool {
    settings: Arc<UpstreamSettings>,
    servers: RwLock<BTreeMap<String, Arc<Upstream>>>,
    isolated: IsolatedServers,
    changed: watch::Sender<u64>,
}

impl UpstreamPool {
    pub fn new(definitions: ServerDefinitions, settings: UpstreamSettings) -> Arc<Self> {
        let pool = Self {
            settings: Arc::new(settings),
            servers: RwLock::default(),
            isolated: IsolatedServers::default(),
            changed: watch::Sender::new(0),
        };
        pool.replace(definitions);
        Arc::new(pool)
    }

    /// Replaces all definitions. A server keeps running if its new definition launches it in the same way; a
    /// background task stops every other server.
    pub fn replace(&self, definitions: ServerDefinitions) {
        let mut old = std::mem::take(&mut *write(&self.servers));
        let mut new = BTreeMap::new();
        for definition in definitions.servers {
            let name = definition.name.clone();
            let is_same = |old: &Arc<Upstream>| old.definition().starts_like(&definition);
            let upstream = match old.entry(name.clone()) {
                Entry::Occupied(kept) if is_same(kept.get()) => {
                    self.isolated.for_each(&name, |own| own.update_description(definition.clone()));
                    kept.get().update_description(definition);
                    kept.remove()
                }
                _ => Upstream::new(definition, Arc::clone(&self.settings), self.changed.clone()),
            };
            new.insert(name, upstream);
        }
        *write(&self.servers) = new;
        for (name, upstream) in old {
            self.isolated.remove(&name);
            close_in_background(upstream);
        }
    }

    /// Returns a summary of each server, sorted by name. Starts nothing.
    pub fn summaries(&self) -> Vec<UpstreamSummary> {
        let servers = read(&self.servers).clone();
        let summary = |upstream: Arc<Upstream>| {
            let definition = upstream.definition();
            let (state, remarks) = upstream.state();
            UpstreamSummary {
                name: definition.name.clone(),
                alias: definition.alias.clone(),
                description: definition.description.clone(),
                state,
                remarks,
                origin: definition.origin.clone(),
                shadowed: definition.shadowed.clone(),
                digest: definition.digest(),
                era: upstream.era(),
                changes: upstream.change_count(),
                filter: definition.tool_filter(),
            }
        };
        servers.into_values().map(summary).collect()
    }

    /// Returns a receiver whose value changes each time any server reports changed tools.
    /// [`UpstreamSummary::changes`] has the count of each server.
    pub fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns how many times a server reported that its tools changed; 0 for an unknown server.
    pub fn change_count(&self, server: &str) -> u64 {
        let Ok(upstream) = self.find(server) else { return 0 };
        let mut count = upstream.change_count();
        self.isolated.for_each(&upstream.definition().name, |own| count += own.change_count());
        count
    }

    /// Returns the protocol era of a server, if the server is configured and its era is known.
    pub fn era(&self, server: &str) -> Option<ProtocolEra> {
        self.find(server).ok()?.era()
    }

    /// Records the era that a server used in an earlier run. Does nothing if this run already knows the era.
    pub fn remember_era(&self, server: &str, era: ProtocolEra) {
        if let Ok(upstream) = self.find(server) {
            upstream.remember_era(era);
        }
    }

    /// Returns the instructions that a server sent at its start, if it is running.
    pub fn instructions(&self, server: &str) -> Option<String> {
        self.find(server).ok()?.instructions()
    }

    /// Returns a number that differs for every start of any server; `None` if this one is not running.
    pub(crate) fn start_number(&self, server: &str) -> Option<u64> {
        self.find(server).ok()?.start_number()
    }

    /// Returns true if a server is configured and running.
    pub fn is_running(&self, server: &str) -> bool {
        self.find(server).is_ok_and(|upstream| upstream.is_running())
    }

    /// Returns true if every principal has a process or connection of its own to a server.
    pub fn is_isolated(&self, server: &str) -> bool {
        self.find(server).is_ok_and(|upstream| self.isolates(&upstream))
    }

    fn isolates(&self, upstream: &Upstream) -> bool {
        upstream.definition().isolate.unwrap_or(self.settings.isolate)
    }

    /// Returns true if the instance of a server that serves this principal is running.
    pub fn is_running_for(&self, server: &str, principal: &Principal) -> bool {
        self.find_for(server, Some(principal)).is_ok_and(|upstream| upstream.is_running())
    }

    /// Starts the instance of a server that serves this principal; see [`Self::start`].
    pub async fn start_for(&self, server: &str, principal: &Principal) -> Result<(), UpstreamError> {
        self.find_for(server, Some(principal))?.lease_running().await.map(drop)
    }

    /// Starts a server, or waits for a start that is under way. Returns at once if it is running. Dropping the future
    /// does not stop the start. Fails if the server does not start.
    pub async fn start(&self, server: &str) -> Result<(), UpstreamError> {
        self.find(server)?.lease_running().await.map(drop)
    }

    /// Returns the servers that are starting, and since when.
    pub fn starting(&self) -> Vec<(String, Instant)> {
        let servers = read(&self.servers);
        let since = |name: &str, upstream: &Upstream| {
            let mut since = upstream.starting_since();
            self.isolated.for_each(name, |own| since = since.or_else(|| own.starting_since()));
            since
        };
        servers.iter().filter_map(|(name, upstream)| Some((name.clone(), since(name, upstream)?))).collect()
    }

    /// Lists all tools of a server and drops those that cannot be called. Starts the server if needed; fails if the
    /// server does not start or answer.
    pub async fn tools(&self, server: &str) -> Result<Vec<ToolDocument>, UpstreamError> {
        let upstream = self.find(server)?;
        let tools = lists::list_all(&upstream, &lists::TOOLS).await?;
        let mut tools: Vec<ToolDocument> = tools.into_iter().filter_map(parse_tool).collect();
        if upstream.takes_parameter_headers() {
            tools.retain(|tool| match http::check_annotations(&tool.input_schema) {
                Ok(()) => true,
                Err(reason) => {
                    tracing::warn!(server, tool = tool.name, "dropped a tool, as the protocol demands: {reason}");
                    false
                }
            });
        }
        Ok(tools)
    }

    /// Calls a tool once and never retries it, except with the input that the server asks for. Starts the server if
    /// needed. Waits for the end of a task if the server answers with one. Fails if the server cannot start, ends, times
    /// out or answers with a protocol error; a tool that reports a failure is a result. Dropping the future cancels the
    /// call and its task.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        options: CallOptions,
    ) -> Result<UpstreamResult, UpstreamError> {
        let upstream = self.find_for(server, options.principal.as_ref())?;
        let lease = upstream.lease_running().await?;
        let _in_flight = options.logs.as_ref().map(LoggedCall::begin);
        let mut request = if options.requires_task && lease.accepts_task_requests() {
            tasks::new_task_request(&upstream, tool, arguments, &options)
        } else {
            let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        };
        if lease.era() == ProtocolEra::Modern {
            options.parameter_headers.attach(&mut request);
        }
        let answer = complete_request(&upstream, &lease, request, &options).await?;
        let result = match tasks::find_created_task(answer, lease.era()) {
            Ok(created) => OpenTask::new(&upstream, server, lease, &created, &options)?.wait(created).await?,
            Err(result) => result,
        };
        parse_tool_result(server, result)
    }

    /// Asks a server for its resources, prompts or completions, starting it if needed. The answer is an object:
    /// `resources` and `templates`, `contents`, `prompts`, `messages` and `description`, or `values`, `total` and
    /// `has_more`.
    pub async fn query(&self, server: &str, query: ServerQuery, options: CallOptions) -> Result<Value, UpstreamError> {
        let (upstream, method) = (self.find_for(server, options.principal.as_ref())?, query.method());
        let list = async |list| lists::list_all(&upstream, list).await.map(Value::Array);
        let (params, key) = match query {
            ServerQuery::Resources => {
                let (resources, templates) = (list(&lists::RESOURCES).await?, list(&lists::TEMPLATES).await?);
                return Ok(to_object([("resources", resources), ("templates", templates)]).into());
            }
            ServerQuery::Prompts => return Ok(to_object([("prompts", list(&lists::PROMPTS).await?)]).into()),
            ServerQuery::ReadResource { uri } => (to_object([("uri", uri.into())]), "contents"),
            ServerQuery::Prompt { name, arguments } => {
                (to_object([("name", name.into()), ("arguments", arguments.into())]), "messages")
            }
            ServerQuery::Complete { reference, argument, value, context } => {
                let reference = match reference {
                    CompletionReference::Prompt(name) => [("type", "ref/prompt".into()), ("name", name.into())],
                    CompletionReference::Resource(uri) => [("type", "ref/resource".into()), ("uri", uri.into())],
                };
                let argument = to_object([("name", argument.into()), ("value", value.into())]);
                let mut params = to_object([("ref", to_object(reference).into()), ("argument", argument.into())]);
                if !context.is_empty() {
                    params.insert("context".to_owned(), to_object([("arguments", context.into())]).into());
                }
                (params, "completion")
            }
        };
        let _in_flight = options.logs.as_ref().map(LoggedCall::begin);
        let lease = upstream.lease_running().await?;
        let mut result = complete_request(&upstream, &lease, new_request(method, params), &options).await?;
        if key == "completion" {
            return Ok(parse_completion(result.remove(key).unwrap_or_default()));
        }
        let mut answer = to_object([(key, take_array(&mut result, key).into())]);
        if let Some(description @ Value::String(_)) = result.remove("description").filter(|_| key == "messages") {
            answer.insert("description".to_owned(), description);
        }
        Ok(answer.into())
    }

    /// Subscribes to changes of a resource, starting the server if needed. Fails if the server does not offer that.
    pub async fn subscribe(
        &self,
        server: &str,
        uri: String,
        options: &CallOptions,
    ) -> Result<Arc<ResourceSubscription>, UpstreamError> {
        let upstream = self.find_for(server, options.principal.as_ref())?;
        subscriptions::subscribe(&upstream, server, uri, options).await
    }

    /// Announces to servers that start from now on that a client's model can be asked.
    pub fn announce_sampling(&self) {
        self.settings.sampling.store(true, Ordering::Relaxed);
    }

    /// Begins a person's sign-in to a server. Fails if the server needs none, or what it publishes cannot be used.
    pub async fn begin_sign_in(&self, server: &str, options: &SignInOptions) -> Result<PendingSignIn, SignInError> {
        self.find_sign_in(server).await?.begin(options).await
    }

    /// Signs in to a server with the credentials of its definition; `None` if a person must sign in.
    pub async fn sign_in_by_credentials(&self, server: &str) -> Result<Option<SignedIn>, SignInError> {
        let sign_in = self.find_sign_in(server).await?;
        match sign_in.is_by_credentials() {
            true => sign_in.sign_in_by_credentials().await.map(Some),
            false => Ok(None),
        }
    }

    /// Forgets the sign-in to a server, and asks the authorization server to do so too.
    pub async fn sign_out(&self, server: &str) -> Result<SignedOut, SignInError> {
        self.find_sign_in(server).await?.sign_out().await
    }

    async fn find_sign_in(&self, server: &str) -> Result<Arc<sign_in::ServerSignIn>, SignInError> {
        self.find(server).map_err(|error| SignInError::new(error.to_string()))?.sign_in().await
    }

    /// Stops every server and every process in its group, and returns when all have stopped. Calls in flight fail
    /// with [`UpstreamError::Gone`].
    pub async fn close(&self) {
        let servers = std::mem::take(&mut *write(&self.servers));
        let mut stops = tokio::task::JoinSet::new();
        for upstream in servers.into_values().chain(self.isolated.take_all()) {
            stops.spawn(async move { upstream.close().await });
        }
        stops.join_all().await;
    }

    /// Finds the instance of a server that serves a principal.
    fn find_for(&self, server: &str, principal: Option<&Principal>) -> Result<Arc<Upstream>, UpstreamError> {
        let shared = self.find(server)?;
        match principal.filter(|_| self.isolates(&shared)) {
            Some(principal) => self.isolated.find(&shared, principal),
            None => Ok(shared),
        }
    }

    /// Finds a server by name or by alias, which spells a dashed name with underscores. Fails with the nearest name.
    fn find(&self, server: &str) -> Result<Arc<Upstream>, UpstreamError> {
        let servers = read(&self.servers);
        let by_alias = || servers.values().find(|upstream| upstream.definition().alias == server);
        servers.get(server).or_else(by_alias).cloned().ok_or_else(|| {
            let nearest = nearest(server, servers.keys().map(String::as_str)).map(str::to_owned);
            UpstreamError::Unknown { server: text::to_line(server, 100), nearest }
        })
    }
}
