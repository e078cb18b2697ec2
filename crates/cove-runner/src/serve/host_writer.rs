//! Writes messages to the host. Messages of one moment leave in one write, because every write wakes each process
//! between here and the host, and for a container there are several.

use std::io;

use cove_protocol::limits::CHUNK;
use cove_protocol::{FromRunner, encode};

/// Messages that are encoded but not written yet.
#[derive(Default)]
pub(super) struct HostWriter {
    bytes: Vec<u8>,
    /// `may_wait` has held back these bytes once already.
    has_waited: bool,
}

impl HostWriter {
    /// Adds a message. Writes at once only if much is waiting already. Fails if the message cannot be encoded or
    /// written.
    pub(super) fn push(&mut self, message: &FromRunner, payload: &[u8]) -> io::Result<()> {
        encode(message, payload, &mut self.bytes).map_err(io::Error::other)?;
        if self.bytes.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    /// Returns whether there are bytes that may wait for more to join them. They may wait only once: code that always
    /// has something to send must not delay everything else forever.
    pub(super) fn may_wait(&mut self) -> bool {
        let may = !self.bytes.is_empty() && !self.has_waited;
        self.has_waited = may;
        may
    }

    /// Writes everything. Blocks until the host has read enough; this is how a slow host slows down the code.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut rest = self.bytes.as_slice();
        while !rest.is_empty() {
            let count = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), rest))?;
            rest = &rest[count..];
        }
        self.has_waited = false;
        self.bytes.clear();
        // A large file must not occupy memory for the rest of the session.
        self.bytes.shrink_to(2 * CHUNK);
        Ok(())
    }
}
