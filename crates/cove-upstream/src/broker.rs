//! The broker between code in a sandbox and upstream servers. Every call passes through it. It checks the grant and
//! the arguments before it sends a call, and it writes one line to the audit file for every call, whatever the
//! outcome. [`request`] defines what code may ask.

pub mod audit;
mod call;
mod discover;
mod holds;
pub mod request;
mod result_value;
mod server_registry;
mod server_requests;
mod server_start;
mod session_logs;
mod subscriptions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::catalog::pins::PinPolicy;
use crate::catalog::server_overview::describe_servers;
use crate::catalog::signature::help_call;
use crate::catalog::{CatalogServer, SearchMode};
use crate::pool::ServerQuery;
use crate::pool::questions::RunQuestions;
use crate::secrets::ProgramWords;
use cove_core::BoxFuture;
use cove_core::error::display_value;
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::Principal;
use cove_core::session::{CallHandler, CallingCell};

use crate::discovery::ServerRequests;
use audit::AuditTrail;
use cove_core::policy::grants::{self, GrantVerdict, Grants};
use request::{BrokerRequest, CallError, CallErrorKind};
use server_requests::RequestDesk;
use session_logs::SessionLogs;

pub use call::UNKNOWN_TOOL_HINT;
pub use discover::FoundTools;
pub use server_registry::ServerRegistry;
pub use subscriptions::CellSubscriptions;

/// Results of a search that names no limit.
pub const DEFAULT_SEARCH_LIMIT: usize = 5;
/// Most results that one search may ask for.
pub const MAX_SEARCH_LIMIT: usize = 50;

/// Answers the requests of code. All sessions share it.
pub struct Broker {
    servers: Arc<ServerRegistry>,
    grants: Grants,
    trail: AuditTrail,
    logs: SessionLogs,
    requests: RequestDesk,
    manual: String,
}

/// The caller of a request, and the limits of its run.
pub struct CallScope {
    pub principal: Principal,
    pub session: String,
    /// The servers that this run asked for. `None` means all that are granted.
    pub requested_servers: Option<Vec<String>>,
    /// Receives short status messages. It must not block.
    pub on_status: Option<StatusCallback>,
    pub outputs: Option<Arc<dyn SavedOutputs>>,
    pub meter: Option<Arc<dyn CallMeter>>,
    pub subscriptions: CellSubscriptions,
    /// How servers may ask the person behind the run.
    pub questions: Arc<RunQuestions>,
}

impl CallScope {
    /// A scope with every granted server, without status messages, saved outputs, metrics and questions.
    pub fn new(principal: Principal, session: String) -> Self {
        Self {
            principal,
            session,
            requested_servers: None,
            on_status: None,
            outputs: None,
            meter: None,
            subscriptions: CellSubscriptions::default(),
            questions: Arc::default(),
        }
    }
}

/// Counts calls to upstream servers for the operator's metrics.
pub trait CallMeter: Send + Sync {
    fn upstream_call_ended(&self, outcome: &'static str);
}

/// The settings of a broker.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    /// The configuration file, which may define servers. It need not exist.
    pub config_file: Option<PathBuf>,
    /// The directory of the catalog and the audit file. Without one, the catalog stays in memory and there is no
    /// audit file.
    pub state_dir: Option<PathBuf>,
    pub grants: Grants,
    /// For servers whose definition does not say.
    pub start_timeout: Duration,
    pub search: SearchMode,
    /// True if code may request approved servers.
    pub allow_requests: bool,
    /// The program that keeps secrets instead of the file in the state directory.
    pub secrets_helper: Option<ProgramWords>,
    /// What happens to tools that changed, and to new servers.
    pub pins: PinPolicy,
    /// True if every principal has a process or connection of its own to each server.
    pub isolate_upstreams: bool,
}

/// Receives a short status message. It must not block.
pub type StatusCallback = Arc<dyn Fn(String) + Send + Sync>;

/// Output of earlier cells that did not fit into their results.
pub trait SavedOutputs: Send + Sync {
    /// Returns `None` if the principal has no such output.
    fn read(&self, principal: &Principal, handle: &str) -> Option<String>;
}

impl Broker {
    /// Reads the configuration files and the cached catalog. Starts no server. `manual` is the answer to a help
    /// request.
    pub fn open(config: &BrokerConfig, env: &ProcessEnv, manual: String) -> Arc<Self> {
        Arc::new(Self {
            servers: ServerRegistry::open(config, env),
            grants: config.grants.clone(),
            trail: AuditTrail::new(config.state_dir.clone()),
            logs: SessionLogs::default(),
            requests: RequestDesk::new(config.allow_requests, config.state_dir.as_deref().map(ServerRequests::new)),
            manual,
        })
    }

    pub fn servers(&self) -> &Arc<ServerRegistry> {
        &self.servers
    }

    /// Returns the overview of granted servers for tool descriptions.
    pub fn describe_servers(&self) -> String {
        let grants = |grants: &Grants, server: &CatalogServer, tool: &str| {
            grants.evaluate(&server.name, &server.alias, tool, None) == GrantVerdict::Granted
        };
        describe_servers(
            &self.servers.catalog().view(),
            |server| self.is_usable(server),
            |server, tool| {
                grants(&self.grants, server, tool)
                    && grants(&server.filter, server, tool)
                    && server.pins.tool_hold(tool).is_none()
            },
        )
    }

    /// Returns the handler that answers the calls of one run.
    pub fn call_handler(self: &Arc<Self>, run: CallScope) -> Arc<dyn CallHandler> {
        Arc::new(ScopedBroker { broker: Arc::clone(self), run })
    }

    /// Stops every upstream server.
    pub async fn close(&self) {
        self.servers.upstreams().close().await;
    }

