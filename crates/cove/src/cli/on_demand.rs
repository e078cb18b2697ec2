//! A broker for code that a person runs: opened when the code first asks for something, because most code never does and
//! nobody should wait for files that are not needed.

use std::sync::Arc;

use cove_protocol::CellId;
use tokio::sync::OnceCell;

use crate::backend::Pending;
use crate::broker::{Broker, Run};
use crate::config::{Config, Surroundings};
use crate::server::manual;
use crate::session::Calls;

pub(super) struct OnDemand {
    config: Config,
    around: Surroundings,
    opened: OnceCell<(Arc<Broker>, Arc<dyn Calls>)>,
}

impl OnDemand {
    pub(super) fn new(config: &Config, around: Surroundings) -> Arc<Self> {
        Arc::new(Self { config: config.clone(), around, opened: OnceCell::new() })
    }

    async fn opened(&self) -> &(Arc<Broker>, Arc<dyn Calls>) {
        self.opened
            .get_or_init(|| async {
                let broker = Broker::open(&self.config, &self.around, manual::text(&self.config));
                let calls = broker.calls(person());
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

impl Calls for OnDemand {
    fn answer<'a>(&'a self, cell: CellId, request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        Box::pin(async move { self.opened().await.1.answer(cell, request).await })
    }
}

/// Whoever sits at the command line.
pub(super) fn person() -> Run {
    let session = format!("cli-{}", std::process::id());
    Run { principal: "local".into(), session, narrowed: None, tell: None, outputs: None, metrics: None }
}
