//! What agents reach: a few tools over MCP. This module and those below it are the only ones that name rmcp's server
//! types; tools take our own arguments and give our own answers, and `render` writes all text that a model sees.

mod answer;
mod arguments;
mod caller;
mod cell;
pub mod http;
pub(crate) mod manual;
mod mcp;
mod progress;
mod prompt;
mod render;
mod resources;
mod standard;
mod tools;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::broker::Broker;
use crate::config::{Config, Surroundings};
use crate::image::shelf::Shelf;
use crate::policy::Policy;
use crate::session::registry::{Bounds, Sessions};
use crate::telemetry::metrics::Metrics;

pub use transport::{serve_http, serve_stdio};

use tools::Tool;

/// Calls that may be under way at once, whoever makes them.
const MAX_CALLS: usize = 512;
/// Sessions kept ready, with python started, for whoever comes next.
const PARKED: usize = 1;
/// How long sandboxes may take to be gone when the server ends.
const CLOSE: Duration = Duration::from_secs(5);

/// Everything that all connections share.
pub struct Server {
    config: Config,
    around: Surroundings,
    sessions: Arc<Sessions>,
    backend: Arc<dyn Backend>,
    shelf: Shelf,
    broker: Arc<Broker>,
    metrics: Arc<Metrics>,
    /// As agents see them, made once.
    tools: Vec<(Tool, rmcp::model::Tool)>,
    calls: Arc<Semaphore>,
    /// Set when the server ends: whatever runs is told and stopped.
    ending: CancellationToken,
}

impl Server {
    /// `standard` is the policy that sessions have now for which nobody names an image, if they can be started.
    pub fn new(
        mut config: Config,
        standard: Option<Policy>,
        around: Surroundings,
        backend: Arc<dyn Backend>,
        shelf: Shelf,
    ) -> Arc<Self> {
        let parked = if standard.is_some() { PARKED } else { 0 };
        if let Some(standard) = standard {
            config.policy = standard;
        }
        let bounds = Bounds { most: config.server.max_sessions, idle: config.server.idle_timeout, parked };
        let sessions = Sessions::new(Arc::clone(&backend), config.policy.clone(), bounds);
        let broker = Broker::open(&config, &around, manual::text(&config));
        let tools = tools::chosen(&config.server.tools, &broker.roster()).into_iter();
        let tools = tools.map(mcp::shown_tool).collect();
        Arc::new(Self {
            config,
            around,
            sessions,
            backend,
            shelf,
            broker,
            metrics: Arc::new(Metrics::new()),
            tools,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            ending: CancellationToken::new(),
        })
    }

    fn tool(&self, name: &str) -> Option<&(Tool, rmcp::model::Tool)> {
        self.tools.iter().find(|(_, shown)| shown.name == name)
    }

    /// Tells and stops whatever runs.
    fn begin_to_end(&self) {
        self.ending.cancel();
    }

    /// Ends every sandbox and every upstream server. What takes too long ends with this process.
    async fn end(&self) {
        self.begin_to_end();
        let ends = async { tokio::join!(self.sessions.close(), self.broker.close()) };
        if tokio::time::timeout(CLOSE, ends).await.is_err() {
            tracing::warn!("sandboxes or servers took too long to end and end with this process");
        }
    }
}
