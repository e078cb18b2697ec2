//! One connection of code that calls: cuts requests out of what it writes, and hands it replies as fast as it reads
//! them. Both sides are bounded here; who may have how much of what is shared is for `calls` to say.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::CallId;
use cove_protocol::limits::{CHUNK, FREE_REPLY, MAX_CALL};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// A request up to this long may arrive without leave: so many connections cannot fill the runner with halves.
const SHORT: usize = CHUNK;
/// Code that has left so much unread is not listened to until it reads.
const MAX_UNREAD: usize = CHUNK;
const LENGTH: usize = 4;

pub(super) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    /// It will write no more.
    ended: bool,
    output: VecDeque<Piece>,
    /// Bytes in `output` that are still to be written.
    unread: usize,
    /// How much of what all connections may have on its way is this one's, for a long request.
    pub(super) leave: usize,
    /// A whole request waits for its turn.
    pub(super) held: bool,
    /// Requests of this connection that the host has not answered.
    pub(super) open: usize,
}

/// Bytes for the code; those before `from` are written or not for it.
struct Piece {
    bytes: Vec<u8>,
    from: usize,
    /// The reply whose last piece this is, if the host waits to hear that it is gone.
    last_of: Option<CallId>,
}

/// What the beginning of the input holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing whole yet.
    Part,
    /// The beginning of a request that is this long, for which leave is needed.
    Long(usize),
    Whole(usize),
    /// No request can be of this length.
    Bad(usize),
}

/// The other side cannot be spoken to any more.
#[derive(Debug)]
pub(super) struct Gone;

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            ended: false,
            output: VecDeque::new(),
            unread: 0,
            leave: 0,
            held: false,
            open: 0,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What to wait for; that the other side has gone is always told.
    pub(super) fn wanted(&self) -> PollFlags {
        let lacks_leave = matches!(self.next(), Next::Long(length) if length > self.leave);
        let may_read = !self.ended && !self.held && !lacks_leave && self.unread <= MAX_UNREAD;
        let read = if may_read { PollFlags::IN } else { PollFlags::empty() };
        let write = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        read | write
    }

    /// Reads once: a writer that never stops must not keep the runner.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Gone> {
        match rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count)
        }) {
            Ok(0) => self.ended = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN) => {}
            Err(_) => return Err(Gone),
        }
        Ok(())
    }

    pub(super) fn next(&self) -> Next {
        let Some(length) = self.input.first_chunk::<LENGTH>() else { return Next::Part };
        let length = u32::from_be_bytes(*length) as usize;
        match length {
            0 => Next::Bad(0),
            _ if length > MAX_CALL => Next::Bad(length),
            _ if self.input.len() >= LENGTH + length => Next::Whole(length),
            _ if length > SHORT => Next::Long(length),
            _ => Next::Part,
        }
    }

    /// The request at the beginning, which must be whole.
    pub(super) fn request(&self, length: usize) -> &[u8] {
        &self.input[LENGTH..LENGTH + length]
    }

    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.input.split_off(LENGTH + length);
        let mut request = std::mem::replace(&mut self.input, rest);
        request.drain(..LENGTH);
        request
    }

    pub(super) fn is_listened_to(&self) -> bool {
        self.unread <= MAX_UNREAD
    }

    /// Whether nothing more can come of it.
    pub(super) fn is_over(&self) -> bool {
        self.ended && !self.held && self.open == 0 && self.output.is_empty()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Puts a reply into the queue: an object without its id, and the id that the code gave it. `call` is of a reply of
    /// the host's.
    pub(super) fn reply(&mut self, id: &str, object: Vec<u8>, call: Option<CallId>) {
        let open = format!("{{\"id\":{id},");
        // All but the brace that it begins with.
        let length = open.len() + object.len() - 1;
        let mut bytes = (length as u32).to_be_bytes().to_vec();
        bytes.extend(open.as_bytes());
        self.unread += LENGTH + length;
        if object.len() <= FREE_REPLY {
            bytes.extend(&object[1..]);
            self.output.push_back(Piece { bytes, from: 0, last_of: None });
        } else {
            self.output.push_back(Piece { bytes, from: 0, last_of: None });
            self.output.push_back(Piece { bytes: object, from: 1, last_of: call });
        }
    }

    /// Writes what there is room for. The long replies that are gone with it are added to `taken`.
    pub(super) fn flush(&mut self, taken: &mut Vec<CallId>) -> Result<(), Gone> {
        while let Some(piece) = self.output.front_mut() {
            let rest = &piece.bytes[piece.from..];
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    piece.from += count;
                    self.unread -= count;
                    if piece.from == piece.bytes.len() {
                        taken.extend(piece.last_of);
                        self.output.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.input.len() + self.unread
    }

    /// The long replies that it never read.
    pub(super) fn unread_replies(&self) -> impl Iterator<Item = CallId> {
        self.output.iter().filter_map(|piece| piece.last_of)
    }
}