    /// Answers one request of code, after it reloaded definitions that changed. Fails with an error whose kind code
    /// can catch.
    pub async fn answer(&self, run: &CallScope, cell: &CallingCell, ask: BrokerRequest) -> Result<Value, CallError> {
        self.servers.reload_definitions().await;
        match ask {
            BrokerRequest::Call(request) => self.call(run, cell, request).await,
            BrokerRequest::Find { query, limit, language } => {
                // A search waits a while for servers that were never listed.
                let _pause = cell.clock.pause();
                Ok(self.find(run, &query, limit, language).await.to_json())
            }
            BrokerRequest::Servers {} => Ok(self.list_servers(run)),
            BrokerRequest::FindServers { query, limit } => Ok(self.find_approved(&query, limit).await),
            BrokerRequest::RequestServer { name, why } => self.request_server(run, cell, &name, &why).await,
            BrokerRequest::Tools { server } => self.list_tools(run, cell, &server).await,
            BrokerRequest::Help { topic: None, .. } => Ok(json!(self.manual)),
            BrokerRequest::Help { topic: Some(topic), language } => self
                .describe(run, cell, &topic, language, |server| help_call(language, server, "TOOL"))
                .await
                .map(Value::String),
            BrokerRequest::Resources { server } => self.query(run, cell, &server, ServerQuery::Resources).await,
            BrokerRequest::ReadResource { server, uri } => {
                self.query(run, cell, &server, ServerQuery::ReadResource { uri }).await
            }
            BrokerRequest::Prompts { server } => self.query(run, cell, &server, ServerQuery::Prompts).await,
            BrokerRequest::Prompt { server, name, arguments } => {
                self.query(run, cell, &server, ServerQuery::Prompt { name, arguments }).await
            }
            BrokerRequest::Complete { server, reference, argument, value, context } => {
                let query = ServerQuery::Complete { reference, argument, value, context };
                self.query(run, cell, &server, query).await
            }
            BrokerRequest::Subscribe { server, uri } => self.subscribe(run, cell, &server, uri).await,
            BrokerRequest::Changes { subscription, seen, timeout } => {
                self.wait_for_change(run, cell, (subscription, seen, timeout)).await
            }
            BrokerRequest::Unsubscribe { subscription } => self.unsubscribe(run, cell, subscription),
            BrokerRequest::Logs { server } => {
                let server = self.find_server(run, &server, None)?;
                Ok(self.logs.open(run, &server.name).to_json())
            }
            BrokerRequest::Output { handle } => {
                let text = run.outputs.as_ref().and_then(|outputs| outputs.read(&run.principal, &handle));
                text.map(|text| json!({"text": text})).ok_or_else(|| {
                    let message = format!("there is no output `{}`", display_value(&handle));
                    CallError::new(CallErrorKind::NotFound, message).with_hint(
                        "it never was, its session has ended, or newer outputs took its room; run the cell again",
                    )
                })
            }
        }
    }

    /// Returns true if a run may use any tool of a server.
    fn can_see(&self, run: &CallScope, server: &CatalogServer) -> bool {
        let contains = |names: &Vec<String>| grants::contains_server(names, &server.name, &server.alias);
        self.grants.allows_any_tool(&server.name)
            && server.filter.allows_any_tool(&server.name)
            && run.requested_servers.as_ref().is_none_or(contains)
    }

    /// Fails if the operator's grants or the run's own choice of servers exclude the tool. The error says which.
    fn check_grant(&self, run: &CallScope, server: &CatalogServer, tool: &str) -> Result<(), CallError> {
        let requested = run.requested_servers.as_deref();
        // Resources and prompts have the names of their methods, and a definition filters tools alone.
        let filtered = match tool.contains('/') {
            true => GrantVerdict::Granted,
            false => server.filter.evaluate(&server.name, &server.alias, tool, None),
        };
        if filtered != GrantVerdict::Granted {
            let (field, verb) = match filtered {
                GrantVerdict::Denied => ("deny_tools", "denies"),
                _ => ("allow_tools", "does not allow"),
            };
            let message = format!(
                "`{}.{}` is not granted: the definition of its server {verb} it",
                server.name,
                display_value(tool)
            );
            let hint = format!("do without it, or ask the operator to change `{field}` of `{}`", server.name);
            return Err(CallError::new(CallErrorKind::Refused, message)
                .with_tool(&server.name, Some(tool))
                .with_hint(hint));
        }
        let (reason, hint) = match self.grants.evaluate(&server.name, &server.alias, tool, requested) {
            GrantVerdict::Granted => return Ok(()),
            GrantVerdict::Denied => {
                ("the operator denies it", "do without it, or ask the operator to change `deny-call`")
            }
            GrantVerdict::NotAllowed => {
                ("the operator does not allow it", "do without it, or ask the operator to change `allow-call`")
            }
            GrantVerdict::NotAskedFor => {
                ("this run named other servers", "add its server to `servers`, or leave `servers` out")
            }
        };
        let message = format!("`{}.{}` is not granted: {reason}", server.name, display_value(tool));
        Err(CallError::new(CallErrorKind::Refused, message).with_tool(&server.name, Some(tool)).with_hint(hint))
    }
}

struct ScopedBroker {
    broker: Arc<Broker>,
    run: CallScope,
}

impl CallHandler for ScopedBroker {
    fn answer<'a>(&'a self, cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let answer = match BrokerRequest::parse(&request) {
                Ok(ask) => {
                    // The request may hold megabytes, and the call may take long.
                    drop(request);
                    self.broker.answer(&self.run, &cell, ask).await
                }
                Err(problem) => Err(problem),
            };
            request::encode_answer(answer)
        })
    }
}
