//! Processes that have ended: which of them ran a cell, and what their end means for it.

use std::io;

use cove_protocol::{Language, Outcome};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::{By, Runner};
use crate::interpreter::{Interpreter, Received};

impl Runner {
    pub(super) fn drain_child_signals(&self) {
        let mut buffer = [0u8; 64];
        while matches!(rustix::io::read(&self.children_ended, &mut buffer), Ok(count) if count > 0) {}
    }

    /// This process inherits every orphan of the sandbox.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.ended(pid, status)?;
        }
        Ok(())
    }

    pub(super) fn wait_for_end(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get(&language) else { return Ok(()) };
        let pid = interpreter.process().pid();
        match rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty())) {
            Ok(Some((pid, status))) => self.ended(pid, status),
            // Not a child of ours, or not yet: it was killed all the same.
            Ok(None) | Err(_) => {
                let outcome = self.killed(Signal::KILL.as_raw());
                self.gone(language, outcome)
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> io::Result<()> {
        if self.cell.as_ref().is_some_and(|cell| matches!(cell.by, By::Program(it) if it.pid() == pid)) {
            let outcome = self.outcome(status);
            return self.finish(outcome);
        }
        let is_it = |(&language, found): (&Language, &Interpreter)| {
            (found.process().pid() == pid).then_some(language)
        };
        let Some(language) = self.interpreters.iter().find_map(is_it) else { return Ok(()) };
        // What it said in its last moment counts, and that may be where it has moved to.
        if let Some(interpreter) = self.interpreters.get_mut(&language) {
            while interpreter.receive() == Received::Some {}
        }
        self.heed(language)?;
        if self.interpreters.get(&language).is_some_and(|interpreter| interpreter.process().pid() != pid) {
            return Ok(());
        }
        let outcome = self.outcome(status);
        self.gone(language, outcome)
    }

    fn outcome(&mut self, status: WaitStatus) -> Outcome {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Outcome::InterpreterExited { code },
            (None, signal) => self.killed(signal.unwrap_or(0)),
        }
    }

    /// Who was killed for memory before a cell is not this cell's.
    pub(super) fn forget_kills(&mut self) {
        self.memory.has_killed();
    }

    /// The kernel ends with this signal what has too much memory, and so may anybody else.
    fn killed(&mut self, signal: i32) -> Outcome {
        let out_of_memory = if signal == Signal::KILL.as_raw() { self.memory.has_killed() } else { None };
        Outcome::InterpreterKilled { signal, out_of_memory }
    }

    fn gone(&mut self, language: Language, outcome: Outcome) -> io::Result<()> {
        self.interpreters.remove(&language);
        match &self.cell {
            Some(cell) if cell.is_of(language) => self.finish(outcome),
            _ => Ok(()),
        }
    }
}
