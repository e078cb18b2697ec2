//! A broker for code that a person runs. It opens at the code's first request: most code makes none, and should not
//! wait for configuration files that it does not need.

use std::sync::Arc;

use tokio::sync::OnceCell;

use crate::config::Config;
use cove_core::BoxFuture;
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::Principal;
use cove_core::session::{CallHandler, CallingCell};
use cove_server::manual;
use cove_upstream::broker::{Broker, CallScope};

pub(super) struct LazyBroker {
    config: Config,
    env: ProcessEnv,
    opened: OnceCell<(Arc<Broker>, Arc<dyn CallHandler>)>,
}

impl LazyBroker {
    pub(super) fn new(config: &Config, env: ProcessEnv) -> Arc<Self> {
        Arc::new(Self { config: config.clone(), env, opened: OnceCell::new() })
    }

    async fn open(&self) -> &(Arc<Broker>, Arc<dyn CallHandler>) {
        self.opened
            .get_or_init(|| async {
                let broker = Broker::open(&self.config.broker(), &self.env, manual::text(&self.config.server_setup()));
                let calls = broker.call_handler(local_scope());
                (broker, calls)
            })
            .await
    }

    /// Stops the servers that were started.
    pub(super) async fn close(&self) {
        if let Some((broker, _)) = self.opened.get() {
            broker.close().await;
        }
    }
}

impl CallHandler for LazyBroker {
    fn answer<'a>(&'a self, cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move { self.open().await.1.answer(cell, request).await })
    }
}

/// The scope of the user at the command line.
pub(super) fn local_scope() -> CallScope {
    CallScope::new(Principal("local".into()), format!("cli-{}", std::process::id()))
}
