//! What is to be said to the host. Messages of one moment leave together: every write wakes whoever stands between here
//! and the host, and of a container's output those are several.

use std::io;

use cove_protocol::limits::CHUNK;
use cove_protocol::{FromRunner, encode};

#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    has_waited: bool,
}

impl Outbox {
    /// Leaves at once only if much is waiting already.
    pub(super) fn say(&mut self, message: &FromRunner, payload: &[u8]) -> io::Result<()> {
        encode(message, payload, &mut self.bytes).map_err(io::Error::other)?;
        if self.bytes.len() >= CHUNK { self.send() } else { Ok(()) }
    }

    /// Whether something is there that may wait for what comes with it. Only once: code that always has something to
    /// say must not keep everything else from being said.
    pub(super) fn may_wait(&mut self) -> bool {
        let may = !self.bytes.is_empty() && !self.has_waited;
        self.has_waited = may;
        may
    }

    pub(super) fn send(&mut self) -> io::Result<()> {
        let mut rest = self.bytes.as_slice();
        while !rest.is_empty() {
            let count = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), rest))?;
            rest = &rest[count..];
        }
        self.has_waited = false;
        self.bytes.clear();
        // A large file leaves nothing behind.
        self.bytes.shrink_to(2 * CHUNK);
        Ok(())
    }
}
