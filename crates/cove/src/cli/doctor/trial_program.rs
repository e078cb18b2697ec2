//! Runs the doctor's own programs in a session.

use std::time::Duration;

use cove_protocol::Language;

use cove_core::output::OutputCollector;
use cove_core::session::{Cell, CellEnd, Session};

/// Limit for each stream of a program. The doctor's programs write far less.
const MAX_KEPT_OUTPUT: usize = 64 * 1024;

/// The output of a program, and how it ended.
pub(super) struct TrialResult {
    pub(super) output: String,
    pub(super) errors: String,
    pub(super) end: CellEnd,
}

/// Runs one program to its end.
pub(super) async fn run_program(
    session: &Session,
    language: Language,
    code: &str,
    args: Vec<String>,
    timeout: Duration,
) -> TrialResult {
    let cell =
        Cell { language, name: "doctor".into(), code: code.into(), args, timeout, grace: Duration::from_secs(1) };
    let mut collector = OutputCollector::new(MAX_KEPT_OUTPUT, None);
    let end = session.run(cell, |shown| collector.push(shown), std::future::pending()).await;
    let collected = collector.finish();
    TrialResult { output: collected.stdout.text, errors: collected.stderr.text, end }
}

impl TrialResult {
    /// Describes how the program ended, for a check that expected something else.
    pub(super) fn describe_end(&self) -> String {
        let last = self.errors.trim().lines().next_back().unwrap_or_default();
        match (&self.end, last) {
            (CellEnd::SandboxEnded(ending), _) => {
                format!("the sandbox {}", cove_core::session::cell::describe_end(ending))
            }
            (end, "") => format!("the program ended as `{}`", end.kind()),
            (end, last) => format!("the program ended as `{}`: {last}", end.kind()),
        }
    }
}
