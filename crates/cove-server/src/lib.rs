//! The MCP server for agents. Only this crate names rmcp's server types. Tools use Cove's own argument and result
//! types, and `render` writes all text that a model sees.
//!
//! Shutdown has three steps. A transport calls `begin_shutdown`, which cancels `shutdown`; running cells see that and
//! stop. It then waits in `drain_calls` until every call has returned its permit of `calls`. Last, `shut_down` closes
//! all sandboxes and upstream servers.

mod arguments;
mod caller;
mod cell;
mod client_questions;
pub mod code_text;
mod default_sessions;
pub mod http;
pub mod http_config;
pub mod manual;
mod mcp;
mod network_gateway;
mod parked_calls;
mod progress;
mod prompt;
mod render;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod resources;
mod result;
pub mod server_config;
pub mod telemetry;
mod tools;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::parked_calls::ParkedCalls;
use crate::server_config::ServerConfig;
use crate::telemetry::metrics::Metrics;
use cove_core::backend::Backend;
use cove_core::guest_streams::SessionNetworks;
use cove_core::image::library::ImageLibrary;
use cove_core::memory_headroom::MemoryHeadroom;
use cove_core::policy::{CellLimits, Policy};
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::{RegistryLimits, SessionRegistry};
use cove_egress::{EgressGateway, EgressRules};
use cove_upstream::broker::{Broker, BrokerConfig};
use cove_upstream::catalog::definition_size;

pub use network_gateway::{check_credentials, open_gateway};
#[cfg(any(test, fuzzing))]
pub use transport::exercise::exercise as exercise_client_lines;
pub use transport::{serve_http, serve_stdio};

use tools::ToolDefinition;

/// Most calls in flight over all clients.
const MAX_CALLS: usize = 512;
/// How long sandboxes may take to close when the server shuts down.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSetup {
    /// The policy of sessions that name no image.
    pub policy: Policy,
    pub cell: CellLimits,
    pub server: ServerConfig,
    pub broker: BrokerConfig,
    /// What code may reach over the network.
    pub egress: EgressRules,
}

/// The state that all connections share.
pub struct Server {
    config: ServerSetup,
    env: ProcessEnv,
    sessions: Arc<SessionRegistry>,
    /// False if sessions that name no image cannot be started.
    keeps_sessions_ready: bool,
    backend: Arc<dyn Backend>,
    images: ImageLibrary,
    broker: Arc<Broker>,
    /// Serves the connections of code to the network, if any are allowed.
    gateway: Option<Arc<EgressGateway>>,
    metrics: Arc<Metrics>,
    /// The tools as agents see them, built once.
    tools: Vec<(&'static ToolDefinition, rmcp::model::Tool)>,
    calls: Arc<Semaphore>,
    /// Calls of clients without a handshake that wait for input.
    parked: Arc<ParkedCalls>,
    /// Cancelled when the server shuts down. Running cells and preparations then stop.
    shutdown: CancellationToken,
}

/// Returns the tools of a configuration as agents see them.
fn build_tools(config: &ServerSetup, broker: &Broker) -> Vec<(&'static ToolDefinition, rmcp::model::Tool)> {
    let mounts = tools::describe_mounts(&config.policy.mounts);
    let tools = tools::offered_tools(&config.server.tools, &broker.describe_servers(), &mounts).into_iter();
    tools.map(mcp::mcp_tool).collect()
}

/// Returns the bytes that a model reads of a server with this configuration before it calls anything: the name, the
/// description and the input schema of each tool, and the instructions. Starts nothing.
pub fn introduction_size(config: &ServerSetup, env: &ProcessEnv) -> usize {
    let broker = Broker::open(&config.broker, env, String::new());
    let tools = build_tools(config, &broker);
    let sizes = tools.iter().map(|(_, tool)| {
        definition_size(&tool.name, tool.description.as_deref().unwrap_or_default(), &tool.input_schema)
    });
    sizes.sum::<usize>() + mcp::instructions(config).len()
}

impl Server {
    /// `standard` is the current policy of sessions that name no image, if they can be started. Without it, no session
    /// is kept ready before its first caller.
    pub fn new(
        mut config: ServerSetup,
        standard: Option<Policy>,
        env: ProcessEnv,
        backend: Arc<dyn Backend>,
        images: ImageLibrary,
    ) -> Arc<Self> {
        let keeps_sessions_ready = standard.is_some();
        if let Some(standard) = standard {
            config.policy = standard;
        }
        let bounds = RegistryLimits {
            max_sessions: config.server.max_sessions,
            idle_timeout: config.server.idle_timeout,
            headroom: MemoryHeadroom::of_this_process,
        };
        let metrics = Arc::new(Metrics::new());
        let gateway = open_gateway(&config.egress, &config.broker, &env, Some(Arc::clone(&metrics) as _));
        let networks = gateway.clone().map(|gateway| gateway as Arc<dyn SessionNetworks>);
        let sessions = SessionRegistry::with_networks(Arc::clone(&backend), config.policy.clone(), bounds, networks);
        let broker = Broker::open(&config.broker, &env, manual::text(&config));
        let tools = build_tools(&config, &broker);
        Arc::new(Self {
            gateway,
            config,
            env,
            sessions,
            keeps_sessions_ready,
            backend,
            images,
            broker,
            metrics,
            tools,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            parked: Arc::default(),
            shutdown: CancellationToken::new(),
        })
    }

    fn tool(&self, name: &str) -> Option<&(&'static ToolDefinition, rmcp::model::Tool)> {
        self.tools.iter().find(|(_, shown)| shown.name == name)
    }

    /// Stops running calls, which then report that the server is stopping.
    fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Closes every sandbox and every upstream server. After `CLOSE_TIMEOUT` it returns, and the rest ends with the
    /// process.
    async fn shut_down(&self) {
        self.begin_shutdown();
        let ends = async { tokio::join!(self.sessions.close(), self.broker.close()) };
        if tokio::time::timeout(CLOSE_TIMEOUT, ends).await.is_err() {
            tracing::warn!("sandboxes or servers took too long to end and end with this process");
        }
    }
}
