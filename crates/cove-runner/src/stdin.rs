//! Standard input of the code: a pipe that is filled from the host piece by piece, one piece asked for at a time, so
//! that the host never sends what nobody has room for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::Stdin;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

pub(crate) struct Input {
    /// What interpreters read from: the pipe, or nothing at all.
    read: OwnedFd,
    /// Gone once the host's input has ended and all of it is in the pipe.
    write: Option<OwnedFd>,
    pending: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Asked,
    Ended,
}

impl Input {
    pub(crate) fn new(kind: Stdin) -> io::Result<Self> {
        match kind {
            Stdin::Empty => {
                let read = std::fs::File::open("/dev/null")?.into();
                Ok(Self { read, write: None, pending: Vec::new(), state: State::Ended })
            }
            Stdin::Host => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                Ok(Self { read, write: Some(write), pending: Vec::new(), state: State::Idle })
            }
        }
    }

    pub(crate) fn for_child(&self) -> io::Result<OwnedFd> {
        self.read.try_clone()
    }

    /// What to wait for, if there is anything to write or to ask for.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        let wants = !self.pending.is_empty() || self.state == State::Idle;
        self.write.as_ref().filter(|_| wants).map(|write| write.as_fd())
    }

    /// There is room in the pipe: fills it, and says whether the host should be asked for more.
    pub(crate) fn fill(&mut self) -> io::Result<Ask> {
        if let Some(write) = &self.write {
            while !self.pending.is_empty() {
                match rustix::io::write(write, &self.pending) {
                    Ok(count) => drop(self.pending.drain(..count)),
                    Err(Errno::AGAIN) => return Ok(Ask::No),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        match self.state {
            State::Idle => {
                self.state = State::Asked;
                Ok(Ask::Yes)
            }
            State::Asked => Ok(Ask::No),
            State::Ended => {
                self.write = None;
                Ok(Ask::No)
            }
        }
    }

    /// The host's answer. One that was not asked for breaks the protocol.
    pub(crate) fn answer(&mut self, bytes: Vec<u8>, end: bool) -> Result<(), Unasked> {
        if self.state != State::Asked {
            return Err(Unasked);
        }
        self.pending = bytes;
        self.state = if end { State::Ended } else { State::Idle };
        if end && self.pending.is_empty() {
            self.write = None;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Yes,
    No,
}

#[derive(Debug)]
pub(crate) struct Unasked;
