//! A session in which programs of ours are tried out, and what each left.

use std::time::Duration;

use cove_protocol::Language;

use crate::output::Collector;
use crate::session::{Cell, CellEnd, Session};

/// Of each stream of a program; all of ours say far less.
const KEPT: usize = 64 * 1024;

pub(super) struct Trial {
    session: Session,
}

/// What a program wrote, and how it ended.
pub(super) struct Tried {
    pub(super) output: String,
    pub(super) errors: String,
    pub(super) end: CellEnd,
}

impl Trial {
    pub(super) fn new(session: Session) -> Self {
        Self { session }
    }

    pub(super) fn has(&self, language: Language) -> bool {
        self.session.languages().contains(&language)
    }

    pub(super) async fn run(
        &self,
        language: Language,
        code: &str,
        args: Vec<String>,
        timeout: Duration,
    ) -> Tried {
        let cell = Cell {
            language,
            name: "doctor".into(),
            code: code.into(),
            args,
            timeout,
            grace: Duration::from_secs(1),
        };
        let mut collector = Collector::new(KEPT, None);
        let end = self.session.run(cell, |shown| collector.show(shown), std::future::pending()).await;
        let collected = collector.finish();
        Tried { output: collected.stdout.text, errors: collected.stderr.text, end }
    }

    pub(super) async fn stop(self) {
        self.session.stop().await;
    }
}

impl Tried {
    /// How it ended, for a check that had expected something else.
    pub(super) fn instead(&self) -> String {
        let last = self.errors.trim().lines().next_back().unwrap_or_default();
        match (&self.end, last) {
            (CellEnd::SandboxEnded(ending), _) => {
                format!("the sandbox {}", crate::session::cell::describe_ending(ending))
            }
            (end, "") => format!("the program ended as `{}`", end.kind()),
            (end, last) => format!("the program ended as `{}`: {last}", end.kind()),
        }
    }
}
