//! Standard input of the code: a pipe that the runner fills from the host.
//!
//! The runner asks for one piece at a time, so that the host never sends input that there is no room for. While the
//! state is `Idle` the loop polls the pipe for room. Once there is some, `fill` returns true, the state becomes
//! `Asked`, and the loop sends `NeedInput`. The host answers with one `Input`, which `accept` stores in `pending`; the
//! state is `Idle` again, or `Ended` after the last piece. `fill` then writes `pending` to the pipe, and asks again
//! only when all of it is written. After the last piece it closes the pipe, so that the code reads end of file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::StdinSource;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::protocol_error;

/// The pipe and the pieces on their way into it.
pub(crate) struct StdinPipe {
    /// The end that interpreters read: of the pipe, or of `/dev/null`.
    read: OwnedFd,
    /// `None` once the host's input has ended and all of it is in the pipe.
    write: Option<OwnedFd>,
    /// Bytes of the host that are not in the pipe yet.
    pending: Vec<u8>,
    state: StdinState,
}

/// How far the exchange with the host is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StdinState {
    /// The next piece can be asked for when there is room.
    Idle,
    /// The host has been asked and has not answered.
    Asked,
    /// The host has sent its last piece.
    Ended,
}

impl StdinPipe {
    pub(crate) fn new(kind: StdinSource) -> io::Result<Self> {
        match kind {
            StdinSource::Empty => {
                let read = std::fs::File::open("/dev/null")?.into();
                Ok(Self { read, write: None, pending: Vec::new(), state: StdinState::Ended })
            }
            StdinSource::Host => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                // Only this end is non-blocking. Code shares the other end, and expects reads to block.
                rustix::io::ioctl_fionbio(&write, true)?;
                Ok(Self { read, write: Some(write), pending: Vec::new(), state: StdinState::Idle })
            }
        }
    }

    /// Returns a copy of the end that an interpreter or program reads.
    pub(crate) fn for_child(&self) -> io::Result<OwnedFd> {
        self.read.try_clone()
    }

    /// Returns the descriptor to poll for room, if there is anything to write or to ask for.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        let wants = !self.pending.is_empty() || self.state == StdinState::Idle;
        self.write.as_ref().filter(|_| wants).map(|write| write.as_fd())
    }

    /// Fills the pipe, which has room, and returns whether to ask the host for more. Fails if the pipe cannot be
    /// written.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        if let Some(write) = &self.write {
            while !self.pending.is_empty() {
                match rustix::io::write(write, &self.pending) {
                    Ok(count) => drop(self.pending.drain(..count)),
                    Err(Errno::AGAIN) => return Ok(false),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match self.state {
            StdinState::Idle => {
                self.state = StdinState::Asked;
                return Ok(true);
            }
            StdinState::Asked => {}
            StdinState::Ended => self.write = None,
        }
        Ok(false)
    }

    /// Stores the host's answer. Fails if the host was not asked.
    pub(crate) fn accept(&mut self, bytes: Vec<u8>, end: bool) -> io::Result<()> {
        if self.state != StdinState::Asked {
            return Err(protocol_error("the host sent `input` without a `need_input` before it"));
        }
        self.pending = bytes;
        self.state = if end { StdinState::Ended } else { StdinState::Idle };
        if end && self.pending.is_empty() {
            self.write = None;
        }
        Ok(())
    }
}
