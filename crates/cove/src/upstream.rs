//! Other MCP servers that code calls through Cove: which there are, and a pool that runs and calls them. The only place
//! below `server` that names rmcp's types, and none of them leaves it. Who may call what is decided elsewhere.
//!
//! A server's process leads a group of its own. It ends with us: its input ends, and the group is killed when the pool
//! is closed or dropped. Only if Cove itself is killed with SIGKILL the end of input is all that a server gets; one that
//! ignores it stays until somebody ends it.

mod child;
mod client;
pub mod definition;
mod error;
mod greet;
mod guard;
mod http;
mod life;
mod lists;
mod message;
mod notices;
mod ready;
mod running;
mod settings;
mod text;
mod tools;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, GetPromptRequest, GetPromptRequestParams,
    ReadResourceRequest, ReadResourceRequestParams,
};
use serde_json::{Map, Value};
use tokio::sync::watch;

pub use crate::catalog::Era;
use crate::catalog::{Declared, ToolDocument};
pub use definition::{Definition, Definitions, Launch, Origin, Places, Problem, Stamp};
pub use error::UpstreamError;
pub use notices::{Progress, ProgressSink};
pub use settings::Settings;

use life::Upstream;

/// What a server is doing, as people and code are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Ready,
    Starting,
    /// It does not run, and starts when it is called.
    Idle,
    Needs(Vec<String>),
    Disabled,
    /// Its last start or its last life ended badly; it is tried again when it is called.
    Failed(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Starting => f.write_str("starting"),
            Self::Idle => f.write_str("idle"),
            Self::Needs(what) => write!(f, "needs {}", what.join(", ")),
            Self::Disabled => f.write_str("disabled"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

/// A configured server at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub name: String,
    pub alias: String,
    pub description: Option<String>,
    pub state: State,
    pub origin: Origin,
    pub shadowed: Vec<Origin>,
    /// Of the definition, without values that may be secret.
    pub digest: String,
    /// As it was last heard to speak.
    pub era: Option<Era>,
    /// How often it said that its tools changed.
    pub changes: u64,
}

impl Summary {
    /// As the catalog is to know it.
    pub fn declared(&self) -> Declared {
        Declared {
            name: self.name.clone(),
            alias: self.alias.clone(),
            description: self.description.clone().unwrap_or_default(),
            definition: self.digest.clone(),
        }
    }
}

/// What a call may ask for.
#[derive(Clone, Default)]
pub struct CallOptions {
    /// None for the pool's own.
    pub timeout: Option<Duration>,
    pub progress: Option<ProgressSink>,
}

/// What a tool answered, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub content: Vec<Value>,
    /// None when absent; a `null` that was sent is kept.
    pub structured: Option<Value>,
    pub is_error: bool,
    pub meta: Option<Value>,
}

/// What a server has to read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resources {
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
}

/// A prompt, filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub description: Option<String>,
    pub messages: Vec<Value>,
}

/// All servers that are configured. Nothing runs until it is called.
pub struct Upstreams {
    settings: Arc<Settings>,
    servers: RwLock<BTreeMap<String, Arc<Upstream>>>,
    changed: watch::Sender<u64>,
}

impl Upstreams {
    pub fn new(definitions: Definitions, settings: Settings) -> Arc<Self> {
        let pool =
            Self { settings: Arc::new(settings), servers: RwLock::default(), changed: watch::Sender::new(0) };
        pool.replace(definitions);
        Arc::new(pool)
    }

