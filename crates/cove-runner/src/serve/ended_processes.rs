//! Processes that have ended: finds out which of them ran a cell, and what their end means for it.

use std::io;

use cove_protocol::{CellOutcome, FromRunner, Language};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, test_kill_process};

use super::{CellExecutor, Runner, RunningCell};
use crate::interpreter::{InterpreterProcess, ShimRead};

/// The status with which an `sh` ends when an interrupt has stopped its cell.
const SH_INTERRUPTED: i32 = 130;

impl Runner {
    /// Reaps every child that has ended. This process inherits all orphans of the sandbox, so most are none of its own.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        // The pipe of SIGCHLD is emptied first, or a child that ends in between would go unnoticed.
        let mut buffer = [0u8; 64];
        while matches!(rustix::io::read(&self.children_ended, &mut buffer), Ok(count) if count > 0) {}
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.handle_end(pid, status)?;
        }
        let cut_off = |(&language, one): (&Language, &InterpreterProcess)| one.is_cut_off.then_some(language);
        self.interpreters
            .iter()
            .filter_map(cut_off)
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|language| self.forget_vanished(language))
    }

    /// Forgets an interpreter that no longer exists although its status never came: it was killed in the moment in which
    /// it moved, and its parent, which was killed too, took the status with it.
    pub(super) fn forget_vanished(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get(&language) else { return Ok(()) };
        if test_kill_process(interpreter.process.pid()) != Err(Errno::SRCH) {
            return Ok(());
        }
        let outcome = self.killed(Signal::KILL.as_raw());
        self.forget_interpreter(language, outcome)
    }

    /// Waits for an interpreter that has just been killed.
    pub(super) fn wait_for_end(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get(&language) else { return Ok(()) };
        let pid = interpreter.process.pid();
        match rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty())) {
            Ok(Some((pid, status))) => self.handle_end(pid, status),
            // A shell that has moved to another process may not be a child of this one yet. It was killed all the same.
            Ok(None) | Err(_) => {
                let outcome = self.killed(Signal::KILL.as_raw());
                self.forget_interpreter(language, outcome)
            }
        }
    }

    /// Ends the cell that this process ran, if it ran one.
    fn handle_end(&mut self, pid: Pid, status: WaitStatus) -> io::Result<()> {
        let is_program = |cell: &RunningCell| matches!(cell.executor, CellExecutor::Program(own) if own.pid() == pid);
        if self.cell.as_ref().is_some_and(is_program) {
            let outcome = self.outcome(status);
            return self.finish(outcome);
        }
        let language_of = |(&language, interpreter): (&Language, &InterpreterProcess)| {
            (interpreter.process.pid() == pid).then_some(language)
        };
        let Some(language) = self.interpreters.iter().find_map(language_of) else { return Ok(()) };
        // Its last messages count. One of them may say that the shell has moved to another process, and lives on.
        if let Some(interpreter) = self.interpreters.get_mut(&language) {
            while interpreter.receive() == ShimRead::Bytes {}
        }
        self.handle_shim_messages(language)?;
        if self.interpreters.get(&language).is_some_and(|interpreter| interpreter.process.pid() != pid) {
            return Ok(());
        }
        let outcome = match self.outcome(status) {
            // An `sh` ends with its cell, and this is the status of both.
            CellOutcome::InterpreterExited { code } if self.has_left_state(language) => match code {
                0 => CellOutcome::Completed {},
                SH_INTERRUPTED if self.cell.as_ref().is_some_and(|cell| cell.interrupted) => {
                    CellOutcome::Interrupted {}
                }
                code => CellOutcome::Exited { code },
            },
            outcome => {
                if language == Language::Sh && self.cell.as_ref().is_some_and(|cell| cell.runs_in(language)) {
                    self.shell_state = None;
                }
                outcome
            }
        };
        self.forget_interpreter(language, outcome)
    }

    fn has_left_state(&self, language: Language) -> bool {
        self.interpreters.get(&language).is_some_and(|interpreter| interpreter.has_left_state)
    }

    fn outcome(&mut self, status: WaitStatus) -> CellOutcome {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => CellOutcome::InterpreterExited { code },
            (None, signal) => self.killed(signal.unwrap_or(0)),
        }
    }

    /// The outcome of a process that a signal has killed. The OOM killer uses SIGKILL, but so may any other process, so
    /// only the kernel's counter can tell.
    fn killed(&mut self, signal: i32) -> CellOutcome {
        let out_of_memory = if signal == Signal::KILL.as_raw() { self.oom_counter.has_killed() } else { None };
        CellOutcome::InterpreterKilled { signal, out_of_memory }
    }

    /// Drops an interpreter that has ended, answers its open question, and ends the cell that it ran.
    fn forget_interpreter(&mut self, language: Language, outcome: CellOutcome) -> io::Result<()> {
        let ended = self.interpreters.remove(&language);
        if let Some(request) = ended.and_then(|mut interpreter| interpreter.question.take()) {
            self.host.push(&FromRunner::Answer { request }, &[])?;
        }
        match &self.cell {
            Some(cell) if cell.runs_in(language) => self.finish(outcome),
            _ => Ok(()),
        }
    }
}
