//! One connection of code that makes calls: splits its bytes into requests, and writes replies as fast as the code
//! reads them. This file bounds what one connection buffers; `calls` decides how connections share the rest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cove_protocol::CallId;
use cove_protocol::limits::{CHUNK, FREE_REPLY, MAX_CALL};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// A request of at most this length may arrive without a reservation. It is so small that all connections together
/// cannot fill the runner with unfinished requests.
const SHORT: usize = CHUNK;
/// The runner reads no more requests of a connection that has left more bytes than this unread.
const MAX_UNREAD: usize = CHUNK;
const LENGTH: usize = 4;

/// A connection, with the bytes that wait in it.
pub(super) struct CallConnection {
    socket: OwnedFd,
    /// Bytes of the code that are not a request yet, or one that waits.
    input: Vec<u8>,
    /// The code will write no more.
    ended: bool,
    output: VecDeque<ReplyPiece>,
    /// Bytes in `output` that are not written yet.
    unread: usize,
    /// Bytes that the router has reserved for a long request of this connection. Only the router sets it.
    pub(super) reserved: usize,
    /// A whole request waits for its turn, and no input is read meanwhile. Only the router sets it.
    pub(super) is_held: bool,
    /// Calls of this connection that the host has not answered. Only the router sets it.
    pub(super) open_calls: usize,
}

/// Bytes for the code. Those before `from` have been written, or are not meant for it.
struct ReplyPiece {
    bytes: Vec<u8>,
    from: usize,
    /// The long reply whose last piece this is. The host waits for a `Taken` for it.
    last_of: Option<CallId>,
}

/// What the beginning of the input is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// Less than a request.
    Partial,
    /// The beginning of a request of this length, which needs a reservation.
    Long(usize),
    /// A whole request of this length.
    Whole(usize),
    /// A length that no request can have.
    BadLength(usize),
}

/// The connection is broken.
#[derive(Debug)]
pub(super) struct ConnectionLost;

impl CallConnection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            ended: false,
            output: VecDeque::new(),
            unread: 0,
            reserved: 0,
            is_held: false,
            open_calls: 0,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns what to poll for. `poll` always reports that the other side is gone.
    pub(super) fn wanted_events(&self) -> PollFlags {
        let lacks_room = matches!(self.next(), NextRequest::Long(length) if length > self.reserved);
        let may_read = !self.ended && !self.is_held && !lacks_room && !self.is_behind();
        let read = if may_read { PollFlags::IN } else { PollFlags::empty() };
        let write = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        read | write
    }

    /// Reads once: code that never stops writing must not block the runner. Fails if the connection is broken.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<(), ConnectionLost> {
        match rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count)
        }) {
            Ok(0) => self.ended = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN) => {}
            Err(_) => return Err(ConnectionLost),
        }
        Ok(())
    }

    /// Returns what the beginning of the input is.
    pub(super) fn next(&self) -> NextRequest {
        let Some(length) = self.input.first_chunk::<LENGTH>() else { return NextRequest::Partial };
        let length = u32::from_be_bytes(*length) as usize;
        match length {
            0 => NextRequest::BadLength(0),
            _ if length > MAX_CALL => NextRequest::BadLength(length),
            _ if self.input.len() >= LENGTH + length => NextRequest::Whole(length),
            _ if length > SHORT => NextRequest::Long(length),
            _ => NextRequest::Partial,
        }
    }

    /// Returns the request at the beginning, which must be whole.
    pub(super) fn request(&self, length: usize) -> &[u8] {
        &self.input[LENGTH..LENGTH + length]
    }

    /// Removes the request at the beginning, which must be whole, and returns it.
    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.input.split_off(LENGTH + length);
        let mut request = std::mem::replace(&mut self.input, rest);
        request.drain(..LENGTH);
        request
    }

    /// Returns whether the code has left too much unread.
    pub(super) fn is_behind(&self) -> bool {
        self.unread > MAX_UNREAD
    }

    /// Returns whether neither a request nor a reply can follow.
    pub(super) fn is_finished(&self) -> bool {
        self.ended && !self.is_held && self.open_calls == 0 && self.output.is_empty()
    }

    /// Returns whether the code has closed its side for writing.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Queues a reply: an object without an id, and the id that the code gave its request. `call` is set for a reply of
    /// the host, and reported as taken if the reply is long.
    pub(super) fn reply(&mut self, id: &str, object: Vec<u8>, call: Option<CallId>) {
        let open = format!("{{\"id\":{id},");
        // The object without the brace that it begins with.
        let length = open.len() + object.len() - 1;
        let mut bytes = (length as u32).to_be_bytes().to_vec();
        bytes.extend(open.as_bytes());
        self.unread += LENGTH + length;
        // A short reply becomes one piece. A long one stays as it is, because copying it only to prepend an id is slow.
        if object.len() <= FREE_REPLY {
            bytes.extend(&object[1..]);
            self.output.push_back(ReplyPiece { bytes, from: 0, last_of: None });
        } else {
            self.output.push_back(ReplyPiece { bytes, from: 0, last_of: None });
            self.output.push_back(ReplyPiece { bytes: object, from: 1, last_of: call });
        }
    }

    /// Writes as much as there is room for, and adds the long replies that are written whole to `taken`. Fails if the
    /// connection is broken.
    pub(super) fn flush(&mut self, taken: &mut Vec<CallId>) -> Result<(), ConnectionLost> {
        while let Some(piece) = self.output.front_mut() {
            let rest = &piece.bytes[piece.from..];
            // NOSIGNAL, because a closed connection must not end the runner.
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
                Err(_) => return Err(ConnectionLost),
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.input.len() + self.unread
    }

    /// Returns the long replies that the code has not read whole.
    pub(super) fn unread_replies(&self) -> impl Iterator<Item = CallId> {
        self.output.iter().filter_map(|piece| piece.last_of)
    }
}