    /// Other definitions from now on. A server whose definition says the same goes on running; the others are stopped.
    pub fn replace(&self, definitions: Definitions) {
        let mut old = std::mem::take(&mut *self.servers.write().unwrap_or_else(PoisonError::into_inner));
        let mut new = BTreeMap::new();
        for definition in definitions.servers {
            let name = definition.name.clone();
            let kept = old.remove(&name).map(|upstream| {
                let is_same = upstream.definition().starts_like(&definition);
                (is_same, upstream)
            });
            let upstream = match kept {
                Some((true, upstream)) => {
                    upstream.describe_anew(definition);
                    upstream
                }
                kept => {
                    old.extend(kept.map(|(_, upstream)| (name.clone(), upstream)));
                    Upstream::new(definition, Arc::clone(&self.settings), self.changed.clone(), None)
                }
            };
            new.insert(name, upstream);
        }
        *self.servers.write().unwrap_or_else(PoisonError::into_inner) = new;
        for upstream in old.into_values() {
            // Outside a runtime nothing was ever started.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { upstream.close().await });
            }
        }
    }

    /// Every server by name, without starting any.
    pub fn summaries(&self) -> Vec<Summary> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let summary = |upstream: Arc<Upstream>| {
            let definition = upstream.definition();
            Summary {
                name: definition.name.clone(),
                alias: definition.alias.clone(),
                description: definition.description.clone(),
                state: upstream.state(),
                origin: definition.origin.clone(),
                shadowed: definition.shadowed.clone(),
                digest: definition.digest(),
                era: upstream.era(),
                changes: upstream.changes(),
            }
        };
        servers.into_values().map(summary).collect()
    }

    /// Counts every time that some server says its tools changed; [`Summary::changes`] says whose.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// How often one server said that its tools changed.
    pub fn changes_of(&self, server: &str) -> u64 {
        self.find(server).map_or(0, |upstream| upstream.changes())
    }

    /// How a server speaks, if that is known.
    pub fn era(&self, server: &str) -> Option<Era> {
        self.find(server).ok()?.era()
    }

    /// The era that a server was found to speak in an earlier run. What is known better by now stays.
    pub fn remember_era(&self, server: &str, era: Era) {
        if let Ok(upstream) = self.find(server) {
            upstream.remember(era);
        }
    }

    /// A server's own words on how to use it, if it runs.
    pub fn instructions(&self, server: &str) -> Option<String> {
        self.find(server).ok()?.instructions()
    }

    /// All tools of a server, cleaned.
    pub async fn tools(&self, server: &str) -> Result<Vec<ToolDocument>, UpstreamError> {
        let upstream = self.find(server)?;
        let tools = lists::all(&upstream, lists::List::Tools, self.settings.call_timeout).await?;
        Ok(tools.into_iter().filter_map(tools::document).collect())
    }

    /// Calls a tool once. Dropping the future cancels the call.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        options: CallOptions,
    ) -> Result<Outcome, UpstreamError> {
        let upstream = self.find(server)?;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let timeout = options.timeout.unwrap_or(self.settings.call_timeout);
        let result = complete(server, upstream.request(request, timeout, options.progress).await?)?;
        outcome(server, result)
    }

    pub async fn resources(&self, server: &str) -> Result<Resources, UpstreamError> {
        let upstream = self.find(server)?;
        let timeout = self.settings.call_timeout;
        Ok(Resources {
            resources: lists::all(&upstream, lists::List::Resources, timeout).await?,
            templates: lists::all(&upstream, lists::List::Templates, timeout).await?,
        })
    }

    /// The contents of a resource.
    pub async fn read_resource(&self, server: &str, uri: &str) -> Result<Vec<Value>, UpstreamError> {
        let upstream = self.find(server)?;
        let request =
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(ReadResourceRequestParams::new(uri)));
        let result = upstream.request(request, self.settings.call_timeout, None).await?;
        Ok(list(&mut complete(server, result)?, "contents"))
    }

    pub async fn prompts(&self, server: &str) -> Result<Vec<Value>, UpstreamError> {
        let upstream = self.find(server)?;
        lists::all(&upstream, lists::List::Prompts, self.settings.call_timeout).await
    }

    pub async fn prompt(
        &self,
        server: &str,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Prompt, UpstreamError> {
        let upstream = self.find(server)?;
        let params = GetPromptRequestParams::new(name).with_arguments(arguments);
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        let result = upstream.request(request, self.settings.call_timeout, None).await?;
        let mut result = complete(server, result)?;
        let description = result.get("description").and_then(Value::as_str).map(str::to_owned);
        Ok(Prompt { description, messages: list(&mut result, "messages") })
    }

    /// Stops every server, and with each everything it started. Calls under way fail as gone.
    pub async fn close(&self) {
        let servers = std::mem::take(&mut *self.servers.write().unwrap_or_else(PoisonError::into_inner));
        let mut stops = tokio::task::JoinSet::new();
        for upstream in servers.into_values() {
            stops.spawn(async move { upstream.close().await });
        }
        stops.join_all().await;
    }

    /// By name, or by alias: a dashed name is written with underscores in code.
    fn find(&self, server: &str) -> Result<Arc<Upstream>, UpstreamError> {
        let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(upstream) = servers.get(server) {
            return Ok(Arc::clone(upstream));
        }
        if let Some(upstream) = servers.values().find(|upstream| upstream.definition().alias == server) {
            return Ok(Arc::clone(upstream));
        }
        let near = |name: &&String| crate::config::distance(&name.to_lowercase(), &server.to_lowercase());
        let nearest = servers.keys().min_by_key(near).filter(|name| near(name) <= 1 + name.len() / 3);
        Err(UpstreamError::Unknown { server: text::line(server, 100), nearest: nearest.cloned() })
    }
}

/// A result that is one. Servers of the newer era may ask back instead; nobody is there to answer yet.
fn complete(server: &str, result: Value) -> Result<Map<String, Value>, UpstreamError> {
    let protocol = |message: &str, data: Option<Value>| UpstreamError::Protocol {
        server: server.to_owned(),
        code: 0,
        message: message.to_owned(),
        data: data.map(Box::new),
    };
    let Value::Object(mut result) = result else {
        return Err(protocol("its answer is not an object", None));
    };
    match result.get("resultType").and_then(Value::as_str) {
        None | Some("complete") => Ok(result),
        Some("input_required") => Err(protocol(
            "it asks a person for input before it goes on, which cannot be given from code",
            result.remove("inputRequests"),
        )),
        Some(_) => Err(protocol("its answer is of a kind that Cove does not know", None)),
    }
}

fn outcome(server: &str, mut result: Map<String, Value>) -> Result<Outcome, UpstreamError> {
    let structured = result.remove("structuredContent");
    let content = match result.remove("content") {
        Some(Value::Array(content)) => content,
        // Optional where there is structured content; the oldest revision has `toolResult`.
        None | Some(Value::Null) if structured.is_some() => Vec::new(),
        _ => {
            return Err(UpstreamError::Protocol {
                server: server.to_owned(),
                code: 0,
                message: "its answer has no content".to_owned(),
                data: None,
            });
        }
    };
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    Ok(Outcome { content, structured, is_error, meta: result.remove("_meta") })
}

fn list(result: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match result.remove(key) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    }
}
