//! The cell that runs: what its runner may say of it, what waits to be sent to it, and how much time it has left.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use cove_protocol::limits::{MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{CellId, Outcome, Stream, ToRunner};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::KILL;
use super::calls::UnderWay;
use super::cell::{Stop, Who};
use crate::link::{LinkError, encoded};

/// The cell that runs, and what the runner may say of it.
pub(super) struct Running {
    pub(super) id: CellId,
    pub(super) who: Who,
    pub(super) sent: [u64; 2],
    pub(super) images: usize,
    pub(super) wants_input: bool,
    /// What waits for room on the link.
    pub(super) to_send: VecDeque<Vec<u8>>,
    pub(super) calls: UnderWay,
}

impl Running {
    /// `begin` is what the runner gets to hear first.
    pub(super) fn new(id: CellId, who: Who, begin: Vec<u8>, calls: UnderWay) -> Self {
        let to_send = VecDeque::from([begin]);
        Self { id, who, sent: [0; 2], images: 0, wants_input: false, to_send, calls }
    }

    pub(super) fn send(&mut self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        self.to_send.push_back(encoded(message, payload)?);
        Ok(())
    }

    /// A runner that asks and asks and reads nothing gets no more than fits.
    pub(super) fn may_have_input(&self) -> bool {
        self.wants_input && self.to_send.is_empty()
    }

    pub(super) fn check_output(
        &mut self,
        cell: CellId,
        stream: Stream,
        offset: u64,
        count: usize,
    ) -> Result<(), LinkError> {
        let sent = match stream {
            Stream::Stdout => &mut self.sent[0],
            Stream::Stderr => &mut self.sent[1],
        };
        if cell != self.id || offset != *sent {
            return Err(LinkError::Protocol("its output is out of order"));
        }
        *sent += count as u64;
        Ok(())
    }

    pub(super) fn check_image(&mut self, cell: CellId, length: usize) -> Result<(), LinkError> {
        self.images += 1;
        if cell != self.id || self.images > MAX_IMAGES || length > MAX_IMAGE {
            return Err(LinkError::Protocol("it shows more than it may"));
        }
        Ok(())
    }

    /// A program can only end as processes do.
    pub(super) fn check_outcome(&self, outcome: &Outcome) -> Result<(), LinkError> {
        match (self.who, outcome) {
            (Who::Interpreter(_), _)
            | (
                _,
                Outcome::InterpreterExited { .. }
                | Outcome::InterpreterKilled { .. }
                | Outcome::Unavailable { .. },
            ) => Ok(()),
            (Who::Program, _) => Err(LinkError::Protocol("it ended a program as only code can end")),
        }
    }

    pub(super) fn ask_for_input(&mut self, there_is_some: bool) -> Result<(), LinkError> {
        if self.wants_input || !there_is_some {
            return Err(LinkError::Protocol("it asked for input out of turn"));
        }
        self.wants_input = true;
        Ok(())
    }
}

/// How far a cell has used up its time: first it is interrupted, which keeps its variables, then its interpreter is
/// killed, which keeps its files, then its sandbox.
pub(super) struct Patience {
    pub(super) until: Instant,
    grace: Duration,
    step: Measure,
    pub(super) stopped: Option<Stop>,
}

#[derive(Clone, Copy)]
pub(super) enum Measure {
    Interrupt,
    /// Some code takes the first interrupt for a wish: python's `asyncio.run` only cancels its task at the first.
    Remind,
    Kill,
    End,
}

impl Patience {
    pub(super) fn new(deadline: Instant, grace: Duration) -> Self {
        Self { until: deadline, grace, step: Measure::Interrupt, stopped: None }
    }

    /// The time is up: what to do about it now.
    pub(super) fn pass(&mut self) -> Measure {
        let now = self.step;
        match now {
            Measure::Interrupt => self.stop(Stop::Deadline),
            Measure::Remind => {
                self.until = Instant::now() + self.grace * 2 / 3;
                self.step = Measure::Kill;
            }
            Measure::Kill => {
                self.until = Instant::now() + KILL;
                self.step = Measure::End;
            }
            Measure::End => {}
        }
        now
    }

    /// An interrupt goes out now, another after a third of the grace, and after the rest of it the kill.
    pub(super) fn stop(&mut self, why: Stop) {
        if self.stopped.is_none() {
            self.stopped = Some(why);
            self.until = Instant::now() + self.grace / 3;
            self.step = Measure::Remind;
        }
    }
}

/// The next piece of input; nothing at its end, or when it cannot be read.
pub(super) async fn read_input(
    input: &mut Option<Box<dyn AsyncRead + Send + Unpin>>,
    piece: &mut [u8],
) -> usize {
    match input {
        Some(input) => Pin::new(input).read(piece).await.unwrap_or(0),
        None => 0,
    }
}
