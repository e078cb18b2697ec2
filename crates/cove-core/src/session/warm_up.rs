//! The start of a session that has no caller yet: its interpreter runs a cell of Cove's own, so that what the first cell of
//! every session does has been done, and imports the modules that the operator named.

use std::time::Duration;

use cove_protocol::Language;

use super::{Cell, CellEnd, Session, SessionOptions, StopReason};
use crate::backend::Backend;
use crate::error::{Failure, display_value};
use crate::policy::Policy;

/// How long the import of one module may take.
pub const IMPORT_TIMEOUT: Duration = Duration::from_secs(30);
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(2);
/// The name of these cells, which tracebacks of a user's code never show.
const CELL_NAME: &str = "<ready>";
/// What `import_code` raises.
const PROCESS_LEFT: &str = "the import has left a process";

/// Why a session could not be made ready.
#[derive(Debug)]
pub enum ReadyStartError {
    Start(Failure),
    /// `stop` resolved before it was ready.
    Stopped,
    /// The session would start without this module.
    Import(PreloadFault),
}

/// A module that cannot be imported ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreloadFault {
    pub module: String,
    /// Completes "the module …".
    pub problem: String,
}

impl Session {
    /// Starts a session, lets its interpreter of `language` run once, and imports the modules in its Python. On failure,
    /// and when `stop` resolves after the start, the sandbox is killed. The modules are names that `policy::readiness::check_module` accepts.
    pub async fn start_ready(
        backend: &dyn Backend,
        policy: &Policy,
        options: SessionOptions,
        language: Language,
        modules: &[String],
        stop: impl Future<Output = ()>,
    ) -> Result<Self, ReadyStartError> {
        let options = SessionOptions { warm_language: Some(language), ..options };
        let session = Self::start(backend, policy, options).await.map_err(ReadyStartError::Start)?;
        let warmed = tokio::select! {
            warmed = session.warm_up(language, modules) => warmed,
            () = stop => Err(ReadyStartError::Stopped),
        };
        if let Err(error) = warmed {
            session.kill().await;
            return Err(error);
        }
        // No cell of a user has run, so no user loses variables if this interpreter ends.
        session.turn.lock().await.live_interpreters.clear();
        Ok(session)
    }

    async fn warm_up(&self, language: Language, modules: &[String]) -> Result<(), ReadyStartError> {
        match self.run_own_cell(language, warm_up_code(language), WARM_UP_TIMEOUT).await {
            CellEnd::Completed { .. } => {}
            // The first caller that runs code gets the same answer.
            CellEnd::Unavailable { .. } => return Ok(()),
            end => {
                let cause = format!("its {language} could not run a cell: {end:?}");
                return Err(ReadyStartError::Start(Failure::operator("could not make a session ready").because(cause)));
            }
        }
        for module in modules {
            let end = self.run_own_cell(Language::Python, &import_code(module), IMPORT_TIMEOUT).await;
            if let Some(problem) = import_problem(end) {
                return Err(ReadyStartError::Import(PreloadFault { module: module.clone(), problem }));
            }
        }
        Ok(())
    }

    async fn run_own_cell(&self, language: Language, code: &str, timeout: Duration) -> CellEnd {
        let (name, code) = (CELL_NAME.to_owned(), code.to_owned());
        let cell = Cell { language, name, code, args: Vec::new(), timeout, grace: GRACE };
        self.run(cell, |_| {}, std::future::pending()).await
    }
}

/// Returns code that has no effect but to make the interpreter load and compile what it needs for any cell.
fn warm_up_code(language: Language) -> &'static str {
    match language {
        // Two lines, so that the shim compiles a syntax tree; the value None is not shown.
        Language::Python => "pass\nNone\n",
        Language::Node => "void 0;\n",
        Language::Bash | Language::Sh => ":\n",
    }
}

/// Returns code that imports a module and leaves no name behind. It fails if the import leaves a process running,
/// which would go on in a session that has another owner by then.
fn import_code(module: &str) -> String {
    format!(
        "def _cove_import(processes):
    before = processes()
    __import__(\"{module}\")
    if processes() - before:
        raise RuntimeError(\"{PROCESS_LEFT}\")
try:
    _cove_import(lambda: {{name for name in __import__(\"os\").listdir(\"/proc\") if name.isdigit()}})
finally:
    del _cove_import
"
    )
}

/// Returns what was wrong with an import, or None if it completed.
fn import_problem(end: CellEnd) -> Option<String> {
    let seconds = IMPORT_TIMEOUT.as_secs();
    Some(match end {
        CellEnd::Completed { .. } => return None,
        CellEnd::Raised { exception, message, .. } if exception == "RuntimeError" && message == PROCESS_LEFT => {
            "starts a process when it is imported".into()
        }
        CellEnd::Raised { exception, message, .. } => {
            format!("cannot be imported: {}", display_value(&format!("{exception}: {message}")))
        }
        CellEnd::Stopped { reason: StopReason::Deadline, .. } => format!("takes longer than {seconds} s to import"),
        CellEnd::OutOfMemory { .. } | CellEnd::AfterMemoryKill { .. } => {
            "needs more memory than the limit `memory` allows".into()
        }
        CellEnd::Exited { .. }
        | CellEnd::InterpreterExited { .. }
        | CellEnd::Killed { .. }
        | CellEnd::SandboxEnded(_) => "ends the interpreter when it is imported".into(),
        CellEnd::Unavailable { reason, .. } => format!("cannot be imported: {reason}"),
        CellEnd::Stopped { .. } | CellEnd::Refused { .. } => "could not be imported".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_code_names_the_module_once() {
        let code = import_code("os.path");
        assert_eq!(code.matches("os.path").count(), 1);
        assert!(code.contains("__import__(\"os.path\")") && code.ends_with("del _cove_import\n"), "{code}");
    }

    #[test]
    fn problems_of_imports_complete_the_sentence() {
        let raised = |exception: &str, message: &str| CellEnd::Raised {
            exception: exception.into(),
            message: message.into(),
            forgotten: false,
        };
        assert_eq!(import_problem(CellEnd::Completed { forgotten: false }), None);
        let problem = import_problem(raised("ModuleNotFoundError", "No module named 'x'\n")).unwrap();
        assert_eq!(problem, "cannot be imported: ModuleNotFoundError: No module named 'x'\\n");
        let problem = import_problem(raised("RuntimeError", PROCESS_LEFT)).unwrap();
        assert_eq!(problem, "starts a process when it is imported");
        let exited = CellEnd::InterpreterExited { language: Language::Python, code: 3 };
        assert_eq!(import_problem(exited).unwrap(), "ends the interpreter when it is imported");
    }
}
