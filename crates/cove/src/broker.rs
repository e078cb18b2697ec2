//! Between code and upstream servers: every call passes here. It must be granted, its arguments must be right before
//! anything is sent, and it leaves a line in the audit file, whatever becomes of it. What code can ask is in `ask`.

pub mod ask;
pub mod audit;
mod call;
mod discover;
pub mod grants;
mod servers;
mod value;

use std::sync::Arc;

use cove_protocol::CellId;
use serde_json::{Map, Value, json};

use crate::backend::Pending;
use crate::catalog::roster::roster;
use crate::config::{Config, Surroundings};
use crate::session::Calls;
use crate::telemetry::metrics::Metrics;

use ask::{Ask, Kind, Problem};
use audit::Trail;
use grants::{Grants, Verdict};

pub use discover::FoundTools;
pub use servers::Servers;

/// Results that a search gives when nobody says how many.
pub const FEW: usize = 5;
/// Results that one search may ask for.
pub const MAX_FOUND: usize = 50;

pub struct Broker {
    servers: Arc<Servers>,
    grants: Grants,
    trail: Trail,
    manual: String,
}

/// On whose behalf something is asked, and how far it may go.
pub struct Run {
    pub principal: String,
    pub session: String,
    /// The servers that this run asked for. None for all that are granted.
    pub narrowed: Option<Vec<String>>,
    /// Told what goes on, in a few words. It must not block.
    pub tell: Option<Tell>,
    pub outputs: Option<Arc<dyn Outputs>>,
    pub metrics: Option<Arc<Metrics>>,
}

pub type Tell = Arc<dyn Fn(String) + Send + Sync>;

/// Output of earlier cells that did not fit into their results.
pub trait Outputs: Send + Sync {
    /// None if there is none that the principal may read.
    fn read(&self, principal: &str, handle: &str) -> Option<String>;
}

impl Broker {
    /// Reads configuration files and the cached catalog; starts nothing. `manual` is what code is told that asks for help.
    pub fn open(config: &Config, around: &Surroundings, manual: String) -> Arc<Self> {
        Arc::new(Self {
            servers: Servers::open(config, around),
            grants: config.grants.clone(),
            trail: Trail::new(config.server.state_dir.clone()),
            manual,
        })
    }

    pub fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// What agents are told of the servers there are.
    pub fn roster(&self) -> String {
        roster(&self.servers.catalog().view(), |server| self.grants.shows(&server.name))
    }

    /// Whoever answers the calls of one cell.
    pub fn calls(self: &Arc<Self>, run: Run) -> Arc<dyn Calls> {
        Arc::new(Caller { broker: Arc::clone(self), run })
    }

    /// Stops every server.
    pub async fn close(&self) {
        self.servers.upstreams().close().await;
    }

    /// What is asked, answered.
    pub async fn answer(&self, run: &Run, cell: u64, ask: Ask) -> Result<Value, Problem> {
        self.servers.look_again().await;
        match ask {
            Ask::Call { server, tool, arguments, raw, timeout } => {
                self.call(run, cell, call::Wanted { server, tool, arguments, raw, timeout }).await
            }
            Ask::Find { query, limit, language } => {
                Ok(self.find(run, &query, limit, language.into()).await.to_json())
            }
            Ask::Servers {} => Ok(self.list_servers(run)),
            Ask::Tools { server } => self.list_tools(run, &server).await,
            Ask::Help {} => Ok(json!(self.manual)),
            Ask::Resources { server } => self.resources(run, cell, &server).await,
            Ask::ReadResource { server, uri } => self.read_resource(run, cell, &server, &uri).await,
            Ask::Prompts { server } => self.prompts(run, cell, &server).await,
            Ask::Prompt { server, name, arguments } => {
                self.prompt(run, cell, &server, &name, arguments).await
            }
            Ask::Output { handle } => {
                let text = run.outputs.as_ref().and_then(|outputs| outputs.read(&run.principal, &handle));
                text.map(|text| json!({"text": text})).ok_or_else(|| {
                    let message = format!("there is no output `{}`", crate::error::shown(&handle));
                    Problem::new(Kind::NotFound, message).with_hint(
                        "it never was, its session has ended, or newer outputs took its room; run the cell again",
                    )
                })
            }
        }
    }

    /// Whether a run may have to do with a server at all.
    fn may_see(&self, run: &Run, server: &crate::catalog::Server) -> bool {
        self.grants.shows(&server.name)
            && run.narrowed.as_ref().is_none_or(|names| grants::names(names, &server.name, &server.alias))
    }

    fn judge(&self, run: &Run, server: &crate::catalog::Server, tool: &str) -> Result<(), Problem> {
        let narrowed = run.narrowed.as_deref();
        let refused = |message: String| Problem::new(Kind::Refused, message).about(&server.name, Some(tool));
        let named = format!("`{}.{}`", server.name, crate::error::shown(tool));
        match self.grants.judge(&server.name, &server.alias, tool, narrowed) {
            Verdict::Granted => Ok(()),
            Verdict::Denied => Err(refused(format!("{named} is not granted: the operator denies it"))
                .with_hint("do without it, or ask the operator to change `deny-call`")),
            Verdict::NotAllowed => {
                Err(refused(format!("{named} is not granted: the operator does not allow it"))
                    .with_hint("do without it, or ask the operator to change `allow-call`"))
            }
            Verdict::NotAskedFor => {
                Err(refused(format!("{named} is not granted: this run named other servers"))
                    .with_hint("add its server to `servers`, or leave `servers` out"))
            }
        }
    }
}

struct Caller {
    broker: Arc<Broker>,
    run: Run,
}

impl Calls for Caller {
    fn answer<'a>(&'a self, cell: CellId, request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        Box::pin(async move {
            let answer = match Ask::read(&request) {
                Ok(ask) => {
                    // It may have megabytes, and the call may take long.
                    drop(request);
                    self.broker.answer(&self.run, cell.0, ask).await
                }
                Err(problem) => Err(problem),
            };
            ask::write(answer)
        })
    }
}

/// The one field of an object, for digests of what has no arguments of its own.
fn object<const N: usize>(fields: [(&str, &str); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}
