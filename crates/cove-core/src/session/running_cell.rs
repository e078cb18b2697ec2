//! The running cell: which messages its runner may send, the messages that wait to be sent to it, and when it is
//! stopped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use cove_protocol::limits::{MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{CellId, CellOutcome, OutputStream, ToRunner};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::KILL_TIMEOUT;
use super::calls::CellCalls;
use super::cell::{CellProcess, StopReason};
use crate::link::{LinkError, encode_frame};

/// The running cell. Counts the runner's messages, so that a runner that exceeds its limits is noticed.
pub(super) struct RunningCell {
    pub(super) id: CellId,
    pub(super) process: CellProcess,
    /// Bytes that the runner has sent of standard output and of standard error.
    pub(super) sent_bytes: [u64; 2],
    pub(super) images: usize,
    /// The runner has sent `MemoryKill`.
    pub(super) reports_memory_kill: bool,
    /// Messages that wait for room on the link.
    pub(super) to_send: VecDeque<Vec<u8>>,
    pub(super) calls: CellCalls,
}

impl RunningCell {
    /// `begin` is the first message to the runner.
    pub(super) fn new(id: CellId, process: CellProcess, begin: Vec<u8>, calls: CellCalls) -> Self {
        let to_send = VecDeque::from([begin]);
        Self { id, process, sent_bytes: [0; 2], images: 0, reports_memory_kill: false, to_send, calls }
    }

    /// Queues a message. Fails if it cannot be encoded.
    pub(super) fn send(&mut self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        self.to_send.push_back(encode_frame(message, payload)?);
        Ok(())
    }

    /// True if input may be read for the runner. A runner that asks for input but reads nothing cannot fill `to_send`.
    pub(super) fn accepts_input(&self, input: &SessionInput) -> bool {
        input.is_wanted && self.to_send.is_empty()
    }

    /// Fails unless the output belongs to this cell and continues its stream without a gap.
    pub(super) fn check_output(
        &mut self,
        cell: CellId,
        stream: OutputStream,
        offset: u64,
        count: usize,
    ) -> Result<(), LinkError> {
        let sent = match stream {
            OutputStream::Stdout => &mut self.sent_bytes[0],
            OutputStream::Stderr => &mut self.sent_bytes[1],
        };
        if cell != self.id || offset != *sent {
            return Err(LinkError::Protocol("its output is out of order"));
        }
        *sent += count as u64;
        Ok(())
    }

    /// Fails unless the image belongs to this cell and is within the limits on number and size.
    pub(super) fn check_image(&mut self, cell: CellId, length: usize) -> Result<(), LinkError> {
        self.images += 1;
        if cell != self.id || self.images > MAX_IMAGES || length > MAX_IMAGE {
            return Err(LinkError::Protocol("it shows more than it may"));
        }
        Ok(())
    }

    /// Fails if a program ends as only code can: a program exits, is killed, or cannot be started.
    pub(super) fn check_outcome(&self, outcome: &CellOutcome) -> Result<(), LinkError> {
        match (self.process, outcome) {
            (CellProcess::Interpreter(_), _)
            | (
                _,
                CellOutcome::InterpreterExited { .. }
                | CellOutcome::InterpreterKilled { .. }
                | CellOutcome::Unavailable { .. },
            ) => Ok(()),
            (CellProcess::Program, _) => Err(LinkError::Protocol("it ended a program as only code can end")),
        }
    }
}

/// The steps by which a cell is stopped. It is interrupted twice, which keeps its variables; then its interpreter is
/// killed, which keeps its files; then the sandbox is killed.
///
/// The task that drives the cell is the only user. It sleeps until `next_step_at`, at first the deadline, then calls
/// `advance` and carries out the step that it returns. If the caller cancels the cell, the task calls `stop` instead
/// and sends the first interrupt itself. Either way `stop` sets `stop_reason` once, and the ladder goes on by itself:
/// the second interrupt comes after a third of the grace, the kill of the interpreter after the rest of it, and the end
/// of the sandbox `KILL_TIMEOUT` later. If the runner sends `Done` in between, `stop_reason` makes that end count as
/// stopped.
pub(super) struct StopLadder {
    pub(super) next_step_at: Instant,
    grace: Duration,
    step: StopStep,
    pub(super) stop_reason: Option<StopReason>,
}

#[derive(Clone, Copy)]
pub(super) enum StopStep {
    Interrupt,
    /// Some code does not end at the first interrupt: python's `asyncio.run` only cancels its task.
    InterruptAgain,
    KillInterpreter,
    EndSandbox,
}

impl StopLadder {
    pub(super) fn new(deadline: Instant, grace: Duration) -> Self {
        Self { next_step_at: deadline, grace, step: StopStep::Interrupt, stop_reason: None }
    }

    /// Returns the step to carry out now that `next_step_at` has passed, and schedules the next one.
    pub(super) fn advance(&mut self) -> StopStep {
        let now = self.step;
        match now {
            StopStep::Interrupt => self.stop(StopReason::Deadline),
            StopStep::InterruptAgain => {
                self.next_step_at = Instant::now() + self.grace * 2 / 3;
                self.step = StopStep::KillInterpreter;
            }
            StopStep::KillInterpreter => {
                self.next_step_at = Instant::now() + KILL_TIMEOUT;
                self.step = StopStep::EndSandbox;
            }
            StopStep::EndSandbox => {}
        }
        now
    }

    /// Records why the cell is stopped and schedules the second interrupt. The caller sends the first. Does nothing if
    /// the cell is already being stopped.
    pub(super) fn stop(&mut self, why: StopReason) {
        if self.stop_reason.is_none() {
            self.stop_reason = Some(why);
            self.next_step_at = Instant::now() + self.grace / 3;
            self.step = StopStep::InterruptAgain;
        }
    }
}

/// The standard input of the code, which its cells share.
pub(super) struct SessionInput {
    source: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Set when the runner sends `NeedInput`, cleared when the session queues the `Input` that answers it. A cell may end
    /// meanwhile: the runner does not ask again in the next one.
    is_wanted: bool,
}

impl SessionInput {
    pub(super) fn new(source: Option<Box<dyn AsyncRead + Send + Unpin>>) -> Self {
        Self { source, is_wanted: false }
    }

    /// Fails if the runner already waits for input, or if the session has none.
    pub(super) fn request(&mut self) -> Result<(), LinkError> {
        if self.is_wanted || self.source.is_none() {
            return Err(LinkError::Protocol("it asked for input out of turn"));
        }
        self.is_wanted = true;
        Ok(())
    }

    /// Reads the next piece and returns its length: 0 at the end of the input, or if reading fails. Cancel-safe.
    pub(super) async fn read(&mut self, piece: &mut [u8]) -> usize {
        let count = match &mut self.source {
            Some(source) => Pin::new(source).read(piece).await.unwrap_or(0),
            None => 0,
        };
        self.is_wanted = false;
        count
    }
}
