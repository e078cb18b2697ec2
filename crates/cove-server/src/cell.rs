//! Runs one cell or one program for an agent: collects its output within bounds, reports progress while it runs, and
//! stops it when the client no longer waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_protocol::SessionId;

use super::Server;
use super::caller::ToolCaller;
use super::progress::LatestLine;
use super::resources::output_id;
use super::result::session_notices;
use cove_core::output::{CellOutput, CollectedOutput, OutputCollector, Spool};
use cove_core::policy::{EffectiveLimits, SessionLifetime};
use cove_core::session::registry::{OutputId, Principal, SessionLease, SessionRegistry};
use cove_core::session::{CallHandler, CellEnd, CellProcess, CellRequest, SurvivingState};
use cove_egress::{CellNetwork, NetworkCaller};
use cove_upstream::broker::{CallScope, CellSubscriptions, SavedOutputs, StatusCallback};
use cove_upstream::pool::questions::RunQuestions;

/// A cell that has ended, and everything to report about it.
pub(super) struct CellReport {
    pub(super) end: CellEnd,
    pub(super) collected: CollectedOutput,
    /// The full output, if it did not fit.
    pub(super) output: Option<SpooledOutput>,
    pub(super) session: SessionId,
    /// True if the agent learns the session's id only from this answer.
    pub(super) must_report_id: bool,
    /// Notices about the session.
    pub(super) notices: Vec<String>,
    pub(super) bounds: EffectiveLimits,
    pub(super) duration: Duration,
    /// Set if something other than the code and its limits ended the cell.
    pub(super) cut_reason: Option<CutReason>,
}

/// What ended a cell from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutReason {
    ServerStopping,
    SessionStopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpooledOutput {
    pub(super) id: OutputId,
    pub(super) kept: u64,
    pub(super) dropped: u64,
}

fn progress_callback(latest: &Arc<LatestLine>) -> StatusCallback {
    let latest = Arc::clone(latest);
    Arc::new(move |words| latest.set_message(&words))
}

/// Output of earlier cells, for code that asks for it.
struct StoredOutputs(Arc<SessionRegistry>);

impl SavedOutputs for StoredOutputs {
    fn read(&self, principal: &Principal, handle: &str) -> Option<String> {
        let spool = self.0.find_output(principal, &output_id(handle)?)?;
        let bytes = spool.read(0, usize::MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Server {
    /// Runs a cell to its end and returns the report. Stops it if the caller cancels, the server shuts down or the
    /// session is removed. `servers` are the upstream servers that the code may call; `None` means all that are granted.
    pub(super) async fn run_cell(
        &self,
        lease: &SessionLease,
        request: CellRequest,
        caller: &ToolCaller,
        servers: Option<Vec<String>>,
    ) -> CellReport {
        let blueprint = lease.blueprint();
        let language = match request.process() {
            CellProcess::Interpreter(language) => language.as_str(),
            // An image starts an interpreter of its line language.
            CellProcess::Program => blueprint.line_language.as_str(),
        };
        let bounds = EffectiveLimits {
            timeout: request.time_limits().0,
            max_timeout: self.config.cell.max_timeout,
            memory: blueprint.policy.limits.memory,
            workspace: blueprint.policy.limits.workspace,
            tmp: blueprint.policy.limits.tmp,
            session_persists: blueprint.lifetime == SessionLifetime::Persistent,
        };
        let latest = Arc::new(LatestLine::default());
        let calls = self.broker.call_handler(CallScope {
            principal: caller.principal.clone(),
            session: lease.id().to_string(),
            requested_servers: servers,
            on_status: caller.progress.as_ref().map(|_| progress_callback(&latest)),
            outputs: Some(Arc::new(StoredOutputs(Arc::clone(&self.sessions)))),
            meter: Some(Arc::clone(&self.metrics) as _),
            subscriptions: CellSubscriptions::default(),
            questions: match caller.is_local {
                true => RunQuestions::of_local_person(caller.questions.clone()),
                false => RunQuestions::new(caller.questions.clone()),
            },
        });
        let network = self.gateway.as_ref().map(|gateway| {
            let (principal, session) = (caller.principal.0.clone(), lease.id().to_string());
            let caller = NetworkCaller { principal, session, image: blueprint.policy.image.clone() };
            CellNetwork::new(Arc::clone(gateway), caller, Arc::clone(&calls))
        });
        let calls = network.clone().map_or(calls, |network| network as Arc<dyn CallHandler>);
        let mut collector = OutputCollector::new(self.config.cell.max_output, Some(Spool::new(lease.budget())));
        let mut written = 0;
        let start = Instant::now();
        let stop = async {
            tokio::select! {
                () = caller.cancellation.cancelled() => {}
                () = self.shutdown.cancelled() => {}
                () = lease.removed().cancelled() => {}
            }
        };
        let show = |shown: CellOutput<'_>| {
            if let CellOutput::Text(_, bytes) = shown {
                written += bytes.len() as u64;
            }
            latest.push(&shown);
            collector.push(shown);
        };
        let end = tokio::select! {
            end = lease.run_with_calls(request, show, stop, calls) => end,
            // Runs beside the cell, so that a client that does not read cannot delay the cell's deadline.
            never = caller.report_progress(&latest) => match never {},
        };
        let took = start.elapsed();
        if end.survived() == SurvivingState::Nothing {
            lease.mark_end_reported();
        }
        self.metrics.cell_ended(language, end.kind(), took.as_secs_f64(), written);
        tracing::info!(
            session = %lease.id(),
            principal = caller.principal.0,
            language,
            outcome = end.kind(),
            ms = took.as_millis() as u64,
            bytes = written,
            "cell ended"
        );
        let refusals = network.map(|network| network.take_notes()).unwrap_or_default();
        let mut collected = collector.finish();
        let output = collected.spool.take().map(|spool| {
            let (kept, dropped) = (spool.kept_bytes(), spool.dropped_bytes());
            SpooledOutput { id: lease.keep_output(spool), kept, dropped }
        });
        let stopped = matches!(end, CellEnd::Stopped { .. } | CellEnd::SandboxEnded(_));
        let cut = match stopped {
            true if self.shutdown.is_cancelled() => Some(CutReason::ServerStopping),
            true if lease.removed().is_cancelled() => Some(CutReason::SessionStopped),
            _ => None,
        };
        CellReport {
            end,
            collected,
            output,
            session: lease.id().clone(),
            must_report_id: false,
            notices: session_notices(lease).into_iter().chain(refusals).collect(),
            bounds,
            duration: took,
            cut_reason: cut,
        }
    }
}
