//! The two pipes that everything inside the sandbox writes to, one for standard output and one for standard error. All
//! interpreters and their children share them, and they stay open as long as the sandbox lives. So a process that keeps
//! writing after its cell has ended delays no other cell: its output waits in the pipe for the next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::OutputStream;
use rustix::pipe::{PipeFlags, pipe_with};

/// One of the two pipes.
pub(crate) struct OutputCapture {
    stream: OutputStream,
    read: OwnedFd,
    write: OwnedFd,
}

impl OutputCapture {
    pub(crate) fn new(stream: OutputStream) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { stream, read, write })
    }

    pub(crate) fn stream(&self) -> OutputStream {
        self.stream
    }

    /// Returns the descriptor to poll for output.
    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// Returns a copy of the end that an interpreter gets.
    pub(crate) fn for_child(&self) -> io::Result<OwnedFd> {
        self.write.try_clone()
    }

    /// Returns how many bytes are in the pipe now. When a shim reports the end of a cell, all output of that cell is
    /// among them.
    pub(crate) fn waiting(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(&self.read)? as usize)
    }

    /// Reads up to `most` bytes, and no more than the buffer has room for. Call it only when there is something to read,
    /// so that it does not block.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8], most: usize) -> io::Result<&'a [u8]> {
        let most = most.min(buffer.len());
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&self.read, &mut buffer[..most]))?;
        Ok(&buffer[..count])
    }
}
