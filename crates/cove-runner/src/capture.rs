//! The two pipes that everything inside the sandbox writes to: one for standard output, one for standard error,
//! shared by all interpreters and whatever they start, and open as long as the sandbox lives. So a process that keeps
//! writing after its cell has ended holds nobody up: what it writes waits in the pipe for the next cell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::Stream;
use cove_protocol::limits::CHUNK;
use rustix::pipe::{PipeFlags, pipe_with};

pub(crate) struct Capture {
    stream: Stream,
    read: OwnedFd,
    write: OwnedFd,
}

impl Capture {
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { stream, read, write })
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// The end that an interpreter gets.
    pub(crate) fn for_child(&self) -> io::Result<OwnedFd> {
        self.write.try_clone()
    }

    /// Bytes that are in the pipe now. Whoever has written before saying "done" has written these.
    pub(crate) fn waiting(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(&self.read)? as usize)
    }

    /// Reads up to `most` bytes. Only called when there is something to read, so it never blocks.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8; CHUNK], most: usize) -> io::Result<&'a [u8]> {
        let most = most.min(CHUNK);
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&self.read, &mut buffer[..most]))?;
        Ok(&buffer[..count])
    }
}
