//! Waits for servers to start. Such a wait does not count against the cell that makes the call: its clock stands still
//! until the server runs or has failed, which takes at most the server's `start_timeout`. The pool starts a server in a
//! task of its own, so the start goes on when the call is cancelled, and a later call joins it.

use std::convert::Infallible;
use std::time::Duration;

use cove_core::session::CallingCell;

use super::server_registry::ListFreshness;
use super::{Broker, CallScope};
use crate::pool::UpstreamError;

const REPORT_INTERVAL: Duration = Duration::from_secs(1);

impl Broker {
    /// Returns when a server runs. Fails if it does not start.
    pub(super) async fn wait_for_start(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
    ) -> Result<(), UpstreamError> {
        let upstreams = self.servers.upstreams();
        // The shared instance of an isolated server only lists the tools, once after each start of Cove.
        let needs_shared = !upstreams.is_isolated(server) || !self.servers.is_fresh(server);
        let is_running = !needs_shared || upstreams.is_running(server);
        if is_running && upstreams.is_running_for(server, &run.principal) {
            return Ok(());
        }
        let _pause = cell.clock.pause();
        let start = async {
            if needs_shared {
                upstreams.start(server).await?;
            }
            upstreams.start_for(server, &run.principal).await
        };
        tokio::select! {
            started = start => started,
            never = self.report_starts(run, |starting| starting == server) => match never {},
        }
    }

    /// Makes sure that the catalog has the tools of a server. Fails if the server cannot be listed and a known list is
    /// not enough.
    pub(super) async fn ensure_listed(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
        need: ListFreshness,
    ) -> Result<(), UpstreamError> {
        if self.servers.must_ask(server, need) {
            let started = self.wait_for_start(run, cell, server).await;
            started.inspect_err(|error| self.servers.record_failure(server, error))?;
        }
        self.servers.ensure_listed(server, need).await
    }

    /// Asks a server that was just started for its tools, if a person wants to know about changes. The time counts: a
    /// list that never ends must not keep the cell from ending.
    pub(super) async fn list_after_start(&self, server: &str) -> Result<(), UpstreamError> {
        self.servers.list_after_start(server).await
    }

    /// Reports every second which of the servers that `is_wanted` accepts are starting, until it is dropped.
    pub(super) async fn report_starts(&self, run: &CallScope, is_wanted: impl Fn(&str) -> bool) -> Infallible {
        let Some(tell) = &run.on_status else { return std::future::pending().await };
        loop {
            let mut starting = self.servers.upstreams().starting();
            starting.retain(|(server, _)| is_wanted(server));
            if let Some(longest) = starting.iter().map(|(_, since)| since.elapsed()).max() {
                let names: Vec<String> = starting.into_iter().map(|(server, _)| server).collect();
                tell(format!("starting {}: {} s", names.join(", "), longest.as_secs()));
            }
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }
}
