//! One cell for an agent, of code or of a program: run to its end, collected within bounds, with progress while it runs and an end to it when
//! nobody waits any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_protocol::SessionId;

use super::Server;
use super::caller::Caller;
use super::progress::Latest;
use super::render;
use super::resources::output_id;
use crate::broker::{Outputs, Run, Tell};
use crate::ending::Bounds;
use crate::output::{Collected, Collector, Spool};
use crate::session::registry::{Held, Lifetime, OutputId, Principal, Sessions};
use crate::session::{Cell, CellEnd, Program, Survived};

/// A cell that has ended, and all there is to say of it.
pub(super) struct Ran {
    pub(super) end: CellEnd,
    pub(super) collected: Collected,
    /// Where the rest can be read of what did not fit.
    pub(super) output: Option<Output>,
    pub(super) session: SessionId,
    /// Whether the agent knows the session only from this answer.
    pub(super) must_be_named: bool,
    /// Of its session.
    pub(super) news: Vec<String>,
    pub(super) bounds: Bounds,
    pub(super) took: Duration,
    /// Whether something else than the code and its limits ended it.
    pub(super) cut: Option<Cut>,
}

/// What ended a cell from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    ServerEnds,
    SessionStopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) id: OutputId,
    pub(super) kept: u64,
    pub(super) dropped: u64,
}

/// What a call runs.
pub(super) enum Task {
    Cell(Cell),
    Program(Program),
}

/// What a call wants beside its code.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) must_be_named: bool,
    /// The upstream servers that the code may call. None for all that are granted.
    pub(super) servers: Option<Vec<String>>,
}

fn told_to(latest: &Arc<Latest>) -> Tell {
    let latest = Arc::clone(latest);
    Arc::new(move |words| latest.say(&words))
}

/// Output of earlier cells, for code that asks for it.
struct Kept(Arc<Sessions>);

impl Outputs for Kept {
    fn read(&self, principal: &str, handle: &str) -> Option<String> {
        let spool = self.0.output(&Principal(principal.to_owned()), &output_id(handle)?)?;
        let bytes = spool.read(0, usize::MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Server {
    pub(super) async fn run(&self, held: &Held, task: Task, caller: &Caller, asked: Terms) -> Ran {
        let (timeout, language) = match &task {
            Task::Cell(cell) => (cell.timeout, cell.language.as_str()),
            // Images start an interpreter of what they speak.
            Task::Program(program) => (program.timeout, held.blueprint().speaks.as_str()),
        };
        let bounds = Bounds {
            timeout,
            max_timeout: self.config.cell.max_timeout,
            memory: held.blueprint().policy.limits.memory,
            lasts: held.blueprint().lifetime == Lifetime::Persistent,
        };
        let latest = Arc::new(Latest::default());
        let calls = self.broker.calls(Run {
            principal: caller.principal.0.clone(),
            session: held.id().to_string(),
            narrowed: asked.servers,
            tell: caller.progress.as_ref().map(|_| told_to(&latest)),
            outputs: Some(Arc::new(Kept(Arc::clone(&self.sessions)))),
            metrics: Some(Arc::clone(&self.metrics)),
        });
        let mut collector = Collector::new(self.config.cell.max_output, Some(Spool::new(held.budget())));
        let mut written = 0;
        let start = Instant::now();
        let stop = async {
            tokio::select! {
                () = caller.cancelled.cancelled() => {}
                () = self.ending.cancelled() => {}
                () = held.over().cancelled() => {}
            }
        };
        let show = |shown: crate::session::Shown<'_>| {
            if let crate::session::Shown::Text(_, bytes) = shown {
                written += bytes.len() as u64;
            }
            latest.show(&shown);
            collector.show(shown);
        };
        let run = async {
            match task {
                Task::Cell(cell) => held.run_with(cell, show, stop, calls).await,
                Task::Program(program) => held.run_program(program, show, stop, calls).await,
            }
        };
        let end = tokio::select! {
            end = run => end,
            // Beside the cell, so that a client that does not read cannot hold up its deadline.
            never = caller.tell(&latest) => match never {},
        };
        let took = start.elapsed();
        if end.survived() == Survived::Nothing {
            held.end_is_told();
        }
        self.metrics.cell_ended(language, end.kind(), took.as_secs_f64(), written);
        tracing::info!(
            session = %held.id(),
            principal = caller.principal.0,
            language,
            outcome = end.kind(),
            ms = took.as_millis() as u64,
            bytes = written,
            "cell ended"
        );
        let mut collected = collector.finish();
        let output = collected.spool.take().map(|spool| {
            let (kept, dropped) = (spool.kept(), spool.dropped());
            Output { id: held.keep_output(spool), kept, dropped }
        });
        let stopped = matches!(end, CellEnd::Stopped { .. } | CellEnd::SandboxEnded(_));
        let cut = match stopped {
            true if self.ending.is_cancelled() => Some(Cut::ServerEnds),
            true if held.over().is_cancelled() => Some(Cut::SessionStopped),
            _ => None,
        };
        Ran {
            end,
            collected,
            output,
            session: held.id().clone(),
            must_be_named: asked.must_be_named,
            news: render::news(held),
            bounds,
            took,
            cut,
        }
    }
}
