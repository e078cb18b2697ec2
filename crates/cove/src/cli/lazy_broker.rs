//! A broker for code that a person runs. It opens at the code's first request: most code makes none, and should not
//! wait for configuration files that it does not need.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_protocol::CellId;
use tokio::sync::OnceCell;

use super::progress_line::ProgressLine;
use super::tables::print_remark;
use crate::config::Config;
use cove_core::BoxFuture;
use cove_core::error::{Failure, escape_control};
use cove_core::guest_streams::{GuestStream, SessionNetwork, SessionNetworks, SessionTraffic};
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::Principal;
use cove_core::session::{CallHandler, CallingCell, NoCalls, UnknownName};
use cove_core::sync::lock;
use cove_egress::{CellNetwork, EgressGateway, NetworkCaller};
use cove_server::{manual, open_gateway};
use cove_upstream::broker::{Broker, CallScope, StatusCallback};

/// Requests that take less have no status line; it would only flicker.
const QUICK: Duration = Duration::from_millis(500);

pub(super) struct LazyBroker {
    config: Config,
    env: ProcessEnv,
    opened: OnceCell<(Arc<Broker>, Arc<dyn CallHandler>)>,
    status: Arc<RequestStatus>,
    gateway: Option<Arc<EgressGateway>>,
    network: Option<Arc<CellNetwork>>,
}

/// Shows on a terminal what the requests of a cell wait for, such as a server that starts.
struct RequestStatus {
    line: Arc<ProgressLine>,
    /// When each request began that has no answer yet.
    open: Mutex<Vec<Instant>>,
}

impl RequestStatus {
    fn show(&self, words: &str) {
        if lock(&self.open).first().is_some_and(|begun| begun.elapsed() >= QUICK) {
            self.line.update(words);
        }
    }
}

/// A request without an answer. The last one to end takes the status line away.
struct UnansweredRequest(Arc<RequestStatus>, Instant);

impl UnansweredRequest {
    fn begin(status: &Arc<RequestStatus>) -> Self {
        let begun = Instant::now();
        lock(&status.open).push(begun);
        Self(Arc::clone(status), begun)
    }
}

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        let mut open = lock(&self.0.open);
        if let Some(position) = open.iter().position(|begun| *begun == self.1) {
            open.remove(position);
        }
        if open.is_empty() {
            self.0.line.clear();
        }
    }
}

impl LazyBroker {
    pub(super) fn new(config: &Config, env: ProcessEnv) -> Arc<Self> {
        let status = RequestStatus { line: Arc::new(ProgressLine::new()), open: Mutex::default() };
        let gateway = open_gateway(&config.egress, &config.broker(), &env, None);
        let CallScope { principal, session, .. } = local_scope();
        let caller = NetworkCaller { principal: principal.0, session, image: config.policy.image.clone() };
        let network = gateway.clone().map(|gateway| CellNetwork::new(gateway, caller, Arc::new(NoCalls)));
        let (config, opened) = (config.clone(), OnceCell::new());
        Arc::new(Self { config, env, opened, status: Arc::new(status), gateway, network })
    }

    /// Makes the network of a session that starts.
    pub(super) fn create_network(&self) -> Result<Option<SessionNetwork>, Failure> {
        self.gateway.as_ref().map(|gateway| gateway.create()).transpose()
    }

    /// Returns a line for each connection that was refused since the last call.
    pub(super) fn take_network_notes(&self) -> Vec<String> {
        self.network.as_ref().map(|network| network.take_notes()).unwrap_or_default()
    }

    /// The line that shows what requests wait for.
    pub(super) fn progress(&self) -> Arc<ProgressLine> {
        Arc::clone(&self.status.line)
    }

    async fn open(&self) -> &(Arc<Broker>, Arc<dyn CallHandler>) {
        self.opened
            .get_or_init(|| async {
                let broker = Broker::open(&self.config.broker(), &self.env, manual::text(&self.config.server_setup()));
                let status = Arc::clone(&self.status);
                let on_status: StatusCallback = Arc::new(move |words| status.show(&words));
                let calls = broker.call_handler(CallScope { on_status: Some(on_status), ..local_scope() });
                (broker, calls)
            })
            .await
    }

    /// Stops the servers that were started, and warns the person of changes that no one accepted.
    pub(super) async fn close(&self) {
        if let Some((broker, _)) = self.opened.get() {
            print_change_warnings(broker);
            broker.close().await;
        }
    }
}

impl CallHandler for LazyBroker {
    fn answer<'a>(&'a self, cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let _open = UnansweredRequest::begin(&self.status);
            self.open().await.1.answer(cell, request).await
        })
    }

    fn serve_stream<'a>(&'a self, cell: CellId, stream: GuestStream) -> BoxFuture<'a, ()> {
        match &self.network {
            Some(network) => network.serve_stream(cell, stream),
            None => Box::pin(async move { drop(stream) }),
        }
    }

    fn report_name(&self, cell: CellId, name: UnknownName, traffic: &SessionTraffic) {
        if let Some(network) = &self.network {
            network.report_name(cell, name, traffic);
        }
    }
}

/// Warns the person of tools that changed and are used all the same.
pub(super) fn print_change_warnings(broker: &Broker) {
    for warning in broker.servers().change_warnings() {
        print_remark(format!("warning: {}", escape_control(&warning)));
    }
}

/// The scope of the user at the command line.
pub(super) fn local_scope() -> CallScope {
    CallScope::new(Principal("local".into()), format!("cli-{}", std::process::id()))
}
